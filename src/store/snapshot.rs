//! Snapshots as rows. Of the snapshots of a process only the newest is kept.

use super::code;
use super::detail;
use super::error::Fault;
use super::row::{SnapshotKind, StepPosition};
use super::sum;
use super::writer::Name;
use crate::model::observation::{Residency, ResidencySource, ResourceUse, SnapshotMoment};
use crate::model::{Limits, Mapping, Observations, Pid};
use rusqlite::{Connection, params};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// Writing periodic snapshots may take one part in this many of the time.
const SHARE: u32 = 20;
/// Known devices, inodes and names; begun anew at this size.
const MAX_KNOWN: usize = 1 << 16;

type Backing = (Option<(u32, u32, u64)>, Vec<u8>);

/// The snapshots in the file, and those that wait.
#[derive(Default)]
pub(super) struct LastSnapshots {
    /// Snapshot and list of the newest snapshot of each process.
    written: HashMap<Pid, (i64, i64)>,
    /// Snapshots that have not been written since that would take too long; the newest of each.
    waiting: HashMap<Pid, (StepPosition, Box<Observations>)>,
    not_before: Option<Instant>,
    backings: HashMap<Backing, i64>,
    last_backing: i64,
    last_list: i64,
    in_file: i64,
}

impl LastSnapshots {
    /// A new snapshot: written at once where it is the last one, or where there is time.
    pub(super) fn take(
        &mut self,
        db: &Connection,
        place: StepPosition,
        seen: Box<Observations>,
    ) -> Result<(), Fault> {
        let pid = seen.pid;
        let early = self.not_before.is_some_and(|time| Instant::now() < time);
        if early && seen.moment == SnapshotMoment::Live {
            self.waiting.insert(pid, (place, seen));
            return Ok(());
        }
        self.waiting.remove(&pid);
        self.replace(db, place, &seen)
    }

    fn replace(&mut self, db: &Connection, place: StepPosition, seen: &Observations) -> Result<(), Fault> {
        let begun = Instant::now();
        self.remove_written(db, seen.pid)?;
        let list = self.write(db, place, SnapshotKind::Snapshot, seen)?;
        self.written.insert(seen.pid, (place.id, list));
        let pause = begun.elapsed().saturating_mul(SHARE);
        self.not_before = Instant::now().checked_add(pause.min(Duration::from_secs(60)));
        Ok(())
    }

    /// How many snapshots the file holds.
    pub(super) fn in_file(&self) -> i64 {
        self.in_file
    }

    /// True when a snapshot waits and there is time for it.
    pub(super) fn are_due(&self) -> bool {
        !self.waiting.is_empty() && self.not_before.is_none_or(|time| Instant::now() >= time)
    }

    pub(super) fn write_waiting(&mut self, db: &Connection) -> Result<(), Fault> {
        for (_, (place, seen)) in std::mem::take(&mut self.waiting) {
            self.replace(db, place, &seen)?;
        }
        Ok(())
    }

    pub(super) fn discard(&mut self, db: &Connection, pid: Pid) -> Result<(), Fault> {
        self.waiting.remove(&pid);
        self.remove_written(db, pid)
    }

    fn remove_written(&mut self, db: &Connection, pid: Pid) -> Result<(), Fault> {
        let Some((snapshot, list)) = self.written.remove(&pid) else { return Ok(()) };
        self.in_file -= 1;
        db.prepare_cached("DELETE FROM mapping WHERE list = ?1")?.execute([list])?;
        detail::delete(db, snapshot)?;
        for sql in [
            "DELETE FROM snapshot_thread WHERE snapshot = ?1",
            "DELETE FROM heap_info WHERE snapshot = ?1",
            "DELETE FROM gap WHERE snapshot = ?1",
            "DELETE FROM residency WHERE snapshot = ?1",
            "DELETE FROM surroundings WHERE snapshot = ?1",
            "DELETE FROM code WHERE snapshot = ?1",
            "DELETE FROM snapshot WHERE id = ?1",
        ] {
            db.prepare_cached(sql)?.execute([snapshot])?;
        }
        Ok(())
    }

