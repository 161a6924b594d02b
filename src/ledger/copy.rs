//! A forked child's ledger: the parent's, made to agree with what the kernel copied.

use super::fork::Late;
use super::names::attributes_of;
use super::region::RegionKind;
use super::space::effects::pages;
use super::space::history::{Removed, disown};
use super::space::origins::FileTable;
use super::space::piece::{Attributes, Owner, Piece};
use super::space::range_set::RangeSet;
use super::space::{Ledger, Removal, Start};
use crate::model::hash::IntMap;
use crate::model::{Addr, AddrRange, Mapping, Tid, VmEvent, VmOp};

impl Ledger {
    /// The same map, for a child of one thread that has not called anything yet.
    pub(super) fn copy_for_child(&mut self, child_tid: Tid) -> Ledger {
        // The look back in time is long and the parent's affair: not worth a copy.
        let recent = std::mem::take(&mut self.recent);
        let copied = self.peak.for_copy(0);
        let peak = std::mem::replace(&mut self.peak, copied);
        let mut child = self.clone();
        (self.recent, self.peak) = (recent, peak);
        child.events = 0;
        child.failed = 0;
        child.reports = 0;
        child.threads = IntMap::from_iter([(child_tid, 0)]);
        // Unmappings on their way are the parent's affair.
        let waiting: Vec<Piece> = child.limbo.pieces().cloned().collect();
        child.limbo = Default::default();
        child.release(waiting, Removal::Unmapped);
        child.in_flight = false;
        // Equal sets of modules, equal generation.
        child.modules_changed = false;
        child
    }

    pub(super) fn drop_dont_fork(&mut self) {
        let ranges: Vec<AddrRange> = self.dont_fork.iter().collect();
        for range in ranges {
            let gone = self.carve(range, Removal::Unmapped);
            self.release(gone, Removal::Unmapped);
            self.purged.remove(range);
        }
        self.dont_fork = RangeSet::default();
    }

    /// Makes the map exactly `mappings`, with what was removed after report number `since` where
    /// it fits better than what is there now. Returns the ranges that no piece explains.
    pub(super) fn restrict_to(
        &mut self,
        mappings: &[Mapping],
        since: u64,
        files: &mut FileTable,
    ) -> RangeSet {
        let removed = self.history.take_since(since, &mut self.origins);
        let mut once = RangeSet::default();
        for entry in &removed {
            once.insert(entry.piece.range);
        }
        let mut beyond = RangeSet::default();
        beyond.insert(AddrRange::new(0, u64::MAX));
        let mut unknown = RangeSet::default();
        for mapping in mappings.iter().filter(|m| !m.is_special("[vsyscall]")) {
            beyond.remove(mapping.range);
            if once.overlaps(mapping.range) {
                self.choose(mapping, &removed);
            }
            self.drop_foreign(mapping);
            let prot = mapping.prot;
            if self.pieces.overlapping(mapping.range).any(|(_, a)| a.prot != prot) {
                self.pieces.update(mapping.range, |a| a.prot = prot);
            }
            for gap in self.fill_mapping(mapping, Owner::Unknown, files) {
                unknown.insert(gap);
            }
        }
        for entry in &removed {
            disown(entry, &mut self.origins);
        }
        let outside: Vec<AddrRange> = beyond.iter().collect();
        for range in outside {
            if !self.pieces.is_free(range) {
                let gone = self.carve(range, Removal::Unmapped);
                self.release(gone, Removal::Unmapped);
            }
            self.forget_history(range);
        }
        self.dont_fork = RangeSet::default();
        if !unknown.is_empty() && self.start == Start::Exec {
            // A stack that grew is nobody's call.
            let stack: Vec<AddrRange> =
                mappings.iter().filter(|m| super::names::is_kernel_name(&m.name)).map(|m| m.range).collect();
            for range in stack {
                unknown.remove(range);
            }
        }
        unknown
    }

    /// Takes away what is certainly not what the kernel shows.
    fn drop_foreign(&mut self, mapping: &Mapping) {
        let foreign: Vec<AddrRange> = self
            .pieces
            .overlapping(mapping.range)
            .filter(|(_, a)| is_other_file(a, mapping) || !may_be(a, mapping))
            .map(|(r, _)| r.intersect(mapping.range))
            .collect();
        for range in foreign {
            let gone = self.carve(range, Removal::Replaced);
            self.release(gone, Removal::Replaced);
        }
    }

