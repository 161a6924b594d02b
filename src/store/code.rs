//! What the files with code of a snapshot hold, and the blocks of malloc's that headers tell, as a row.

use super::error::Fault;
use super::read::Columns;
use super::{schema, sum};
use crate::model::{Addr, AddrRange, CodeMarks, FileMarks, MappingFile};
use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Row {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    libc_malloc: Option<u64>,
    files: Vec<File>,
    complete: bool,
    /// Start and length.
    blocks: Vec<(u64, u64)>,
}

#[derive(Serialize, Deserialize)]
struct File {
    major: u32,
    minor: u32,
    inode: u64,
    marks: Vec<String>,
    #[serde(rename = "jemalloc_setting", default, skip_serializing_if = "Option::is_none")]
    setting: Option<String>,
    #[serde(rename = "glibc", default, skip_serializing_if = "Option::is_none")]
    version: Option<(u32, u32)>,
}

pub(super) fn write(
    db: &Connection,
    snapshot: i64,
    (code, blocks): (&CodeMarks, &[AddrRange]),
) -> Result<(), Fault> {
    let file = |found: &FileMarks| File {
        major: found.file.major,
        minor: found.file.minor,
        inode: found.file.inode,
        marks: found.marks.clone(),
        setting: found.setting.clone(),
        version: found.version,
    };
    let row = Row {
        libc_malloc: code.libc_malloc.map(|at| at.0),
        files: code.files.iter().map(file).collect(),
        complete: code.complete,
        blocks: blocks.iter().map(|block| (block.start.0, block.len())).collect(),
    };
    let marks = serde_json::to_string(&row).unwrap_or_default();
    sum::insert(db, "INSERT INTO code(snapshot, marks, sum) VALUES(?, ?, ?)", params![snapshot, marks])?;
    Ok(())
}

/// Recordings before format 3 have none.
pub(super) fn read(db: &Connection, snapshot: i64) -> Result<(CodeMarks, Vec<AddrRange>), Fault> {
    if schema::format(db)? < 3 {
        return Ok(<(CodeMarks, Vec<AddrRange>)>::default());
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
        marks: found.marks,
        setting: found.setting,
        version: found.version,
    };
    let blocks =
        row.blocks.iter().map(|&(start, len)| AddrRange::new(start, start.saturating_add(len))).collect();
    let code = CodeMarks {
        libc_malloc: row.libc_malloc.map(Addr),
        files: row.files.into_iter().map(file).collect(),
        complete: row.complete,
    };
    Ok((code, blocks))
}
