//! Sums, by site and of all.

use crate::heap::sampling::Weight;
use serde::{Deserialize, Serialize};

/// What was handed out and taken back. Blocks are in units of [`crate::heap::sampling::BLOCK`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flow {
    pub bytes: u64,
    pub blocks: u64,
}

impl Flow {
    pub(super) fn add(&mut self, weight: Weight) {
        self.bytes = self.bytes.saturating_add(weight.bytes);
        self.blocks = self.blocks.saturating_add(weight.blocks);
    }

    pub(super) fn sub(&mut self, weight: Weight) {
        self.bytes = self.bytes.saturating_sub(weight.bytes);
        self.blocks = self.blocks.saturating_sub(weight.blocks);
    }
}

/// `inherited` + `allocated` = `freed` + `outstanding`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    pub allocated: Flow,
    /// Given back by a free, a resize, a reset or deletion of the context, or proven to be gone.
    pub freed: Flow,
    pub outstanding: Flow,
    /// Copied by fork.
    pub inherited: Flow,
}

impl Totals {
    pub(super) fn allocate(&mut self, weight: Weight) {
        self.allocated.add(weight);
        self.outstanding.add(weight);
    }

    pub(super) fn free(&mut self, weight: Weight) {
        self.freed.add(weight);
        self.outstanding.sub(weight);
    }

    /// Has `new` in it instead of `old`.
    pub(super) fn replace(&mut self, old: &Totals, new: &Totals) {
        for (all, new, old) in [
            (&mut self.allocated, new.allocated, old.allocated),
            (&mut self.freed, new.freed, old.freed),
            (&mut self.outstanding, new.outstanding, old.outstanding),
            (&mut self.inherited, new.inherited, old.inherited),
        ] {
            all.bytes = all.bytes.saturating_add(new.bytes).saturating_sub(old.bytes);
            all.blocks = all.blocks.saturating_add(new.blocks).saturating_sub(old.blocks);
        }
    }

    /// A block that seemed to be copied was gone by then.
    pub(super) fn disinherit(&mut self, weight: Weight) {
        self.inherited.sub(weight);
        self.outstanding.sub(weight);
    }

    /// As a child starts with it.
    pub(super) fn copied_by_fork(&self) -> Totals {
        Totals { outstanding: self.outstanding, inherited: self.outstanding, ..Totals::default() }
    }
}

/// What the kernel counted for a site, in place of events.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CountedSite {
    pub totals: Totals,
    /// Of what is freed: by a free that was not seen ([`Doubts::lost_frees`]).
    pub lost_frees: u64,
}

/// Of the blocks of one site.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SiteTotals {
    pub totals: Totals,
    /// Of these: counted in the kernel, without blocks.
    pub(super) counted: CountedSite,
    /// Outstanding bytes at the newest mark, and at the one before.
    pub(super) at_marks: [u64; 2],
    /// Intervals in which outstanding bytes grew.
    pub(super) grown: u32,
    /// Number of the newest of them, from 1.
    pub(super) grown_last: u32,
    /// Outstanding when the peak with this number was reached.
    peak: (u32, Flow),
    /// Freed before the thread that allocated it allocated again.
    pub(super) temporary: u64,
}

impl SiteTotals {
    /// Before anything changes: what is outstanding is what was so at the newest peak, unless something changed
    /// since then already.
    pub(super) fn keep_peak(&mut self, newest: u32) {
        if self.peak.0 != newest {
            self.peak = (newest, self.totals.outstanding);
        }
    }

    /// Outstanding at the newest peak of all.
    pub(super) fn at_peak(&self, newest: u32) -> Flow {
        if self.peak.0 == newest { self.peak.1 } else { self.totals.outstanding }
    }

    pub(super) fn set_peak(&mut self, newest: u32, flow: Flow) {
        self.peak = (newest, flow);
    }

    pub(super) fn mark(&mut self, interval: u32) {
        let [last, _] = self.at_marks;
        let now = self.totals.outstanding.bytes;
        if now > last {
            self.grown = self.grown.saturating_add(1);
            self.grown_last = interval;
        }
        self.at_marks = [now, last];
    }

    /// Nothing of it was ever freed, and it grew in at least two intervals, the newest of them in the second
    /// half of all. Without two intervals, nothing is known.
    pub fn leaks(&self, intervals: u32) -> bool {
        self.totals.freed.blocks == 0 && self.grown >= 2 && self.grown_last > intervals / 2
    }

    /// Outstanding bytes now, less those at the newest mark or at the one before it.
    pub(super) fn growth(&self, since_newest: bool) -> i64 {
        let [newest, before] = self.at_marks;
        let then = if since_newest { newest } else { before };
        let change = i128::from(self.totals.outstanding.bytes) - i128::from(then);
        i64::try_from(change).unwrap_or(if change < 0 { i64::MIN } else { i64::MAX })
    }

    pub(super) fn disinherit(&mut self, weight: Weight) {
        self.totals.disinherit(weight);
        self.at_marks = [self.totals.outstanding.bytes; 2];
    }

    pub(super) fn copied_by_fork(&self) -> SiteTotals {
        let totals = self.totals.copied_by_fork();
        SiteTotals { totals, at_marks: [totals.outstanding.bytes; 2], ..SiteTotals::default() }
    }
}

/// Sources of inexactness. Counts of events, not of what samples represent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Doubts {
    /// Events that never arrived.
    pub lost_events: u64,
    /// Blocks counted as freed because their address was handed out again: the report of their free
    /// was lost, or they were freed by a function that is not probed.
    pub lost_frees: u64,
    /// Frees of blocks whose allocation was not seen, before anything was lost: allocated before vmaudit
    /// attached, or by a function that is not probed, or not drawn as a sample.
    pub unseen_frees: u64,
    /// The same after a loss: perhaps their allocation was lost.
    pub doubtful_frees: u64,
    /// Calls that were refused for lack of memory, and the bytes that they requested.
    pub refused: u64,
    pub refused_bytes: u64,
}
