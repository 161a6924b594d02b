//! The functions around system calls. The C library's are in `attribution::code`.

/// Packages of nothing but system calls: how their paths end, since they may be forks, or lie below `vendor`.
const PACKAGES: [&str; 4] = ["runtime/internal/syscall", "internal/runtime/syscall", "x/sys/unix", "syscall"];
const FUNCTIONS: [&str; 13] = [
    "Syscall",
    "Syscall6",
    "RawSyscall",
    "RawSyscall6",
    "mmap",
    "Mmap",
    "MmapPtr",
    "(*mmapper).Mmap",
    "mremap",
    "Mremap",
    "(*mremapMmapper).Mremap",
    "Mprotect",
    "Madvise",
];

/// `syscall.(*mmapper).Mmap`, `internal/runtime/syscall.Syscall6.abi0`.
pub fn is_wrapper(name: &str) -> bool {
    let last = name.rfind('/').map_or(0, |slash| slash + 1);
    let Some(dot) = name[last..].find('.') else { return false };
    let (package, function) = (&name[..last + dot], &name[last + dot + 1..]);
    let function = function.strip_suffix(".abi0").unwrap_or(function);
    let ends = |path: &str| {
        package.strip_suffix(path).is_some_and(|before| before.is_empty() || before.ends_with('/'))
    };
    FUNCTIONS.contains(&function) && PACKAGES.iter().any(|path| ends(path))
}