    /// Puts back each removed piece that fits a part of `mapping` better than what the map has
    /// there and what was removed later.
    fn choose(&mut self, mapping: &Mapping, removed: &[Removed]) {
        let candidates: Vec<(Fit, &Removed)> = removed
            .iter()
            .filter(|r| r.piece.range.overlaps(mapping.range))
            .filter_map(|r| Some((fit(r.piece.range, &r.piece.attr, mapping)?, r)))
            .collect();
        if candidates.is_empty() {
            return;
        }
        let now = self.pieces.overlapping(mapping.range).map(|(r, _)| r);
        let ranges =
            now.chain(candidates.iter().map(|(_, r)| r.piece.range)).map(|r| r.intersect(mapping.range));
        let mut cuts: Vec<u64> = ranges.flat_map(|r| [r.start.0, r.end.0]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        for (&start, &end) in cuts.iter().zip(cuts.iter().skip(1)) {
            let part = AddrRange::new(start, end);
            let mut best = self.pieces.at(part.start).and_then(|(r, a)| fit(r, a, mapping));
            let mut chosen = None;
            for &(fit, entry) in &candidates {
                if entry.piece.range.overlaps(part) && best < Some(fit) {
                    best = Some(fit);
                    chosen = Some(entry);
                }
            }
            if let Some(entry) = chosen {
                let newer = self.carve(part, Removal::Replaced);
                self.release(newer, Removal::Replaced);
                self.forget_history(part);
                self.restore(entry, part);
            }
        }
    }

    /// What was removed from `part` never was, for the child.
    fn restore(&mut self, entry: &Removed, part: AddrRange) {
        let piece = entry.piece.clipped(part);
        if let Owner::Event(slot) = piece.attr.owner {
            let len = piece.range.len();
            self.origins.own(slot, len);
            if let Some(origin) = self.origins.get_mut(slot) {
                match entry.removal {
                    Removal::Unmapped => origin.unmapped = origin.unmapped.saturating_sub(len),
                    Removal::Replaced => origin.replaced = origin.replaced.saturating_sub(len),
                    Removal::Moved => {}
                }
            }
        }
        self.put(piece);
    }

    /// Maps the parts of each mapping that the ledger has nothing at.
    pub(super) fn fill_gaps(&mut self, mappings: &[Mapping], owner: Owner, files: &mut FileTable) {
        for mapping in mappings.iter().filter(|m| !m.is_special("[vsyscall]")) {
            self.fill_mapping(mapping, owner, files);
        }
    }

    /// Maps what is free in a mapping's range; returns the parts.
    pub(super) fn fill_mapping(
        &mut self,
        mapping: &Mapping,
        owner: Owner,
        files: &mut FileTable,
    ) -> Vec<AddrRange> {
        let mut gaps = Vec::new();
        let mut at = mapping.range.start.0;
        for (piece, _) in self.pieces.overlapping(mapping.range) {
            if piece.start.0 > at {
                gaps.push(AddrRange::new(at, piece.start.0));
            }
            at = at.max(piece.end.0);
        }
        if at < mapping.range.end.0 {
            gaps.push(AddrRange::new(at, mapping.range.end.0));
        }
        if gaps.is_empty() {
            return gaps;
        }
        let whole = Piece { range: mapping.range, attr: attributes_of(mapping, owner, files) };
        for &gap in &gaps {
            self.put(whole.clipped(gap));
        }
        gaps
    }

    /// Forgets what was there before.
    pub(super) fn forget_removed(&mut self) {
        self.history.clear(&mut self.origins);
    }

    /// What a late call of the parent made, now that its own ledger knows it: the part of
    /// `ranges`, which a child awaits.
    pub(super) fn made_by(&self, event: &VmEvent, ranges: &RangeSet) -> Vec<Late> {
        let destination = match &event.op {
            VmOp::Mremap { new_len, .. } => pages(Addr(event.ret as u64), *new_len),
            _ => AddrRange::new(0, 0),
        };
        let mut made = Vec::new();
        for range in ranges.iter() {
            for (piece, attr) in self.pieces.overlapping(range) {
                let entry = match attr.owner {
                    Owner::Event(slot) => self.origins.get(slot),
                    _ => None,
                };
                let own = entry.is_some_and(|e| e.call.event == event.id);
                let part = if own { range } else { range.intersect(destination) }.intersect(piece);
                if !part.is_empty() {
                    let piece = Piece { range: piece, attr: attr.clone() }.clipped(part);
                    made.push(Late { piece, entry: entry.cloned() });
                }
            }
        }
        made
    }

    /// The parts of `range` that nobody owns.
    pub(super) fn unowned(&self, range: AddrRange) -> impl Iterator<Item = (AddrRange, &Attributes)> {
        let unowned = self.pieces.overlapping(range).filter(|(_, a)| a.owner == Owner::Unknown);
        unowned.map(move |(r, a)| (r.intersect(range), a))
    }

    /// Gives what nobody owned to the parent's late call, where it can be. Returns those ranges.
    pub(super) fn adopt(&mut self, late: &Late) -> Vec<AddrRange> {
        let Late { piece: source, entry } = late;
        let alike = |attr: &Attributes| resembles(attr, &source.attr);
        let ours: Vec<AddrRange> =
            self.unowned(source.range).filter(|(_, a)| alike(a)).map(|(r, _)| r).collect();
        let mut owner = source.attr.owner;
        let bytes = ours.iter().map(|r| r.len()).sum();
        if let (Some(entry), true) = (entry, bytes > 0) {
            owner = Owner::Event(self.origins.adopt(entry, bytes));
        }
        for &range in &ours {
            for piece in self.carve(range, Removal::Moved) {
                let attr = Attributes { owner, prot: piece.attr.prot, ..source.clipped(piece.range).attr };
                let module = attr.file.is_some() && (attr.module || attr.prot.exec);
                self.put(Piece { range: piece.range, attr: Attributes { module, ..attr } });
            }
        }
        ours
    }
}

/// How well a piece agrees with a mapping: better is greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Fit {
    /// The same file at the same offset, or the same kind of memory without a file.
    same: bool,
    prot: bool,
}

