//! The library itself, as a file that the dynamic loader can open.

use crate::model::heap::own::LIBRARY;
use crate::model::path::base_name_bytes;
use crate::sys::untrusted_open::{Believed, Folder, denied, is_out_of_reach, open_regular, others_write};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use rustc_hash::FxHasher;
use std::ffi::OsString;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
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

/// Puts the library into a folder, which is made where it is missing; its path. What is there already stays, if
/// nobody but root and this user can change it: programs execute it.
///
/// # Errors
/// When it cannot be written, or others could change it.
pub fn install(folder: &Path) -> io::Result<PathBuf> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    let real = fs::canonicalize(folder)?;
    let mine = Believed::strictly();
    let unsafe_here = |why: &dyn std::fmt::Display| {
        denied(format!("{why}: programs would execute what others put there; name a folder of your own"))
    };
    is_out_of_reach(&real, &mine).map_err(|error| unsafe_here(&error))?;
    let (folder, name) = (Folder::open(&real)?, OsString::from(file_name()));
    // A sticky bit does not help: somebody else may have taken the name.
    if others_write(&folder.as_file().metadata()?) {
        return Err(unsafe_here(&format!("other users can write {}", real.display())));
    }
    let path = real.join(&name);
    if let Some(pointed) = folder.find(&name)? {
        let found = pointed.metadata()?;
        if !found.is_file() || !mine.includes(found.uid()) || others_write(&found) {
            let why = "is another user's, or others can write it, or it is no regular file: remove it";
            return Err(denied(format!("{} {why}", path.display())));
        }
        let mut known = Vec::new();
        open_regular(&pointed)?.take(BYTES.len() as u64 + 1).read_to_end(&mut known)?;
        if known == BYTES {
            return Ok(path);
        }
    }
    // Programs load it while it is written, otherwise.
    let unfinished = OsString::from(format!("{PREFIX}{}.tmp", std::process::id()));
    let mut file = folder.create(&unfinished, 0o755)?;
    file.write_all(BYTES)?;
    file.set_permissions(fs::Permissions::from_mode(0o755))?;
    folder.rename(&unfinished, &name)?;
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
