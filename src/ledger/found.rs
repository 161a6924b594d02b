//! An address space that was found in the middle of its life: what is certain about calls that were
//! on their way while it was looked at.
//!
//! The look is taken when calls are reported already. A call that is reported before it is in it;
//! one that began after it is not. Those in between may have taken effect in what the look shows,
//! or not yet, and the look itself is no single moment:
//!
//! ```text
//!   kernel    A: mmap = X ──┐   B: mmap = Y ───┐
//!   look      ├──── X seen ─│── Y not seen ────│──┤
//!   reports                 A: mmap X          B: mmap Y
//! ```
//!
//! Only the calls reported during the look, and each thread's first one after it, are such. What
//! they touch is *unsettled* until a later call settles it: there the kernel's word stands, and
//! what no call explains was there before.

use super::space::Ledger;
use super::space::piece::Owner;
use super::space::range_set::RangeSet;
use crate::model::AddrRange;

/// A call that was on its way during the look is reported within this time.
const MAX_FLIGHT_NS: u64 = 10_000_000_000;

/// When the look was taken that an address space begins with.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct FirstLook {
    /// Reports from before this time are already in it.
    pub(super) begun_ns: u64,
    /// Reports up to this time may be in it; 0 where there was none.
    pub(super) ended_ns: u64,
    /// Number of the last report from before its end.
    last_report: u64,
}

impl FirstLook {
    pub(super) fn taken((begun_ns, ended_ns): (u64, u64)) -> FirstLook {
        FirstLook { begun_ns, ended_ns, last_report: 0 }
    }
}

impl Ledger {
    /// True for a report that the first look may hold already, or not yet. `previous` and `number`
    /// as in `Report`.
    pub(super) fn overlaps_first_look(&mut self, time_ns: u64, previous: u64, number: u64) -> bool {
        let look = &mut self.first_look;
        if look.ended_ns == 0 {
            return false;
        }
        if time_ns <= look.ended_ns {
            look.last_report = number;
            return true;
        }
        previous <= look.last_report && time_ns - look.ended_ns < MAX_FLIGHT_NS
    }

    /// A forked child's calls all began after the look. Its map is the copy that was `listed`, where
    /// it was; `unknown` is what the parent's does not explain of it.
    pub(super) fn settle_child(&mut self, parent: &Ledger, unknown: &mut RangeSet, listed: bool) {
        self.first_look = FirstLook::default();
        if !listed {
            return;
        }
        self.unsettled = RangeSet::default();
        let before: Vec<AddrRange> = match parent.in_flight {
            true => unknown.iter().collect(),
            false => unknown.iter().flat_map(|range| parent.unsettled.overlaps_of(range)).collect(),
        };
        for range in before {
            unknown.remove(range);
            self.pieces.update(range, |attr| {
                if attr.owner == Owner::Unknown {
                    attr.owner = Owner::Preexisting;
                }
            });
        }
    }

    /// What the call that is being applied touched is as doubtful as its order with the look.
    pub(super) fn unsettle(&mut self, range: AddrRange) {
        if self.in_flight {
            self.unsettled.insert(range);
        }
    }
}
