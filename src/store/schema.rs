//! The tables, and how a recording is recognised.

use super::error::Fault;
use super::op::OPS;
use rusqlite::{Connection, params};

/// `PRAGMA application_id`: "VmAu". At offset 68 of the file (sqlite.org/fileformat2.html, 1.3).
pub(super) const APPLICATION_ID: i32 = 0x566d_4175;

/// `PRAGMA user_version`: the version of the tables.
pub(super) const FORMAT: u32 = 4;
/// The oldest that is still read.
pub(super) const OLDEST: u32 = 3;
/// Tables that format 3 does not have.
const SINCE_4: [&str; 3] = ["heap_moment", "heap_part", "heap_stack"];

const TABLES: &str = include_str!("schema.sql");
const VIEWS: &str = include_str!("views.sql");

/// Creates all tables and views in an empty database.
pub(super) fn create(db: &Connection) -> Result<(), Fault> {
    db.pragma_update(None, "application_id", APPLICATION_ID)?;
    db.pragma_update(None, "user_version", FORMAT)?;
    db.execute_batch(TABLES)?;
    db.execute_batch(VIEWS)?;
    let mut insert = db.prepare("INSERT INTO op(id, name) VALUES(?1, ?2)")?;
    for (id, name) in OPS.iter().enumerate() {
        insert.execute(params![id as i64, name])?;
    }
    Ok(())
}

/// Whether it can have reports of a heap.
pub(super) fn has_heaps(db: &Connection) -> Result<bool, Fault> {
    let version: u32 = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
    Ok(version >= FORMAT)
}

/// Proves that the tables are those that [`create`] makes: a file may call anything `event`, a
/// view that never ends included. What a user added under other names does not matter.
pub(super) fn verify(db: &Connection) -> Result<(), Fault> {
    let version: u32 = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let expected = Connection::open_in_memory()?;
    expected.execute_batch(TABLES)?;
    let mut tables = expected.prepare("SELECT name, sql FROM sqlite_schema WHERE type = 'table'")?;
    let mut tables = tables.query([])?;
    let mut found = db.prepare(
        "SELECT 1 FROM sqlite_schema WHERE name = ?1 COLLATE NOCASE AND type = 'table' AND sql = ?2",
    )?;
    while let Some(row) = tables.next()? {
        let (name, sql): (String, String) = (row.get(0)?, row.get(1)?);
        if version < FORMAT && SINCE_4.contains(&name.as_str()) {
            continue;
        }
        if !found.exists(params![name, sql])? {
            return Err(Fault::damaged(format!("the table {name} is not as vmaudit makes it")));
        }
    }
    Ok(())
}
