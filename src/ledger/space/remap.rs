//! mremap (mm/mremap.c): shrink, grow, move, duplicate.

use super::Ledger;
use super::effects::huge_page_size;
use super::origins::Removal;
use super::piece::{Attributes, Owner, Piece};
use super::range_set::RangeSet;
use super::reports::Report;
use crate::ledger::region::RegionKind;
use crate::model::event::VmOp;
use crate::model::{Addr, AddrRange, PAGE, Prot, Sharing};

pub(super) const FIXED: u64 = 2;
const DONTUNMAP: u64 = 4;

/// An mremap in whole pages.
#[derive(Clone, Copy)]
struct Move {
    from: AddrRange,
    to: AddrRange,
    fixed: bool,
    keep_source: bool,
}

impl Ledger {
    pub(super) fn mremap(&mut self, call: &Report<'_>) {
        let VmOp::Mremap { old, old_len, new_len, flags, .. } = &call.event.op else { return };
        let unit = self.page_unit(*old);
        let up = |len: u64| len.checked_add(unit - 1).map_or(!(unit - 1), |sum| sum & !(unit - 1));
        let step = Move {
            from: AddrRange::from_len(old.page_down(), up(*old_len)),
            to: AddrRange::from_len(Addr(call.event.ret as u64), up(*new_len)),
            fixed: flags & FIXED != 0,
            keep_source: flags & DONTUNMAP != 0,
        };
        let unsettled = self.first_snapshot.unsettled().overlaps(step.from);
        if step.from.is_empty() {
            self.duplicate(call, step);
        } else if step.from.start == step.to.start {
            self.resize(call, step);
        } else {
            self.relocate(call, step);
        }
        self.touch(call.event.time_ns, step.to);
        if unsettled {
            self.first_snapshot.unsettle(step.to);
        }
    }

    /// hugetlb mappings are resized in huge pages.
    fn page_unit(&self, addr: Addr) -> u64 {
        match self.mapped.pieces().at(addr) {
            Some((_, a)) if a.kind == RegionKind::HugeTlb => match a.owner {
                Owner::Event(slot) => match self.mapped.origins().get(slot).map(|o| &o.call().op) {
                    Some(VmOp::Mmap { flags, .. }) => huge_page_size(*flags),
                    _ => huge_page_size(0),
                },
                _ => huge_page_size(0),
            },
            _ => PAGE,
        }
    }

    /// Same address: the tail goes, or new bytes follow.
    fn resize(&mut self, call: &Report<'_>, step: Move) {
        if step.to.end < step.from.end {
            self.unmap(call, AddrRange::new(step.to.end.0, step.from.end.0));
        } else if step.to.end > step.from.end {
            let like = self.last_in(step.from);
            let grown = AddrRange::new(step.from.end.0, step.to.end.0);
            self.vacate(call, grown);
            self.map_more(call, &mut None, grown, like);
            if self.advice.is_kept_from_forks(last_page(step.from)) {
                self.advice.keep_from_forks(grown);
            }
        }
    }

    /// Attributes of bytes that follow `range`, as its last piece would go on.
    fn last_in(&self, range: AddrRange) -> Attributes {
        match self.mapped.pieces().overlapping(range).last() {
            Some((piece, attr)) => attr.advanced(range.end.0 - piece.start.0),
            None => unknown_memory(),
        }
    }

    /// Another address. The moved bytes keep their origin, the grown ones are this call's.
    fn relocate(&mut self, call: &Report<'_>, step: Move) {
        let moved_len = step.from.len().min(step.to.len());
        let moving = AddrRange::from_len(step.from.start, moved_len);
        let cut = AddrRange::new(moving.end.0, step.from.end.0);
        if !cut.is_empty() {
            self.unmap(call, cut);
        }
        // A mapping keeps its flags wherever it goes, and the part that is new has them, too.
        let advice = self.advice.of(moving);
        let keeps_grown = self.advice.is_kept_from_forks(last_page(moving));
        let pieces: Vec<Piece>;
        if step.keep_source {
            // MREMAP_DONTUNMAP: the mapping stays where it was, emptied; the new one is this call's.
            pieces =
                self.mapped.pieces().overlapping(moving).map(|(r, a)| Piece::clip(r, a, moving)).collect();
        } else {
            pieces = self.take(call, moving, Removal::Moved);
            self.touch(call.event.time_ns, step.from);
        }
        let shift = |r: AddrRange| {
            AddrRange::from_len(step.to.start.saturating_add(r.start.0 - moving.start.0), r.len())
        };
        // A move over several VMAs (6.17) keeps the holes between them, and what lies at the target there.
        let first_is_known = pieces.first().is_some_and(|first| first.range.start == moving.start);
        let replaced: Vec<AddrRange> = if step.fixed && first_is_known && step.from.len() == step.to.len() {
            pieces.iter().map(|piece| shift(piece.range)).collect()
        } else {
            vec![step.to]
        };
        for range in replaced {
            if step.fixed {
                self.discard(range, Removal::Replaced);
            } else {
                self.vacate(call, range);
            }
            self.forget_notes(range);
        }

        let like_grown = match pieces.last() {
            Some(last) => last.attr.advanced(moving.end.0 - last.range.start.0),
            None => unknown_memory(),
        };
        let mut missing = RangeSet::from_iter([AddrRange::from_len(step.to.start, moved_len)]);
        let mut slot = None;
        for piece in pieces {
            let range = shift(piece.range);
            missing.remove(range);
            if step.keep_source {
                self.map_more(call, &mut slot, range, piece.attr);
            } else {
                self.mapped.put(piece.moved_to(range));
            }
        }
        if step.keep_source {
            self.advice.purge(moving);
        }
        // Bytes that the ledger did not know at the source: this call is all that is known. Moves
        // over several VMAs (6.17) keep real holes, so only the unknown first VMA counts.
        if missing.overlaps(AddrRange::from_len(step.to.start, PAGE)) {
            for part in missing.iter() {
                self.map_more(call, &mut slot, part, unknown_memory());
            }
        }
        let grown = AddrRange::new(step.to.start.saturating_add(moved_len).0, step.to.end.0);
        self.map_more(call, &mut slot, grown, like_grown);
        self.advice.add(&advice, shift);
        if keeps_grown {
            self.advice.keep_from_forks(grown);
        }
    }

    /// Old length 0: maps the pages of a shared mapping a second time.
    fn duplicate(&mut self, call: &Report<'_>, step: Move) {
        let like = match self.mapped.pieces().at(step.from.start) {
            Some((piece, attr)) => attr.advanced(step.from.start.0 - piece.start.0),
            None => unknown_memory(),
        };
        if step.fixed {
            self.discard(step.to, Removal::Replaced);
        } else {
            self.vacate(call, step.to);
        }
        let kept = self.advice.is_kept_from_forks(AddrRange::from_len(step.from.start, PAGE));
        self.map_more(call, &mut None, step.to, like);
        if kept {
            self.advice.keep_from_forks(step.to);
        }
    }
}

fn last_page(range: AddrRange) -> AddrRange {
    AddrRange::new(range.end.0.saturating_sub(PAGE), range.end.0)
}

fn unknown_memory() -> Attributes {
    Attributes::anonymous(Prot::RW, Sharing::Private, RegionKind::Anonymous)
}
