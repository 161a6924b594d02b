//! Everything that ends vmaudit early.

use crate::capture::CaptureError;
use crate::containers::ContainerError;
use crate::launch::{FindError, LaunchError, TargetError};
use crate::model::Pid;
use crate::procfs::ObserveError;
use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum AppError {
    #[error("{0}")]
    Rights(#[from] crate::rights::RightsError),
    #[error("{0}")]
    Sudo(#[from] crate::launch::SudoError),
    #[error("{0}")]
    Launch(#[from] LaunchError),
    #[error("{0}")]
    Target(#[from] TargetError),
    #[error("{0}")]
    Find(#[from] FindError),
    #[error("{0}")]
    Container(#[from] ContainerError),
    #[error(
        "the container {name} starts processes faster than they can be marked: {passes} passes were not enough"
    )]
    RestlessContainer { name: String, passes: u32 },
    #[error("nothing to trace is left: each of the processes has ended or cannot be traced")]
    NoTargetLeft,
    #[error("looking at {pid} ({name}): {source}{remedy}")]
    Look { pid: Pid, name: String, source: ObserveError, remedy: String },
    #[error(
        "{pid} ({name}) was not met among the tasks that the kernel shows: vmaudit runs in a PID namespace of \
         its own (a container without --pid=host)"
    )]
    OtherNamespace { pid: Pid, name: String },
    /// What does not work, why, and what helps.
    #[error("{0}")]
    Backend(String),
    #[error("{0}")]
    Capture(#[from] CaptureError),
    /// Before anything was started.
    #[error("--report {}: it cannot be written: {source}", path.display())]
    Report { path: PathBuf, source: io::Error },
    #[error("writing {}: {source}{limit}", path.display(), limit = size_limit(source))]
    Write { path: PathBuf, source: io::Error },
    #[error("writing the report: {0}{limit}", limit = size_limit(.0))]
    Output(io::Error),
    #[error("{operation}: {source}")]
    System { operation: &'static str, source: io::Error },
    /// The command line asks for something that cannot be.
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Snapshot(#[from] super::snapshot::SnapshotError),
    #[error("{0}")]
    CodeFile(#[from] super::code_files::CodeFileError),
    #[error("{0}")]
    Place(#[from] crate::capture::uprobe::PlaceError),
    #[error("{0}")]
    Diff(#[from] super::diff::DiffError),
    #[error("{0}")]
    Moment(#[from] super::moment::MomentError),
    #[error("{0}")]
    Store(#[from] crate::store::StoreError),
    #[error("{} is not complete: it can be read up to where it stopped", path.display())]
    Recording { path: PathBuf },
    /// Of allocations that there were.
    #[error("no allocation was seen: {why}")]
    NothingSeen { why: String },
    #[error("{0}")]
    Flame(#[from] crate::render::FlameError),
    #[error("encoding the report: {0}")]
    Json(#[from] serde_json::Error),
}

/// What EFBIG means for a file that is far from what a file system can hold.
fn size_limit(error: &io::Error) -> &'static str {
    if error.raw_os_error() == Some(libc::EFBIG) { ": no file may be longer here (ulimit -f)" } else { "" }
}

/// vmaudit's own failures, as with env(1) and nice(1).
const OWN_FAILURE: u8 = 125;
/// As clap's own errors.
const UNUSABLE: u8 = 2;

impl AppError {
    pub fn exit_code(&self) -> u8 {
        match self {
            AppError::Launch(error) => error.exit_code(),
            AppError::Usage(_) => UNUSABLE,
            _ => OWN_FAILURE,
        }
    }
}
