//! The tables of docs/architecture.md, held by reading the sources: the core (`model`, `ledger`,
//! `attribution`, `report`, `render`) does no I/O and knows no adapter, adapters know `model` and
//! not each other, and only `app` joins the two. And how tests may be written.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// What a module (a top-level module) may name with `crate::`, besides itself.
enum May {
    Only(&'static [&'static str]),
    Everything,
}

struct Module {
    name: &'static str,
    may: May,
    core: bool,
}

const fn core(name: &'static str, may: &'static [&'static str]) -> Module {
    Module { name, may: May::Only(may), core: true }
}

const fn adapter(name: &'static str) -> Module {
    Module { name, may: May::Only(&["model", "objects", "rights", "sys"]), core: false }
}

const SESSION: &[&str] = &[
    "model",
    "ledger",
    "attribution",
    "touch",
    "report",
    "doctor",
    "capture",
    "procfs",
    "launch",
    "probe",
    "containers",
    "store",
    "objects",
    "rights",
    "sys",
    "unwind",
    "symbolize",
];

const MODULES: &[Module] = &[
    core("model", &[]),
    core("ledger", &["model"]),
    core("attribution", &["model", "ledger"]),
    core("touch", &["model", "ledger"]),
    core("report", &["model", "ledger", "attribution", "touch"]),
    core("compare", &["report"]),
    // Two reports compared.
    core("diff", &["model", "report", "heap"]),
    // What was tried of the kernel -> which backend works, and what would unlock the next.
    core("doctor", &["model"]),
    // Allocations by stack and context: what an allocator hands out.
    core("heap", &["model", "report"]),
    // A live view as data: frames and keys -> what is shown.
    core("top", &["report"]),
    core("render", &["model", "report", "diff", "compare", "doctor", "heap", "top"]),
    adapter("capture"),
    adapter("procfs"),
    // No system calls: it reads what it is given.
    Module { name: "unwind", may: May::Only(&["model", "objects"]), core: false },
    // DWARF is read in a process of its own.
    Module { name: "symbolize", may: May::Only(&["model", "objects", "rights", "sys"]), core: false },
    adapter("launch"),
    // What this user may do here, tried.
    adapter("probe"),
    // Engines, their names, cgroups.
    Module { name: "containers", may: May::Only(&["model", "sys"]), core: false },
    Module { name: "store", may: May::Only(&["model", "sys"]), core: false },
    // Executable files, parsed once for unwinding and for names.
    Module { name: "objects", may: May::Only(&["model", "rights", "sys"]), core: false },
    // Capabilities: those that are the user's own, and those that the program's file lends.
    Module { name: "rights", may: May::Only(&["model", "sys"]), core: false },
    // The kernel's interfaces, each once.
    Module { name: "sys", may: May::Only(&[]), core: false },
    // The command line as plain data: it starts nothing.
    Module {
        name: "cli",
        may: May::Only(&["model", "doctor", "diff", "heap", "top", "render"]),
        core: false,
    },
    // The engine of all that traces, without a command line and without rendering.
    Module { name: "session", may: May::Only(SESSION), core: false },
    Module { name: "app", may: May::Everything, core: false },
    Module { name: "lib", may: May::Everything, core: false },
    Module { name: "main", may: May::Everything, core: false },
];

/// The one file of the core that uses threads: they end before it returns, and its result is the same with any number.
const COMPUTES_IN_THREADS: &str = "attribution/classify.rs";

/// What a core module must not touch: files, network, processes, clocks, threads, the environment …
const FORBIDDEN_IN_CORE: &[&str] = &[
    "std::fs",
    "std::net",
    "std::process",
    "std::env",
    "std::thread",
    "std::os",
    "Instant::now",
    "SystemTime",
    "println!",
    "eprintln!",
    // Drawing into memory is no I/O; the terminal is.
    "crossterm",
    "ratatui::init",
    "ratatui::try_init",
];

/// … nor the crates that do.
const CRATES_OUTSIDE_CORE: &[&str] = &[
    "libc",
    "nix",
    "libbpf_rs",
    "blazesym",
    "framehop",
    "gimli",
    "goblin",
    "memmap2",
    "procfs",
    "clap",
    "rusqlite",
    "rustix",
];

/// Calls of the kernel for which `src/sys` has a function.
const ONLY_IN_SYS: &[&str] = &[
    "libc::syscall",
    "libc::ioctl",
    "ioctl_none",
    "ioctl_read",
    "ioctl_write",
    "libc::poll(",
    "libc::ppoll(",
    "libc::pollfd",
    "PollTimeout",
    " ppoll(",
    "libc::waitid(",
    "clock_gettime",
    "process_vm_readv(",
    "pidfd_open(",
    "perf_event_attr",
];

/// What the names of the kernel's constants begin with.
const KERNEL_PREFIXES: &[&str] = &[
    "ADDR_",
    "AUDIT_ARCH",
    "BPF_",
    "CLONE_",
    "IPC_",
    "KCMP_",
    "MADV_",
    "MAP_",
    "MREMAP_",
    "NR_",
    "PAGE_IS_",
    "PERF_",
    "PF_",
    "PIDFD_",
    "PR_",
    "PROT_",
    "RLIMIT_",
    "SECBIT_",
    "SECCOMP_",
    "SHM_",
    "SI_",
    "SYS_",
    "VM_",
];

/// errno(3), as far as they mean something to vmaudit.
const ERRORS: &[&str] = &[
    "EPERM", "ENOENT", "ESRCH", "EINTR", "EIO", "EAGAIN", "ENOMEM", "EACCES", "EFAULT", "EBUSY", "EEXIST",
    "EINVAL", "ENFILE", "EMFILE", "ENOTTY", "ENOSPC", "ENOSYS", "ENOTSUPP",
];

/// Constants that only resemble the kernel's.
const OWN_CONSTANTS: &[(&str, &str)] = &[
    // The recording's own number for that call, in the file's format.
    ("src/store/op.rs", "MAP_SHADOW_STACK"),
    // Bytes of stack that are sampled.
    ("src/capture/perf/mod.rs", "CLONE_STACK"),
];

/// A source file's text without comments, string contents and trailing test modules.
fn code_of(source: &str) -> String {
    stripped(source, false)
}

/// Without comments and trailing test modules.
fn stripped(source: &str, with_strings: bool) -> String {
    let mut code = String::new();
    let mut lines = source.lines().peekable();
    while let Some(line) = lines.next() {
        if line.trim() == "#[cfg(test)]" {
            match lines.peek() {
                // By convention `mod tests { … }` is the last thing in a file.
                Some(next) if next.contains("mod ") && next.trim_end().ends_with('{') => break,
                _ => {
                    lines.next();
                    continue;
                }
            }
        }
        let mut in_string = false;
        let mut previous = ' ';
        let mut chars = line.chars().peekable();
        while let Some(c) = chars.next() {
            if !in_string && c == '/' && chars.peek() == Some(&'/') {
                break;
            }
            if c == '"' && previous != '\\' && !(previous == '\'' && chars.peek() == Some(&'\'')) {
                in_string = !in_string;
            }
            if !in_string || with_strings {
                code.push(c);
            }
            previous = c;
        }
        code.push('\n');
    }
    code
}

/// The first path segments after a prefix: `{a::b, c}` gives a and c, `a::b` gives a.
fn heads(after: &str) -> BTreeSet<String> {
    let ident = |s: &str| s.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut found = BTreeSet::new();
    match after.strip_prefix('{') {
        None => {
            found.insert(ident(after));
        }
        Some(group) => {
            let mut depth = 0usize;
            let mut item = String::new();
            for c in group.chars() {
                match c {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    ',' if depth == 0 => {
                        found.insert(ident(item.trim()));
                        item.clear();
                        continue;
                    }
                    _ => {}
                }
                item.push(c);
            }
            found.insert(ident(item.trim()));
        }
    }
    found.remove("");
    found
}

/// Modules that `code` names, by `crate::` or by climbing to the crate's root with `super::`.
/// `depth`: how many modules deep the file's module is (src/capture/wire.rs: 2).
fn modules_named(code: &str, depth: usize) -> BTreeSet<String> {
    let mut modules = BTreeSet::new();
    for (at, word) in code.match_indices("crate::") {
        if !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            modules.extend(heads(&code[at + word.len()..]));
        }
    }
    let climb = "super::".repeat(depth);
    for (at, _) in code.match_indices(&climb) {
        let rest = &code[at + climb.len()..];
        if !code[..at].ends_with("super::") && !rest.starts_with("super::") {
            modules.extend(heads(rest));
        }
    }
    modules
}

