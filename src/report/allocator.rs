//! Which frames of a stack hand out memory, and which asked for it.

use super::model::Frame;

/// How functions that hand out memory begin, without their prefixes: the outermost of them was called
/// by whoever wanted memory.
const ENTRIES: [&str; 10] = [
    "malloc",
    "calloc",
    "realloc",
    "free",
    "posix_memalign",
    "aligned_alloc",
    "memalign",
    "operator new",
    "operator delete",
    "rust_alloc",
];
const PREFIXES: [&str; 6] = ["__libc_", "_rjem_", "je_", "mi_", "tc_", "__"];
/// Stripped, their functions have no names; all of them are the allocator's.
const LIBRARIES: [&str; 3] = ["libjemalloc", "libtcmalloc", "libmimalloc"];

/// True of a function that hands out memory or takes it back. Frames inside of the outermost such are the
/// allocator's own.
pub fn is_allocator(frame: &Frame) -> bool {
    frame.symbol.as_deref().is_some_and(is_entry)
        || LIBRARIES.iter().any(|library| frame.module.starts_with(library))
}

fn is_entry(name: &str) -> bool {
    let plain = PREFIXES.iter().fold(name, |name, prefix| name.strip_prefix(prefix).unwrap_or(name));
    // free, free_default, but not freer
    let word = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric());
    ENTRIES.iter().any(|entry| plain.strip_prefix(entry).is_some_and(word)) || plain.starts_with("alloc::")
}
