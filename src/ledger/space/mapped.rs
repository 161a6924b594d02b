//! What is mapped, whose it is, and how much it was at most.
//!
//! The bytes that an origin owns are those that the map, the limbo and the history have of it; the peak's
//! tracker sees each byte come and go. Only here any of them changes.

use super::history::{History, Removed};
use super::limbo::{Certainty, Limbo};
use super::origins::FileTable;
use super::origins::{OriginEntry, OriginTable, Removal, Touch};
use super::peak::{Moment, PeakTracker};
use super::piece::{Attributes, Owner, Piece, PieceMap, Slot};
use super::range_set::RangeSet;
use crate::ledger::names::attributes_of;
use crate::model::{AddrRange, Mapping, Prot, VmEvent};
use std::sync::Arc;

#[derive(Clone, Default, Debug)]
pub(super) struct Mapped {
    pieces: PieceMap,
    peak: PeakTracker,
    origins: OriginTable,
    limbo: Limbo,
    /// What was there before, for forks that are on their way and snapshots that are not compared yet:
    /// empty without either, as with a single thread.
    history: History,
    /// Memory without a file that is or once was executable: code that was made at run time. V8 takes the
    /// right away while it writes, so that a piece's current rights do not show it.
    generated: RangeSet,
    /// Modules or generated code came or went since there was a number for them.
    modules_changed: bool,
    module_generation: u64,
}

impl Mapped {
    pub(super) fn new() -> Mapped {
        Mapped { modules_changed: true, ..Mapped::default() }
    }

    /// The same, for a child. Unmappings on their way are the parent's affair.
    pub(super) fn for_child(&self) -> Mapped {
        let mut child = Mapped {
            pieces: self.pieces.clone(),
            peak: self.peak.for_copy(0),
            origins: self.origins.clone(),
            limbo: Limbo::default(),
            history: self.history.clone(),
            generated: self.generated.clone(),
            // Equal sets of modules, equal generation.
            modules_changed: false,
            module_generation: self.module_generation,
        };
        child.release(self.limbo.pieces().cloned().collect(), Removal::Unmapped);
        child
    }

    pub(super) fn pieces(&self) -> &PieceMap {
        &self.pieces
    }

    pub(super) fn origins(&self) -> &OriginTable {
        &self.origins
    }

    pub(super) fn peak(&self) -> &PeakTracker {
        &self.peak
    }

    pub(super) fn limbo(&self) -> &Limbo {
        &self.limbo
    }

    pub(super) fn history(&self) -> &History {
        &self.history
    }

    pub(super) fn generated(&self) -> &RangeSet {
        &self.generated
    }

    pub(super) fn module_generation(&self) -> u64 {
        self.module_generation
    }

    /// Takes the next number where modules have changed.
    pub(super) fn renew_modules(&mut self, next: impl FnOnce() -> u64) {
        if std::mem::take(&mut self.modules_changed) {
            self.module_generation = next();
        }
    }

    /// Maps `range`, which has to be free, for the call, whose origin `slot` is once it has one.
    pub(super) fn map(
        &mut self,
        call: &VmEvent,
        slot: &mut Option<Slot>,
        range: AddrRange,
        attr: Attributes,
    ) {
        if range.is_empty() {
            return;
        }
        let owner = self.origins.mapped(call, *slot, range.len());
        *slot = Some(owner);
        self.put(Piece { range, attr: Attributes { owner: Owner::Event(owner), ..attr } });
    }

    /// Places a piece whose owner already counts it.
    pub(super) fn put(&mut self, piece: Piece) {
        self.modules_changed |= piece.attr.module;
        if piece.attr.is_generated_code() {
            self.generated.insert(piece.range);
            self.modules_changed = true;
        }
        self.peak.added(&piece, &self.origins);
        self.pieces.place(piece);
    }

    /// Maps what is free in a mapping's range, without counting it for an owner; returns the parts.
    pub(super) fn fill(&mut self, mapping: &Mapping, owner: Owner, files: &mut FileTable) -> Vec<AddrRange> {
        let gaps = self.pieces.gaps_of(mapping.range);
        if !gaps.is_empty() {
            let whole = Piece { range: mapping.range, attr: attributes_of(mapping, owner, files) };
            gaps.iter().for_each(|&gap| self.put(whole.clipped(gap)));
        }
        gaps
    }

    /// Takes what is mapped in `range`; its owners still count it. `remember`: the report's number and time,
    /// where it may be queried later.
    pub(super) fn carve(
        &mut self,
        range: AddrRange,
        removal: Removal,
        remember: Option<(u64, u64)>,
    ) -> Vec<Piece> {
        let pieces = self.pieces.carve(range);
        for piece in &pieces {
            self.modules_changed |= piece.attr.module;
            if !self.generated.overlaps_of(piece.range).is_empty() {
                self.generated.remove(piece.range);
                self.modules_changed = true;
            }
            self.peak.removed(piece, &self.origins);
        }
        if let Some(when) = remember {
            for piece in &pieces {
                self.history.add(when, removal, piece, &mut self.origins);
            }
        }
        pieces
    }

