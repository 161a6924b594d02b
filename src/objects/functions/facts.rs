//! What is known of a function.

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
    pub kind: Kind,
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

/// Whether a uprobe can be placed at its first instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Probe {
    Yes,
    No(Skip),
}

/// Why a function is not probed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Skip {
    /// Another name of an address: index of the function that is probed instead.
    Alias { of: u32 },
    /// Defined in another file.
    Imported,
    /// Covers no code (`register_tm_clones`).
    ZeroSize,
    /// STT_GNU_IFUNC: the loader calls it once, to learn which function the name means.
    IfuncResolver,
    /// A stub that jumps to another file's function.
    LinkageStub,
    /// SHN_ABS and the like: no address of this file.
    Absolute,
    /// In a section or segment that holds no code.
    NotExecutable,
    /// No segment loads it.
    NotLoaded,
    /// The file ends before it.
    OutsideFile,
}

impl Skip {
    /// Every reason, in the order of tables.
    pub const IDS: [&'static str; 9] = [
        "alias",
        "imported",
        "zero-size",
        "ifunc",
        "plt",
        "absolute",
        "not-executable",
        "not-loaded",
        "outside-file",
    ];

    /// For JSON and summaries.
    pub fn id(self) -> &'static str {
        match self {
            Skip::Alias { .. } => "alias",
            Skip::Imported => "imported",
            Skip::ZeroSize => "zero-size",
            Skip::IfuncResolver => "ifunc",
            Skip::LinkageStub => "plt",
            Skip::Absolute => "absolute",
            Skip::NotExecutable => "not-executable",
            Skip::NotLoaded => "not-loaded",
            Skip::OutsideFile => "outside-file",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Binding {
    Local,
    Global,
    Weak,
    /// STB_GNU_UNIQUE, or one that no standard names.
    Other(u8),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    Function,
    /// STT_GNU_IFUNC.
    Ifunc,
    /// STT_NOTYPE with a size, in a section of code: assembly.
    Untyped,
}

/// A table of symbols.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Source {
    Symtab = 1,
    Dynsym = 2,
    DebugFile = 4,
    MiniDebug = 8,
}

impl Source {
    pub const ALL: [Source; 4] = [Source::Symtab, Source::Dynsym, Source::DebugFile, Source::MiniDebug];

    pub fn id(self) -> &'static str {
        match self {
            Source::Symtab => "symtab",
            Source::Dynsym => "dynsym",
            Source::DebugFile => "debug-file",
            Source::MiniDebug => "gnu_debugdata",
        }
    }
}

/// A set of tables.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sources(u8);

impl Sources {
    pub fn contains(self, source: Source) -> bool {
        self.0 & source as u8 != 0
    }

    pub fn iter(self) -> impl Iterator<Item = Source> {
        Source::ALL.into_iter().filter(move |&source| self.contains(source))
    }

    pub(super) fn with(self, other: Sources) -> Sources {
        Sources(self.0 | other.0)
    }
}

impl From<Source> for Sources {
    fn from(source: Source) -> Sources {
        Sources(source as u8)
    }
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
