//! What the files with code of a snapshot hold, as a row.

use super::error::Fault;
use super::read::Columns;
use super::{schema, sum};
use crate::model::{Addr, CodeMarks, FileMarks, MappingFile, Mark};
use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Row {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    libc_malloc: Option<u64>,
    files: Vec<File>,
}

#[derive(Serialize, Deserialize)]
struct File {
    major: u32,
    minor: u32,
    inode: u64,
    /// Those that this version does not know are left out.
    marks: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    jemalloc_setting: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    glibc: Option<(u32, u32)>,
}

pub(super) fn write(db: &Connection, snapshot: i64, code: &CodeMarks) -> Result<(), Fault> {
    let file = |found: &FileMarks| File {
        major: found.file.major,
        minor: found.file.minor,
        inode: found.file.inode,
        marks: found.marks.iter().map(|mark| mark.as_str().to_owned()).collect(),
        jemalloc_setting: found.jemalloc_setting.clone(),
        glibc: found.glibc,
    };
    let row =
        Row { libc_malloc: code.libc_malloc.map(|at| at.0), files: code.files.iter().map(file).collect() };
    let marks = serde_json::to_string(&row).unwrap_or_default();
    sum::insert(db, "INSERT INTO code(snapshot, marks, sum) VALUES(?, ?, ?)", params![snapshot, marks])?;
    Ok(())
}

/// Recordings before format 3 have none.
pub(super) fn read(db: &Connection, snapshot: i64) -> Result<CodeMarks, Fault> {
    if schema::format(db)? < 3 {
        return Ok(CodeMarks::default());
    }
    let mut query = db.prepare_cached("SELECT snapshot, marks, sum FROM code WHERE snapshot = ?1")?;
    let mut rows = query.query([snapshot])?;
    let Some(row) = rows.next()? else {
        return Err(Fault::damaged(format!("what the code of snapshot {snapshot} holds is missing")));
    };
    let row = Columns::whole(row)?;
    let row: Row = serde_json::from_slice(row.bytes(1)?)
        .map_err(|error| Fault::damaged(format!("what the code of snapshot {snapshot} holds: {error}")))?;
    let file = |found: File| FileMarks {
        file: MappingFile { major: found.major, minor: found.minor, inode: found.inode },
        marks: found.marks.iter().filter_map(|name| Mark::from_name(name)).collect(),
        jemalloc_setting: found.jemalloc_setting,
        glibc: found.glibc,
    };
    Ok(CodeMarks { libc_malloc: row.libc_malloc.map(Addr), files: row.files.into_iter().map(file).collect() })
}
