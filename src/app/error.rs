//! Everything that ends vmaudit early.

use crate::diff::{HeapSideError, SideError};
use crate::launch::LaunchError;
use crate::model::Pid;
use crate::objects::ObjectError;
use crate::session::snapshots::SnapshotError;
use crate::session::{OWN_FAILURE, SessionError, UNUSABLE};
use nix::errno::Errno;
use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum AppError {
    #[error("{0}{limit}", limit = reached_limit(.0))]
    Session(SessionError),
    /// Before anything was started.
    #[error("--report {}: it cannot be written: {source}", path.display())]
    Report { path: PathBuf, source: io::Error },
    #[error("{}: no folder for temporary files: {source}: set TMPDIR to a folder of your own", path.display())]
    Temporary { path: PathBuf, source: io::Error },
    #[error("writing {}: {source}{limit}", path.display(), limit = size_limit(source))]
    Write { path: PathBuf, source: io::Error },
    #[error("writing the report: {0}{limit}", limit = size_limit(.0))]
    Output(io::Error),
    /// The command line requests something impossible.
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Snapshot(#[from] SnapshotError),
    #[error("{0}")]
    CodeFile(#[from] CodeFileError),
    #[error("{0}")]
    Diff(#[from] DiffError),
    #[error("{0}")]
    Moment(#[from] MomentError),
    /// Of allocations that there were.
    #[error("no allocation was seen: {why}")]
    NothingSeen { why: String },
    #[error("{0}")]
    Flame(#[from] crate::render::FlameError),
    #[error("encoding the report: {0}")]
    Json(#[from] serde_json::Error),
}

/// The limit that an error stands for, where it does not say so itself.
fn reached_limit(error: &SessionError) -> &'static str {
    let text = error.to_string();
    if text.contains("ulimit") {
        ""
    } else if text.contains(Errno::EMFILE.desc()) {
        "; this process may not open more files (RLIMIT_NOFILE): ulimit -n 4096"
    } else if matches!(error, SessionError::Launch(LaunchError::System { errno: Errno::EPIPE, .. })) {
        "; the process ended at once: if the limit on open files (RLIMIT_NOFILE) is in its way: ulimit -n 4096"
    } else if matches!(error, SessionError::Launch(LaunchError::System { errno: Errno::EAGAIN, .. })) {
        "; if it is the number of this user's processes (RLIMIT_NPROC), or of this cgroup's (pids.max): ulimit -u \
         $(ulimit -Hu)"
    } else {
        ""
    }
}

impl<E: Into<SessionError>> From<E> for AppError {
    fn from(error: E) -> AppError {
        AppError::Session(error.into())
    }
}

/// What cannot be compared.
#[derive(thiserror::Error, Debug)]
pub enum DiffError {
    #[error("{}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("{}: not a report of vmaudit -f json: {source}", path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    #[error("{}: {why}", path.display())]
    NotAReport { path: PathBuf, why: &'static str },
    #[error("{}: {source}", path.display())]
    Side { path: PathBuf, source: SideError },
    #[error("{}: {source}", path.display())]
    HeapSide { path: PathBuf, source: HeapSideError },
    #[error(
        "{} is of a heap and {} of what is mapped: allocations and mappings cannot be compared with each other",
        heap.display(), mappings.display()
    )]
    Mixed { heap: PathBuf, mappings: PathBuf },
    #[error("both A and B are -: standard input can be read once")]
    BothStdin,
    #[error("a recording cannot be read from standard input: name its file")]
    RecordingFromPipe,
    #[error("{0}")]
    Saved(#[from] SnapshotError),
}

/// Why there is no report of a moment.
#[derive(thiserror::Error, Debug)]
pub enum MomentError {
    #[error("{}: nothing was recorded", path.display())]
    Empty { path: PathBuf },
    #[error(
        "{}: the recording ends after {end:.3} s, there is no moment at {requested} s (times count from the start \
         of the command, or of tracing)", path.display()
    )]
    TooLate { path: PathBuf, requested: f64, end: f64 },
    #[error(
        "{}: the first report of a heap there is that of {first:.3} s: there is none at {requested} s (heap --interval \
         makes more)", path.display()
    )]
    TooEarly { path: PathBuf, requested: f64, first: f64 },
    #[error("{}: no process was alive at {requested} s{}", path.display(), last_end(*ended))]
    NobodyAlive { path: PathBuf, requested: f64, ended: Option<f64> },
    #[error("{}: no peak is known of the first process, because no call of it was seen", path.display())]
    NoPeak { path: PathBuf },
}

/// When the last process had ended, where it had.
fn last_end(ended: Option<f64>) -> String {
    let times = "(times count from the start of the command, or of tracing)";
    ended.map_or_else(String::new, |ended| {
        format!(": the last one until then ended after {ended:.3} s {times}")
    })
}

/// Why a file with code cannot be read.
#[derive(thiserror::Error, Debug)]
pub enum CodeFileError {
    #[error("{}: {source}", path.display())]
    Open { path: PathBuf, source: ObjectError },
    #[error("{}: {what}", path.display())]
    Unusable { path: PathBuf, what: String },
    #[error(
        "no library or program called {name} was found (LD_LIBRARY_PATH, /etc/ld.so.cache, the standard \
         directories, PATH){similar}; a path works, too"
    )]
    NoLibrary { name: String, similar: String },
    #[error("process {pid} has no file called {name} mapped as code; it has: {mapped}")]
    NotMapped { pid: Pid, name: String, mapped: String },
    #[error("process {0} has no file mapped as code")]
    NoCode(Pid),
    #[error("reading /proc/{pid}/maps: {source}{remedy}")]
    Maps { pid: Pid, source: io::Error, remedy: String },
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
