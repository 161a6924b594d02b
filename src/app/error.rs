//! Everything that ends vmaudit early.

use crate::session::{OWN_FAILURE, SessionError, UNUSABLE};
use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum AppError {
    #[error("{0}")]
    Session(SessionError),
    /// Before anything was started.
    #[error("--report {}: it cannot be written: {source}", path.display())]
    Report { path: PathBuf, source: io::Error },
    #[error("writing {}: {source}{limit}", path.display(), limit = size_limit(source))]
    Write { path: PathBuf, source: io::Error },
    #[error("writing the report: {0}{limit}", limit = size_limit(.0))]
    Output(io::Error),
    /// The command line asks for something that cannot be.
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Snapshot(#[from] crate::session::snapshots::SnapshotError),
    #[error("{0}")]
    CodeFile(#[from] super::code_files::CodeFileError),
    #[error("{0}")]
    Diff(#[from] super::commands::diff::DiffError),
    #[error("{0}")]
    Moment(#[from] super::moment::MomentError),
    /// Of allocations that there were.
    #[error("no allocation was seen: {why}")]
    NothingSeen { why: String },
    #[error("{0}")]
    Flame(#[from] crate::render::FlameError),
    #[error("encoding the report: {0}")]
    Json(#[from] serde_json::Error),
}

impl<E: Into<SessionError>> From<E> for AppError {
    fn from(error: E) -> AppError {
        AppError::Session(error.into())
    }
}

/// What EFBIG means for a file that is far from what a file system can hold.
fn size_limit(error: &io::Error) -> &'static str {
    if error.raw_os_error() == Some(libc::EFBIG) { ": no file may be longer here (ulimit -f)" } else { "" }
}

impl AppError {
    pub fn exit_code(&self) -> u8 {
        match self {
            AppError::Session(error) => error.exit_code(),
            AppError::Usage(_) => UNUSABLE,
            _ => OWN_FAILURE,
        }
    }
}
