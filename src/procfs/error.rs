//! What can go wrong while a process is read from outside.

use crate::model::Pid;
use crate::sys::file::count_refusal;
use std::io;
use std::path::{Path, PathBuf};

/// Why a process could not be observed. Each variant names the operation, the file and the pid.
#[derive(thiserror::Error, Debug)]
pub enum ObserveError {
    /// The process (or the thread whose directory is read) has exited, or never existed.
    #[error("process {pid} is gone: cannot {operation} {}", path.display())]
    Gone { pid: Pid, operation: &'static str, path: PathBuf },
    /// It lives, but has no user address space: a zombie, or a kernel thread.
    #[error("process {pid} has no address space ({} is empty): a zombie or a kernel thread", path.display())]
    NoAddressSpace { pid: Pid, path: PathBuf },
    /// ptrace access rules, a security module, or file permissions forbid it.
    #[error("cannot {operation} {} of process {pid}: permission denied", path.display())]
    PermissionDenied { pid: Pid, operation: &'static str, path: PathBuf, source: io::Error },
    /// The file holds something that this parser does not understand.
    #[error("cannot understand {} of process {pid}: {detail}", path.display())]
    Malformed { pid: Pid, path: PathBuf, detail: String },
    /// Anything else the kernel answered.
    #[error("cannot {operation} {} of process {pid}: {source}", path.display())]
    Io { pid: Pid, operation: &'static str, path: PathBuf, source: io::Error },
}

impl ObserveError {
    /// Sorts an I/O error on a file of `/proc/PID` by its meaning. ENOENT and ESRCH both mean
    /// that the task is gone: the first at lookup, the second once the directory is held open.
    pub(super) fn from_io(pid: Pid, operation: &'static str, path: &Path, source: io::Error) -> ObserveError {
        count_refusal(&source);
        let path = path.to_path_buf();
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::ESRCH) => ObserveError::Gone { pid, operation, path },
            Some(libc::EACCES | libc::EPERM) => {
                ObserveError::PermissionDenied { pid, operation, path, source }
            }
            _ => ObserveError::Io { pid, operation, path, source },
        }
    }
}
