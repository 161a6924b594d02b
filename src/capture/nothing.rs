//! No backend: the calls are not reported. For commands whose mappings are examined in addition to something
//! else.

use super::{CaptureError, Counters, EventSource};
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::os::fd::{AsFd, BorrowedFd};

/// Reports nothing.
pub struct Nothing {
    never: EventFd,
}

impl Nothing {
    /// # Errors
    /// EMFILE, ENFILE.
    pub fn new() -> Result<Nothing, Errno> {
        Ok(Nothing { never: EventFd::from_flags(EfdFlags::EFD_CLOEXEC)? })
    }

    pub fn reader(&self) -> NothingReader<'_> {
        NothingReader { never: self.never.as_fd() }
    }
}

pub struct NothingReader<'a> {
    never: BorrowedFd<'a>,
}

impl EventSource for NothingReader<'_> {
    fn poll_while(&mut self, _: &mut dyn FnMut() -> bool) -> Result<(), CaptureError> {
        Ok(())
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.never
    }

    fn counters(&self) -> Result<Counters, CaptureError> {
        Ok(Counters::default())
    }
}