/// `None` when the piece is certainly not what the kernel copied.
fn fit(range: AddrRange, attr: &Attributes, mapping: &Mapping) -> Option<Fit> {
    if is_other_file(attr, mapping) || !may_be(attr, mapping) {
        return None;
    }
    let same = match (&mapping.file, &attr.file) {
        (Some(of_kernel), Some(file)) => {
            let into = range.start.0.wrapping_sub(mapping.range.start.0);
            of_kernel.inode == file.inode && attr.offset == mapping.offset.wrapping_add(into)
        }
        (None, None) => (attr.kind == RegionKind::Brk) == mapping.is_special("[heap]"),
        // Shared memory has a file of the kernel's own, of which calls know nothing.
        (Some(_), None) => attr.kind != RegionKind::File,
        (None, Some(_)) => false,
    };
    Some(Fit { same, prot: attr.prot == mapping.prot })
}

/// Another inode of the same device. Where devices differ, the file may still be the same: in
/// maps overlayfs shows its own inode, and kernel and calls see the one below.
fn is_other_file(attr: &Attributes, mapping: &Mapping) -> bool {
    let (Some(of_kernel), Some(file)) = (&mapping.file, &attr.file) else { return false };
    let one_device = (of_kernel.major, of_kernel.minor) == (file.major, file.minor);
    one_device && of_kernel.inode != file.inode && of_kernel.inode != 0 && file.inode != 0
}

/// False when one of two pieces is certainly not the other.
fn resembles(a: &Attributes, b: &Attributes) -> bool {
    let inode = |x: &Attributes| x.file.as_ref().map(|f| f.inode).filter(|&i| i != 0);
    let different = matches!((inode(a), inode(b)), (Some(a), Some(b)) if a != b);
    a.sharing == b.sharing && !different
}

/// False when the piece is certainly not what the kernel shows.
pub(super) fn may_be(attr: &Attributes, mapping: &Mapping) -> bool {
    let anonymous = matches!(attr.kind, RegionKind::Anonymous | RegionKind::Brk | RegionKind::Stack);
    let zero_device = mapping.name.starts_with(b"/dev/zero");
    if attr.sharing != mapping.sharing {
        return false;
    }
    match mapping.file {
        Some(_) => !anonymous || zero_device,
        None => attr.kind != RegionKind::File || attr.file.as_ref().is_none_or(|f| f.inode == 0),
    }
}
