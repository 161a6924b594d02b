//! What the mapped program and libraries carry inside, by their own strings and symbols: stripped and
//! statically linked ones still show which allocator or runtime they contain.

use crate::model::addr::{Addr, AddrRange};
use crate::model::mapping::MappingFile;

/// How a file with code shows what it holds. Rules declare theirs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sign {
    /// What is then said of the file; recordings have it.
    pub mark: &'static str,
    /// Constants found nowhere else (seen in none of the stripped programs that were made without it).
    pub strings: &'static [&'static str],
    /// How the name of a section of it ends.
    pub section: Option<&'static str>,
    /// Its `malloc` is the C library's own.
    pub is_libc: bool,
    /// Of a C library: a function that only it exports, and what the versions of its symbols begin with.
    pub versioned: Option<(&'static str, &'static str)>,
    /// How the name of the environment variable ends that it reads.
    pub setting: Option<&'static str>,
    /// Environment variables that are reported of a process: how their names end.
    pub variables: &'static [&'static str],
}

impl Sign {
    pub const fn new(mark: &'static str, strings: &'static [&'static str]) -> Sign {
        Sign { mark, strings, section: None, is_libc: false, versioned: None, setting: None, variables: &[] }
    }
}

/// The mark of a file that offers a function `malloc` to the dynamic loader, and is no C library.
pub const EXPORTS_MALLOC: &str = "exports-malloc";

/// The mark of a file that is mapped as code and is no ELF file: the heap image of some runtime, generated code.
pub const NOT_ELF: &str = "not-elf";

/// What was found in one file; the file is named by the mappings that show it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileMarks {
    pub file: MappingFile,
    /// Sorted, each once, at least one.
    pub marks: Vec<String>,
    /// The environment variable that the allocator in this file reads (`MALLOC_CONF`).
    pub setting: Option<String>,
    /// Of the C library: (2, 36).
    pub version: Option<(u32, u32)>,
}

/// What is known of the files with code of one process.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CodeMarks {
    /// Only those that have a mark.
    pub files: Vec<FileMarks>,
    /// Every file that is mapped executable was searched: what has no mark is not there.
    pub complete: bool,
    /// The function that the C library itself calls as `malloc`: its own, or another allocator's that
    /// the loader put before it. None where that could not be read, or nothing was bound yet.
    pub libc_malloc: Option<Addr>,
    /// Where the program headers of mapped images put memory that is in no file (from p_filesz to p_memsz, whole
    /// pages): each file's bss, wherever it is mapped. Sorted, disjoint.
    pub bss: Vec<AddrRange>,
    /// What the dynamic loader allocated before the program began has these addresses in it; sorted. None where that
    /// is not known.
    pub loader_data: Option<Vec<Addr>>,
    /// `NAME=value` of the environment that the process was started with: those that rules know, sorted.
    pub variables: Vec<String>,
}
