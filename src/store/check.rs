//! From a path to an open database that is a whole recording of a version that is known.

use super::error::{Fault, StoreError};
use super::place::{HEADER, not_ours, read_header, sibling};
use super::schema::{self, FORMAT, OLDEST};
use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, OpenFlags};
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::Duration;

/// The longest value that is written or read, bytes.
pub(super) const MAX_VALUE: i32 = 1 << 29;

/// Opens a recording for reading. A transaction that a killed vmaudit left open is undone first.
///
/// # Errors
/// See [`StoreError`].
pub(super) fn open(path: &Path) -> Result<Connection, StoreError> {
    header(path)?;
    // Locking would wait for a writer: this fails immediately instead.
    let with = |flags: OpenFlags| -> Result<Connection, Fault> {
        let db = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
        db.busy_timeout(Duration::ZERO)?;
        Ok(db)
    };
    let journal = fs::metadata(sibling(path, "-journal")).is_ok_and(|found| found.len() > 0);
    if journal {
        let rollback = with(OpenFlags::SQLITE_OPEN_READ_WRITE)
            .and_then(|db| Ok(db.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?));
        rollback.map_err(|fault| match fault.at(path, "undoing the last transaction") {
            StoreError::Sql { path, source, .. }
                if source.sqlite_error_code() == Some(rusqlite::ErrorCode::CannotOpen) =>
            {
                StoreError::NeedsRollback { path }
            }
            other => other,
        })?;
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
    with(OpenFlags::SQLITE_OPEN_READ_ONLY).and_then(prepare).map_err(|fault| fault.at(path, "opening it"))
}

/// What the first bytes and the length of a file show, without SQLite.
fn header(path: &Path) -> Result<(), StoreError> {
    let io = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => StoreError::NotFound { path: path.to_owned() },
        _ => StoreError::Io { path: path.to_owned(), source },
    };
    let no = |why| StoreError::NotARecording { path: path.to_owned(), why };
    // Before it is opened: a FIFO would wait for its writer.
    let found = fs::metadata(path).map_err(io)?;
    if found.is_dir() {
        return Err(no("a directory"));
    }
    if !found.is_file() {
        return Err(no("not a regular file"));
    }
    if found.len() == 0 {
        return Err(no("an empty file"));
    }
    let header = read_header(&mut File::open(path).map_err(io)?).map_err(io)?;
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
