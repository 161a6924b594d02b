//! What ends a session early.

use crate::capture::CaptureError;
use crate::containers::ContainerError;
use crate::launch::{FindError, LaunchError, TargetError};
use crate::model::Pid;
use crate::procfs::ObserveError;
use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum SessionError {
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
    ContainerNeverSettles { name: String, passes: u32 },
    #[error("nothing to trace is left: each of the processes has ended or cannot be traced")]
    NoTargetLeft,
    #[error("snapshot of {pid} ({name}): {source}{remedy}")]
    Snapshot { pid: Pid, name: String, source: ObserveError, remedy: String },
    #[error(
        "{pid} ({name}) was not found among the tasks that the kernel lists: vmaudit runs in a PID namespace of \
         its own (a container without --pid=host)"
    )]
    OtherNamespace { pid: Pid, name: String },
    /// What does not work, why, and what helps.
    #[error("{0}")]
    Backend(String),
    #[error("{0}")]
    Capture(#[from] CaptureError),
    #[error("{operation}: {source}")]
    System { operation: &'static str, source: io::Error },
    #[error("{0}")]
    Place(#[from] crate::capture::uprobe::PlaceError),
    #[error("{0}")]
    Store(#[from] crate::store::StoreError),
    #[error("{} is not complete: it can be read up to where it stopped", path.display())]
    Recording { path: PathBuf },
    /// The command line requests something impossible.
    #[error("{0}")]
    Usage(String),
}

/// vmaudit's own failures, as with env(1) and nice(1).
pub const OWN_FAILURE: u8 = 125;
/// As clap's own errors.
pub const UNUSABLE: u8 = 2;

impl SessionError {
    pub fn exit_code(&self) -> u8 {
        match self {
            SessionError::Launch(error) => error.exit_code(),
            SessionError::Usage(_) => UNUSABLE,
            _ => OWN_FAILURE,
        }
    }
}
