//! What can be wrong with a recording.

use std::path::PathBuf;

/// Why a recording cannot be written or read. Each message says what to do where there is
/// something to do.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{}: no such file", path.display())]
    NotFound { path: PathBuf },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{}: not a recording of vmaudit ({why})", path.display())]
    NotARecording { path: PathBuf, why: &'static str },
    #[error(
        "{}: made by a newer vmaudit (recording format {found}, this one reads up to {known}): \
         use that version or a later one", path.display()
    )]
    Newer { path: PathBuf, found: u32, known: u32 },
    #[error("{}: truncated: {size} of {expected} bytes are there", path.display())]
    Truncated { path: PathBuf, size: u64, expected: u64 },
    #[error("{}: damaged: {what}", path.display())]
    Damaged { path: PathBuf, what: String },
    #[error("{}: a vmaudit is still writing it: wait for its end", path.display())]
    Busy { path: PathBuf },
    #[error(
        "{}: the vmaudit that wrote it was killed, and undoing its last, incomplete transaction needs \
         permission to write the file and its directory: copy it together with {}-journal to a \
         place where you may write", path.display(), path.display()
    )]
    NeedsRollback { path: PathBuf },
    #[error(
        "{}: it says how to change the recording next to it, as a killed vmaudit leaves it, and is not used: {why}. \
         Remove it if it is not yours; else copy it together with the recording to a folder that is yours alone",
        path.display()
    )]
    NotOwnJournal { path: PathBuf, why: String },
    #[error(
        "{}: the recording of a heap (vmaudit heap -o): it has reports of allocations and no calls that map memory, \
         and is read by vmaudit report and vmaudit diff", path.display()
    )]
    OfAHeap { path: PathBuf },
    #[error("{}: {}, and -o overwrites recordings only: name another file", path.display(), why)]
    WouldOverwrite { path: PathBuf, why: &'static str },
    #[error("{}: {operation}: File too large: no file may be longer here (ulimit -f)", path.display())]
    SizeLimit { path: PathBuf, operation: &'static str },
    #[error(
        "{}: {operation}: a value of it is too long for a recording (at most {} MiB each): leave -o away, and \
         write the report with -f json --report FILE", path.display(), super::check::MAX_VALUE >> 20
    )]
    TooLong { path: PathBuf, operation: &'static str },
    #[error("{}: {operation}: {source}", path.display())]
    Sql { path: PathBuf, operation: &'static str, source: rusqlite::Error },
}

/// The same without the path, for code that does not know it.
#[derive(Debug)]
pub(super) enum Fault {
    Sql(rusqlite::Error),
    Damaged(String),
    /// RLIMIT_FSIZE: SQLite reports full disks, but not that.
    SizeLimit,
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Fault {
        Fault::Sql(error)
    }
}

impl Fault {
    pub(super) fn damaged(what: impl Into<String>) -> Fault {
        Fault::Damaged(what.into())
    }

    /// To be called immediately after a failed write.
    pub(super) fn of_writing(self, db: &rusqlite::Connection) -> Fault {
        match self {
            Fault::Sql(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::SystemIoFailure) => {
                // SAFETY: the handle is the open connection's, and is not kept.
                match unsafe { rusqlite::ffi::sqlite3_system_errno(db.handle()) } {
                    libc::EFBIG => Fault::SizeLimit,
                    _ => Fault::Sql(error),
                }
            }
            other => other,
        }
    }

    /// Names the file and, where SQLite speaks, what was being done.
    pub(super) fn at(self, path: &std::path::Path, operation: &'static str) -> StoreError {
        use rusqlite::ErrorCode;
        let path = path.to_owned();
        let source = match self {
            Fault::Damaged(what) => return StoreError::Damaged { path, what },
            Fault::SizeLimit => return StoreError::SizeLimit { path, operation },
            Fault::Sql(source) => source,
        };
        match source.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt) => {
                StoreError::Damaged { path, what: format!("{operation}: {source}") }
            }
            Some(ErrorCode::NotADatabase) => {
                StoreError::NotARecording { path, why: "SQLite does not know its format" }
            }
            Some(ErrorCode::TooBig) => StoreError::TooLong { path, operation },
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Busy { path },
            Some(ErrorCode::ReadOnly) => StoreError::NeedsRollback { path },
            _ => StoreError::Sql { path, operation, source },
        }
    }
}
