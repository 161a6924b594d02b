//! The library itself, as a file that the dynamic loader can open.

use crate::model::heap::own::LIBRARY;
use crate::model::path::base_name_bytes;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use rustc_hash::FxHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Empty where there is none for this architecture.
pub(super) const BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libvmaudit-heap.so"));

/// True where there is a library for this architecture.
pub fn is_available() -> bool {
    !BYTES.is_empty()
}

/// Of its name on disk, whatever the version.
pub(super) const PREFIX: &str = "libvmaudit-heap-";

/// What the library is called on disk: another one has another name.
pub(super) fn file_name() -> String {
    let mut hash = FxHasher::default();
    BYTES.hash(&mut hash);
    format!("{PREFIX}{:016x}.so", hash.finish())
}

/// Whether a path is that of a library of this kind, of whatever version.
pub fn is_library(path: &[u8]) -> bool {
    base_name_bytes(path).starts_with(PREFIX.as_bytes())
}

/// Puts the library into a folder, which is made where it is missing; its path. What is there already stays.
///
/// # Errors
/// When it cannot be written.
pub fn install(folder: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let path = fs::canonicalize(folder)?.join(file_name());
    if fs::read(&path).is_ok_and(|known| known == BYTES) {
        return Ok(path);
    }
    // Programs load it while it is written, otherwise.
    let unfinished = path.with_extension(format!("{}.tmp", std::process::id()));
    let mut file = File::options().write(true).create_new(true).mode(0o755).open(&unfinished)?;
    file.write_all(BYTES)?;
    file.set_permissions(fs::Permissions::from_mode(0o755))?;
    fs::rename(&unfinished, &path)?;
    Ok(path)
}

/// In memory: no file is left behind whatever happens.
pub struct Library {
    file: OwnedFd,
}

impl Library {
    /// # Errors
    /// When there is no memory for it (memfd_create(2), write(2)).
    pub fn new() -> io::Result<Library> {
        let file = memfd_create(LIBRARY, MFdFlags::MFD_CLOEXEC)?;
        let mut file = File::from(file);
        file.write_all(BYTES)?;
        Ok(Library { file: file.into() })
    }

    /// What `LD_PRELOAD` says. A program may close all descriptors that it does not know before it executes
    /// another one (Python's subprocess does): vmaudit's own is there as long as vmaudit. Where the command
    /// may not inspect vmaudit, because it runs as another user, it inherits the descriptor.
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
