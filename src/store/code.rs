//! What the files with code of a snapshot hold, and the blocks of malloc's that headers tell, as a row.

use super::error::Fault;
use super::read::one_row;
use super::sum;
use crate::model::{Addr, AddrRange, CodeMarks, FileMarks, MappingFile};
use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};

/// What a variable of the environment is written with, among the surroundings.
pub(super) const VARIABLE: &str = "variable ";

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
    sum::insert(db, "code", params![snapshot, marks])?;
    Ok(())
}

pub(super) fn read(db: &Connection, snapshot: i64) -> Result<(CodeMarks, Vec<AddrRange>), Fault> {
    let what = format!("what the code of snapshot {snapshot} holds");
    let sql = "SELECT * FROM code WHERE snapshot = ?1";
    let row: Row = one_row(db, (sql, [snapshot]), &what, |row| row.json(1, &what))?;
    let file = |found: File| FileMarks {
        file: MappingFile { major: found.major, minor: found.minor, inode: found.inode },
        marks: found.marks,
        setting: found.setting,
        version: found.version,
    };
    let blocks =
        row.blocks.iter().map(|&(start, len)| AddrRange::new(start, start.saturating_add(len))).collect();
    let code = CodeMarks {
        variables: Vec::new(),
        libc_malloc: row.libc_malloc.map(Addr),
        files: row.files.into_iter().map(file).collect(),
        complete: row.complete,
    };
    Ok((code, blocks))
}
