//! One executable file: its identity, its headers, and bytes on demand.

use super::cfi::Cfi;
use super::elf::{ElfLayout, Section};
use super::linkage::Linkage;
use super::starts::FunctionStarts;
use super::symbols::FunctionSymbols;
use flate2::{Decompress, FlushDecompress, Status};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Largest section that is read whole. The `.eh_frame` of a large browser has some 30 MB.
const MAX_SECTION: u64 = 512 << 20;

/// Why a file is of no use.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    #[error("not a 64-bit x86-64 ELF file")]
    NotElf,
    #[error("not a regular file")]
    NotRegular,
    #[error("the file system that it is on does not answer")]
    NoAnswer,
    #[error("no path leads to the file that was mapped ({0})")]
    NotFound(String),
    #[error("the header asks for {0} bytes")]
    TooLarge(u64),
    #[error("a symbol table without its names")]
    NoStrings,
    #[error("damaged compressed section")]
    Compression,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A file as it was at one time: what was written to since, or stands in its place, has another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

/// Positioned reads, as pread(2) does them: a file, or bytes in memory.
pub trait ReadAt {
    /// Fills `buf` from `offset` as far as bytes are there; returns how many.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
}

impl ReadAt for Vec<u8> {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let tail = usize::try_from(offset).ok().and_then(|at| self.get(at..)).unwrap_or_default();
        let len = tail.len().min(buf.len());
        buf[..len].copy_from_slice(&tail[..len]);
        Ok(len)
    }
}

impl ReadAt for File {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match FileExt::read_at(self, &mut buf[done..], offset.saturating_add(done as u64)) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }
}

