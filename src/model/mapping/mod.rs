//! One VMA as the kernel shows it.

pub mod prot;
pub mod vma_detail;

use super::addr::{Addr, AddrRange};
use super::event::FileRef;
use prot::{Prot, Sharing};

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

/// Where the kernel puts the end of the first thread's stack when it does not randomise it: x86-64's
/// STACK_TOP with 47-bit addresses (arch/x86/include/asm/page_64_types.h). Randomised, it lands
/// there once in four million times.
#[cfg(target_arch = "x86_64")]
const FIXED_STACK_END: Option<Addr> = Some(Addr(0x7fff_ffff_f000));
#[cfg(not(target_arch = "x86_64"))]
const FIXED_STACK_END: Option<Addr> = None;

/// Whether the kernel chose addresses at random, derived from where the first thread's stack ends; None where
/// that is not known.
pub fn is_randomised(mappings: &[Mapping]) -> Option<bool> {
    let end = FIXED_STACK_END?;
    // nameless where the stack pointer has left it; V8 may put a page of its heap there, too
    let named = mappings.iter().rev().find(|m| m.is_special("[stack]"));
    let stack = named.or_else(|| mappings.iter().rev().find(|m| m.range.end == end))?;
    Some(stack.range.end != end)
}

impl Mapping {
    /// The one that has the address, of a list as maps shows it: sorted.
    pub fn holding(mappings: &[Mapping], addr: Addr) -> Option<&Mapping> {
        mappings.get(mappings.partition_point(|m| m.range.end <= addr)).filter(|m| m.range.contains(addr))
    }

    /// The mapped file, by its path without " (deleted)".
    pub fn file_ref(&self) -> Option<FileRef> {
        let MappingFile { major, minor, inode } = self.file?;
        let path = self.name.strip_suffix(b" (deleted)");
        let deleted = path.is_some();
        Some(FileRef { major, minor, inode, path: path.unwrap_or(&self.name).to_vec(), deleted })
    }

    /// `[stack]`, `[heap]`, `[vdso]`, `[anon:x]` …: a name that is not a path.
    pub fn is_special(&self, name: &str) -> bool {
        self.name == name.as_bytes()
    }

    /// Private, readable and writable, without a file or a name.
    pub fn is_unnamed_memory(&self) -> bool {
        self.file.is_none()
            && self.name.is_empty()
            && self.sharing == Sharing::Private
            && self.prot == Prot::RW
    }

    /// Private memory without a file that user space requested: not the kernel's special mappings (`[vdso]`,
    /// `[uprobes]`), whose pages are not anonymous either.
    pub fn is_plain_anonymous(&self) -> bool {
        let name = self.name.as_slice();
        self.file.is_none()
            && self.sharing == Sharing::Private
            && (name.is_empty() || name.starts_with(b"[anon") || matches!(name, b"[heap]" | b"[stack]"))
    }
}
