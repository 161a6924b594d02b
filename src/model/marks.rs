//! What the mapped program and libraries carry inside, by their own strings and symbols: stripped
//! and statically linked ones still tell which allocator or runtime they are made with.

use super::addr::Addr;
use super::mapping::MappingFile;

/// Something that a file with code was proven to hold.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mark {
    /// glibc's malloc: libc.so.6, or linked statically.
    Glibc,
    /// musl's shared object. A static musl program has nothing that tells it.
    Musl,
    Jemalloc,
    /// gperftools' tcmalloc.
    Gperftools,
    /// google/tcmalloc.
    Tcmalloc,
    Mimalloc,
    /// Made by the Go toolchain.
    Go,
    /// Offers a function `malloc` to the dynamic loader, and is no C library.
    ExportsMalloc,
}

impl Mark {
    pub const ALL: [Mark; 8] = [
        Mark::Glibc,
        Mark::Musl,
        Mark::Jemalloc,
        Mark::Gperftools,
        Mark::Tcmalloc,
        Mark::Mimalloc,
        Mark::Go,
        Mark::ExportsMalloc,
    ];

    /// As a recording spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Mark::Glibc => "glibc",
            Mark::Musl => "musl",
            Mark::Jemalloc => "jemalloc",
            Mark::Gperftools => "gperftools",
            Mark::Tcmalloc => "tcmalloc",
            Mark::Mimalloc => "mimalloc",
            Mark::Go => "go",
            Mark::ExportsMalloc => "exports-malloc",
        }
    }

    pub fn from_name(name: &str) -> Option<Mark> {
        Mark::ALL.into_iter().find(|mark| mark.as_str() == name)
    }
}

/// What was found in one file; the file is named by the mappings that show it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileMarks {
    pub file: MappingFile,
    /// Sorted, each once, at least one.
    pub marks: Vec<Mark>,
    /// The environment variable that jemalloc in this file reads (`MALLOC_CONF`, `_RJEM_MALLOC_CONF`).
    pub jemalloc_setting: Option<String>,
    /// Of libc.so.6: (2, 36).
    pub glibc: Option<(u32, u32)>,
}

/// What is known of the files with code of one process.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CodeMarks {
    /// Only those that have a mark.
    pub files: Vec<FileMarks>,
    /// The function that the C library itself calls as `malloc`: its own, or another allocator's that
    /// the loader put before it. None where that could not be read, or nothing was bound yet.
    pub libc_malloc: Option<Addr>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_back() {
        for mark in Mark::ALL {
            assert_eq!(Mark::from_name(mark.as_str()), Some(mark));
        }
        assert_eq!(Mark::from_name("of a later version"), None);
    }
}
