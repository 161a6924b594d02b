//! What the files with code of a snapshot hold, and the blocks of allocators and threads that headers
//! describe, as a row.

use super::error::Fault;
use super::read::one_row;
use super::sum;
use crate::model::observation::{Block, BlockKind, GivenStack, StackLists, ThreadBlocks};
use crate::model::{Addr, AddrRange, CodeMarks, FileMarks, MappingFile, Tid};
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
    /// Start and length; older recordings have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    bss: Vec<(u64, u64)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    loader_data: Option<Vec<u64>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pool_arenas: Vec<(u64, u64)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    groups: Vec<(u64, u64)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    object_pages: Vec<(u64, u64)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    chained_arenas: Vec<(u64, u64)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    bookkeeping: Vec<(u64, u64)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    group_tables: Vec<(u64, u64)>,
    /// As `ThreadBlocks`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    living: Vec<(Tid, u64)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ended: Vec<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    searched: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stack_lists: Option<Lists>,
}

/// As `StackLists`.
#[derive(Serialize, Deserialize)]
struct Lists {
    given: Vec<Given>,
    unjoined: Vec<u64>,
    cached: Vec<u64>,
}

/// As `GivenStack`: thread, block, start and length.
#[derive(Serialize, Deserialize)]
struct Given(Option<Tid>, u64, Option<(u64, u64)>);

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
    (code, blocks, threads): (&CodeMarks, &[Block], &ThreadBlocks),
) -> Result<(), Fault> {
    let file = |found: &FileMarks| File {
        major: found.file.major,
        minor: found.file.minor,
        inode: found.file.inode,
        marks: found.marks.clone(),
        setting: found.setting.clone(),
        version: found.version,
    };
    let of = |kind: BlockKind| {
        let mine = blocks.iter().filter(|block| block.kind == kind);
        mine.map(|block| pair(&block.range)).collect()
    };
    let row = Row {
        libc_malloc: code.libc_malloc.map(|at| at.0),
        files: code.files.iter().map(file).collect(),
        complete: code.complete,
        blocks: of(BlockKind::Large),
        pool_arenas: of(BlockKind::PoolArena),
        groups: of(BlockKind::Group),
        object_pages: of(BlockKind::ObjectPage),
        chained_arenas: of(BlockKind::ChainedArena),
        bookkeeping: of(BlockKind::Bookkeeping),
        group_tables: of(BlockKind::GroupTable),
        bss: code.bss.iter().map(pair).collect(),
        loader_data: code.loader_data.as_ref().map(|all| all.iter().map(|at| at.0).collect()),
        living: threads.living.iter().map(|(tid, at)| (*tid, at.0)).collect(),
        ended: threads.ended.iter().map(|at| at.0).collect(),
        searched: threads.searched,
        stack_lists: threads.lists.as_ref().map(|lists| Lists {
            given: lists.given.iter().map(|g| Given(g.tid, g.block.0, g.stack.as_ref().map(pair))).collect(),
            unjoined: lists.unjoined.iter().map(|at| at.0).collect(),
            cached: lists.cached.iter().map(|at| at.0).collect(),
        }),
    };
    let marks = serde_json::to_string(&row).unwrap_or_default();
    sum::insert(db, "code", params![snapshot, marks])?;
    Ok(())
}

pub(super) fn read(db: &Connection, snapshot: i64) -> Result<(CodeMarks, Vec<Block>, ThreadBlocks), Fault> {
    let what = format!("what the code of snapshot {snapshot} holds");
    let sql = "SELECT * FROM code WHERE snapshot = ?1";
    let row: Row = one_row(db, (sql, [snapshot]), &what, |row| row.json(1, &what))?;
    let file = |found: File| FileMarks {
        file: MappingFile { major: found.major, minor: found.minor, inode: found.inode },
        marks: found.marks,
        setting: found.setting,
        version: found.version,
    };
    let of = |pairs: &[(u64, u64)], kind| -> Vec<Block> {
        pairs.iter().map(|each| Block { range: range(each), kind }).collect()
    };
    let mut blocks = of(&row.blocks, BlockKind::Large);
    blocks.extend(of(&row.pool_arenas, BlockKind::PoolArena));
    blocks.extend(of(&row.groups, BlockKind::Group));
    blocks.extend(of(&row.object_pages, BlockKind::ObjectPage));
    blocks.extend(of(&row.chained_arenas, BlockKind::ChainedArena));
    blocks.extend(of(&row.bookkeeping, BlockKind::Bookkeeping));
    blocks.extend(of(&row.group_tables, BlockKind::GroupTable));
    blocks.sort_unstable_by_key(|block| block.range);
    let code = CodeMarks {
        variables: Vec::new(),
        libc_malloc: row.libc_malloc.map(Addr),
        files: row.files.into_iter().map(file).collect(),
        complete: row.complete,
        bss: row.bss.iter().map(range).collect(),
        loader_data: row.loader_data.map(|all| all.into_iter().map(Addr).collect()),
    };
    let threads = ThreadBlocks {
        living: row.living.into_iter().map(|(tid, at)| (tid, Addr(at))).collect(),
        ended: row.ended.into_iter().map(Addr).collect(),
        searched: row.searched,
        lists: row.stack_lists.map(stack_lists),
    };
    Ok((code, blocks, threads))
}

fn stack_lists(lists: Lists) -> StackLists {
    let addrs = |all: Vec<u64>| all.into_iter().map(Addr).collect();
    let given = lists.given.into_iter().map(|Given(tid, block, stack)| GivenStack {
        tid,
        block: Addr(block),
        stack: stack.as_ref().map(range),
    });
    StackLists { given: given.collect(), unjoined: addrs(lists.unjoined), cached: addrs(lists.cached) }
}

fn pair(range: &AddrRange) -> (u64, u64) {
    (range.start.0, range.len())
}

fn range(&(start, len): &(u64, u64)) -> AddrRange {
    AddrRange::new(start, start.saturating_add(len))
}
