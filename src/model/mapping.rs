//! One VMA as the kernel shows it.

use super::addr::AddrRange;
use super::prot::{Prot, Sharing};

/// Device and inode of a mapped file; `00:00 0` (no file) is `None` in [`Mapping::file`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct MappingFile {
    pub major: u32,
    pub minor: u32,
    pub inode: u64,
}

/// A line of `/proc/PID/maps` (fs/proc/task_mmu.c, `show_map_vma`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    pub range: AddrRange,
    pub prot: Prot,
    pub sharing: Sharing,
    /// File offset in bytes.
    pub offset: u64,
    pub file: Option<MappingFile>,
    /// The last column, unescaped (`\012` back to a newline), with " (deleted)" if the
    /// kernel wrote it; empty when there is none. Any bytes.
    pub name: Vec<u8>,
}

impl Mapping {
    /// `[stack]`, `[heap]`, `[vdso]`, `[anon:x]` …: a name that is not a path.
    pub fn is_special(&self, name: &str) -> bool {
        self.name == name.as_bytes()
    }
}