/// Reads `len` bytes at `offset`. Grows the buffer as bytes arrive, so that a header that lies
/// about a size costs no more memory than the file is long.
pub(super) fn read_exact(file: &dyn ReadAt, offset: u64, len: u64) -> Result<Vec<u8>, ObjectError> {
    const STEP: u64 = 1 << 20;
    if len > MAX_SECTION {
        return Err(ObjectError::TooLarge(len));
    }
    let mut out = Vec::new();
    let mut left = len;
    while left > 0 {
        let step = left.min(STEP) as usize;
        let at = out.len();
        out.resize(at + step, 0);
        let got = file.read_at(offset.saturating_add(at as u64), &mut out[at..])?;
        if got < step {
            return Err(ObjectError::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        left -= step as u64;
    }
    Ok(out)
}

enum Source {
    File(File),
    Memory(Vec<u8>),
    /// Closed to save descriptors after its unwind tables were read.
    Closed,
}

/// An opened executable file.
pub struct Object {
    serial: u64,
    source: Mutex<Source>,
    layout: ElfLayout,
    /// Uid; None for images in memory.
    owner: Option<u32>,
    /// Belongs to others than this mount namespace's: who can write to it while it is read.
    elsewhere: bool,
    cfi: OnceLock<Arc<Cfi>>,
    starts: OnceLock<FunctionStarts>,
    symbols: OnceLock<FunctionSymbols>,
    linkage: OnceLock<Linkage>,
}

impl Object {
    /// Takes over an open file and parses its headers.
    ///
    /// # Errors
    /// As [`ElfLayout::parse`].
    pub fn from_file(file: File) -> Result<Object, ObjectError> {
        let layout = ElfLayout::parse(&file)?;
        let owner = file.metadata().ok().map(|found| found.uid());
        Ok(Object { owner, ..Object::new(Source::File(file), layout) })
    }

    /// From an image in memory (the vdso, tests).
    ///
    /// # Errors
    /// As [`ElfLayout::parse`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Object, ObjectError> {
        let layout = ElfLayout::parse(&bytes)?;
        Ok(Object::new(Source::Memory(bytes), layout))
    }

    fn new(source: Source, layout: ElfLayout) -> Object {
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        Object {
            serial,
            source: Mutex::new(source),
            layout,
            owner: None,
            elsewhere: false,
            cfi: OnceLock::new(),
            starts: OnceLock::new(),
            symbols: OnceLock::new(),
            linkage: OnceLock::new(),
        }
    }

    /// Uid of the file's owner; None for images in memory.
    pub fn owner(&self) -> Option<u32> {
        self.owner
    }

    /// Marks a file of another mount namespace.
    pub(super) fn marked_elsewhere(mut self) -> Object {
        self.elsewhere = true;
        self
    }

    /// True for a file of another mount namespace, a container's: it may shrink while it is read, so
    /// it must not be mapped into memory.
    pub fn is_from_elsewhere(&self) -> bool {
        self.elsewhere
    }

    /// False once it was closed to save descriptors.
    pub fn is_open(&self) -> bool {
        !matches!(*self.source.lock().unwrap_or_else(PoisonError::into_inner), Source::Closed)
    }

    /// A number that no other object of this process ever has: a key for caches.
    pub fn serial(&self) -> u64 {
        self.serial
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
        match &*self.source.lock().unwrap_or_else(PoisonError::into_inner) {
            Source::File(file) => read_exact(file, offset, len),
            Source::Memory(bytes) => read_exact(bytes, offset, len),
            Source::Closed => Err(ObjectError::Io(io::ErrorKind::NotConnected.into())),
        }
    }

    /// How long it is now, bytes; None once it was closed.
    pub fn size(&self) -> Option<u64> {
        match &*self.source.lock().unwrap_or_else(PoisonError::into_inner) {
            Source::File(file) => file.metadata().ok().map(|found| found.len()),
            Source::Memory(bytes) => Some(bytes.len() as u64),
            Source::Closed => None,
        }
    }

    /// None for images in memory and closed files.
    pub fn stamp(&self) -> Option<Stamp> {
        let Source::File(file) = &*self.source.lock().unwrap_or_else(PoisonError::into_inner) else {
            return None;
        };
        let found = file.metadata().ok()?;
        let modified = (found.mtime(), found.mtime_nsec());
        Some(Stamp { device: found.dev(), inode: found.ino(), size: found.len(), modified })
    }

    /// The bytes of a section, decompressed (SHF_COMPRESSED with zlib).
    ///
    /// # Errors
    /// `Io`, `TooLarge`, or `Compression` for a damaged or unknown compression.
    pub fn section_bytes(&self, section: &Section) -> Result<Vec<u8>, ObjectError> {
        let raw = self.read(section.offset, section.size)?;
        if section.is_compressed() { inflate(&raw) } else { Ok(raw) }
    }

    /// Unwind tables, read at the first call and kept. Empty where the file has none.
    pub fn cfi(&self) -> &Arc<Cfi> {
        self.cfi.get_or_init(|| Arc::new(Cfi::read(self)))
    }

    /// Starts of functions, for code that no unwind table covers; found at the first call.
    pub fn function_starts(&self) -> &FunctionStarts {
        self.starts.get_or_init(|| FunctionStarts::read(self))
    }

    /// The file's own function symbols (not those of a debug file); read at the first call.
    pub fn function_symbols(&self) -> &FunctionSymbols {
        self.symbols.get_or_init(|| FunctionSymbols::read([self]))
    }

    /// Which functions calls to other files mean; read at the first call.
    pub fn linkage(&self) -> &Linkage {
        self.linkage.get_or_init(|| Linkage::read(self))
    }

    /// Made by the Go toolchain: its function table stays in stripped programs too.
    pub fn is_go(&self) -> bool {
        self.layout.section(b".gopclntab").is_some()
    }

    /// The descriptor of the open file, for `/proc/self/fd/N`; None for images in memory.
    pub fn raw_fd(&self) -> Option<RawFd> {
        match &*self.source.lock().unwrap_or_else(PoisonError::into_inner) {
            Source::File(file) => Some(file.as_raw_fd()),
            Source::Memory(_) | Source::Closed => None,
        }
    }

    /// Reads the unwind tables, then closes the file.
    pub fn close_after_tables(&self) {
        self.cfi();
        *self.source.lock().unwrap_or_else(PoisonError::into_inner) = Source::Closed;
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
    if size > MAX_SECTION {
        return Err(ObjectError::TooLarge(size));
    }
    // zlib cannot compress better than about 1:1032; more is a lie about the size.
    if size > (raw.len() as u64).saturating_mul(1040) {
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
