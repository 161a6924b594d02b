//! An address space that was found in the middle of its life: what is certain about calls that were
//! on their way while it was examined.
//!
//! The snapshot is taken when calls are reported already. A call that is reported before it is in it;
//! one that began after it is not. Those in between may have taken effect in what the snapshot shows,
//! or not yet, and the snapshot itself is no single moment:
//!
//! ```text
//!   kernel    A: mmap = X ──┐   B: mmap = Y ───┐
//!   snapshot  ├──── X seen ─│── Y not seen ────│──┤
//!   reports                 A: mmap X          B: mmap Y
//! ```
//!
//! Only the calls reported during the snapshot, and each thread's first one after it, are such. What they
//! touch is *unsettled* until a later call settles it: there the kernel's view decides, and what no call
//! explains was there before.

use super::range_set::RangeSet;
use super::reports::Report;
use crate::model::AddrRange;

/// A call that was on its way during the snapshot is reported within this time.
const MAX_FLIGHT_NS: u64 = 10_000_000_000;

/// The snapshot of maps that an address space begins with, and what is not certain because of it.
#[derive(Clone, Default, Debug)]
pub(super) struct FirstSnapshot {
    /// Reports from before this time are already in it.
    begun_ns: u64,
    /// Reports up to this time may be in it; 0 where there was none.
    ended_ns: u64,
    /// Number of the last report from before its end.
    last_report: u64,
    /// The call that is being applied may be in the snapshot, or not.
    in_flight: bool,
    /// What such calls touched: there the kernel's view decides.
    unsettled: RangeSet,
}

impl FirstSnapshot {
    /// A snapshot from `begun_ns` to `ended_ns`.
    pub(super) fn take(&mut self, (begun_ns, ended_ns): (u64, u64)) {
        (self.begun_ns, self.ended_ns, self.last_report) = (begun_ns, ended_ns, 0);
    }

    /// A forked child's calls all began after the snapshot. Its map is the copy that was `listed`, where it was.
    pub(super) fn of_child(&self, listed: bool) -> FirstSnapshot {
        let unsettled = if listed { RangeSet::default() } else { self.unsettled.clone() };
        FirstSnapshot { unsettled, ..FirstSnapshot::default() }
    }

    /// A report comes. False where the snapshot has it certainly.
    pub(super) fn see(&mut self, call: &Report<'_>) -> bool {
        let time_ns = call.event.time_ns;
        self.in_flight = self.ended_ns != 0
            && (time_ns <= self.ended_ns
                || call.previous <= self.last_report && time_ns - self.ended_ns < MAX_FLIGHT_NS);
        if time_ns <= self.ended_ns {
            self.last_report = call.number;
        }
        time_ns >= self.begun_ns
    }

    /// What the call that is being applied touched is as doubtful as its order with the snapshot.
    pub(super) fn touch(&mut self, range: AddrRange) {
        if self.in_flight {
            self.unsettled.insert(range);
        }
    }

    pub(super) fn unsettle(&mut self, range: AddrRange) {
        self.unsettled.insert(range);
    }

    pub(super) fn settle(&mut self, range: AddrRange) {
        self.unsettled.remove(range);
    }

    pub(super) fn unsettled(&self) -> &RangeSet {
        &self.unsettled
    }

    /// Whether something is mapped in `range` is as likely as not.
    pub(super) fn is_doubtful(&self, range: AddrRange) -> bool {
        self.in_flight || self.unsettled.overlaps(range)
    }

    /// The parts of `range` that a fork, reported now, may have copied from what the snapshot showed.
    pub(super) fn doubtful(&self, range: AddrRange) -> Vec<AddrRange> {
        if self.in_flight { vec![range] } else { self.unsettled.overlaps_of(range) }
    }
}
