//! Which stacks made the resident bytes of a piece resident.
//!
//! A resident page belongs to the last fault on it. Pages without one of their own came with a neighbour's: a
//! huge page (THP), or the kernel's read-around of files, at most 2 MiB. Where faults were sampled, the
//! resident bytes of a piece are divided among the stacks that touched it, by the faults that their samples
//! represent.

use super::super::build::ProcessAudit;
use super::holder;
use crate::attribution::{Piece, footprint};
use crate::ledger::HeldBy;
use crate::model::observation::ResidencySource;
use crate::model::{Addr, AddrRange, PAGE};
use crate::touch::{BLOCK, RowId, Sample};
use std::collections::BTreeMap;

/// fault_around_bytes (mm/memory.c): what the kernel maps of a file near a fault.
const FAULT_AROUND: u64 = 64 << 10;

/// In bytes; `None`: no known stack. `complete`: every fault was recorded.
pub fn shares(
    audit: &ProcessAudit<'_>,
    piece: &Piece,
    samples: &[(Addr, Sample)],
    complete: bool,
) -> Vec<(Option<RowId>, u64)> {
    let (rss, residency) = (piece.footprint.rss, &audit.input.observations.residency);
    if rss == 0 {
        return Vec::new();
    }
    let by_page = matches!(residency.source, ResidencySource::PagemapScan | ResidencySource::Pagemap);
    let runs = footprint::overlapping(&residency.resident, piece.range);
    let sampled = !complete || samples.iter().any(|(_, sample)| sample.weight > 1);
    if by_page && !sampled {
        return by_nearest(runs, (piece.range, reach(audit, piece)), samples);
    }
    let is_resident = |addr: Addr| {
        let at = runs.partition_point(|run| run.end <= addr);
        !by_page || runs.get(at).is_some_and(|run| run.contains(addr))
    };
    let mut weights: BTreeMap<RowId, u64> = BTreeMap::new();
    for (_, sample) in samples.iter().filter(|(addr, _)| is_resident(*addr)) {
        *weights.entry(sample.row).or_default() += u64::from(sample.weight);
    }
    if !is_older(audit, piece) {
        return in_proportion(rss, weights);
    }
    // What was resident before tracing began has no fault.
    let seen = weights.values().sum::<u64>().saturating_mul(PAGE).min(rss);
    let mut shares = if seen > 0 { in_proportion(seen, weights) } else { Vec::new() };
    shares.push((None, rss - seen));
    shares
}

/// Mapped before tracing began: parts of it may have been resident then.
fn is_older(audit: &ProcessAudit<'_>, piece: &Piece) -> bool {
    match holder(audit, piece) {
        HeldBy::Preexisting => true,
        HeldBy::Kernel => audit.facts.attached,
        HeldBy::Call(_) | HeldBy::Unknown => false,
    }
}

/// How far from its own page a fault may have made others resident: the aligned block that contains it.
fn reach(audit: &ProcessAudit<'_>, piece: &Piece) -> u64 {
    let has_file = audit.input.reconciled.regions.get(piece.region).is_some_and(|r| r.file.is_some());
    match (is_older(audit, piece), has_file) {
        (false, _) => BLOCK,
        (true, true) => FAULT_AROUND,
        (true, false) => PAGE,
    }
}

/// Each page to the sample next to it, within the piece and its aligned block.
fn by_nearest(
    runs: &[AddrRange],
    (within, reach): (AddrRange, u64),
    samples: &[(Addr, Sample)],
) -> Vec<(Option<RowId>, u64)> {
    let mut bytes: BTreeMap<Option<RowId>, u64> = BTreeMap::new();
    for run in runs.iter().map(|run| run.intersect(within)) {
        let mut at = run.start;
        while at < run.end {
            let block = AddrRange::from_len(at.align_down(reach), reach);
            let part = AddrRange { start: at, end: run.end.min(block.end) };
            let first = samples.partition_point(|(addr, _)| *addr < block.start);
            let after = samples.partition_point(|(addr, _)| *addr < block.end);
            let near = samples.get(first..after).unwrap_or(&[]);
            if near.is_empty() {
                *bytes.entry(None).or_default() += part.len();
            }
            let mut from = block.start;
            for (index, (addr, sample)) in near.iter().enumerate() {
                let until = near.get(index + 1).map_or(block.end, |(next, _)| middle(*addr, *next));
                let cell = AddrRange { start: from, end: until }.intersect(part);
                *bytes.entry(Some(sample.row)).or_default() += cell.len();
                from = until;
            }
            at = part.end;
        }
    }
    bytes.into_iter().filter(|&(_, bytes)| bytes > 0).collect()
}

