//! Snapshots and lists of mappings, read back.

use super::code;
use super::detail;
use super::error::Fault;
use super::read::{Columns, each_row, one_row};
use crate::model::observation::{
    HeapInfo, Residency, ResidencySource, ResourceUse, SnapshotMoment, StatusFigures, ThreadObservation,
};
use crate::model::{Addr, AddrRange, Limits, Mapping, MappingFile, Observations, Prot, Sharing, USER_END};
use rusqlite::Connection;
use std::collections::BTreeMap;

/// A range from a start and a size that may be anything: no sum of what lies in user space overflows.
pub(super) fn range(start: u64, size: u64) -> Result<AddrRange, Fault> {
    match start.checked_add(size).filter(|&end| end <= USER_END) {
        Some(_) => Ok(AddrRange::from_len(Addr(start), size)),
        None => Err(Fault::damaged(format!("a range at {start:#x} of {size} bytes"))),
    }
}

/// What backs mappings, by number from 1.
pub(super) type Backings = Vec<(Option<MappingFile>, Vec<u8>)>;

pub(super) fn backings(db: &Connection) -> Result<Backings, Fault> {
    let sql = "SELECT * FROM backing ORDER BY id";
    numbered(db, sql, |row| {
        let file = match row.maybe(3)? {
            Some(inode) => {
                Some(MappingFile { major: row.narrow(1)?, minor: row.narrow(2)?, inode: inode as u64 })
            }
            None => None,
        };
        Ok((file, row.bytes(4)?.to_vec()))
    })
}

/// Rows whose first column counts from 1, without a gap.
pub(super) fn numbered<T>(
    db: &Connection,
    sql: &str,
    read: impl Fn(&Columns<'_, '_>) -> Result<T, Fault>,
) -> Result<Vec<T>, Fault> {
    let mut found = Vec::new();
    each_row(db, sql, [], |row| {
        let expected = found.len() as i64 + 1;
        if row.int(0)? != expected {
            return Err(Fault::damaged(format!("row {expected} is missing ({sql})")));
        }
        found.push(read(row)?);
        Ok(())
    })?;
    Ok(found)
}

/// The thing with a number from 1.
pub(super) fn lookup<'a, T>(known: &'a [T], number: i64, what: &str) -> Result<&'a T, Fault> {
    let index = usize::try_from(number).ok().and_then(|n| n.checked_sub(1));
    index
        .and_then(|index| known.get(index))
        .ok_or_else(|| Fault::damaged(format!("{what} {number} is missing")))
}

/// Rows of one owner: its number is the first column, the second counts from 0 without a gap.
pub(super) fn part<T>(
    db: &Connection,
    (sql, owner): (&str, i64),
    mut each: impl FnMut(&Columns<'_, '_>) -> Result<T, Fault>,
) -> Result<Vec<T>, Fault> {
    let mut found = Vec::new();
    each_row(db, sql, [owner], |row| {
        if row.int(1)? != found.len() as i64 {
            return Err(Fault::damaged(format!("row {} of {owner} is missing ({sql})", found.len())));
        }
        found.push(each(row)?);
        Ok(())
    })?;
    Ok(found)
}

/// As many as there were.
pub(super) fn complete<T>(found: Vec<T>, expected: i64, what: &str) -> Result<Vec<T>, Fault> {
    match found.len() as i64 == expected {
        true => Ok(found),
        false => Err(Fault::damaged(format!("{} of {expected} {what} are there", found.len()))),
    }
}

/// All mappings of a list, which are `count`.
pub(super) fn mappings(
    db: &Connection,
    backings: &Backings,
    (list, count): (i64, i64),
) -> Result<Vec<Mapping>, Fault> {
    let sql = "SELECT * FROM mapping WHERE list = ?1 ORDER BY n";
    let found = part(db, (sql, list), |row| {
        let (prot, sharing) = protection(row.bytes(4)?)?;
        let (file, name) = match row.maybe(6)? {
            Some(backing) => lookup(backings, backing, "backing")?.clone(),
            None => (None, Vec::new()),
        };
        let offset = row.word(5)?;
        Ok(Mapping { range: range(row.word(2)?, row.word(3)?)?, prot, sharing, offset, file, name })
    })?;
    complete(found, count, "mappings")
}

fn protection(text: &[u8]) -> Result<(Prot, Sharing), Fault> {
    let wrong = || Fault::damaged(format!("a protection of {:?}", String::from_utf8_lossy(text)));
    let [r, w, x, s] = text else { return Err(wrong()) };
    let bit = |byte: u8, set: u8| match byte {
        b'-' => Ok(false),
        byte if byte == set => Ok(true),
        _ => Err(wrong()),
    };
    let prot = Prot { read: bit(*r, b'r')?, write: bit(*w, b'w')?, exec: bit(*x, b'x')? };
    match s {
        b'p' => Ok((prot, Sharing::Private)),
        b's' => Ok((prot, Sharing::Shared)),
        _ => Err(wrong()),
    }
}

/// One snapshot, whole.
pub(super) fn snapshot(db: &Connection, backings: &Backings, id: i64) -> Result<Observations, Fault> {
    let sql = "SELECT * FROM snapshot WHERE id = ?1";
    one_row(db, (sql, [id]), &format!("snapshot {id}"), |row| observations(db, backings, id, row))
}

