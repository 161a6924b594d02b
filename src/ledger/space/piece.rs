//! The address space as a sorted map of pieces: ranges with one owner and equal attributes.

use super::shared::SharedMap;
use crate::ledger::region::RegionKind;
use crate::model::{Addr, AddrRange, FileRef, Prot, Sharing};
use std::sync::Arc;

/// Index into the ledger's [`super::origins::OriginTable`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub(in crate::ledger) struct Slot(pub(in crate::ledger) u32);

/// Whose bytes they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::ledger) enum Owner {
    Event(Slot),
    Preexisting,
    Kernel,
    Unknown,
}

/// What all bytes of a piece have in common.
#[derive(Clone, Debug)]
pub(in crate::ledger) struct Attributes {
    pub(in crate::ledger) owner: Owner,
    pub(in crate::ledger) prot: Prot,
    pub(in crate::ledger) sharing: Sharing,
    pub(in crate::ledger) kind: RegionKind,
    /// MAP_GROWSDOWN, or the main stack: grows without a call.
    pub(in crate::ledger) grows_down: bool,
    /// A file (or the vdso) that is or once was executable here: what the unwinder needs.
    pub(in crate::ledger) module: bool,
    pub(in crate::ledger) file: Option<Arc<FileRef>>,
    /// File offset (SysV segments: offset in the segment) of the piece's first byte; 0 for
    /// memory without one.
    pub(in crate::ledger) offset: u64,
}

/// One file, or none on either side.
pub(super) fn is_same_file(a: Option<&Arc<FileRef>>, b: Option<&Arc<FileRef>>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        _ => false,
    }
}

impl Attributes {
    /// Memory without a file.
    pub(super) fn anonymous(prot: Prot, sharing: Sharing, kind: RegionKind) -> Attributes {
        Attributes {
            owner: Owner::Unknown,
            prot,
            sharing,
            kind,
            grows_down: false,
            module: false,
            file: None,
            offset: 0,
        }
    }

    /// mprotect. True where the piece has become a module.
    pub(super) fn protect(&mut self, prot: Prot) -> bool {
        self.prot = prot;
        let new = prot.exec && self.file.is_some() && !self.module;
        self.module |= new;
        new
    }

    /// Executable, and of no file.
    pub(super) fn is_generated_code(&self) -> bool {
        self.prot.exec && self.file.is_none()
    }

    /// The kernel shows other rights than the calls set.
    pub(super) fn take_prot(&mut self, prot: Prot) {
        self.prot = prot;
    }

    /// What had no owner was there before.
    pub(super) fn was_there_before(&mut self) {
        if self.owner == Owner::Unknown {
            self.owner = Owner::Preexisting;
        }
    }

    /// True when offsets count: pieces coalesce only where they continue.
    fn has_offsets(&self) -> bool {
        self.file.is_some() || matches!(self.kind, RegionKind::File | RegionKind::SysvShm)
    }

    /// The attributes `by` bytes further into the piece.
    pub(in crate::ledger) fn advanced(&self, by: u64) -> Attributes {
        let offset = if self.has_offsets() { self.offset.wrapping_add(by) } else { 0 };
        Attributes { offset, ..self.clone() }
    }

    fn continues(&self, next: &Attributes, len: u64) -> bool {
        is_same_file(self.file.as_ref(), next.file.as_ref())
            && self.owner == next.owner
            && self.prot == next.prot
            && self.sharing == next.sharing
            && self.kind == next.kind
            && self.grows_down == next.grows_down
            && self.module == next.module
            && (!self.has_offsets() || self.offset.wrapping_add(len) == next.offset)
    }
}

/// A range taken out of (or to be put into) the map.
#[derive(Clone, Debug)]
pub(in crate::ledger) struct Piece {
    pub(in crate::ledger) range: AddrRange,
    pub(in crate::ledger) attr: Attributes,
}

impl Piece {
    pub(super) fn clip(range: AddrRange, attr: &Attributes, to: AddrRange) -> Piece {
        Piece { range, attr: attr.clone() }.clipped(to)
    }

    /// The same at another address.
    pub(super) fn moved_to(self, range: AddrRange) -> Piece {
        Piece { range, ..self }
    }

    /// The part of the piece inside `range`, which has to overlap it.
    pub(in crate::ledger) fn clipped(&self, range: AddrRange) -> Piece {
        let part = self.range.intersect(range);
        Piece { range: part, attr: self.attr.advanced(part.start.0.saturating_sub(self.range.start.0)) }
    }
}

#[derive(Clone, Debug)]
struct Stored {
    end: u64,
    attr: Attributes,
}

/// Disjoint pieces by start address. Neighbours with equal attributes are one piece. Copies share what
/// neither changes.
#[derive(Clone, Default, Debug)]
pub(in crate::ledger) struct PieceMap {
    pieces: SharedMap<Stored>,
}

impl PieceMap {
    pub(in crate::ledger) fn iter(&self) -> impl Iterator<Item = (AddrRange, &Attributes)> {
        self.pieces.iter().map(|(start, s)| (AddrRange::new(start, s.end), &s.attr))
    }

    /// Pieces that overlap `range`, unclipped.
    pub(in crate::ledger) fn overlapping(
        &self,
        range: AddrRange,
    ) -> impl Iterator<Item = (AddrRange, &Attributes)> {
        let first = match self.pieces.until(range.start.0) {
            Some((start, s)) if s.end > range.start.0 => start,
            _ => range.start.0,
        };
        let end = range.end.0;
        self.pieces
            .from(first)
            .take_while(move |(start, _)| *start < end)
            .map(|(start, s)| (AddrRange::new(start, s.end), &s.attr))
    }

