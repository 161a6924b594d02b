//! How much of a range is mapped, could be written, is resident, is swapped.
//!
//! Rules:
//! - `virt` is the range's length, `writable` the bytes with PROT_WRITE (private or shared),
//!   `reserved` the bytes mapped PROT_NONE.
//! - `rss` follows smaps' Rss: huge pages of hugetlbfs count 0 (fs/proc/task_mmu.c accounts
//!   them as Private_Hugetlb and Shared_Hugetlb), and so do the PFN mappings `[vvar]` and
//!   `[vvar_vclock]` (present in pagemap, but no `struct page` is charged).
//! - `unused` is `virt - rss - swap`: pages that never were touched, or were given back.
//! - `unseen` is what changed after the last snapshot: how much of it was resident is not known. It is part
//!   of `unused`.
//! - `purged` is what madvise gave back and was not touched since: purged, neither resident nor swapped. It
//!   is part of `unused`.

use crate::model::observation::{Residency, ResidencySource};
use crate::model::{Addr, AddrRange, PAGE};
use std::cell::Cell;
use std::ops::AddAssign;

/// Bytes of a range by state.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Footprint {
    pub virt: u64,
    pub writable: u64,
    pub reserved: u64,
    pub rss: u64,
    pub swap: u64,
    pub purged: u64,
    pub unseen: u64,
}

impl Footprint {
    pub fn unused(&self) -> u64 {
        self.virt.saturating_sub(self.rss).saturating_sub(self.swap)
    }
}

impl AddAssign for Footprint {
    fn add_assign(&mut self, other: Footprint) {
        self.virt += other.virt;
        self.writable += other.writable;
        self.reserved += other.reserved;
        self.rss += other.rss;
        self.swap += other.swap;
        self.purged += other.purged;
        self.unseen += other.unseen;
    }
}

/// The ranges of `sorted` (sorted, disjoint) that overlap `range`.
pub fn overlapping(sorted: &[AddrRange], range: AddrRange) -> &[AddrRange] {
    let first = sorted.partition_point(|r| r.end <= range.start);
    let rest = sorted.get(first..).unwrap_or(&[]);
    let count = rest.partition_point(|r| r.start < range.end);
    rest.get(..count).unwrap_or(&[])
}

/// Bytes of `range` that `sorted` (sorted, disjoint) covers.
pub fn covered(sorted: &[AddrRange], range: AddrRange) -> u64 {
    overlapping(sorted, range).iter().map(|r| r.intersect(range).len()).sum()
}

/// Sorted, disjoint ranges that are queried in mostly ascending order: the next result is near the last one.
#[derive(Debug)]
pub struct Lookup<'a> {
    sorted: &'a [AddrRange],
    /// The first range that does not end before the last query.
    last: Cell<usize>,
}

impl<'a> Lookup<'a> {
    /// Steps that are cheaper than a search.
    const NEAR: usize = 8;

    pub fn new(sorted: &'a [AddrRange]) -> Lookup<'a> {
        Lookup { sorted, last: Cell::new(0) }
    }

    /// As [`overlapping`].
    pub fn overlapping(&self, range: AddrRange) -> &'a [AddrRange] {
        let last = self.last.get();
        let is_behind = last.checked_sub(1).is_none_or(|before| self.sorted[before].end <= range.start);
        let from = if is_behind { last } else { 0 };
        let first = from + first_not(&self.sorted[from..], |r| r.end <= range.start);
        self.last.set(first);
        let rest = &self.sorted[first..];
        rest.split_at(first_not(rest, |r| r.start < range.end)).0
    }

    /// As [`covered`].
    pub fn covered(&self, range: AddrRange) -> u64 {
        self.overlapping(range).iter().map(|r| r.intersect(range).len()).sum()
    }
}

/// As `partition_point`, for an end that is probably near.
fn first_not(sorted: &[AddrRange], passes: impl Fn(&AddrRange) -> bool) -> usize {
    let near = sorted.iter().take(Lookup::NEAR).take_while(|&r| passes(r)).count();
    if near < Lookup::NEAR { near } else { near + sorted[near..].partition_point(passes) }
}

/// The parts of `a` not in `b`, both sorted and disjoint, inside `within`.
pub fn difference(a: &[AddrRange], b: &[AddrRange], within: AddrRange) -> Vec<AddrRange> {
    let mut out = Vec::new();
    for r in overlapping(a, within) {
        let r = r.intersect(within);
        let mut from = r.start;
        for hole in overlapping(b, r) {
            if hole.start > from {
                out.push(AddrRange { start: from, end: hole.start });
            }
            from = from.max(hole.end);
        }
        if from < r.end {
            out.push(AddrRange { start: from, end: r.end });
        }
    }
    out
}

/// Resident and swapped bytes of `range`. With `SmapsProportion` each VMA's figure is shared
/// out by length, in whole pages, such that the pieces of a VMA add up to it.
pub fn resident_and_swapped(residency: &Residency, range: AddrRange) -> (u64, u64) {
    match residency.source {
        ResidencySource::PagemapScan | ResidencySource::Pagemap => {
            (covered(&residency.resident, range), covered(&residency.swapped, range))
        }
        ResidencySource::SmapsProportion => {
            let first = residency.per_vma.partition_point(|(vma, ..)| vma.end <= range.start);
            let rest = residency.per_vma.get(first..).unwrap_or(&[]);
            let mut sum = (0, 0);
            for &(vma, rss, swap) in rest.iter().take_while(|(vma, ..)| vma.start < range.end) {
                let part = share(rss, swap, vma, range);
                sum.0 += part.0;
                sum.1 += part.1;
            }
            sum
        }
        ResidencySource::None => (0, 0),
    }
}

/// `rss` and `swap` bytes spread evenly over `vma`: what falls on `range`. Resident pages are
/// spread over all pages, swapped ones over the rest, so that no page is both.
fn share(rss: u64, swap: u64, vma: AddrRange, range: AddrRange) -> (u64, u64) {
    let part = range.intersect(vma);
    let pages = u128::from(vma.len() / PAGE);
    let resident = u128::from(rss / PAGE).min(pages);
    let absent = pages - resident;
    let swapped = u128::from(swap / PAGE).min(absent);
    // resident and swapped pages among the first pages of the VMA
    let upto = |addr: Addr| {
        let before = u128::from(addr.0.saturating_sub(vma.start.0) / PAGE);
        let resident = (resident * before).checked_div(pages).unwrap_or(0);
        let swapped = (swapped * (before - resident)).checked_div(absent).unwrap_or(0);
        (resident as u64, swapped as u64)
    };
    let (from, to) = (upto(part.start), upto(part.end));
    ((to.0 - from.0) * PAGE, (to.1 - from.1) * PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ranges() -> impl Strategy<Value = Vec<AddrRange>> {
        proptest::collection::vec((0u64..4, 1u64..4), 0..60).prop_map(|steps| {
            let mut at = 0;
            let mut range = |(gap, len)| {
                at += gap + len;
                AddrRange::new(at - len, at)
            };
            steps.into_iter().map(&mut range).collect()
        })
    }

    proptest! {
        #[test]
        fn a_lookup_finds_what_a_search_finds(
            sorted in ranges(),
            queries in proptest::collection::vec((0u64..200, 0u64..40), 0..40),
        ) {
            let lookup = Lookup::new(&sorted);
            for (start, len) in queries {
                let range = AddrRange::new(start, start + len);
                prop_assert_eq!(lookup.overlapping(range), overlapping(&sorted, range));
                prop_assert_eq!(lookup.covered(range), covered(&sorted, range));
            }
        }
    }
}
