//! The madvise state of ranges, until they are mapped anew.

use super::range_set::RangeSet;
use crate::model::AddrRange;
use crate::sys::abi::{
    MADV_DOFORK, MADV_DONTFORK, MADV_DONTNEED, MADV_DONTNEED_LOCKED, MADV_FREE, MADV_REMOVE,
};

#[derive(Clone, Default, Debug)]
pub(super) struct Advice {
    /// Contents were given back, whether or not they were touched again since.
    purged: RangeSet,
    /// MADV_DONTFORK.
    dont_fork: RangeSet,
}

/// True for advice that gives contents back.
pub(super) fn purges(advice: i32) -> bool {
    matches!(advice, MADV_DONTNEED | MADV_FREE | MADV_REMOVE | MADV_DONTNEED_LOCKED)
}

impl Advice {
    /// madvise on a mapped range.
    pub(super) fn advise(&mut self, range: AddrRange, advice: i32) {
        match advice {
            _ if purges(advice) => self.purged.insert(range),
            MADV_DONTFORK => self.dont_fork.insert(range),
            MADV_DOFORK => self.dont_fork.remove(range),
            _ => {}
        }
    }

    pub(super) fn forget(&mut self, range: AddrRange) {
        self.purged.remove(range);
        self.dont_fork.remove(range);
    }

    pub(super) fn purged(&self) -> &RangeSet {
        &self.purged
    }

    /// What is noted about `range` alone.
    pub(super) fn of(&self, range: AddrRange) -> Advice {
        let parts = |set: &RangeSet| set.overlaps_of(range).into_iter().collect();
        Advice { purged: parts(&self.purged), dont_fork: parts(&self.dont_fork) }
    }

    /// Notes what `other` says, at other addresses.
    pub(super) fn add(&mut self, other: &Advice, shift: impl Fn(AddrRange) -> AddrRange) {
        other.purged.iter().for_each(|range| self.purged.insert(shift(range)));
        other.dont_fork.iter().for_each(|range| self.dont_fork.insert(shift(range)));
    }

    /// MREMAP_DONTUNMAP leaves nothing behind.
    pub(super) fn purge(&mut self, range: AddrRange) {
        self.purged.insert(range);
    }

    pub(super) fn keep_from_forks(&mut self, range: AddrRange) {
        self.dont_fork.insert(range);
    }

    pub(super) fn is_kept_from_forks(&self, range: AddrRange) -> bool {
        self.dont_fork.overlaps(range)
    }

    /// A copy has none of them, nor their flag.
    pub(super) fn take_dont_fork(&mut self) -> RangeSet {
        std::mem::take(&mut self.dont_fork)
    }
}