/// The page boundary between two pages that is as near to either.
fn middle(low: Addr, high: Addr) -> Addr {
    Addr(low.0 + (high.0 - low.0) / 2).page_up().max(Addr(low.0 + PAGE))
}

/// In whole pages.
fn in_proportion(bytes: u64, weights: BTreeMap<RowId, u64>) -> Vec<(Option<RowId>, u64)> {
    let total: u128 = weights.values().map(|&weight| u128::from(weight)).sum();
    if total == 0 {
        return vec![(None, bytes)];
    }
    let (mut before, mut given) = (0u128, 0u64);
    let mut out = Vec::with_capacity(weights.len());
    for (row, weight) in weights {
        before += u128::from(weight);
        let until = (u128::from(bytes / PAGE) * before / total) as u64 * PAGE;
        out.push((Some(row), until - given));
        given = until;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(start: u64, end: u64) -> AddrRange {
        AddrRange::new(start * PAGE, end * PAGE)
    }

    fn samples(at: &[(u64, u32)]) -> Vec<(Addr, Sample)> {
        at.iter().map(|&(page, row)| (Addr(page * PAGE), Sample { row: RowId(row), weight: 1 })).collect()
    }

    fn shares(runs: &[AddrRange], reach: u64, at: &[(u64, u32)]) -> Vec<(Option<u32>, u64)> {
        let shares = by_nearest(runs, (pages(0, 4096), reach), &samples(at));
        shares.into_iter().map(|(row, bytes)| (row.map(|row| row.0), bytes / PAGE)).collect()
    }

    #[test]
    fn each_page_belongs_to_the_fault_on_it_or_next_to_it() {
        let touched = [(10, 1), (11, 2), (12, 1)];
        assert_eq!(shares(&[pages(10, 13)], BLOCK, &touched), [(Some(1), 2), (Some(2), 1)]);
        // a huge page each, of one fault somewhere in it; a third without any recorded fault
        let touched = [(100, 1), (600, 2)];
        assert_eq!(shares(&[pages(0, 1536)], BLOCK, &touched), [(None, 512), (Some(1), 512), (Some(2), 512)]);
        // memory that was there before: a fault speaks for its own page
        assert_eq!(shares(&[pages(0, 200)], PAGE, &[(100, 1)]), [(None, 199), (Some(1), 1)]);
        assert_eq!(shares(&[pages(0, 32)], FAULT_AROUND, &[(3, 1)]), [(None, 16), (Some(1), 16)]);
    }

    #[test]
    fn a_page_that_is_gone_gives_nobody_a_byte() {
        let touched = [(0, 1), (1, 1), (2, 2)];
        assert_eq!(shares(&[pages(2, 3)], BLOCK, &touched), [(Some(2), 1)]);
    }

    #[test]
    fn shares_in_proportion_add_up_in_whole_pages() {
        let weights: BTreeMap<RowId, u64> = [(RowId(1), 1), (RowId(2), 1), (RowId(3), 1)].into();
        let shares = in_proportion(100 * PAGE, weights);
        assert_eq!(shares.iter().map(|(_, bytes)| bytes).sum::<u64>(), 100 * PAGE);
        assert!(shares.iter().all(|(_, bytes)| bytes % PAGE == 0 && bytes / PAGE >= 33));
        assert_eq!(in_proportion(PAGE, BTreeMap::new()), [(None, PAGE)]);
    }
}
