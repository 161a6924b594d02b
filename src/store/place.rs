//! Where a new recording goes: an older one is kept under another name, other files are not touched.

use super::error::StoreError;
use super::facts::Owner;
use super::schema::APPLICATION_ID;
use rusqlite::{Connection, OpenFlags};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

/// The part of a SQLite header that identifies a file.
pub(super) const HEADER: usize = 100;

/// `path` with something appended to its name.
pub(super) fn sibling(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}

/// Why these first bytes are not those of a recording.
pub(super) fn not_ours(header: &[u8]) -> Option<&'static str> {
    if !header.starts_with(b"SQLite format 3\0") || header.len() < HEADER {
        return Some("no SQLite file");
    }
    (header[68..72] != APPLICATION_ID.to_be_bytes()).then_some("a SQLite file of another program")
}

/// The first [`HEADER`] bytes of a file, or fewer when it is shorter.
pub(super) fn read_header(file: &mut File) -> io::Result<Vec<u8>> {
    let mut header = Vec::with_capacity(HEADER);
    file.take(HEADER as u64).read_to_end(&mut header)?;
    Ok(header)
}

/// True where a recording of vmaudit is, whole or not.
pub fn is_recording(path: &Path) -> bool {
    // Before it is opened: a FIFO would wait for its writer.
    fs::metadata(path).is_ok_and(|found| found.is_file())
        && File::open(path)
            .and_then(|mut file| read_header(&mut file))
            .is_ok_and(|header| not_ours(&header).is_none())
}

/// The files that a recording at `path` needs next to it: its journal, and an older recording with its own.
pub fn sidecar_names(path: &Path) -> [PathBuf; 3] {
    let old = sibling(path, ".old");
    [sibling(path, "-journal"), sibling(&old, "-journal"), old]
}

/// Makes space for a recording at `path` and creates an empty file there that belongs to `owner`.
/// True when an older recording was set aside for it.
///
/// # Errors
/// When something else than a recording (or an empty file) is there, when a vmaudit is still
/// writing it, and when the file cannot be created.
pub(super) fn prepare(path: &Path, owner: Option<Owner>) -> Result<bool, StoreError> {
    let io = |source| StoreError::Io { path: path.to_owned(), source };
    let mut older = false;
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io(error)),
        Ok(found) if !found.file_type().is_file() => {
            let why = if found.is_dir() { "it is a directory" } else { "it is not a regular file" };
            return Err(StoreError::WouldOverwrite { path: path.to_owned(), why });
        }
        Ok(found) if found.len() == 0 => fs::remove_file(path).map_err(io)?,
        Ok(_) => {
            set_aside(path)?;
            older = true;
        }
    }
    // What a stranger left under the journal's name must not be rolled back into the new file.
    match fs::remove_file(sibling(path, "-journal")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io(error)),
        _ => {}
    }
    // The addresses and names in it are the target's own business: not for everybody to read.
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let file = options.open(path).map_err(io)?;
    if let Some(owner) = owner {
        fchown(&file, Some(owner.uid), Some(owner.gid)).map_err(io)?;
    }
    Ok(older)
}

/// The recording could not be begun after all: takes away what [`prepare`] made of `path`, and puts
/// the older recording back.
pub(super) fn give_up(path: &Path, older: bool) {
    // Whatever fails here, the reason to give up is what counts.
    let _ = fs::remove_file(sibling(path, "-journal"));
    let _ = fs::remove_file(path);
    if older {
        let old = sibling(path, ".old");
        let _ = fs::rename(sibling(&old, "-journal"), sibling(path, "-journal"));
        let _ = fs::rename(old, path);
    }
}

/// Renames an older recording to FILE.old.
fn set_aside(path: &Path) -> Result<(), StoreError> {
    let io = |source| StoreError::Io { path: path.to_owned(), source };
    let header = read_header(&mut File::open(path).map_err(io)?).map_err(io)?;
    if not_ours(&header).is_some() {
        let why = "it is no recording of vmaudit";
        return Err(StoreError::WouldOverwrite { path: path.to_owned(), why });
    }
    // Undoes what a killed vmaudit left unfinished, and fails if a living one is writing it.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if let Ok(db) = Connection::open_with_flags(path, flags) {
        let _ = db.busy_timeout(std::time::Duration::ZERO);
        let locked = db.execute_batch("BEGIN EXCLUSIVE; ROLLBACK");
        if let Err(error) = locked
            && error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy)
        {
            return Err(StoreError::Busy { path: path.to_owned() });
        }
    }
    let old = sibling(path, ".old");
    let journal = sibling(path, "-journal");
    // An empty one has nothing to undo: the disk was full.
    if fs::metadata(&journal).is_ok_and(|found| found.len() == 0) {
        let _ = fs::remove_file(&journal);
    }
    if journal.exists() {
        // It could not be undone: it stays with its file.
        fs::rename(&journal, sibling(&old, "-journal")).map_err(io)?;
    } else {
        let _ = fs::remove_file(sibling(&old, "-journal"));
    }
    fs::rename(path, &old).map_err(io)
}
