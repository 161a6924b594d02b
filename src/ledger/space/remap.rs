//! mremap (mm/mremap.c): shrink, grow, move, duplicate.

use super::effects::huge_page_size;
use super::piece::{Attributes, Owner, Piece};
use super::range_set::RangeSet;
use super::{Ledger, Removal, Report};
use crate::ledger::region::RegionKind;
use crate::model::event::VmOp;
use crate::model::{Addr, AddrRange, PAGE, Prot, Sharing};

pub(in crate::ledger) const FIXED: u64 = 2;
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
    pub(in crate::ledger) fn mremap(&mut self, call: &Report<'_>) {
        let VmOp::Mremap { old, old_len, new_len, flags, .. } = &call.event.op else { return };
        let unit = self.page_unit(*old);
        let up = |len: u64| len.checked_add(unit - 1).map_or(!(unit - 1), |sum| sum & !(unit - 1));
        let step = Move {
            from: AddrRange::from_len(old.page_down(), up(*old_len)),
            to: AddrRange::from_len(Addr(call.event.ret as u64), up(*new_len)),
            fixed: flags & FIXED != 0,
            keep_source: flags & DONTUNMAP != 0,
        };
        let unsettled = self.unsettled.overlaps(step.from);
        if step.from.is_empty() {
            self.duplicate(call, step);
        } else if step.from.start == step.to.start {
            self.resize(call, step);
        } else {
            self.relocate(call, step);
        }
        self.touch(call.event.time_ns, step.to);
        if unsettled {
            self.unsettled.insert(step.to);
        }
    }

    /// hugetlb mappings are resized in huge pages.
    fn page_unit(&self, addr: Addr) -> u64 {
        match self.pieces.at(addr) {
            Some((_, a)) if a.kind == RegionKind::HugeTlb => match a.owner {
                Owner::Event(slot) => match self.origins.get(slot).map(|o| &o.call.op) {
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
            self.map_for(call, grown, like);
            if self.dont_fork.overlaps(last_page(step.from)) {
                self.dont_fork.insert(grown);
            }
        }
    }

    /// Attributes of bytes that follow `range`, as its last piece would go on.
    fn last_in(&self, range: AddrRange) -> Attributes {
        match self.pieces.overlapping(range).last() {
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
        let purged = self.purged.overlaps_of(moving);
        // A mapping keeps its flags wherever it goes, and the part that is new has them, too.
        let kept = self.dont_fork.overlaps_of(moving);
        let keeps_grown = self.dont_fork.overlaps(last_page(moving));
        let mut pieces: Vec<Piece>;
        if step.keep_source {
            // MREMAP_DONTUNMAP: the mapping stays where it was, emptied; the new one is this call's.
            pieces = self.pieces.overlapping(moving).map(|(r, a)| clip(r, a, moving)).collect();
        } else {
            pieces = self.take(call, moving, Removal::Moved);
            self.touch(call.event.time_ns, step.from);
        }
        if step.fixed {
            self.replace(step.to);
        } else {
            self.vacate(call, step.to);
        }
        self.forget_history(step.to);

        let shift = |r: AddrRange| {
            AddrRange::from_len(step.to.start.saturating_add(r.start.0 - moving.start.0), r.len())
        };
        let like_grown = match pieces.last() {
            Some(last) => last.attr.advanced(moving.end.0 - last.range.start.0),
            None => unknown_memory(),
        };
        let mut missing = RangeSet::default();
        missing.insert(AddrRange::from_len(step.to.start, moved_len));
        for piece in &mut pieces {
            piece.range = shift(piece.range);
            missing.remove(piece.range);
        }
        let mut slot = None;
        if step.keep_source {
            for piece in pieces {
                self.map_more(call, &mut slot, piece.range, piece.attr);
            }
            self.purged.insert(moving);
        } else {
            for piece in pieces {
                self.put(piece);
            }
        }
        // Bytes that the ledger did not know at the source: this call is all that is known. Moves
        // over several VMAs (6.17) keep real holes, so only the unknown first VMA counts.
        if missing.overlaps(AddrRange::from_len(step.to.start, PAGE)) {
            let parts: Vec<AddrRange> = missing.iter().collect();
            for part in parts {
                self.map_more(call, &mut slot, part, unknown_memory());
            }
        }
        let grown = AddrRange::new(step.to.start.saturating_add(moved_len).0, step.to.end.0);
        self.map_more(call, &mut slot, grown, like_grown);
        for range in purged {
            self.purged.insert(shift(range));
        }
        kept.into_iter().for_each(|range| self.dont_fork.insert(shift(range)));
        if keeps_grown {
            self.dont_fork.insert(grown);
        }
    }

    /// Old length 0: maps the pages of a shared mapping a second time.
    fn duplicate(&mut self, call: &Report<'_>, step: Move) {
        let like = match self.pieces.at(step.from.start) {
            Some((piece, attr)) => attr.advanced(step.from.start.0 - piece.start.0),
            None => unknown_memory(),
        };
        if step.fixed {
            let old = self.carve(step.to, Removal::Replaced);
            self.release(old, Removal::Replaced);
        } else {
            self.vacate(call, step.to);
        }
        let kept = self.dont_fork.overlaps(AddrRange::from_len(step.from.start, PAGE));
        self.map_for(call, step.to, like);
        if kept {
            self.dont_fork.insert(step.to);
        }
    }
}

fn last_page(range: AddrRange) -> AddrRange {
    AddrRange::new(range.end.0.saturating_sub(PAGE), range.end.0)
}

fn clip(range: AddrRange, attr: &Attributes, to: AddrRange) -> Piece {
    Piece { range, attr: attr.clone() }.clipped(to)
}

fn unknown_memory() -> Attributes {
    Attributes {
        owner: Owner::Unknown,
        prot: Prot::RW,
        sharing: Sharing::Private,
        kind: RegionKind::Anonymous,
        grows_down: false,
        module: false,
        file: None,
        offset: 0,
    }
}
