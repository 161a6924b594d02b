//! The library itself, as a file that the dynamic loader can open.

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};

/// Empty where there is none for this architecture.
const BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libvmaudit-heap.so"));

/// True where there is a library for this architecture.
pub fn is_available() -> bool {
    !BYTES.is_empty()
}

/// In memory: no file is left behind whatever happens.
pub struct Library {
    file: OwnedFd,
}

impl Library {
    /// # Errors
    /// When there is no memory for it (memfd_create(2), write(2)).
    pub fn new() -> io::Result<Library> {
        let file = memfd_create("libvmaudit-heap.so", MFdFlags::MFD_CLOEXEC)?;
        let mut file = File::from(file);
        file.write_all(BYTES)?;
        Ok(Library { file: file.into() })
    }

    /// What `LD_PRELOAD` says. A program may close all descriptors that it does not know before it executes
    /// another one (Python's subprocess does): vmaudit's own is there as long as vmaudit. Where the command
    /// may not look into vmaudit, because it runs as another user, it inherits the descriptor.
    ///
    /// # Errors
    /// When the descriptor cannot be left open over execve.
    pub fn path(&self, same_user: bool) -> io::Result<String> {
        let number = self.file.as_raw_fd();
        if same_user {
            return Ok(format!("/proc/{}/fd/{number}", std::process::id()));
        }
        fcntl(&self.file, FcntlArg::F_SETFD(FdFlag::empty()))?;
        Ok(format!("/proc/self/fd/{number}"))
    }
}
