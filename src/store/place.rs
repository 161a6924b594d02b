//! Where a new recording goes: an older one is kept under another name, other files are not touched.

use super::error::StoreError;
use super::facts::Owner;
use super::journal;
use super::schema::APPLICATION_ID;
use crate::sys::untrusted_open::{self, Place, open_regular, own_link, place_itself};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, fchown};
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
    let header = untrusted_open::point_at(path)
        .and_then(|pointed| open_regular(&pointed))
        .and_then(|mut file| read_header(&mut file));
    header.is_ok_and(|header| not_ours(&header).is_none())
}

/// The files that a recording at `path` needs next to it: its journal, and an older recording with its own.
pub fn sidecar_names(path: &Path) -> [PathBuf; 3] {
    let old = sibling(path, ".old");
    [sibling(path, "-journal"), sibling(&old, "-journal"), old]
}

/// An empty file for a recording.
pub(super) struct Prepared {
    /// Its path without links: what SQLite opens.
    pub(super) path: PathBuf,
    /// An older recording was set aside for it.
    pub(super) older: bool,
    /// Points at the file. It is not open: to close it would end SQLite's locks (fcntl(2)).
    made: File,
}

/// Makes space for a recording at `path` and creates an empty file there that belongs to `owner`.
///
/// # Errors
/// When something else than a recording (or an empty file) is there, or one of another user, when a vmaudit is
/// still writing it, and when the file cannot be created.
pub(super) fn prepare(path: &Path, owner: Option<Owner>) -> Result<Prepared, StoreError> {
    let io = |source| StoreError::Io { path: path.to_owned(), source };
    let Place { folder, name, found } = place_itself(path).map_err(io)?;
    let path = folder.path().map_err(io)?.join(&name);
    let mut older = false;
    if let Some(pointed) = found {
        let found = pointed.metadata().map_err(io)?;
        if !found.is_file() {
            let why = if found.is_dir() { "it is a directory" } else { "it is not a regular file" };
            return Err(StoreError::WouldOverwrite { path, why });
        }
        folder.allow_writing(&found).map_err(io)?;
        if found.len() == 0 {
            folder.remove(&name).map_err(io)?;
        } else {
            set_aside(&path, &pointed)?;
            older = true;
        }
    }
    // What a stranger left under these names must not be rolled back into the new file.
    for suffix in ["-journal", "-wal", "-shm"] {
        match folder.remove(sibling(Path::new(&name), suffix).as_os_str()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io(error)),
            _ => {}
        }
    }
    // The addresses and names in it are the target's own business: not for everybody to read.
    let file = folder.create(&name, 0o600).map_err(io)?;
    if let Some(owner) = owner {
        fchown(&file, Some(owner.uid), Some(owner.gid)).map_err(io)?;
    }
    let made = untrusted_open::point_at(Path::new(&own_link(&file))).map_err(io)?;
    Ok(Prepared { path, older, made })
}

/// Proves that SQLite, which opens files by their names, has opened the file that was made, and a journal that it
/// made itself: in a folder that others can write, somebody else may have put other ones there.
pub(super) fn prove(prepared: &Prepared) -> Result<(), StoreError> {
    let path = &prepared.path;
    let io = |source| StoreError::Io { path: path.to_owned(), source };
    let made = prepared.made.metadata().map_err(io)?;
    let is_made = |found: &fs::Metadata| (found.dev(), found.ino()) == (made.dev(), made.ino());
    let journal = sibling(path, "-journal");
    let has_journal = || fs::symlink_metadata(&journal).is_ok_and(|found| journal::is_plain(&found));
    if fs::symlink_metadata(path).is_ok_and(|found| is_made(&found)) && has_journal() {
        return Ok(());
    }
    let why = "another user put a file in its place, or in that of its journal: name a file in a folder of your own";
    Err(io(untrusted_open::denied(why.to_owned())))
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
fn set_aside(path: &Path, pointed: &File) -> Result<(), StoreError> {
    let io = |source| StoreError::Io { path: path.to_owned(), source };
    let header = open_regular(pointed).and_then(|mut file| read_header(&mut file)).map_err(io)?;
    if not_ours(&header).is_some() {
        let why = "it is no recording of vmaudit";
        return Err(StoreError::WouldOverwrite { path: path.to_owned(), why });
    }
    // What cannot be undone stays with its file.
    if let Err(error @ (StoreError::Busy { .. } | StoreError::NotOwnJournal { .. })) = journal::settle(path) {
        return Err(error);
    }
    let old = sibling(path, ".old");
    let journal = sibling(path, "-journal");
    // An empty one has nothing to undo: the disk was full.
    if fs::symlink_metadata(&journal).is_ok_and(|found| found.len() == 0) {
        let _ = fs::remove_file(&journal);
    }
    if fs::symlink_metadata(&journal).is_ok() {
        // It could not be undone: it stays with its file.
        fs::rename(&journal, sibling(&old, "-journal")).map_err(io)?;
    } else {
        let _ = fs::remove_file(sibling(&old, "-journal"));
    }
    fs::rename(path, &old).map_err(io)
}
