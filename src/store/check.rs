//! From a path to an open database that is a whole recording of a version that is known.

use super::error::{Fault, StoreError};
use super::journal;
use super::place::{HEADER, not_ours, read_header, sibling};
use super::schema::{self, FORMAT, OLDEST};
use crate::sys::untrusted_open;
use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, OpenFlags};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The longest value that is written or read, bytes.
pub(super) const MAX_VALUE: i32 = 1 << 29;

/// Opens a recording for reading. A transaction that a killed vmaudit left open is undone first.
///
/// # Errors
/// See [`StoreError`].
pub(super) fn open(path: &Path) -> Result<Connection, StoreError> {
    header(path)?;
    if journal::settle(path)? {
        header(path)?;
    }
    let prepare = |db: Connection| -> Result<Connection, Fault> {
        db.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_VALUE)?;
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
        db.pragma_update(None, "cell_size_check", true)?;
        db.pragma_update(None, "cache_size", -16_384)?;
        db.pragma_update(None, "temp_store", "MEMORY")?;
        schema::verify(&db)?;
        Ok(db)
    };
    // Immutable: SQLite looks for nothing next to the file, neither a journal nor a write-ahead log, which anybody
    // could put there.
    let db = connect(path, "immutable=1", OpenFlags::SQLITE_OPEN_READ_ONLY);
    db.and_then(prepare).map_err(|fault| fault.at(path, "opening it"))
}

/// Opens a database with a parameter of sqlite.org/uri.html.
pub(super) fn connect(path: &Path, parameter: &str, flags: OpenFlags) -> Result<Connection, Fault> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    let escaped: String = path
        .as_os_str()
        .as_bytes()
        .iter()
        .map(|&byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect();
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    Ok(Connection::open_with_flags(format!("file:{escaped}?{parameter}"), flags)?)
}

/// What the first bytes and the length of a file show, without SQLite.
fn header(path: &Path) -> Result<(), StoreError> {
    let io = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => StoreError::NotFound { path: path.to_owned() },
        _ => StoreError::Io { path: path.to_owned(), source },
    };
    let no = |why| StoreError::NotARecording { path: path.to_owned(), why };
    let pointed = untrusted_open::point_at(path).map_err(io)?;
    let found = pointed.metadata().map_err(io)?;
    if found.is_dir() {
        return Err(no("a directory"));
    }
    if !found.is_file() {
        return Err(no("not a regular file"));
    }
    if found.len() == 0 {
        return Err(no("an empty file"));
    }
    let header =
        untrusted_open::open_regular(&pointed).and_then(|mut file| read_header(&mut file)).map_err(io)?;
    if header.len() < HEADER && header.starts_with(b"SQLite format 3\0") {
        let (size, expected) = (found.len(), HEADER as u64);
        return Err(StoreError::Truncated { path: path.to_owned(), size, expected });
    }
    if let Some(why) = not_ours(&header) {
        return Err(no(why));
    }
    let number =
        |at: usize| header.get(at..at + 4).map_or(0, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
    // sqlite.org/fileformat2.html, 1.3: 60 user_version, 16 page size, 28 pages.
    let version = number(60);
    if version > FORMAT {
        return Err(StoreError::Newer { path: path.to_owned(), found: version, known: FORMAT });
    }
    if version < OLDEST {
        return Err(no("a format from before the first release"));
    }
    let page = match u16::from_be_bytes([header[16], header[17]]) {
        1 => 65_536,
        size => u64::from(size),
    };
    let expected = page * u64::from(number(28));
    // With a journal, the file may be shorter than it was: undoing restores that.
    let journal = sibling(path, "-journal").exists();
    if found.len() < expected && !journal {
        return Err(StoreError::Truncated { path: path.to_owned(), size: found.len(), expected });
    }
    Ok(())
}
