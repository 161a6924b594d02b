//! Snapshots and lists of mappings, read back.

use super::error::Fault;
use super::read::Columns;
use crate::model::observation::{
    HeapInfo, Residency, ResidencySource, SnapshotMoment, StatusFigures, ThreadObservation,
};
use crate::model::{Addr, AddrRange, Mapping, MappingFile, Observations, Prot, Sharing};
use rusqlite::Connection;

/// A range from a start and a size that may be anything.
fn range(start: u64, size: u64) -> Result<AddrRange, Fault> {
    match start.checked_add(size) {
        Some(_) => Ok(AddrRange::from_len(Addr(start), size)),
        None => Err(Fault::damaged(format!("a range at {start:#x} of {size} bytes"))),
    }
}

/// All mappings of a list.
pub(super) fn mappings(db: &Connection, list: i64) -> Result<Vec<Mapping>, Fault> {
    let mut query = db.prepare_cached(
        "SELECT p.start, p.size, p.prot, p.offset, p.backing, b.id, b.major, b.minor, b.inode, b.name \
         FROM mapping p LEFT JOIN backing b ON b.id = p.backing WHERE p.list = ?1 ORDER BY p.n",
    )?;
    let mut rows = query.query([list])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let row = Columns(row);
        let (prot, sharing) = protection(row.bytes(2)?)?;
        let (mut file, mut name) = (None, Vec::new());
        if let Some(backing) = row.maybe(4)? {
            if row.maybe(5)?.is_none() {
                return Err(Fault::damaged(format!("row {backing} of backing is missing")));
            }
            if row.maybe(8)?.is_some() {
                let (major, minor) = (row.narrow(6)?, row.narrow(7)?);
                file = Some(MappingFile { major, minor, inode: row.word(8)? });
            }
            name = row.bytes(9)?.to_vec();
        }
        found.push(Mapping {
            range: range(row.word(0)?, row.word(1)?)?,
            prot,
            sharing,
            offset: row.word(3)?,
            file,
            name,
        });
    }
    Ok(found)
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
pub(super) fn snapshot(db: &Connection, id: i64) -> Result<Observations, Fault> {
    let mut query = db.prepare_cached(
        "SELECT pid, moment, begun_ns, ended_ns, list, residency, vm_size, vm_peak, vm_rss, vm_swap, \
         vm_hwm, threads, name, exe, cmdline, stack_limit, aslr FROM snapshot WHERE id = ?1",
    )?;
    let mut rows = query.query([id])?;
    let Some(row) = rows.next()? else {
        return Err(Fault::damaged(format!("snapshot {id} is missing")));
    };
    let row = Columns(row);
    let moment = match row.bytes(1)? {
        b"exit" => SnapshotMoment::HeldAtExit,
        b"live" => SnapshotMoment::Live,
        _ => return Err(Fault::damaged(format!("the moment of snapshot {id}"))),
    };
    let source = match row.bytes(5)? {
        b"pagemap-scan" => ResidencySource::PagemapScan,
        b"pagemap" => ResidencySource::Pagemap,
        b"smaps-estimate" => ResidencySource::SmapsProportion,
        b"none" => ResidencySource::None,
        _ => return Err(Fault::damaged(format!("the residency of snapshot {id}"))),
    };
    let cmdline = row.bytes(14)?;
    let cmdline = match cmdline.strip_suffix(&[0]) {
        Some(arguments) => arguments.split(|&byte| byte == 0).map(<[u8]>::to_vec).collect(),
        None => Vec::new(),
    };
    Ok(Observations {
        pid: row.narrow(0)?,
        moment,
        begun_ns: row.word(2)?,
        ended_ns: row.word(3)?,
        mappings: mappings(db, row.int(4)?)?,
        residency: residency(db, id, source)?,
        threads: threads(db, id)?,
        heap_infos: heap_infos(db, id)?,
        status: StatusFigures {
            vm_size: row.word(6)?,
            vm_peak: row.word(7)?,
            vm_rss: row.word(8)?,
            vm_swap: row.word(9)?,
            vm_hwm: row.word(10)?,
            threads: row.word(11)?,
        },
        comm: row.bytes(12)?.to_vec(),
        exe: row.bytes(13)?.to_vec(),
        cmdline,
        stack_limit: row.maybe(15)?.map(|limit| limit as u64),
        aslr: row.flag(16)?,
        gaps: gaps(db, id)?,
    })
}

fn residency(db: &Connection, id: i64, source: ResidencySource) -> Result<Residency, Fault> {
    let mut query = db.prepare_cached(
        "SELECT start, size, kind, rss, swap FROM residency WHERE snapshot = ?1 ORDER BY n",
    )?;
    let mut rows = query.query([id])?;
    let (mut resident, mut swapped, mut per_vma) = (Vec::new(), Vec::new(), Vec::new());
    while let Some(row) = rows.next()? {
        let row = Columns(row);
        let pages = range(row.word(0)?, row.word(1)?)?;
        match row.bytes(2)? {
            b"resident" => resident.push(pages),
            b"swapped" => swapped.push(pages),
            b"estimate" => per_vma.push((pages, row.word(3)?, row.word(4)?)),
            _ => return Err(Fault::damaged(format!("the residency of snapshot {id}"))),
        }
    }
    Ok(Residency { source, resident, swapped, per_vma })
}

fn threads(db: &Connection, id: i64) -> Result<Vec<ThreadObservation>, Fault> {
    let mut query = db.prepare_cached(
        "SELECT tid, name, stack_pointer FROM snapshot_thread WHERE snapshot = ?1 ORDER BY n",
    )?;
    let mut rows = query.query([id])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let row = Columns(row);
        found.push(ThreadObservation {
            tid: row.narrow(0)?,
            comm: row.bytes(1)?.to_vec(),
            stack_pointer: row.maybe(2)?.map(|sp| Addr(sp as u64)),
        });
    }
    Ok(found)
}

fn heap_infos(db: &Connection, id: i64) -> Result<Vec<HeapInfo>, Fault> {
    let mut query = db.prepare_cached(
        "SELECT at, ar_ptr, prev, size, mprotect_size, pagesize FROM heap_info WHERE snapshot = ?1 ORDER BY n",
    )?;
    let mut rows = query.query([id])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let row = Columns(row);
        found.push(HeapInfo {
            at: Addr(row.word(0)?),
            ar_ptr: Addr(row.word(1)?),
            prev: Addr(row.word(2)?),
            size: row.word(3)?,
            mprotect_size: row.word(4)?,
            pagesize: row.word(5)?,
        });
    }
    Ok(found)
}

fn gaps(db: &Connection, id: i64) -> Result<Vec<String>, Fault> {
    let mut query = db.prepare_cached("SELECT text FROM gap WHERE snapshot = ?1 ORDER BY n")?;
    let mut rows = query.query([id])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.extend(Columns(row).text(0)?);
    }
    Ok(found)
}