    /// The bytes of `pieces` are gone for good.
    pub(super) fn release(&mut self, pieces: Vec<Piece>, removal: Removal) {
        for piece in pieces {
            if let Owner::Event(slot) = piece.attr.owner {
                self.origins.remove(slot, piece.range.len(), removal);
            }
        }
    }

    /// `pieces` wait for the report of their unmapping.
    pub(super) fn await_report(&mut self, when: (u64, u64), certainty: Certainty, pieces: Vec<Piece>) {
        let dropped = self.limbo.add(when, certainty, pieces);
        self.release(dropped, Removal::Unmapped);
    }

    /// See [`Limbo::claim`].
    pub(super) fn claim(&mut self, range: AddrRange, previous: u64) -> (Vec<Piece>, Vec<AddrRange>) {
        self.limbo.claim(range, previous)
    }

    /// See [`Limbo::expire`].
    pub(super) fn expire(&mut self, oldest_report: u64, now_ns: u64) {
        let dropped = self.limbo.expire(oldest_report, now_ns);
        self.release(dropped, Removal::Unmapped);
    }

    /// One call touched these pieces: counts it once for each origin.
    pub(super) fn count(&mut self, touch: Touch, pieces: &[Piece]) {
        let mut last = None;
        pieces.iter().for_each(|piece| self.origins.count(touch, piece.attr.owner, &mut last));
    }

    /// mprotect.
    pub(super) fn protect(&mut self, range: AddrRange, prot: Prot) {
        let (origins, modules_changed, mut last) = (&mut self.origins, &mut self.modules_changed, None);
        self.pieces.update(range, |attr| {
            *modules_changed |= attr.protect(prot);
            origins.count(Touch::Mprotect, attr.owner, &mut last);
        });
        if prot.exec {
            let code = self.pieces.overlapping(range).filter(|(_, attr)| attr.is_generated_code());
            for part in code.map(|(piece, _)| piece.intersect(range)) {
                if !self.generated.gaps_of(part).is_empty() {
                    self.generated.insert(part);
                    self.modules_changed = true;
                }
            }
        }
    }

    /// The kernel shows other rights than the calls set.
    pub(super) fn take_prot(&mut self, range: AddrRange, prot: Prot) {
        if self.pieces.overlapping(range).any(|(_, a)| a.prot != prot) {
            self.pieces.update(range, |attr| attr.take_prot(prot));
        }
    }

    /// What had no owner in `range` was there before.
    pub(super) fn was_there_before(&mut self, range: AddrRange) {
        self.pieces.update(range, Attributes::was_there_before);
    }

    /// madvise; gives the mapped parts of `range`.
    pub(super) fn advised(&mut self, range: AddrRange) -> Vec<AddrRange> {
        let mut last = None;
        let (pieces, origins) = (&self.pieces, &mut self.origins);
        let parts = pieces.overlapping(range).map(|(piece, attr)| {
            origins.count(Touch::Madvise, attr.owner, &mut last);
            piece.intersect(range)
        });
        parts.collect()
    }

    /// PR_SET_VMA_ANON_NAME.
    pub(super) fn name(&mut self, range: AddrRange, name: Option<&[u8]>) {
        let name: Option<Arc<[u8]>> = name.map(Arc::from);
        for (piece, attr) in self.pieces.overlapping(range) {
            if let Owner::Event(slot) = attr.owner {
                self.origins.name(slot, piece.intersect(range), name.as_ref());
            }
        }
    }

    pub(super) fn add_unplaced_ring(&mut self, call: &VmEvent) {
        self.origins.add_unplaced_ring(call);
    }

    /// One of them was destroyed; which is not known, most likely the newest.
    pub(super) fn forget_unplaced_ring(&mut self) {
        self.origins.forget_unplaced_ring();
    }

    /// `bytes` of a call that another ledger knows are in this one.
    pub(super) fn adopt(&mut self, entry: &OriginEntry, bytes: u64) -> Owner {
        Owner::Event(self.origins.adopt(entry, bytes))
    }

    /// See [`History::take_since`]; [`Mapped::give_up`] has to follow.
    pub(super) fn take_removed(&mut self, since: u64) -> Vec<Removed> {
        self.history.take_since(since, &mut self.origins)
    }

    pub(super) fn give_up(&mut self, removed: &[Removed]) {
        removed.iter().for_each(|entry| entry.disown(&mut self.origins));
    }

    /// What was removed from `part`, which has to be free, never was.
    pub(super) fn restore(&mut self, entry: &Removed, part: AddrRange) {
        let piece = entry.piece().clipped(part);
        if let Owner::Event(slot) = piece.attr.owner {
            self.origins.restore(slot, piece.range.len(), entry.removal());
        }
        self.put(piece);
    }

    /// Forgets what was there before.
    pub(super) fn forget_removed(&mut self) {
        self.history.clear(&mut self.origins);
    }

    /// A report's effect is complete.
    pub(super) fn settle(&mut self, now: Moment) {
        self.peak.settle(now);
    }

    /// The maximum is what is mapped now.
    pub(super) fn begin_peak(&mut self, time_ns: u64) {
        self.peak = self.peak.for_copy(time_ns);
    }
}