/// True where all that `code` names of `sys` is its numbers, which make no system call.
fn names_numbers_only(code: &str) -> bool {
    let mut named = code.match_indices("crate::sys");
    let in_a_group = code.contains("crate::{") && code.contains("sys::");
    let is_abi = |rest: &str| rest.starts_with("::abi::") || rest.starts_with("::abi;");
    named.all(|(at, word)| is_abi(&code[at + word.len()..])) && !in_a_group
}

/// True where `word` is in `code` as a path of its own (`libc::`, not `my_libc::`).
fn names_crate(code: &str, word: &str) -> bool {
    let path = format!("{word}::");
    code.match_indices(&path).any(|(at, _)| {
        let before = &code[..at];
        // `crate::procfs::` and `self::` are our own modules, which the import table checks.
        !before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':')
    })
}

fn is_test_file(path: &Path) -> bool {
    let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    stem == "tests" || stem.ends_with("_tests") || path.components().any(|c| c.as_os_str() == "tests")
}

struct SourceFile {
    path: PathBuf,
    module: String,
    depth: usize,
    code: String,
}

fn sources() -> Vec<SourceFile> {
    let root = manifest_dir().join("src");
    let mut files = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let path = entry.expect("directory entry").path();
            let inside = path.strip_prefix(&root).expect("below src");
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") && !is_test_file(inside) {
                let parts: Vec<String> =
                    inside.with_extension("").iter().map(|p| p.to_string_lossy().into_owned()).collect();
                let depth = parts.len() - usize::from(parts.last().is_some_and(|p| p == "mod"));
                let code = code_of(&fs::read_to_string(&path).expect("readable source"));
                files.push(SourceFile { module: parts[0].clone(), depth, code, path });
            }
        }
    }
    assert!(files.len() > 10, "found only {} source files: is the path right?", files.len());
    files
}