    /// The piece that holds `addr`.
    pub(in crate::ledger) fn at(&self, addr: Addr) -> Option<(AddrRange, &Attributes)> {
        let (start, s) = self.pieces.until(addr.0)?;
        (s.end > addr.0).then(|| (AddrRange::new(start, s.end), &s.attr))
    }

    pub(in crate::ledger) fn is_free(&self, range: AddrRange) -> bool {
        self.overlapping(range).next().is_none()
    }

    /// The parts of `range` that are free.
    pub(super) fn gaps_of(&self, range: AddrRange) -> Vec<AddrRange> {
        let mut gaps = Vec::new();
        let mut at = range.start.0;
        for (piece, _) in self.overlapping(range) {
            if piece.start.0 > at {
                gaps.push(AddrRange::new(at, piece.start.0));
            }
            at = at.max(piece.end.0);
        }
        if at < range.end.0 {
            gaps.push(AddrRange::new(at, range.end.0));
        }
        gaps
    }

    /// The end of the mapped bytes that begin at `range.start` without a hole, at most `range.end`.
    pub(in crate::ledger) fn mapped_until(&self, range: AddrRange) -> Addr {
        let mut at = range.start.0;
        for (piece, _) in self.overlapping(range) {
            if piece.start.0 > at {
                break;
            }
            at = piece.end.0;
        }
        Addr(at.min(range.end.0))
    }

    /// Removes what is mapped in `range` and returns it, clipped and sorted.
    pub(in crate::ledger) fn carve(&mut self, range: AddrRange) -> Vec<Piece> {
        let mut taken = Vec::new();
        if range.is_empty() {
            return taken;
        }
        let (start, end) = (range.start.0, range.end.0);
        if self.before(start).is_some_and(|(_, stored)| stored.end > start)
            && let Some((before, stored)) = self.before_mut(start)
        {
            let whole = Piece { range: AddrRange::new(before, stored.end), attr: stored.attr.clone() };
            stored.end = start;
            taken.push(whole.clipped(range));
            if whole.range.end.0 > end {
                let rest = whole.clipped(AddrRange::new(end, whole.range.end.0));
                self.pieces.insert(end, Stored { end: rest.range.end.0, attr: rest.attr });
                return taken;
            }
        }
        while let Some(next) = self.pieces.first_from(start).filter(|&next| next < end) {
            let Some(stored) = self.pieces.remove(next) else { break };
            let whole = Piece { range: AddrRange::new(next, stored.end), attr: stored.attr };
            if whole.range.end.0 > end {
                let rest = whole.clipped(AddrRange::new(end, whole.range.end.0));
                self.pieces.insert(end, Stored { end: rest.range.end.0, attr: rest.attr });
                taken.push(whole.clipped(range));
            } else {
                taken.push(whole);
            }
        }
        taken
    }

    /// Puts a piece on a free range and joins it with equal neighbours.
    pub(in crate::ledger) fn place(&mut self, piece: Piece) {
        if piece.range.is_empty() {
            return;
        }
        debug_assert!(self.is_free(piece.range), "{} is occupied", piece.range);
        let Piece { range, attr } = piece;
        let (start, mut end) = (range.start.0, range.end.0);
        if let Some(next) = self.pieces.get(end)
            && attr.continues(&next.attr, end - start)
        {
            let next_end = next.end;
            self.pieces.remove(end);
            end = next_end;
        }
        let continued = |(before, stored): (u64, &Stored)| {
            stored.end == start && stored.attr.continues(&attr, start - before)
        };
        if self.before(start).is_some_and(continued)
            && let Some((_, stored)) = self.before_mut(start)
        {
            stored.end = end;
            return;
        }
        self.pieces.insert(start, Stored { end, attr });
    }

    /// The last piece that begins before `at`.
    fn before(&self, at: u64) -> Option<(u64, &Stored)> {
        self.pieces.until(at.checked_sub(1)?)
    }

    fn before_mut(&mut self, at: u64) -> Option<(u64, &mut Stored)> {
        self.pieces.until_mut(at.checked_sub(1)?)
    }

    /// Chunks, and those that another map has, too.
    #[cfg(test)]
    pub(super) fn shared_with(&self, other: &PieceMap) -> (usize, usize) {
        self.pieces.shared_with(&other.pieces)
    }

    /// Changes the attributes of everything mapped in `range`; `change` gets each piece once.
    pub(in crate::ledger) fn update(&mut self, range: AddrRange, mut change: impl FnMut(&mut Attributes)) {
        if range.is_empty() || self.update_within_one(range, &mut change) {
            return;
        }
        for mut piece in self.carve(range) {
            change(&mut piece.attr);
            self.place(piece);
        }
    }

    /// Does it where one piece holds all of `range`, as in an arena that becomes writable page by
    /// page: the most frequent call of all. False if none does.
    fn update_within_one(&mut self, range: AddrRange, change: &mut impl FnMut(&mut Attributes)) -> bool {
        let (start, end) = (range.start.0, range.end.0);
        let Some((first, stored)) = self.pieces.until(start) else { return false };
        let last = stored.end;
        if last < end {
            return false;
        }
        let mut attr = stored.attr.advanced(start - first);
        change(&mut attr);
        if stored.attr.continues(&attr, start - first) {
            return true;
        }
        let rest = (last > end).then(|| stored.attr.advanced(end - first));
        if first == start {
            self.pieces.remove(first);
        } else if let Some((_, stored)) = self.pieces.until_mut(start) {
            stored.end = start;
        }
        if let Some(attr) = rest {
            self.pieces.insert(end, Stored { end: last, attr });
        }
        self.place(Piece { range, attr });
        true
    }
}
