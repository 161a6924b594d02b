//! Pieces that calls took away lately, where several threads share an address space.
//!
//! fork copies the address space (kernel/fork.c, dup_mmap) some time before it is reported. Calls
//! of other threads that take effect in between change the parent only, and may be reported first:
//!
//! ```text
//!   kernel    A: fork copies X ──────────┐ (not yet at its report)
//!             B: munmap X ─┐             │
//!   reports                B: munmap X   A: fork, the child has X
//!   ledger                 X → history   the child's X comes from history
//! ```

use super::origins::{OriginTable, Removal};
use super::piece::{Owner, Piece};
use std::collections::VecDeque;

/// More than other threads unmap while a fork is on its way, unless it is preempted for long.
pub(in crate::ledger) const MAX_ENTRIES: usize = 4096;

/// A piece that is no longer there. Its owner still counts its bytes, so that the origin stays.
#[derive(Clone, Debug)]
pub(in crate::ledger) struct Removed {
    /// Number of the report that removed it.
    number: u64,
    /// Time of that report.
    time_ns: u64,
    removal: Removal,
    piece: Piece,
}

impl Removed {
    pub(super) fn removal(&self) -> Removal {
        self.removal
    }

    pub(super) fn piece(&self) -> &Piece {
        &self.piece
    }

    /// The entry no longer counts as its owner's.
    pub(super) fn disown(&self, origins: &mut OriginTable) {
        if let Owner::Event(slot) = self.piece.attr.owner {
            origins.disown(slot, self.piece.range.len());
        }
    }
}

/// Oldest first.
#[derive(Clone, Default, Debug)]
pub(in crate::ledger) struct History {
    entries: VecDeque<Removed>,
}

impl History {
    /// Remembers what report `number` removed. The oldest entries go for it.
    pub(in crate::ledger) fn add(
        &mut self,
        (number, time_ns): (u64, u64),
        removal: Removal,
        piece: &Piece,
        origins: &mut OriginTable,
    ) {
        if let Owner::Event(slot) = piece.attr.owner {
            origins.own(slot, piece.range.len());
        }
        self.entries.push_back(Removed { number, time_ns, removal, piece: piece.clone() });
        if self.entries.len() > MAX_ENTRIES
            && let Some(oldest) = self.entries.pop_front()
        {
            oldest.disown(origins);
        }
    }

    /// What was removed by reports after number `since`, newest first; the owners still count it.
    /// The rest is forgotten.
    pub(in crate::ledger) fn take_since(&mut self, since: u64, origins: &mut OriginTable) -> Vec<Removed> {
        let mut taken = Vec::new();
        for entry in self.entries.drain(..).rev() {
            if entry.number > since {
                taken.push(entry);
            } else {
                entry.disown(origins);
            }
        }
        taken
    }

    /// Pieces removed by calls reported at or after `time_ns`, the earliest first.
    pub(in crate::ledger) fn since(&self, time_ns: u64) -> impl Iterator<Item = &Piece> {
        self.entries.iter().filter(move |entry| entry.time_ns >= time_ns).map(|entry| &entry.piece)
    }

    pub(in crate::ledger) fn clear(&mut self, origins: &mut OriginTable) {
        for entry in self.entries.drain(..) {
            entry.disown(origins);
        }
    }
}
