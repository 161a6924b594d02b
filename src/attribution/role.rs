//! What a frame of a stack is to its reader. Allocators and runtimes declare their own code in `rules/`
//! ([`Code`]); what belongs to the C library's interface and to the language stands here.

use super::callpath::plain_name;
use super::rules::{RULES, Rule};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The C library's function around the system call: it never decides who asked.
    Wrapper,
    /// Hands out memory or takes it back. Frames inside of the outermost such are the allocator's own.
    Allocator,
    /// Any other function of the C library.
    Libc,
    Loader,
    /// A managed runtime's, or a sanitizer's.
    Runtime,
    /// Where threads and programs begin, below their own functions.
    Start,
    /// The program's own, and its libraries'. A value that this version does not know, too.
    #[default]
    #[serde(other)]
    Program,
}

/// The code of an allocator, a runtime, a C library, as stacks show it. All by how names begin.
#[derive(Clone, Copy, Debug)]
pub struct Code {
    pub role: Role,
    /// Base names of files: in stripped ones functions have no names.
    pub modules: &'static [&'static str],
    pub functions: &'static [&'static str],
    /// What it puts before `malloc`, `free` and so on.
    pub prefixes: &'static [&'static str],
    /// Functions that run on the thread's stack on behalf of something with a stack of its own, which is not
    /// copied: what called them is not seen.
    pub switches: &'static [&'static str],
    /// What that is called.
    pub on_behalf_of: &'static str,
}

impl Code {
    pub const NONE: Code = Code {
        role: Role::Program,
        modules: &[],
        functions: &[],
        prefixes: &[],
        switches: &[],
        on_behalf_of: "",
    };
}

const WRAPPERS: [&str; 10] =
    ["mmap", "mmap64", "mremap", "munmap", "mprotect", "madvise", "brk", "sbrk", "shmat", "syscall"];
const STARTS: [&str; 5] = ["_start", "__libc_start_call_main", "start_thread", "clone", "clone3"];
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
            declared(name, |code| code.functions)
        }
    };
    function.and_then(of_name).unwrap_or_else(|| role_of_module(module))
}

/// Of a module's functions as far as the module alone tells.
pub fn role_of_module(module: &str) -> Role {
    declared(module, |code| code.modules).unwrap_or_default()
}

/// `mmap`, `__mmap64`, `__GI___mmap`, `__libc_mmap`.
pub fn is_wrapper(name: &str) -> bool {
    let plain = name.trim_start_matches('_');
    let plain = plain.strip_prefix("GI_").unwrap_or(plain).trim_start_matches('_');
    WRAPPERS.contains(&plain.strip_prefix("libc_").unwrap_or(plain))
}

/// `goroutine`, where this function is called on that one's stack and runs on another.
pub fn on_behalf_of(function: &str) -> Option<&'static str> {
    let code = RULES.iter().map(|rule| rule.code()).find(|code| begins(function, code.switches))?;
    Some(code.on_behalf_of)
}

fn is_entry(name: &str) -> bool {
    let prefixes = RULES.iter().flat_map(|rule| rule.code().prefixes);
    let plain = prefixes.chain(&["__"]).fold(name, |name, prefix| name.strip_prefix(prefix).unwrap_or(name));
    // free, free_default, but not freer
    let word = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric());
    ENTRIES.iter().any(|entry| plain.strip_prefix(entry).is_some_and(word)) || plain.starts_with("alloc::")
}

fn declared(name: &str, list: fn(&Code) -> &'static [&'static str]) -> Option<Role> {
    let code = RULES.iter().map(|rule: &&dyn Rule| rule.code());
    code.filter(|code| begins(name, list(code))).map(|code| code.role).next()
}

fn begins(name: &str, with: &[&str]) -> bool {
    with.iter().any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles() {
        let of = |module, name: &'static str| role_of(module, Some(name).filter(|name| !name.is_empty()));
        for (module, name, role) in [
            ("libc.so.6", "__GI___mmap64", Role::Wrapper),
            ("prog", "__mmap", Role::Wrapper),
            ("prog", "mmap_file", Role::Program),
            ("libc.so.6", "__libc_free@@GLIBC_2.2.5", Role::Allocator),
            ("prog", "je_malloc_default", Role::Allocator),
            ("libstdc++.so.6", "operator new(unsigned long)", Role::Allocator),
            ("prog", "freer", Role::Program),
            ("libtcmalloc.so.4", "", Role::Allocator),
            ("libc.so.6", "fopen", Role::Libc),
            ("ld-musl-x86_64.so.1", "", Role::Libc),
            ("ld-linux-x86-64.so.2", "", Role::Loader),
            ("prog", "runtime.mallocgc", Role::Runtime),
            ("libjvm.so", "os::reserve_memory(unsigned long)", Role::Runtime),
            ("libc.so.6", "__libc_start_main_impl", Role::Start),
            ("prog", "_start", Role::Start),
            ("prog", "start", Role::Program),
            ("[unknown]", "", Role::Program),
        ] {
            assert_eq!(of(module, name), role, "{module} {name}");
        }
        assert_eq!(on_behalf_of("runtime.systemstack.abi0"), Some("goroutine"));
        assert_eq!(on_behalf_of("runtime.main"), None);
    }
}