fn observations(
    db: &Connection,
    backings: &Backings,
    id: i64,
    row: &Columns<'_, '_>,
) -> Result<Observations, Fault> {
    let moment = match row.bytes(5)? {
        b"exit" => SnapshotMoment::HeldAtExit,
        b"live" => SnapshotMoment::Live,
        _ => return Err(Fault::damaged(format!("the moment of snapshot {id}"))),
    };
    let source = match row.bytes(10)? {
        b"pagemap-scan" => ResidencySource::PagemapScan,
        b"pagemap" => ResidencySource::Pagemap,
        b"smaps-estimate" => ResidencySource::SmapsProportion,
        b"none" => ResidencySource::None,
        _ => return Err(Fault::damaged(format!("the residency of snapshot {id}"))),
    };
    let cmdline = match row.bytes(25)?.strip_suffix(&[0]) {
        Some(arguments) => arguments.split(|&byte| byte == 0).map(<[u8]>::to_vec).collect(),
        None => Vec::new(),
    };
    let (mut code, blocks, thread_blocks) = code::read(db, id)?;
    let (limits, variables) = surroundings(db, id)?;
    code.variables = variables;
    Ok(Observations {
        pid: row.narrow(3)?,
        moment,
        begun_ns: row.word(6)?,
        ended_ns: row.word(7)?,
        mappings: mappings(db, backings, (row.int(8)?, row.int(9)?))?,
        residency: residency(db, (id, row.int(11)?), source)?,
        details: detail::read(db, id)?,
        threads: complete(threads(db, id)?, row.int(28)?, "threads")?,
        heap_infos: complete(heap_infos(db, id)?, row.int(29)?, "heap headers")?,
        status: StatusFigures {
            vm_size: row.word(12)?,
            vm_peak: row.word(13)?,
            vm_rss: row.word(14)?,
            vm_swap: row.word(15)?,
            vm_hwm: row.word(16)?,
            threads: row.word(17)?,
            resources: resources(row)?,
        },
        comm: row.bytes(23)?.to_vec(),
        exe: row.bytes(24)?.to_vec(),
        cmdline,
        stack_limit: row.maybe(26)?.map(|limit| limit as u64),
        limits,
        thread_blocks,
        blocks,
        code,
        aslr: row.flag(27)?,
        gaps: complete(gaps(db, id)?, row.int(30)?, "gaps")?,
    })
}

/// All of them, or none.
fn resources(row: &Columns<'_, '_>) -> Result<Option<ResourceUse>, Fault> {
    if row.maybe(18)?.is_none() {
        return Ok(None);
    }
    Ok(Some(ResourceUse {
        minor_faults: row.word(18)?,
        major_faults: row.word(19)?,
        cpu_ns: row.word(20)?,
        user_ns: row.word(21)?,
        system_ns: row.word(22)?,
    }))
}

fn residency(db: &Connection, (id, count): (i64, i64), source: ResidencySource) -> Result<Residency, Fault> {
    let sql = "SELECT * FROM residency WHERE snapshot = ?1 ORDER BY n";
    let (mut resident, mut swapped, mut per_vma) = (Vec::new(), Vec::new(), Vec::new());
    let found = part(db, (sql, id), |row| {
        let pages = range(row.word(2)?, row.word(3)?)?;
        match row.bytes(4)? {
            b"resident" => resident.push(pages),
            b"swapped" => swapped.push(pages),
            b"estimate" => per_vma.push((pages, row.word(5)?, row.word(6)?)),
            _ => return Err(Fault::damaged(format!("the residency of snapshot {id}"))),
        }
        Ok(())
    })?;
    complete(found, count, "ranges of pages")?;
    Ok(Residency { source, resident, swapped, per_vma })
}

fn threads(db: &Connection, id: i64) -> Result<Vec<ThreadObservation>, Fault> {
    let sql = "SELECT * FROM snapshot_thread WHERE snapshot = ?1 ORDER BY n";
    part(db, (sql, id), |row| {
        Ok(ThreadObservation {
            tid: row.narrow(2)?,
            comm: row.bytes(3)?.to_vec(),
            stack_pointer: row.maybe(4)?.map(|sp| Addr(sp as u64)),
        })
    })
}

fn heap_infos(db: &Connection, id: i64) -> Result<Vec<HeapInfo>, Fault> {
    let sql = "SELECT * FROM heap_info WHERE snapshot = ?1 ORDER BY n";
    part(db, (sql, id), |row| {
        Ok(HeapInfo {
            at: Addr(row.word(2)?),
            ar_ptr: Addr(row.word(3)?),
            prev: Addr(row.word(4)?),
            size: row.word(5)?,
            mprotect_size: row.word(6)?,
            pagesize: row.word(7)?,
        })
    })
}

fn surroundings(db: &Connection, id: i64) -> Result<(Limits, Vec<String>), Fault> {
    let what = format!("the surroundings of snapshot {id}");
    let sql = "SELECT * FROM surroundings WHERE snapshot = ?1";
    let figures: BTreeMap<String, u64> = one_row(db, (sql, [id]), &what, |row| row.json(1, &what))?;
    let variables = figures.keys().filter_map(|name| name.strip_prefix(code::VARIABLE)).map(str::to_owned);
    let limits = Limits::from_pairs(figures.iter().map(|(name, value)| (name.as_str(), *value)));
    Ok((limits, variables.collect()))
}

fn gaps(db: &Connection, id: i64) -> Result<Vec<String>, Fault> {
    let sql = "SELECT * FROM gap WHERE snapshot = ?1 ORDER BY n";
    part(db, (sql, id), |row| Ok(row.text(2)?.unwrap_or_default()))
}
