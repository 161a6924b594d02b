//! A set of addresses as disjoint, coalesced, half-open ranges.

use crate::model::AddrRange;
use std::collections::BTreeMap;

/// Neighbouring and overlapping ranges are one entry, so that ten thousand single-page steps
/// over one arena stay one range.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub(in crate::ledger) struct RangeSet {
    /// start → end
    ranges: BTreeMap<u64, u64>,
}

impl RangeSet {
    pub(in crate::ledger) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(in crate::ledger) fn iter(&self) -> impl Iterator<Item = AddrRange> + '_ {
        self.ranges.iter().map(|(&start, &end)| AddrRange::new(start, end))
    }

    pub(in crate::ledger) fn insert(&mut self, range: AddrRange) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start.0, range.end.0);
        if let Some((&before, &before_end)) = self.ranges.range(..=start).next_back()
            && before_end >= start
        {
            start = before;
            end = end.max(before_end);
        }
        while let Some((&next, &next_end)) = self.ranges.range(start..=end).next() {
            end = end.max(next_end);
            self.ranges.remove(&next);
        }
        self.ranges.insert(start, end);
    }

    pub(in crate::ledger) fn remove(&mut self, range: AddrRange) {
        if range.is_empty() || self.ranges.is_empty() {
            return;
        }
        let (start, end) = (range.start.0, range.end.0);
        if let Some((&before, &before_end)) = self.ranges.range(..start).next_back()
            && before_end > start
        {
            self.ranges.insert(before, start);
            if before_end > end {
                self.ranges.insert(end, before_end);
                return;
            }
        }
        while let Some((&next, &next_end)) = self.ranges.range(start..end).next() {
            self.ranges.remove(&next);
            if next_end > end {
                self.ranges.insert(end, next_end);
            }
        }
    }

    /// The parts of `range` that are in the set.
    pub(in crate::ledger) fn overlaps_of(&self, range: AddrRange) -> Vec<AddrRange> {
        if range.is_empty() || self.ranges.is_empty() {
            return Vec::new();
        }
        let first = self.ranges.range(..=range.start.0).next_back().map_or(range.start.0, |(&s, _)| s);
        self.ranges
            .range(first..range.end.0)
            .map(|(&s, &e)| AddrRange::new(s, e).intersect(range))
            .filter(|r| !r.is_empty())
            .collect()
    }

    /// The parts of `range` that are not in the set.
    pub(in crate::ledger) fn gaps_of(&self, range: AddrRange) -> Vec<AddrRange> {
        let mut gaps = Vec::new();
        let mut at = range.start.0;
        for part in self.overlaps_of(range) {
            if part.start.0 > at {
                gaps.push(AddrRange::new(at, part.start.0));
            }
            at = part.end.0;
        }
        if at < range.end.0 {
            gaps.push(AddrRange::new(at, range.end.0));
        }
        gaps
    }

    pub(in crate::ledger) fn overlaps(&self, range: AddrRange) -> bool {
        !range.is_empty()
            && self.ranges.range(..range.end.0).next_back().is_some_and(|(_, &end)| end > range.start.0)
    }
}

impl FromIterator<AddrRange> for RangeSet {
    fn from_iter<I: IntoIterator<Item = AddrRange>>(ranges: I) -> RangeSet {
        let mut set = RangeSet::default();
        ranges.into_iter().for_each(|range| set.insert(range));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set_of(pages: &[(u64, u64)]) -> RangeSet {
        pages.iter().map(|&(s, e)| AddrRange::new(s, e)).collect()
    }

    #[test]
    fn neighbours_become_one_range() {
        let mut set = set_of(&[(10, 20), (30, 40)]);
        set.insert(AddrRange::new(20, 30));
        assert_eq!(set.iter().collect::<Vec<_>>(), vec![AddrRange::new(10, 40)]);
    }

    #[test]
    fn removing_the_middle_leaves_both_ends() {
        let mut set = set_of(&[(10, 40), (50, 60)]);
        set.remove(AddrRange::new(20, 55));
        assert_eq!(set, set_of(&[(10, 20), (55, 60)]));
        set.remove(AddrRange::new(12, 15));
        assert_eq!(set, set_of(&[(10, 12), (15, 20), (55, 60)]));
    }

    #[test]
    fn gaps_and_overlaps_add_up() {
        let set = set_of(&[(10, 20), (30, 40)]);
        let whole = AddrRange::new(5, 35);
        assert_eq!(set.overlaps_of(whole), vec![AddrRange::new(10, 20), AddrRange::new(30, 35)]);
        assert_eq!(set.gaps_of(whole), vec![AddrRange::new(5, 10), AddrRange::new(20, 30)]);
        assert!(set.overlaps(AddrRange::new(19, 25)));
        assert!(!set.overlaps(AddrRange::new(20, 30)));
    }
}
