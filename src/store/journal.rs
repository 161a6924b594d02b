//! The journal of a transaction that a killed vmaudit left open: SQLite would undo it whoever wrote it. It changes and
//! cuts the recording, and can name one more file, which SQLite then deletes (sqlite.org/fileformat2.html, 3).

use super::check::connect;
use super::error::{Fault, StoreError};
use super::place::sibling;
use crate::sys::untrusted_open::{self, Believed, is_out_of_reach, open_regular, point_at};
use nix::fcntl::{FcntlArg, fcntl};
use rusqlite::{ErrorCode, OpenFlags};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// What a journal begins with, and what ends the name of one more file that its transaction changes.
const MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
/// SQLite's locks are on these bytes of a file (sqlite3.c, PENDING_BYTE to SHARED_FIRST + SHARED_SIZE).
const LOCKS: (i64, i64) = (0x4000_0000, 512);

/// Undoes what a killed vmaudit left unfinished; true where there was something. Nobody else may be able to change
/// the recording or its journal, and be it by putting others there.
///
/// # Errors
/// When a vmaudit is still writing it, the journal is not the user's own, or it cannot be undone.
pub(super) fn settle(path: &Path) -> Result<bool, StoreError> {
    let io = |source| StoreError::Io { path: path.to_owned(), source };
    let pointed = point_at(path).map_err(io)?;
    let file = open_regular(&pointed).map_err(io)?;
    if is_locked(&file) {
        return Err(StoreError::Busy { path: path.to_owned() });
    }
    // The journal is where the file is, and not where a link to it is.
    let real = fs::canonicalize(path).map_err(io)?;
    let journal = sibling(&real, "-journal");
    match fs::symlink_metadata(&journal) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(io(error)),
        Ok(found) if found.is_file() && found.len() == 0 => return Ok(false),
        Ok(found) => examine(&real, &journal, &found)
            .map_err(|error| StoreError::NotOwnJournal { path: journal.clone(), why: error.to_string() })?,
    }
    let needs_rollback = || StoreError::NeedsRollback { path: path.to_owned() };
    let file =
        untrusted_open::reopen(&pointed, File::options().read(true).write(true)).map_err(
            |error| match error.kind() {
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => needs_rollback(),
                _ => io(error),
            },
        )?;
    // Until SQLite has closed the file: it does not lock it itself, and so has no use for a write-ahead log, which
    // anybody could put there.
    if fcntl(&file, FcntlArg::F_SETLK(&lock(libc::F_WRLCK))).is_err() {
        return Err(StoreError::Busy { path: path.to_owned() });
    }
    let undone = connect(&real, "nolock=1", OpenFlags::SQLITE_OPEN_READ_WRITE)
        .and_then(|db| Ok(db.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?));
    undone.map_err(|fault| match &fault {
        Fault::Sql(error) if error.sqlite_error_code() == Some(ErrorCode::CannotOpen) => needs_rollback(),
        _ => fault.at(path, "undoing the last transaction"),
    })?;
    Ok(true)
}

/// # Errors
/// When somebody else may have made it, or can put another one there.
fn examine(recording: &Path, journal: &Path, found: &Metadata) -> io::Result<()> {
    let refuse = |why: &str| Err(untrusted_open::denied(why.to_owned()));
    if !is_plain(found) {
        return refuse("it is another user's, or a link, or no regular file with one name");
    }
    for path in [recording, journal] {
        is_out_of_reach(path, &Believed::user())?;
    }
    let mut end = [0; 8];
    let length = found.len();
    if length >= 16 {
        open_regular(&point_at(journal)?)?.read_exact_at(&mut end, length - 8)?;
    }
    // No transaction of vmaudit's changes two files.
    if end == MAGIC { refuse("it names another file that is to be deleted") } else { Ok(()) }
}

/// True for what vmaudit makes: a regular file with one name, of the user's or root's.
pub(super) fn is_plain(found: &Metadata) -> bool {
    found.is_file() && found.nlink() == 1 && Believed::user().includes(found.uid())
}

/// True where another process writes it.
fn is_locked(file: &File) -> bool {
    let mut lock = lock(libc::F_RDLCK);
    // A file system without locks has no vmaudit that holds one.
    fcntl(file, FcntlArg::F_GETLK(&mut lock)).is_ok() && i32::from(lock.l_type) != libc::F_UNLCK
}

fn lock(kind: i32) -> libc::flock {
    let (start, length) = LOCKS;
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: length,
        l_pid: 0,
    }
}
