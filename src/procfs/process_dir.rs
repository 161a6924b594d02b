//! `/proc/ID` held open by its directory, so that every file read through it is of one task,
//! even if the id is given to another one meanwhile.

use super::error::ObserveError;
use crate::model::{Pid, Tid};
use crate::sys;
use ::procfs::ProcError;
use ::procfs::process::Process;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// The open directory of a task.
#[derive(Debug)]
pub struct ProcessDir {
    process: Process,
    /// Named in errors.
    pid: Pid,
    root: PathBuf,
}

impl ProcessDir {
    /// Opens `/proc/TID`. `pid` is the process it belongs to, named in errors.
    ///
    /// # Errors
    /// `Gone` when there is no such task.
    pub fn open(pid: Pid, tid: Tid) -> Result<ProcessDir, ObserveError> {
        let root = PathBuf::from(format!("/proc/{tid}"));
        let process = Process::new(tid).map_err(|error| convert(pid, "open", &root, error))?;
        Ok(ProcessDir { process, pid, root })
    }

    /// The process that the task belongs to.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// The crate's view of the same directory.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Full path of a file of the directory, for messages.
    pub fn path(&self, file: &str) -> PathBuf {
        self.root.join(file)
    }

    /// Opens a file of the directory for reading.
    pub fn open_file(&self, file: &str) -> Result<File, ObserveError> {
        self.process.open_relative(file).map_err(|error| convert(self.pid, "open", &self.path(file), error))
    }

    /// Opens and reads a small file of the directory.
    pub fn read(&self, file: &str) -> Result<Vec<u8>, ObserveError> {
        self.read_open(&self.open_file(file)?, file, 4096)
    }

    /// Reads an opened file of the directory to its end. `expected` bytes are reserved first;
    /// the kernel hands out maps and smaps by the page, so a larger buffer saves no calls.
    pub fn read_open(&self, opened: &File, file: &str, expected: usize) -> Result<Vec<u8>, ObserveError> {
        sys::file::read_open(opened, expected).map_err(|source| self.io_error("read", file, source))
    }

    /// An error on a file of this directory.
    pub fn io_error(&self, operation: &'static str, file: &str, source: io::Error) -> ObserveError {
        ObserveError::from_io(self.pid, operation, &self.path(file), source)
    }

    /// A file of this directory that makes no sense.
    pub fn malformed(&self, file: &str, detail: impl ToString) -> ObserveError {
        ObserveError::Malformed { pid: self.pid, path: self.path(file), detail: detail.to_string() }
    }

    /// The target of the link `exe`, any bytes, with " (deleted)" when the kernel says so.
    pub fn exe(&self) -> Result<Vec<u8>, ObserveError> {
        use std::os::unix::ffi::OsStringExt;
        match self.process.exe() {
            Ok(path) => Ok(path.into_os_string().into_vec()),
            Err(error) => Err(convert(self.pid, "read the link", &self.path("exe"), error)),
        }
    }
}

/// The crate has lost errno for the two commonest errors; their meaning is kept.
fn convert(pid: Pid, operation: &'static str, path: &Path, error: ProcError) -> ObserveError {
    let source = match error {
        ProcError::NotFound(_) => io::Error::from_raw_os_error(libc::ENOENT),
        ProcError::PermissionDenied(_) => io::Error::from_raw_os_error(libc::EACCES),
        ProcError::Io(source, _) => source,
        other => {
            return ObserveError::Malformed { pid, path: path.to_path_buf(), detail: other.to_string() };
        }
    };
    ObserveError::from_io(pid, operation, path, source)
}
