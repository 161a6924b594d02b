//! What is known of a function.

use crate::model::{Binding, FunctionKind, Probe, Source, Sources};
use crate::objects::symtab::Rank;

/// A function symbol.
#[derive(Clone, Debug)]
pub struct Function {
    /// Virtual address as the file states it; 0 for imports.
    pub svma: u64,
    /// As in the symbol table; 0 is common in hand-written assembly.
    pub size: u64,
    /// Where its code is in the file, from the program headers; None where no code of this file is
    /// meant.
    pub offset: Option<u64>,
    pub binding: Binding,
    pub kind: FunctionKind,
    /// All tables that list it.
    pub sources: Sources,
    /// False for a version that is kept for old programs (`memcpy@GLIBC_2.2.5`).
    pub current_version: bool,
    pub probe: Probe,
    pub(super) strings: u8,
    pub(super) name_at: u32,
    pub(super) name_len: u32,
    pub(super) rank: Rank,
}

/// A part of the file that could not be read, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum Note {
    #[error("the section headers (at 0x{offset:x}) cannot be read: the file is truncated or damaged")]
    Sections { offset: u64 },
    #[error("no section headers: without them no symbol table is found")]
    NoSections,
    #[error("{}: {error}", table.id())]
    Table { table: Source, error: crate::objects::ObjectError },
    #[error("{}: {more} more tables of this kind, which no linker writes, are left out", table.id())]
    MoreTables { table: Source, more: usize },
    #[error("{}: only the first {read} functions are read", table.id())]
    TooMany { table: Source, read: usize },
}
