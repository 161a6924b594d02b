//! One executable file: its identity, its headers, and bytes on demand.

use super::budget::Held;
use super::bytes::{MAX_SECTION, ObjectError, read_exact};
use super::elf::{ElfLayout, Section};
use flate2::{Decompress, FlushDecompress, Status};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A file as it was at one time: one that was written since, or replaced it, has another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Stamp {
    pub(super) fn of(found: &Metadata) -> Stamp {
        let modified = (found.mtime(), found.mtime_nsec());
        Stamp { device: found.dev(), inode: found.ino(), size: found.len(), modified }
    }
}

/// A section of more bytes is not read of a file that stores far less: it is a hole, whatever the headers say. A file
/// system that compresses makes less of a program, too, but not that.
const MAX_HOLE: u64 = 32 << 20;
const MAX_HOLE_RATIO: u64 = 32;
/// A compressed section of more bytes is not expanded.
const MAX_EXPANDED: u64 = MAX_SECTION / 4;
/// zlib cannot compress better than about 1:1032; more is a lie about the size.
const MAX_ZLIB_RATIO: u64 = 1040;

enum Source {
    File(File),
    Memory(Vec<u8>),
    /// Closed to save descriptors after its unwind tables were read.
    Closed,
}

/// An ELF file that is open, or its image in memory.
pub struct ElfFile {
    source: Mutex<Source>,
    layout: ElfLayout,
    /// Uid; None for images in memory.
    owner: Option<u32>,
    /// Bytes on the disk; None where the file system does not say.
    stored: Option<u64>,
    tables_left_out: AtomicBool,
    /// The memory that it takes, where all of it is kept.
    _held: Option<Held>,
    /// Belongs to users of another mount namespace, who can write to it while it is read.
    pub(super) elsewhere: bool,
}

impl ElfFile {
    /// Takes over an open file and parses its headers.
    ///
    /// # Errors
    /// As [`ElfLayout::parse`].
    pub fn open(file: File) -> Result<ElfFile, ObjectError> {
        let layout = ElfLayout::parse(&file)?;
        let found = file.metadata().ok();
        let owner = found.as_ref().map(MetadataExt::uid);
        // st_blocks counts 512 bytes, whatever the file system's blocks are (stat(3type)).
        let stored = found.map(|found| found.blocks() * 512).filter(|&stored| stored > 0);
        Ok(ElfFile { owner, stored, ..ElfFile::new(Source::File(file), layout) })
    }

