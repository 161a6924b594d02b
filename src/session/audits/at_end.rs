//! A process that ended after its last snapshot: what it had mapped at its end is known by its calls, what was
//! in memory is known by the snapshot, where no call has changed anything since.

use crate::attribution::footprint::{covered, difference, overlapping};
use crate::ledger::{AddressSpaces, Ledger, LedgerPiece, Reconciled, RegionKind};
use crate::model::observation::{Residency, ResidencySource};
use crate::model::{Addr, AddrRange, Mapping, Observations, PAGE, VmaDetails};
use crate::session::from_ledger::mapping_of;

const EVERYWHERE: AddrRange = AddrRange { start: Addr(0), end: Addr(u64::MAX) };

/// The state at its end, in the form of the snapshot `seen`, whose times it keeps. None where the ledger does
/// not know better: events were lost since, or the ledger is not kept any more.
pub fn at_end(spaces: &AddressSpaces, seen: &Observations) -> Option<(Observations, Reconciled)> {
    let ledger = spaces.ledger_of_pid(seen.pid)?;
    let changed = spaces.changed_since(seen.pid, seen.begun_ns)?;
    let mappings = mappings_at_end(seen, ledger, &changed);
    let residency = residency_at_end(&seen.residency, &mappings, &changed);
    let is_same = |range: AddrRange| overlapping(&changed, range).is_empty();
    let details = VmaDetails {
        vmas: seen.details.vmas.iter().filter(|vma| is_same(vma.range)).cloned().collect(),
        guards: difference(&seen.details.guards, &changed, EVERYWHERE),
    };
    let virt: u64 = mappings.iter().map(|mapping| mapping.range.len()).sum();
    let mut status = seen.status;
    status.vm_size = virt;
    status.vm_peak = status.vm_peak.max(virt).max(ledger.peak_bytes());
    let unseen = match residency.source {
        ResidencySource::None => Vec::new(),
        _ => unknown(&residency, &mappings, &changed),
    };
    let observations = Observations {
        mappings,
        residency,
        details,
        heap_infos: seen
            .heap_infos
            .iter()
            .filter(|heap| is_same(AddrRange::from_len(heap.at, PAGE)))
            .copied()
            .collect(),
        blocks: seen.blocks.iter().filter(|block| is_same(block.range)).copied().collect(),
        status,
        ..seen.clone()
    };
    // Of its end, and not of the snapshot.
    let end_ns = spaces.process(seen.pid)?.exited_ns?;
    let of_end = Observations { begun_ns: end_ns, ended_ns: end_ns, ..observations };
    let mut reconciled = spaces.reconcile(seen.pid, &of_end);
    reconciled.unseen = unseen;
    let (begun_ns, ended_ns) = (seen.begun_ns, seen.ended_ns);
    Some((Observations { begun_ns, ended_ns, ..of_end }, reconciled))
}

/// What the snapshot showed, and in `changed` what the calls have made of it.
fn mappings_at_end(seen: &Observations, ledger: &Ledger, changed: &[AddrRange]) -> Vec<Mapping> {
    let unchanged = seen.mappings.iter().flat_map(|mapping| {
        let parts = difference(&[mapping.range], changed, EVERYWHERE);
        parts.into_iter().map(|range| (part(mapping, range), false))
    });
    let heap = seen.mappings.iter().find(|mapping| mapping.is_special("[heap]"));
    let new = ledger.pieces().flat_map(|piece| {
        let parts = overlapping(changed, piece.range).iter().map(|range| range.intersect(piece.range));
        parts.map(|range| (new_part(&piece, range, (&seen.mappings, heap)), true)).collect::<Vec<_>>()
    });
    let mut parts: Vec<(Mapping, bool)> = unchanged.chain(new).collect();
    parts.sort_by_key(|(mapping, _)| mapping.range.start);
    let mut whole: Vec<(Mapping, bool)> = Vec::with_capacity(parts.len());
    for (mapping, is_new) in parts {
        match whole.last_mut() {
            // The kernel joins neighbours that are alike.
            Some((last, was_new)) if (is_new || *was_new) && is_joined(last, &mapping) => {
                last.range.end = mapping.range.end;
                *was_new |= is_new;
            }
            _ => whole.push((mapping, is_new)),
        }
    }
    whole.into_iter().map(|(mapping, _)| mapping).collect()
}

fn part(mapping: &Mapping, range: AddrRange) -> Mapping {
    let skipped = range.start.0 - mapping.range.start.0;
    let offset = if mapping.file.is_some() { mapping.offset.saturating_add(skipped) } else { mapping.offset };
    Mapping { range, offset, ..mapping.clone() }
}

/// With the name that the snapshot showed, where it is the same mapping.
fn new_part(piece: &LedgerPiece, range: AddrRange, (seen, heap): (&[Mapping], Option<&Mapping>)) -> Mapping {
    let new = part(&mapping_of(piece.clone()), range);
    let at = seen.partition_point(|mapping| mapping.range.end <= range.start);
    let is_alike =
        |old: &&Mapping| old.prot == new.prot && old.sharing == new.sharing && old.file == new.file;
    let same = seen.get(at).filter(|old| old.range.start <= range.start && range.end <= old.range.end);
    let name = match (same.filter(is_alike), heap) {
        (Some(old), _) => old.name.clone(),
        (None, Some(heap)) if piece.kind == RegionKind::Brk => heap.name.clone(),
        (None, _) => return new,
    };
    Mapping { name, ..new }
}

fn is_joined(before: &Mapping, next: &Mapping) -> bool {
    let offset =
        if next.file.is_some() { before.offset.saturating_add(before.range.len()) } else { before.offset };
    before.range.end == next.range.start
        && (before.prot, before.sharing, before.file) == (next.prot, next.sharing, next.file)
        && (&before.name, offset) == (&next.name, next.offset)
}

/// Of what has not changed since.
fn residency_at_end(seen: &Residency, mappings: &[Mapping], changed: &[AddrRange]) -> Residency {
    let is_there = |range: AddrRange| {
        let at = mappings.partition_point(|mapping| mapping.range.start < range.start);
        mappings.get(at).is_some_and(|mapping| mapping.range == range)
    };
    let is_same = |range: AddrRange| overlapping(changed, range).is_empty() && is_there(range);
    let knows_something = !covers(changed, mappings);
    Residency {
        source: if knows_something { seen.source } else { ResidencySource::None },
        resident: difference(&seen.resident, changed, EVERYWHERE),
        swapped: difference(&seen.swapped, changed, EVERYWHERE),
        per_vma: seen.per_vma.iter().filter(|(vma, ..)| is_same(*vma)).copied().collect(),
    }
}

fn covers(changed: &[AddrRange], mappings: &[Mapping]) -> bool {
    mappings.iter().all(|mapping| covered(changed, mapping.range) == mapping.range.len())
}

/// Where the residency is not known.
fn unknown(residency: &Residency, mappings: &[Mapping], changed: &[AddrRange]) -> Vec<AddrRange> {
    let estimated = |range: AddrRange| {
        let at = residency.per_vma.partition_point(|(vma, ..)| vma.start < range.start);
        residency.per_vma.get(at).is_some_and(|(vma, ..)| *vma == range)
    };
    let mut ranges: Vec<AddrRange> = Vec::new();
    for mapping in mappings {
        match residency.source {
            ResidencySource::SmapsProportion if !estimated(mapping.range) => ranges.push(mapping.range),
            ResidencySource::SmapsProportion => {}
            _ => {
                let parts = overlapping(changed, mapping.range).iter();
                ranges.extend(parts.map(|range| range.intersect(mapping.range)));
            }
        }
    }
    ranges
}
