//! Pieces whose unmapping is proven but not reported yet.
//!
//! Events arrive at syscall exit, not in the order of the mm lock. When a non-fixed mapping lands
//! on an occupied range, the call that freed the range is still on its way. What was there waits
//! here until that call's report comes and is matched with it:
//!
//! ```text
//!   kernel    A: munmap X ───────────────────────────┐ (not yet at its exit)
//!             B: mmap = X ─┐                         │
//!   reports                B: mmap = X   …           A: munmap X
//!   ledger                 old X → limbo             old X leaves limbo, B's mapping stays
//! ```

use super::piece::Piece;
use super::range_set::RangeSet;
use crate::model::AddrRange;

/// A call is at most preempted between the mm lock and its exit. What no report claimed for so long was freed
/// by a call that is not traced (or was lost).
const MAX_AGE_NS: u64 = 10_000_000_000;
/// More than this at a time means that something else is wrong; the oldest go first.
const MAX_ENTRIES: usize = 1024;

/// How sure it is that a report is still to come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::ledger) enum Certainty {
    Proven,
    /// It is as likely that nothing was unmapped: the ledger had the place wrong.
    Possible,
}

#[derive(Clone, Debug)]
struct Entry {
    /// Number of the report that proved the unmapping.
    created: u64,
    time_ns: u64,
    certainty: Certainty,
    /// Sorted and disjoint.
    pieces: Vec<Piece>,
}

/// Oldest entry first.
#[derive(Clone, Default, Debug)]
pub(in crate::ledger) struct Limbo {
    entries: Vec<Entry>,
}

impl Limbo {
    pub(in crate::ledger) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds the displaced pieces; returns those that had to go for it.
    pub(in crate::ledger) fn add(
        &mut self,
        (created, time_ns): (u64, u64),
        certainty: Certainty,
        pieces: Vec<Piece>,
    ) -> Vec<Piece> {
        if pieces.is_empty() {
            return Vec::new();
        }
        self.entries.push(Entry { created, time_ns, certainty, pieces });
        if self.entries.len() > MAX_ENTRIES { self.entries.remove(0).pieces } else { Vec::new() }
    }

    /// Takes the bytes of `range` that a report may account for, each byte once. `previous` is the number of
    /// the same thread's report before this one: had it come after the entry, the call would have begun after
    /// the entry and could not be the missing one. The oldest entry goes first: the fewest threads may claim
    /// it. Also returns which ranges were only possibly unmapped.
    pub(in crate::ledger) fn claim(
        &mut self,
        range: AddrRange,
        previous: u64,
    ) -> (Vec<Piece>, Vec<AddrRange>) {
        let (mut claimed, mut doubtful) = (Vec::new(), Vec::new());
        if self.entries.is_empty() {
            return (claimed, doubtful);
        }
        let mut taken = RangeSet::default();
        for entry in self.entries.iter_mut().filter(|e| previous < e.created) {
            if !entry.pieces.iter().any(|p| p.range.overlaps(range)) {
                continue;
            }
            let mut kept = Vec::with_capacity(entry.pieces.len());
            for piece in entry.pieces.drain(..) {
                let common = piece.range.intersect(range);
                if common.is_empty() {
                    kept.push(piece);
                    continue;
                }
                let free = taken.gaps_of(common);
                let mut rest = RangeSet::default();
                rest.insert(piece.range);
                for part in free {
                    rest.remove(part);
                    taken.insert(part);
                    claimed.push(piece.clipped(part));
                    if entry.certainty == Certainty::Possible {
                        doubtful.push(part);
                    }
                }
                kept.extend(rest.iter().map(|part| piece.clipped(part)));
            }
            entry.pieces = kept;
        }
        self.entries.retain(|e| !e.pieces.is_empty());
        claimed.sort_by_key(|p| p.range.start);
        (claimed, doubtful)
    }

    /// The first waiting piece that `matches` and that a thread with `previous` may claim.
    pub(in crate::ledger) fn find(&self, previous: u64, matches: impl Fn(&Piece) -> bool) -> Option<&Piece> {
        self.entries.iter().filter(|e| previous < e.created).flat_map(|e| &e.pieces).find(|p| matches(p))
    }

    /// True when a thread whose last report was `previous` has not reported since the oldest entry.
    pub(in crate::ledger) fn awaits(&self, previous: u64) -> bool {
        self.entries.first().is_some_and(|e| previous < e.created)
    }

    /// Drops entries that no thread can claim any more: all have reported since (`oldest_report`
    /// is the smallest last report of all living threads), or too much time went by.
    pub(in crate::ledger) fn expire(&mut self, oldest_report: u64, now_ns: u64) -> Vec<Piece> {
        let mut dropped = Vec::new();
        self.entries.retain_mut(|e| {
            let keep = oldest_report < e.created && now_ns.saturating_sub(e.time_ns) < MAX_AGE_NS;
            if !keep {
                dropped.append(&mut e.pieces);
            }
            keep
        });
        dropped
    }

    /// Time of the oldest entry.
    pub(in crate::ledger) fn oldest_ns(&self) -> Option<u64> {
        self.entries.first().map(|e| e.time_ns)
    }

    /// Every waiting piece, with the bytes that it still represents.
    pub(in crate::ledger) fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.entries.iter().flat_map(|e| &e.pieces)
    }

    /// True when no report has claimed it for longer than a call can take.
    pub(in crate::ledger) fn is_stale(&self, now_ns: u64) -> bool {
        self.oldest_ns().is_some_and(|t| now_ns.saturating_sub(t) >= MAX_AGE_NS)
    }
}