#[test]
fn every_module_is_in_the_table() {
    for file in sources() {
        assert!(
            MODULES.iter().any(|module| module.name == file.module),
            "{}: the module `{}` has no row in MODULES; say there what it may import",
            file.path.display(),
            file.module
        );
    }
}

#[test]
fn modules_import_only_what_the_table_allows() {
    let mut wrong = Vec::new();
    for file in sources() {
        let Some(Module { may: May::Only(allowed), .. }) = MODULES.iter().find(|r| r.name == file.module)
        else {
            continue;
        };
        for named in modules_named(&file.code, file.depth) {
            // Only names of modules count: `crate::Thing` re-exported at the root does not occur.
            let is_module = MODULES.iter().any(|r| r.name == named);
            let is_allowed =
                allowed.contains(&named.as_str()) || named == "sys" && names_numbers_only(&file.code);
            if is_module && named != file.module && !is_allowed {
                wrong.push(format!("{} imports `{named}`", file.path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_core_touches_nothing_outside() {
    let mut wrong = Vec::new();
    for file in sources() {
        if !MODULES.iter().any(|r| r.core && r.name == file.module) {
            continue;
        }
        let allowed = |word: &str| word == "std::thread" && file.path.ends_with(COMPUTES_IN_THREADS);
        for word in FORBIDDEN_IN_CORE {
            if file.code.contains(word) && !allowed(word) {
                wrong.push(format!("{} uses {word}", file.path.display()));
            }
        }
        for (at, _) in file.code.match_indices("std::") {
            for head in heads(&file.code[at + "std::".len()..]) {
                let word = format!("std::{head}");
                if FORBIDDEN_IN_CORE.contains(&word.as_str()) && !allowed(&word) {
                    wrong.push(format!("{} uses std::{head}", file.path.display()));
                }
            }
        }
        // What an enum of the core is called on the command line is derived where it is defined.
        let code = file.code.replace("use clap::ValueEnum;", "");
        for name in CRATES_OUTSIDE_CORE {
            if names_crate(&code, name) {
                wrong.push(format!("{} uses the crate {name}", file.path.display()));
            }
        }
    }
    wrong.dedup();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Who needs an ioctl has it from `sys`.
#[test]
fn an_ioctl_is_declared_once() {
    let mut declared: Vec<(String, String)> = Vec::new();
    for file in sources() {
        for (at, _) in file.code.match_indices("ioctl_") {
            let Some((kind, rest)) = file.code[at..].split_once("!(") else { continue };
            if kind.contains(char::is_whitespace) {
                continue;
            }
            let arguments: Vec<&str> =
                rest.split(')').next().unwrap_or_default().split(',').map(str::trim).collect();
            let number = arguments.get(1..3).map(|two| two.join(", ")).unwrap_or_default();
            declared.push((format!("{kind} {number}"), file.path.display().to_string()));
        }
    }
    declared.sort();
    assert!(declared.len() > 3, "found only {declared:?}: is the pattern right?");
    let twice: Vec<String> = declared
        .windows(2)
        .filter(|pair| pair[0].0 == pair[1].0)
        .map(|pair| format!("{}: {} and {}", pair[0].0, pair[0].1, pair[1].1))
        .collect();
    assert!(twice.is_empty(), "{}", twice.join("\n"));
}

#[test]
fn system_calls_are_made_in_one_place() {
    let mut wrong = Vec::new();
    for file in sources().iter().filter(|file| file.module != "sys") {
        for word in ONLY_IN_SYS.iter().filter(|word| file.code.contains(*word)) {
            wrong.push(format!("{} has {word}: src/sys is the place for it", file.path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The constants that `code` gives a number of its own: `const NAME: u64 = 0x20`.
fn numbers_given(code: &str) -> Vec<String> {
    let given = |line: &str| {
        let (_, rest) = line.split_once("const ")?;
        let (name, rest) = rest.split_once(": ")?;
        let (_, value) = rest.split_once(" = ")?;
        value.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit()).then(|| name.to_owned())
    };
    code.lines().filter_map(given).collect()
}

fn is_kernels(name: &str) -> bool {
    KERNEL_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || ERRORS.contains(&name)
        || name.ends_with("_SUPER_MAGIC")
}

/// Numbers of the kernel's headers are those of `src/sys`, or of a crate.
#[test]
fn a_constant_of_the_kernels_is_defined_once() {
    let mut wrong = Vec::new();
    for file in sources().iter().filter(|file| file.module != "sys") {
        for name in numbers_given(&file.code).into_iter().filter(|name| is_kernels(name)) {
            let is_own = |&(path, own): &(&str, &str)| file.path.ends_with(path) && own == name;
            if !OWN_CONSTANTS.iter().any(is_own) {
                wrong.push(format!("{} defines {name}", file.path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A line that gives a number the name of one of the kernel's constants: `4 => "MADV_DONTNEED"`, `(0x10, "MAP_FIXED")`.
fn names_given(line: &str) -> Option<&str> {
    let (before, rest) = line.split_once('"')?;
    let number = before.trim_end().trim_end_matches(['=', '>', ',']).trim_end();
    let digits = number.trim_end_matches(|c: char| c.is_ascii_alphanumeric() || c == '_');
    let has_number = number[digits.len()..].starts_with(|c: char| c.is_ascii_digit());
    let name = rest.split('"').next()?;
    (has_number && number != before.trim_end() && is_kernels(name)).then_some(name)
}

/// Tables of names take the numbers from `src/sys`, too.
#[test]
fn a_name_of_the_kernels_is_given_to_its_own_constant() {
    assert_eq!(names_given("        4 => \"MADV_DONTNEED\","), Some("MADV_DONTNEED"));
    assert_eq!(names_given("    (0x1_0000, \"MAP_NONBLOCK\"),"), Some("MAP_NONBLOCK"));
    assert_eq!(names_given("    12 => (\"ENOMEM\", \"Cannot allocate memory\"),"), None);
    assert_eq!(names_given("    MADV_FREE => \"MADV_FREE\","), None);
    let mut wrong = Vec::new();
    for path in files_below("src", ".rs").into_iter().filter(|path| !is_test_file(path)) {
        for name in stripped(&read(&path), true).lines().filter_map(names_given) {
            wrong.push(format!("{} gives {name} a number", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Parts of names of allocators and runtimes, as words of code and texts have them.
const ALLOCATORS: &[&str] = &[
    "bionic",
    "cpython",
    "glibc",
    "golang",
    "goroutine",
    "gperftools",
    "java",
    "jemalloc",
    "jvm",
    "mimalloc",
    "musl",
    "nodejs",
    "ptmalloc",
    "python",
    "scudo",
    "syscall6",
    "tcmalloc",
    "valgrind",
];

/// Who names one outside of `attribution/rules`, and why. It can only become shorter: what is not needed any
/// more has to go.
const NAMED_OUTSIDE: &[(&str, &[&str], &str)] = &[
    (
        "src/session/snapshots/saved.rs",
        &["glibc"],
        "says what a saved file lacks, before any rule is queried",
    ),
    (
        "src/heap/describe/builtin.rs",
        &["jemalloc", "mimalloc", "musl", "tcmalloc"],
        "lists the files of descriptions next to it",
    ),
    ("src/objects/library.rs", &["glibc"], "the magic of /etc/ld.so.cache"),
    ("src/store/code.rs", &["glibc", "jemalloc"], "names of fields in the recording's format"),
];

/// An allocator or a runtime is a file in `attribution/rules`; other code queries the rules.
#[test]
fn an_allocator_is_named_in_its_rule_only() {
    let mut wrong = Vec::new();
    let mut excused = 0;
    for path in files_below("src", ".rs").into_iter().chain(files_below("src", ".js")) {
        let inside = path.strip_prefix(manifest_dir()).expect("below the root");
        if inside.starts_with("src/attribution/rules") || is_test_file(inside) {
            continue;
        }
        let code = stripped(&read(&path), true).to_lowercase();
        let named: Vec<&str> = ALLOCATORS.iter().filter(|name| code.contains(*name)).copied().collect();
        let excuse = NAMED_OUTSIDE.iter().find(|(file, _, _)| inside == Path::new(file));
        excused += usize::from(excuse.is_some());
        let allowed = excuse.map_or(&[][..], |(_, names, _)| names);
        if named != allowed {
            wrong.push(format!("{} names {named:?}, and may name {allowed:?}", inside.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(excused, NAMED_OUTSIDE.len(), "a file of NAMED_OUTSIDE is gone");
    let rules = files_below("src/attribution/rules", ".rs").iter().map(|file| read(file)).collect::<String>();
    let unknown: Vec<_> =
        ["glibc", "jemalloc", "jvm", "python"].iter().filter(|n| !rules.contains(*n)).collect();
    assert!(unknown.is_empty(), "no rule names {unknown:?}: is the folder right?");
}

/// What the kernel, a file or a user provides may be anything. (`code_of` leaves a string's closing
/// quote.)
#[test]
fn nothing_outside_tests_panics_on_what_it_was_given() {
    let mut wrong = Vec::new();
    for file in sources() {
        for word in [".unwrap()", ".expect(\")", "panic!(", "todo!(", "unimplemented!("] {
            if file.code.contains(word) {
                wrong.push(format!("{} has {word}", file.path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn nothing_in_the_tree_uses_ptrace() {
    for file in sources() {
        // The name of a module of numbers.
        let code = file.code.to_lowercase().replace("linux_raw_sys::ptrace::", "");
        assert!(
            !code.contains("ptrace::") && !code.contains("ptrace_attach") && !code.contains("sys_ptrace("),
            "{} uses ptrace, which stops its target",
            file.path.display()
        );
    }
}

/// The binaries of `tests/`: each is linked with all of vmaudit, which takes long.
const TEST_BINARIES: &[&str] =
    &["app", "architecture", "capture", "containers", "core", "launch", "render", "runtimes"];

/// A field of a struct.
#[derive(PartialEq, Eq, Debug)]
struct Field {
    name: String,
    /// The first word of its type.
    of: String,
}

fn is_identifier(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && word.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// The named fields of the structs in `code`, as rustfmt writes them: one a line.
fn fields_of(code: &str) -> Vec<Field> {
    let mut fields = Vec::new();
    let mut end = None;
    for line in code.lines() {
        let indent = line.len() - line.trim_start().len();
        let words = without_visibility(line.trim());
        match end {
            Some(at) if indent == at && words == "}" => end = None,
            Some(_) => {
                let Some((name, of)) = words.split_once(": ").filter(|(name, _)| is_identifier(name)) else {
                    continue;
                };
                let of = of.trim_start_matches("&'a ").chars().take_while(|c| c.is_alphanumeric()).collect();
                fields.push(Field { name: name.to_string(), of });
            }
            None if words.starts_with("struct ") && words.ends_with('{') => end = Some(indent),
            None => {}
        }
    }
    fields
}

fn without_visibility(line: &str) -> &str {
    let rest = match line.strip_prefix("pub(") {
        Some(rest) => rest.split_once(") ").map_or(rest, |(_, rest)| rest),
        None => line.strip_prefix("pub ").unwrap_or(line),
    };
    rest.trim_start()
}

/// Types that hold data and no invariant of the ledger's: whose methods change them is a writer.
const COLLECTIONS: &[&str] =
    &["Vec", "VecDeque", "IntMap", "HashMap", "HashSet", "BTreeMap", "Option", "String", "RangeSet"];

/// Methods of collections that change them.
const CHANGING: &[&str] = &[
    "append",
    "clear",
    "clone_from",
    "drain",
    "entry",
    "extend",
    "get_mut",
    "get_or_insert",
    "get_or_insert_with",
    "insert",
    "iter_mut",
    "last_mut",
    "pop",
    "pop_back",
    "pop_front",
    "push",
    "push_back",
    "push_front",
    "remove",
    "replace",
    "retain",
    "retain_mut",
    "sort",
    "sort_by_key",
    "take",
    "truncate",
    "values_mut",
];

/// True where `code` assigns to a field of this name, lends it for a change, or changes the collection in it.
fn writes(code: &str, field: &Field) -> bool {
    let word = format!(".{}", field.name);
    code.match_indices(&word).any(|(at, _)| {
        let after = &code[at + word.len()..];
        if after.starts_with(|c: char| c.is_alphanumeric() || c == '_' || c == '(') {
            return false;
        }
        let next = after.trim_start();
        let assigned = next.starts_with('=') && !next.starts_with("==") && !next.starts_with("=>")
            || ["+=", "-=", "|=", "&=", "^=", "*=", "<<=", ">>="]
                .iter()
                .any(|operator| next.starts_with(operator));
        let path = code[..at].trim_end_matches(|c: char| c.is_alphanumeric() || "_.?".contains(c));
        let lent = path.ends_with("&mut ");
        let collection = COLLECTIONS.contains(&field.of.as_str());
        let changed = next.strip_prefix('.').is_some_and(|call| {
            CHANGING.iter().any(|method| call.strip_prefix(method).is_some_and(|rest| rest.starts_with('(')))
        });
        assigned || collection && (lent || changed)
    })
}

/// A part of the ledger keeps its invariant only if no other code writes its fields, private or not: the
/// compiler lets a module's children write them, and everybody those that are visible.
#[test]
fn a_field_of_the_ledger_is_written_in_one_file() {
    let files: Vec<SourceFile> = sources().into_iter().filter(|file| file.module == "ledger").collect();
    let fields: Vec<Vec<Field>> = files.iter().map(|file| fields_of(&file.code)).collect();
    assert!(fields.iter().flatten().count() > 150, "the fields are not found any more");
    let mut wrong = Vec::new();
    for (definer, defined) in files.iter().zip(&fields) {
        for (file, own) in files.iter().zip(&fields).filter(|(file, _)| file.path != definer.path) {
            // Of two fields of one name the file's own is meant.
            let foreign = defined.iter().filter(|field| own.iter().all(|own| own.name != field.name));
            for field in foreign.filter(|field| writes(&file.code, field)) {
                let (there, here) = (file.path.display(), definer.path.display());
                wrong.push(format!("{there} writes `{}`, a field that {here} defines", field.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn manifest_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Files below `folder` that end so, without fixtures.
fn files_below(folder: &str, ending: &str) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![manifest_dir().join(folder)]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let path = entry.expect("directory entry").path();
            if path.is_dir() {
                if !path.ends_with("tests/fixtures") {
                    folders.push(path);
                }
            } else if path.to_string_lossy().ends_with(ending) {
                files.push(path);
            }
        }
    }
    assert!(!files.is_empty(), "no {ending} below {folder}");
    files
}

#[test]
fn the_test_binaries_are_those_of_the_table() {
    let entries = fs::read_dir(manifest_dir().join("tests")).expect("tests");
    let mut found: Vec<String> = entries
        .map(|entry| entry.expect("directory entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "rs") || path.join("main.rs").exists())
        .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    found.sort();
    assert_eq!(found, TEST_BINARIES);
    let table = read(&manifest_dir().join("docs/architecture.md"));
    for name in TEST_BINARIES {
        assert!(table.contains(&format!("| `{name}` |")), "{name} has no row in docs/architecture.md");
    }
}

/// `file.rs:test` and `tests/….rs` in docs: the file is there, and the test in it.
#[test]
fn tests_that_docs_name_are_there() {
    let (mut wrong, mut named) = (Vec::new(), 0);
    for doc in files_below("docs", ".md") {
        let (text, mut last) = (read(&doc), PathBuf::new());
        for word in text.split('`').skip(1).step_by(2) {
            let (file, test) = match word.split_once(".rs:") {
                Some((file, test)) => (format!("{file}.rs"), Some(test)),
                None => match word.strip_prefix("…:") {
                    Some(test) => (String::new(), Some(test)),
                    None if word.starts_with("tests/") && word.ends_with(".rs") => (word.to_owned(), None),
                    None => continue,
                },
            };
            if !file.is_empty() {
                let from_root = file.starts_with("src/") || file.starts_with("tests/");
                last = manifest_dir().join(if from_root { "" } else { "tests" }).join(&file);
            }
            named += 1;
            let holds = |test: &str| read(&last).contains(&format!("fn {test}("));
            if !last.exists() || !test.is_none_or(holds) {
                wrong.push(format!("{}: {word}", doc.display()));
            }
        }
    }
    assert!(named > 50, "found only {named} names: is the pattern right?");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A test that fails is not tried again, a counterexample is kept, and what is left out is said in one
/// way, which scripts/test.sh counts.
#[test]
fn tests_hide_nothing() {
    let config = read(&manifest_dir().join(".config/nextest.toml"));
    let retries: Vec<&str> = config.lines().filter(|line| line.starts_with("retries")).collect();
    assert_eq!(retries, ["retries = 0"], "{config}");
    let mut wrong = Vec::new();
    let own = manifest_dir().join(file!());
    for file in files_below("tests", ".rs").into_iter().chain(files_below("src", ".rs")) {
        let text = read(&file);
        if file != own && text.contains("failure_persistence") {
            wrong.push(format!("{} says itself what becomes of counterexamples", file.display()));
        }
        let says = ["print!(\"", "println!(\""].iter().any(|print| {
            text.match_indices(print).any(|(at, _)| {
                let said = text[at + print.len()..].to_lowercase();
                said.starts_with("skip")
            })
        });
        if says && file != own && !file.ends_with("tests/support/skip.rs") {
            wrong.push(format!("{} does not leave out by support::skip", file.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_scanner_sees_what_it_has_to() {
    let set = |names: &[&str]| names.iter().map(|n| n.to_string()).collect::<BTreeSet<_>>();
    assert_eq!(modules_named("use crate::model::Addr;", 2), set(&["model"]));
    assert_eq!(
        modules_named("use crate::{model::{Addr, Prot}, capture::wire, app};", 2),
        set(&["model", "capture", "app"])
    );
    assert_eq!(modules_named("fn f() -> super::super::procfs::X {}", 2), set(&["procfs"]));
    assert_eq!(modules_named("use super::region;", 2), set(&[]));
    assert_eq!(modules_named("use super::procfs::X;", 1), set(&["procfs"]));
    assert_eq!(modules_named("use mycrate::procfs;", 2), set(&[]));
    assert_eq!(code_of("a // crate::x\nb \"crate::y\" c\n"), "a \nb \" c\n");
    assert_eq!(code_of("a\n#[cfg(test)]\nmod tests {\n use crate::app;\n}\n"), "a\n");
    assert_eq!(code_of("a.expect(\"b\")\n"), "a.expect(\")\n");
    assert!(names_numbers_only("use crate::sys::abi::MAP_FIXED;\nuse crate::sys::abi::refused::EINVAL;"));
    assert!(names_numbers_only("use crate::sys::abi;"));
    assert!(!names_numbers_only("use crate::sys::abi::MAP_FIXED;\nuse crate::sys::poll;"));
    assert!(!names_numbers_only("use crate::{sys::poll, model::Addr};"));
    assert_eq!(
        numbers_given(
            "const MAP_FIXED: u64 = 0x10;\n    pub const E: i64 = -2;\nconst A: u64 = B;\nlet x = 1;\n"
        ),
        ["MAP_FIXED", "E"]
    );
    assert!(is_kernels("MAP_FIXED") && is_kernels("EINVAL") && is_kernels("FUSE_SUPER_MAGIC"));
    assert!(!is_kernels("MAX_ROWS") && !is_kernels("ENTRIES"));
    let field = |name: &str, of: &str| Field { name: name.to_string(), of: of.to_string() };
    assert_eq!(
        fields_of(
            "pub(super) struct A<'a> {\n    pub(in crate::ledger) b: Vec<u8>,\n    c: &'a D,\n}\nfn f(x: E) {\n}\n"
        ),
        [field("b", "Vec"), field("c", "D")]
    );
    for code in ["a.b.c = 1;", "a.c |= x;", "take(&mut a.c);", "a.c.push(1);", "a\n    .c\n    .insert(1)"] {
        assert!(writes(code, &field("c", "Vec")), "{code}");
    }
    for code in
        ["a.c == 1", "let c = 1;", "a.cc = 1;", "a.c().push(1);", "match a.c {", "a.c.len()", "A { c: 1 }"]
    {
        assert!(!writes(code, &field("c", "Vec")), "{code}");
    }
    assert!(!writes("a.c.remove(1);", &field("c", "Part")) && writes("a.c = x;", &field("c", "Part")));
    assert!(names_crate("libc::getpid()", "libc"));
    assert!(!names_crate("crate::procfs::read()", "procfs"));
    assert!(!names_crate("my_libc::x", "libc"));
}

/// Each file's module, and the files' modules that its code names.
fn imports() -> BTreeMap<Vec<String>, BTreeSet<Vec<String>>> {
    let files: Vec<(Vec<String>, String)> =
        sources().into_iter().map(|file| (module_path(&file.path), file.code)).collect();
    let known: BTreeSet<&Vec<String>> = files.iter().map(|(module, _)| module).collect();
    let mut imports = BTreeMap::new();
    for (module, code) in &files {
        let mut named = BTreeSet::new();
        for path in paths_named(code) {
            let up = path.iter().take_while(|segment| *segment == "super").count();
            let below = match path.first().map(String::as_str) {
                Some("crate") => &[][..],
                _ => &module[..module.len().saturating_sub(up)],
            };
            let rest = path.iter().filter(|segment| !["crate", "super", "self"].contains(&segment.as_str()));
            let mut at: Vec<String> = below.iter().chain(rest).cloned().collect();
            while !at.is_empty() && !known.contains(&at) {
                at.pop();
            }
            if !at.is_empty() && at != *module {
                named.insert(at);
            }
        }
        imports.insert(module.clone(), named);
    }
    imports
}

/// `src/capture/bpf/mod.rs`: capture, bpf.
fn module_path(file: &Path) -> Vec<String> {
    let inside = file.strip_prefix(manifest_dir().join("src")).expect("below src").with_extension("");
    let parts: Vec<String> = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    match parts.split_last() {
        Some((last, folder)) if last == "mod" => folder.to_vec(),
        _ => parts,
    }
}

/// Paths that begin with `crate`, `super` or `self`, groups taken apart.
fn paths_named(code: &str) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    for root in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(root) {
            let before = &code[..at];
            if !before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
                leaves(&code[at..], &mut Vec::new(), &mut paths);
            }
        }
    }
    paths
}

/// Adds the paths of what begins `text`, each below `prefix`; returns how much of it that was.
fn leaves(text: &str, prefix: &mut Vec<String>, paths: &mut Vec<Vec<String>>) -> usize {
    let depth = prefix.len();
    let mut at = 0;
    loop {
        let rest = &text[at..];
        let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        if word > 0 {
            prefix.push(rest[..word].to_owned());
            at += word;
        }
        if text[at..].starts_with("::") {
            at += 2;
        } else {
            break;
        }
        if text[at..].starts_with('{') {
            at += 1;
            while !text[at..].is_empty() && !text[at..].starts_with('}') {
                let skipped = text[at..].find(|c: char| !c.is_whitespace() && c != ',').unwrap_or(0);
                at += skipped;
                let taken = leaves(&text[at..], prefix, paths);
                at += taken.max(usize::from(!text[at..].is_empty() && !text[at..].starts_with('}')));
            }
            prefix.truncate(depth);
            return at + 1;
        }
    }
    paths.push(prefix.clone());
    prefix.truncate(depth);
    at
}

#[test]
fn no_circle_of_imports_is_large() {
    let imports = imports();
    assert!(imports.len() > 300, "{} files: is the path right?", imports.len());
    let reached = |from: &Vec<String>| {
        let mut seen: BTreeSet<Vec<String>> = BTreeSet::new();
        let mut next = vec![from.clone()];
        while let Some(module) = next.pop() {
            for named in imports.get(&module).into_iter().flatten() {
                if seen.insert(named.clone()) {
                    next.push(named.clone());
                }
            }
        }
        seen
    };
    let all: BTreeMap<&Vec<String>, BTreeSet<Vec<String>>> =
        imports.keys().map(|module| (module, reached(module))).collect();
    let mut wrong = BTreeSet::new();
    for (module, seen) in &all {
        let circle: Vec<String> =
            seen.iter().filter(|other| all[other].contains(*module)).map(|m| m.join("::")).collect();
        if circle.len() > 3 {
            wrong.insert(circle.join(", "));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_circles_are_found_where_they_are() {
    let mut paths = Vec::new();
    leaves("crate::a::{b, c::{D, e}, f::g as h};", &mut Vec::new(), &mut paths);
    let text: Vec<String> = paths.iter().map(|path| path.join("::")).collect();
    assert_eq!(text[..4], ["crate::a::b", "crate::a::c::D", "crate::a::c::e", "crate::a::f::g"]);
    let object = &imports()[&vec!["objects".to_owned(), "object".to_owned()]];
    assert!(object.contains(&vec!["objects".to_owned(), "cfi".to_owned()]), "{object:?}");
}

/// A command knows what commands share, and no other command.
#[test]
fn commands_do_not_import_commands() {
    for (module, named) in imports() {
        let [app, commands, own, ..] = &module[..] else { continue };
        if app != "app" || commands != "commands" {
            continue;
        }
        for other in named.iter().filter(|other| other.starts_with(&[app.clone(), commands.clone()])) {
            assert_eq!(other.get(2), Some(own), "{} imports {}", module.join("::"), other.join("::"));
        }
    }
}

/// 450 lines, with some left to what is being changed.
#[test]
fn no_file_is_long() {
    const MOST: usize = 475;
    let long: Vec<(PathBuf, usize)> = files_below("src", ".rs")
        .into_iter()
        .map(|file| (file.clone(), read(&file).lines().count()))
        .filter(|(_, lines)| *lines > MOST)
        .collect();
    assert!(long.is_empty(), "{long:?}");
}

#[test]
fn no_folder_is_crowded() {
    const MOST: usize = 25;
    let mut folders: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for file in sources() {
        *folders.entry(file.path.parent().expect("a folder").to_owned()).or_default() += 1;
    }
    let crowded: Vec<_> = folders.iter().filter(|(_, files)| **files > MOST).collect();
    assert!(crowded.is_empty(), "{crowded:?}");
}