    /// From an image in memory (the vdso, tests).
    ///
    /// # Errors
    /// As [`ElfLayout::parse`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<ElfFile, ObjectError> {
        let layout = ElfLayout::parse(&bytes)?;
        Ok(ElfFile::new(Source::Memory(bytes), layout))
    }

    /// As [`ElfFile::from_bytes`], for a file that is kept in memory: among all that is kept.
    ///
    /// # Errors
    /// As [`ElfLayout::parse`], and `OverBudget`.
    pub(super) fn from_whole_file(bytes: Vec<u8>) -> Result<ElfFile, ObjectError> {
        let held = Held::take(bytes.len() as u64).ok_or(ObjectError::OverBudget)?;
        let layout = ElfLayout::parse(&bytes)?;
        Ok(ElfFile { _held: Some(held), ..ElfFile::new(Source::Memory(bytes), layout) })
    }

    fn new(source: Source, layout: ElfLayout) -> ElfFile {
        let tables_left_out = AtomicBool::new(false);
        let source = Mutex::new(source);
        ElfFile { source, layout, owner: None, stored: None, tables_left_out, _held: None, elsewhere: false }
    }

    /// Some of its tables were not kept: those of all files would take too much memory.
    pub(super) fn leave_tables_out(&self) {
        self.tables_left_out.store(true, Ordering::Relaxed);
    }

    pub fn has_tables_left_out(&self) -> bool {
        self.tables_left_out.load(Ordering::Relaxed)
    }

    /// Uid of the file's owner; None for images in memory.
    pub fn owner(&self) -> Option<u32> {
        self.owner
    }

    /// True for a file of another mount namespace, a container's: it may shrink while it is read, so
    /// it must not be mapped into memory.
    pub fn is_from_elsewhere(&self) -> bool {
        self.elsewhere
    }

    /// False once it was closed to save descriptors.
    pub fn is_open(&self) -> bool {
        !matches!(*self.source(), Source::Closed)
    }

    pub fn layout(&self) -> &ElfLayout {
        &self.layout
    }

    pub fn build_id(&self) -> Option<&str> {
        self.layout.build_id.as_deref()
    }

    /// Reads `len` bytes at a file offset.
    ///
    /// # Errors
    /// `Io` when the file is shorter, unreadable, or was closed to save descriptors.
    pub fn read(&self, offset: u64, len: u64) -> Result<Vec<u8>, ObjectError> {
        match &*self.source() {
            Source::File(file) => read_exact(file, offset, len),
            Source::Memory(bytes) => read_exact(bytes, offset, len),
            Source::Closed => Err(ObjectError::Io(io::ErrorKind::NotConnected.into())),
        }
    }

    /// How long it is now, bytes; None once it was closed.
    pub fn size(&self) -> Option<u64> {
        match &*self.source() {
            Source::File(file) => file.metadata().ok().map(|found| found.len()),
            Source::Memory(bytes) => Some(bytes.len() as u64),
            Source::Closed => None,
        }
    }

    /// None for images in memory and closed files.
    pub fn stamp(&self) -> Option<Stamp> {
        let Source::File(file) = &*self.source() else {
            return None;
        };
        file.metadata().ok().map(|found| Stamp::of(&found))
    }

    /// The bytes of a section, decompressed (SHF_COMPRESSED with zlib).
    ///
    /// # Errors
    /// `Io`, `TooLarge`, `Hole`, or `Compression` for a damaged or unknown compression.
    pub fn section_bytes(&self, section: &Section) -> Result<Vec<u8>, ObjectError> {
        if let Some(stored) = self.stored
            && section.size > MAX_HOLE
            && section.size / MAX_HOLE_RATIO > stored
        {
            return Err(ObjectError::Hole { claimed: section.size, stored });
        }
        let raw = self.read(section.offset, section.size)?;
        if section.is_compressed() { inflate(&raw) } else { Ok(raw) }
    }

    /// Made by the Go toolchain: one of these stays in stripped programs too. In position independent ones the function
    /// table's name is longer, or it is part of a larger section.
    pub fn is_go(&self) -> bool {
        self.layout.sections.iter().any(|s| &*s.name == b".go.buildinfo" || s.name.ends_with(b".gopclntab"))
    }

    /// The descriptor of the open file, for `/proc/self/fd/N`; None for images in memory.
    pub fn raw_fd(&self) -> Option<RawFd> {
        match &*self.source() {
            Source::File(file) => Some(file.as_raw_fd()),
            Source::Memory(_) | Source::Closed => None,
        }
    }

    fn source(&self) -> MutexGuard<'_, Source> {
        self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To save descriptors.
    pub(super) fn close(&self) {
        *self.source() = Source::Closed;
    }
}

/// Elf64_Chdr { ch_type: u32, reserved: u32, ch_size: u64, ch_addralign: u64 }, then the stream.
fn inflate(raw: &[u8]) -> Result<Vec<u8>, ObjectError> {
    const ZLIB: u32 = 1;
    let word = |range: std::ops::Range<usize>| raw.get(range).ok_or(ObjectError::Compression);
    let kind = u32::from_le_bytes(word(0..4)?.try_into().map_err(|_| ObjectError::Compression)?);
    let size = u64::from_le_bytes(word(8..16)?.try_into().map_err(|_| ObjectError::Compression)?);
    if kind != ZLIB {
        return Err(ObjectError::Compression);
    }
    if size > MAX_EXPANDED {
        return Err(ObjectError::TooLarge(size));
    }
    if size > (raw.len() as u64).saturating_mul(MAX_ZLIB_RATIO) {
        return Err(ObjectError::Compression);
    }
    let mut out = Vec::with_capacity(size as usize);
    let status =
        Decompress::new(true).decompress_vec(&raw[24.min(raw.len())..], &mut out, FlushDecompress::Finish);
    match status {
        Ok(Status::StreamEnd | Status::Ok) if out.len() as u64 == size => Ok(out),
        _ => Err(ObjectError::Compression),
    }
}
