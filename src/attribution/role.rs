//! What a frame of a stack is to its reader. Allocators and runtimes declare their own code in `rules/`
//! ([`Code`]); what belongs to the C library's interface and to the language is here.

use super::code::{Code, Role, is_wrapper, plain_name};
use super::rules::RULES;
use std::sync::LazyLock;

const STARTS: [&str; 7] =
    ["_start", "__libc_start_call_main", "start_thread", "clone", "clone3", "__clone", "__clone3"];
/// How functions that hand out memory begin, without their prefixes.
const ENTRIES: [&str; 15] = [
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "free",
    "cfree",
    "posix_memalign",
    "aligned_alloc",
    "memalign",
    "valloc",
    "mallocx",
    "rallocx",
    "operator new",
    "operator delete",
    "rust_alloc",
];

/// Of a function in a module; the function's linkage or demangled name.
pub fn role_of(module: &str, function: Option<&str>) -> Role {
    let of_name = |name: &str| {
        let plain = plain_name(name);
        if is_wrapper(plain) {
            Some(Role::Wrapper)
        } else if STARTS.contains(&plain) || plain.starts_with("__libc_start_main") {
            Some(Role::Start)
        } else if is_entry(plain) {
            Some(Role::Allocator)
        } else {
            FUNCTIONS.role_of(name)
        }
    };
    function.and_then(of_name).unwrap_or_else(|| role_of_module(module))
}

/// The role of a module's functions, by the module alone.
pub fn role_of_module(module: &str) -> Role {
    MODULES.role_of(module).unwrap_or_default()
}

/// Of a managed language's functions in a source file: their names say nothing of what native functions are.
pub fn role_of_managed(file: &str, function: Option<&str>) -> Role {
    let own = CODES.iter().any(|code| {
        begins(file, code.own_sources) || function.is_some_and(|name| begins(name, code.own_managed))
    });
    if own { Role::Runtime } else { Role::Program }
}

/// True for code that a runtime made for itself, by its name in generated code.
pub fn is_own_generated(name: &str) -> bool {
    FUNCTIONS.role_of(name).is_some()
}

/// `goroutine`, where this function is called on that one's stack and runs on another.
pub fn on_behalf_of(function: &str) -> Option<&'static str> {
    let code = CODES.iter().find(|code| begins(function, code.switches))?;
    Some(code.on_behalf_of)
}

fn is_entry(name: &str) -> bool {
    let prefixes = CODES.iter().flat_map(|code| code.prefixes);
    let plain = prefixes.chain(&["__"]).fold(name, |name, prefix| name.strip_prefix(prefix).unwrap_or(name));
    // free, free_default, but not freer
    let word = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric());
    ENTRIES.iter().any(|entry| plain.strip_prefix(entry).is_some_and(word)) || plain.starts_with("alloc::")
}

fn begins(name: &str, with: &[&str]) -> bool {
    with.iter().any(|start| name.starts_with(start))
}

/// What all rules declare, in their order: put together once, as a report queries it for each of its frames.
static CODES: LazyLock<Vec<Code>> = LazyLock::new(|| RULES.iter().map(|rule| rule.code()).collect());
static FUNCTIONS: LazyLock<Declared> = LazyLock::new(|| Declared::of(|code| code.functions));
static MODULES: LazyLock<Declared> = LazyLock::new(|| Declared::of(|code| code.modules));

/// How names begin that rules declare, by their first byte: a name is compared with a handful in place of hundreds.
struct Declared(Vec<Vec<(&'static str, Role)>>);

impl Declared {
    fn of(list: fn(&Code) -> &'static [&'static str]) -> Declared {
        let all = || CODES.iter().flat_map(|code| list(code).iter().map(|&start| (start, code.role)));
        let begins = |first: u8, start: &str| start.bytes().next().is_none_or(|byte| byte == first);
        let of = |first: u8| all().filter(|(start, _)| begins(first, start)).collect();
        Declared((0..=u8::MAX).map(of).collect())
    }

    /// Of the first rule that declares it.
    fn role_of(&self, name: &str) -> Option<Role> {
        let starts = self.0.get(usize::from(*name.as_bytes().first()?))?;
        starts.iter().find(|(start, _)| name.starts_with(start)).map(|(_, role)| *role)
    }
}
