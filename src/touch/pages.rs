//! Which fault made a page of one address space resident: the last one on it.

use crate::model::{Addr, AddrRange, PAGE};
use std::collections::BTreeMap;

/// Pages remembered of one address space; 4 GiB of pages that were touched one by one. Beyond
/// that every other one is forgotten, and the rest counts double.
const MAX_PAGES: usize = 1 << 20;
/// A huge page, the most that one fault makes resident.
pub const BLOCK: u64 = 2 << 20;
/// Blocks marked for one call that populates; 64 GiB.
const MAX_BLOCKS: usize = 1 << 15;

/// Index into `Touches::rows`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RowId(pub u32);

/// The last fault on a page, or a call that made its surroundings resident without one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    pub row: RowId,
    /// The number of faults that it represents; 0 for a call.
    pub weight: u32,
}

/// Samples by page number.
#[derive(Clone, Debug, Default)]
pub struct Pages {
    samples: BTreeMap<u64, Sample>,
    /// Of 2^thinned pages one is remembered.
    thinned: u32,
}

impl Pages {
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// True while each fault that was recorded is still known by its page.
    pub fn is_complete(&self) -> bool {
        self.thinned == 0
    }

    pub(super) fn note(&mut self, addr: Addr, sample: Sample) {
        let page = addr.0 / PAGE;
        if !is_kept(page, self.thinned) {
            return;
        }
        let weight = sample.weight.saturating_mul(1 << self.thinned);
        self.samples.insert(page, Sample { weight, ..sample });
        while self.samples.len() > MAX_PAGES && self.thinned < 16 {
            self.thinned += 1;
            let thinned = self.thinned;
            self.samples.retain(|&page, _| is_kept(page, thinned));
            for sample in self.samples.values_mut() {
                sample.weight = sample.weight.saturating_mul(2);
            }
        }
    }

    /// A call made all of `range` resident.
    pub(super) fn note_populated(&mut self, range: AddrRange, row: RowId) {
        self.discard(range);
        let mut at = range.start;
        for _ in 0..MAX_BLOCKS {
            if at >= range.end {
                break;
            }
            self.samples.insert(at.0 / PAGE, Sample { row, weight: 0 });
            at = at.align_down(BLOCK).saturating_add(BLOCK);
        }
    }

    /// The pages of `range` are no longer what they were.
    pub(super) fn discard(&mut self, range: AddrRange) {
        self.take(range);
    }

    /// mremap: the pages went with their range.
    pub(super) fn moved(&mut self, from: AddrRange, to: Addr) {
        let taken = self.take(from);
        let (from, to) = (from.start.0 / PAGE, to.0 / PAGE);
        self.samples.extend(taken.into_iter().map(|(page, sample)| (page - from + to, sample)));
    }

    fn take(&mut self, range: AddrRange) -> Vec<(u64, Sample)> {
        let pages = page_numbers(range);
        let taken: Vec<(u64, Sample)> = self.samples.range(pages).map(|(&page, &s)| (page, s)).collect();
        for (page, _) in &taken {
            self.samples.remove(page);
        }
        taken
    }

    /// Samples in `range`, by address.
    pub fn within(&self, range: AddrRange) -> impl DoubleEndedIterator<Item = (Addr, Sample)> + '_ {
        self.samples.range(page_numbers(range)).map(|(&page, &sample)| (Addr(page * PAGE), sample))
    }
}

/// Pages that begin in `range`.
fn page_numbers(range: AddrRange) -> std::ops::Range<u64> {
    let first = range.start.0.div_ceil(PAGE);
    first..range.end.0.div_ceil(PAGE).max(first)
}

/// Whether a page is one of those that represent 2^thinned pages: by a hash, so that an access pattern cannot
/// coincide with the selection.
fn is_kept(page: u64, thinned: u32) -> bool {
    page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40 & ((1 << thinned) - 1) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(row: u32) -> Sample {
        Sample { row: RowId(row), weight: 1 }
    }

    fn rows(pages: &Pages, range: AddrRange) -> Vec<(u64, u32)> {
        pages.within(range).map(|(addr, s)| (addr.0, s.row.0)).collect()
    }

    #[test]
    fn pages_go_and_move_with_their_ranges() {
        let mut pages = Pages::default();
        for page in 0..8u64 {
            pages.note(Addr(page * PAGE + 17), sample(page as u32));
        }
        pages.note(Addr(2 * PAGE), sample(22));
        pages.discard(AddrRange::new(3 * PAGE, 5 * PAGE));
        let all = AddrRange::new(0, 1 << 40);
        assert_eq!(rows(&pages, all).len(), 6);
        pages.moved(AddrRange::new(PAGE, 3 * PAGE), Addr(100 * PAGE));
        assert_eq!(
            rows(&pages, all),
            [(0, 0), (5 * PAGE, 5), (6 * PAGE, 6), (7 * PAGE, 7), (100 * PAGE, 1), (101 * PAGE, 22)]
        );
    }

    #[test]
    fn too_many_pages_become_a_sample_of_about_the_same_weight() {
        let mut pages = Pages::default();
        let total = 5 * MAX_PAGES as u64 / 2;
        for page in 0..total {
            pages.note(Addr(page * PAGE), sample(0));
        }
        assert!(pages.len() <= MAX_PAGES && !pages.is_complete());
        let weight: u64 = pages.within(AddrRange::new(0, u64::MAX)).map(|(_, s)| u64::from(s.weight)).sum();
        assert!(weight.abs_diff(total) < total / 100, "{weight} of {total}");
    }

    #[test]
    fn a_populated_range_has_a_sample_in_each_block() {
        let mut pages = Pages::default();
        pages.note(Addr(BLOCK + 5 * PAGE), sample(1));
        pages.note_populated(AddrRange::new(BLOCK - PAGE, 2 * BLOCK + PAGE), RowId(7));
        let all = AddrRange::new(0, 1 << 40);
        assert_eq!(rows(&pages, all), [(BLOCK - PAGE, 7), (BLOCK, 7), (2 * BLOCK, 7)]);
    }
}
