//! Where and since when the ledger may be wrong.

use super::range_set::RangeSet;
use crate::model::AddrRange;

#[derive(Clone, Default, Debug)]
pub(super) struct Doubts {
    /// Where a failed call may have changed something before it gave up.
    uncertain: RangeSet,
    /// Time of the latest loss of events.
    lost_ns: Option<u64>,
    /// True from a loss until the maps were read again.
    unverified: bool,
}

impl Doubts {
    pub(super) fn uncertain(&self) -> &RangeSet {
        &self.uncertain
    }

    pub(super) fn add(&mut self, range: AddrRange) {
        self.uncertain.insert(range);
    }

    /// Something new is there, or a call has done all of it.
    pub(super) fn forget(&mut self, range: AddrRange) {
        self.uncertain.remove(range);
    }

    /// Events were lost: whatever is older may have been replaced since.
    pub(super) fn note_loss(&mut self, time_ns: u64) {
        self.lost_ns = self.lost_ns.max(Some(time_ns));
        self.unverified = true;
    }

    /// The maps were read again.
    pub(super) fn verified(&mut self) {
        self.unverified = false;
    }

    pub(super) fn any_loss(&self) -> bool {
        self.lost_ns.is_some()
    }

    /// Events were lost after `time_ns`.
    pub(super) fn lost_since(&self, time_ns: u64) -> bool {
        self.lost_ns.is_some_and(|lost| time_ns <= lost)
    }

    pub(super) fn is_unverified(&self) -> bool {
        self.unverified
    }
}
