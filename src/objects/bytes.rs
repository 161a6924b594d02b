//! Bytes of a file at an offset, and why they may not be had.

use crate::sys::file::count_refusal;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Largest section that is read whole. The `.eh_frame` of a large browser has some 30 MB.
pub(super) const MAX_SECTION: u64 = 512 << 20;

/// Why a file is of no use.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// Of another machine or word size, or damaged.
    #[error("not a 64-bit x86-64 ELF file")]
    NotElf,
    /// It does not begin as one.
    #[error("not a 64-bit x86-64 ELF file")]
    NoMagic,
    #[error("the file system that it is on does not answer")]
    NoAnswer,
    #[error("no path leads to the file that was mapped ({0})")]
    NotFound(String),
    #[error("the header claims {0} bytes")]
    TooLarge(u64),
    #[error("{from} compressed bytes that expand to more than {most}")]
    Expands { from: u64, most: u64 },
    #[error("{claimed} bytes in a file that has {stored} bytes and holes")]
    Hole { claimed: u64, stored: u64 },
    #[error("the tables of all files would take too much memory")]
    OverBudget,
    #[error("a symbol table without its names")]
    NoStrings,
    #[error("damaged compressed section")]
    Compression,
    #[error(transparent)]
    Io(io::Error),
}

impl From<io::Error> for ObjectError {
    fn from(error: io::Error) -> ObjectError {
        count_refusal(&error);
        ObjectError::Io(error)
    }
}

impl ObjectError {
    /// Nothing is known of the file: no descriptor was left to open it with.
    pub(super) fn is_for_want_of_descriptors(&self) -> bool {
        let ObjectError::Io(error) = self else { return false };
        matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
    }
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