    /// Writes a snapshot; gives the number of its list of mappings.
    pub(super) fn write(
        &mut self,
        db: &Connection,
        place: StepPosition,
        kind: SnapshotKind,
        seen: &Observations,
    ) -> Result<i64, Fault> {
        let list = self.mappings(db, &seen.mappings)?;
        let (kind, space) = match kind {
            SnapshotKind::Snapshot => ("look", None),
            SnapshotKind::Found(space) => ("found", Some(space)),
            SnapshotKind::Resync => ("resync", None),
        };
        let (status, pages) = (&seen.status, &seen.residency);
        let used = |get: fn(&ResourceUse) -> u64| status.resources.as_ref().map(|used| get(used) as i64);
        let mut cmdline = Vec::new();
        for argument in &seen.cmdline {
            cmdline.extend_from_slice(argument);
            cmdline.push(0);
        }
        sum::insert(
            db,
            "snapshot",
            params![
                place.id,
                place.after_event,
                kind,
                seen.pid,
                space,
                moment_name(seen.moment),
                seen.begun_ns as i64,
                seen.ended_ns as i64,
                list,
                count(&seen.mappings),
                source_name(pages.source),
                count(&pages.resident) + count(&pages.swapped) + count(&pages.per_vma),
                status.vm_size as i64,
                status.vm_peak as i64,
                status.vm_rss as i64,
                status.vm_swap as i64,
                status.vm_hwm as i64,
                status.threads as i64,
                used(|used| used.minor_faults),
                used(|used| used.major_faults),
                used(|used| used.cpu_ns),
                used(|used| used.user_ns),
                used(|used| used.system_ns),
                Name(&seen.comm),
                Name(&seen.exe),
                cmdline,
                seen.stack_limit.map(|limit| limit as i64),
                seen.aslr,
                count(&seen.threads),
                count(&seen.heap_infos),
                count(&seen.gaps),
            ],
        )?;
        self.in_file += 1;
        residency(db, place.id, &seen.residency)?;
        surroundings(db, place.id, (seen.limits, &seen.code.variables))?;
        detail::write(db, place.id, &seen.details)?;
        code::write(db, place.id, (&seen.code, &seen.blocks, &seen.thread_blocks))?;
        let mut insert = sum::inserter(db, "snapshot_thread", 5)?;
        for (n, thread) in seen.threads.iter().enumerate() {
            let sp = thread.stack_pointer.map(|sp| sp.0 as i64);
            sum::insert_with(&mut insert, params![place.id, n as i64, thread.tid, Name(&thread.comm), sp])?;
        }
        let mut insert = sum::inserter(db, "heap_info", 8)?;
        for (n, heap) in seen.heap_infos.iter().enumerate() {
            sum::insert_with(
                &mut insert,
                params![
                    place.id,
                    n as i64,
                    heap.at.0 as i64,
                    heap.ar_ptr.0 as i64,
                    heap.prev.0 as i64,
                    heap.size as i64,
                    heap.mprotect_size as i64,
                    heap.pagesize as i64
                ],
            )?;
        }
        let mut insert = sum::inserter(db, "gap", 3)?;
        for (n, gap) in seen.gaps.iter().enumerate() {
            sum::insert_with(&mut insert, params![place.id, n as i64, gap])?;
        }
        Ok(list)
    }

    /// The number of a list of mappings, if there is one.
    pub(super) fn list(&mut self, db: &Connection, list: Option<&[Mapping]>) -> Result<Option<i64>, Fault> {
        list.map(|mappings| self.mappings(db, mappings)).transpose()
    }

    fn mappings(&mut self, db: &Connection, mappings: &[Mapping]) -> Result<i64, Fault> {
        self.last_list += 1;
        let list = self.last_list;
        let mut insert = sum::inserter(db, "mapping", 7)?;
        for (n, mapping) in mappings.iter().enumerate() {
            let backing = self.backing(db, mapping)?;
            let range = mapping.range;
            sum::insert_with(
                &mut insert,
                params![
                    list,
                    n as i64,
                    range.start.0 as i64,
                    range.len() as i64,
                    format!("{}{}", mapping.prot, mapping.sharing),
                    mapping.offset as i64,
                    backing
                ],
            )?;
        }
        Ok(list)
    }

    fn backing(&mut self, db: &Connection, mapping: &Mapping) -> Result<Option<i64>, Fault> {
        if mapping.file.is_none() && mapping.name.is_empty() {
            return Ok(None);
        }
        let key = (mapping.file.map(|f| (f.major, f.minor, f.inode)), mapping.name.clone());
        if let Some(&id) = self.backings.get(&key) {
            return Ok(Some(id));
        }
        self.last_backing += 1;
        let id = self.last_backing;
        let file = mapping.file;
        sum::insert(
            db,
            "backing",
            params![
                id,
                file.map(|f| f.major),
                file.map(|f| f.minor),
                file.map(|f| f.inode as i64),
                Name(&mapping.name)
            ],
        )?;
        if self.backings.len() >= MAX_KNOWN {
            self.backings.clear();
        }
        self.backings.insert(key, id);
        Ok(Some(id))
    }
}

fn residency(db: &Connection, snapshot: i64, residency: &Residency) -> Result<(), Fault> {
    let resident = residency.resident.iter().map(|range| (range, "resident", None));
    let swapped = residency.swapped.iter().map(|range| (range, "swapped", None));
    let estimates =
        residency.per_vma.iter().map(|(range, rss, swap)| (range, "estimate", Some((*rss, *swap))));
    let mut insert = sum::inserter(db, "residency", 7)?;
    for (n, (range, kind, figures)) in resident.chain(swapped).chain(estimates).enumerate() {
        sum::insert_with(
            &mut insert,
            params![
                snapshot,
                n as i64,
                range.start.0 as i64,
                range.len() as i64,
                kind,
                figures.map(|(rss, _)| rss as i64),
                figures.map(|(_, swap)| swap as i64)
            ],
        )?;
    }
    Ok(())
}

fn surroundings(db: &Connection, snapshot: i64, (known, set): (Limits, &[String])) -> Result<(), Fault> {
    let figures = known.to_pairs().into_iter().map(|(name, value)| (name.to_owned(), value));
    // older versions leave out what they do not know, and expect numbers
    let set = set.iter().map(|assignment| (format!("{}{assignment}", code::VARIABLE), 1));
    let figures: BTreeMap<String, u64> = figures.chain(set).collect();
    let figures = serde_json::to_string(&figures).unwrap_or_default();
    sum::insert(db, "surroundings", params![snapshot, figures])?;
    Ok(())
}

fn count<T>(things: &[T]) -> i64 {
    things.len() as i64
}

fn moment_name(moment: SnapshotMoment) -> &'static str {
    match moment {
        SnapshotMoment::HeldAtExit => "exit",
        SnapshotMoment::Live => "live",
    }
}

fn source_name(source: ResidencySource) -> &'static str {
    match source {
        ResidencySource::PagemapScan => "pagemap-scan",
        ResidencySource::Pagemap => "pagemap",
        ResidencySource::SmapsProportion => "smaps-estimate",
        ResidencySource::None => "none",
    }
}
