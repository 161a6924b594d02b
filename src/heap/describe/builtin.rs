//! The allocators that need no file of the user's: the same files, compiled in.

use super::{Description, parse};
use crate::model::toml_file::FileError;

/// Name and text, in the order in which they are listed.
const FILES: [(&str, &str); 7] = [
    ("libc", include_str!("builtin/libc.toml")),
    ("cxx", include_str!("builtin/cxx.toml")),
    ("jemalloc", include_str!("builtin/jemalloc.toml")),
    ("tcmalloc", include_str!("builtin/tcmalloc.toml")),
    ("mimalloc", include_str!("builtin/mimalloc.toml")),
    ("musl", include_str!("builtin/musl.toml")),
    ("postgres", include_str!("builtin/postgres.toml")),
];

/// What is probed when none is named: all that a program may use together. The others manage memory that one
/// of these handed out in large blocks.
pub const DEFAULT_ALLOCATORS: [&str; 5] = ["libc", "cxx", "jemalloc", "tcmalloc", "mimalloc"];

pub fn built_in_names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name)
}

/// The description with this name; `None` when there is none.
///
/// # Errors
/// None in practice: a test reads all of them.
pub fn built_in(name: &str) -> Option<Result<Description, FileError>> {
    let (name, text) = FILES.iter().find(|(known, _)| *known == name)?;
    Some(parse(text, &format!("{name}.toml")))
}
