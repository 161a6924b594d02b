//! A forked child's ledger: the parent's, made to agree with what the kernel copied.

use super::effects::pages;
use super::history::Removed;
use super::origins::{FileTable, OriginEntry, Removal};
use super::piece::{Attributes, Owner, Piece};
use super::range_set::RangeSet;
use super::recent::Recent;
use super::{Ledger, Start};
use crate::ledger::names::is_kernel_name;
use crate::ledger::region::RegionKind;
use crate::model::{Addr, AddrRange, Mapping, Tid, VmEvent, VmOp};

/// What a parent's late call made, with its origin there, if it is an event.
#[derive(Debug)]
pub(in crate::ledger) struct Late {
    piece: Piece,
    entry: Option<OriginEntry>,
}

/// A fork, as reported.
#[derive(Clone, Copy)]
pub(in crate::ledger) struct Forked<'a> {
    pub(in crate::ledger) child: Tid,
    pub(in crate::ledger) time_ns: u64,
    /// The child's, where they were seen.
    pub(in crate::ledger) brk: Option<Addr>,
    pub(in crate::ledger) mappings: Option<&'a [Mapping]>,
    /// Number of the forking thread's report before.
    pub(in crate::ledger) previous: u64,
}

impl Ledger {
    /// The ledger of a forked child of one thread that has not called anything yet, and the ranges of its
    /// mappings that nothing explains.
    pub(in crate::ledger) fn fork(&self, fork: Forked<'_>, files: &mut FileTable) -> (Ledger, RangeSet) {
        let mut child = Ledger {
            mapped: self.mapped.for_child(),
            advice: self.advice.clone(),
            doubts: self.doubts.clone(),
            first_snapshot: self.first_snapshot.of_child(fork.mappings.is_some()),
            reports: self.reports.of_child(fork.child),
            // The snapshot back in time is long and the parent's affair: not worth a copy.
            recent: Recent::default(),
            brk: self.brk,
            start: self.start,
            exe: self.exe.clone(),
            snapshot_pending: self.snapshot_pending,
        };
        let mut unknown = RangeSet::default();
        if let Some(mappings) = fork.mappings {
            unknown = child.restrict_to(mappings, fork.previous, files);
            let before = unknown.iter().flat_map(|range| self.first_snapshot.doubtful(range));
            for range in before.collect::<Vec<_>>() {
                unknown.remove(range);
                child.mapped.was_there_before(range);
            }
        } else {
            child.drop_dont_fork();
        }
        child.forget_removed();
        child.mapped.begin_peak(fork.time_ns);
        if let Some(brk) = fork.brk {
            child.brk.set(brk);
        }
        (child, unknown)
    }

    fn drop_dont_fork(&mut self) {
        for range in self.advice.take_dont_fork().iter() {
            self.discard(range, Removal::Unmapped);
            self.advice.forget(range);
        }
    }

    /// Makes the map exactly `mappings`, with what was removed after report number `since` where it matches
    /// better than the current pieces. Returns the ranges that no piece explains.
    fn restrict_to(&mut self, mappings: &[Mapping], since: u64, files: &mut FileTable) -> RangeSet {
        let removed = self.mapped.take_removed(since);
        let once: RangeSet = removed.iter().map(|entry| entry.piece().range).collect();
        let mut beyond = RangeSet::from_iter([AddrRange::new(0, u64::MAX)]);
        let mut unknown = RangeSet::default();
        for mapping in mappings.iter().filter(|m| !m.is_special("[vsyscall]")) {
            beyond.remove(mapping.range);
            if once.overlaps(mapping.range) {
                self.choose(mapping, &removed);
            }
            self.drop_foreign(mapping);
            self.mapped.take_prot(mapping.range, mapping.prot);
            for gap in self.mapped.fill(mapping, Owner::Unknown, files) {
                unknown.insert(gap);
            }
        }
        self.mapped.give_up(&removed);
        for range in beyond.iter() {
            self.discard(range, Removal::Unmapped);
            self.forget_notes(range);
        }
        self.advice.take_dont_fork();
        if self.start == Start::Exec {
            // A stack grows without a call.
            for stack in mappings.iter().filter(|m| is_kernel_name(&m.name)) {
                unknown.remove(stack.range);
            }
        }
        unknown
    }

    /// Takes away what is certainly not what the kernel shows.
    fn drop_foreign(&mut self, mapping: &Mapping) {
        let foreign: Vec<AddrRange> = self
            .mapped
            .pieces()
            .overlapping(mapping.range)
            .filter(|(_, a)| is_other_file(a, mapping) || !may_be(a, mapping))
            .map(|(r, _)| r.intersect(mapping.range))
            .collect();
        for range in foreign {
            self.discard(range, Removal::Replaced);
        }
    }

    /// Puts back each removed piece that fits a part of `mapping` better than what the map has
    /// there and what was removed later.
    fn choose(&mut self, mapping: &Mapping, removed: &[Removed]) {
        let candidates: Vec<(Fit, &Removed)> = removed
            .iter()
            .filter(|r| r.piece().range.overlaps(mapping.range))
            .filter_map(|r| Some((fit(r.piece().range, &r.piece().attr, mapping)?, r)))
            .collect();
        if candidates.is_empty() {
            return;
        }
        let now = self.mapped.pieces().overlapping(mapping.range).map(|(r, _)| r);
        let ranges =
            now.chain(candidates.iter().map(|(_, r)| r.piece().range)).map(|r| r.intersect(mapping.range));
        let mut cuts: Vec<u64> = ranges.flat_map(|r| [r.start.0, r.end.0]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        for (&start, &end) in cuts.iter().zip(cuts.iter().skip(1)) {
            let part = AddrRange::new(start, end);
            let mut best = self.mapped.pieces().at(part.start).and_then(|(r, a)| fit(r, a, mapping));
            let mut chosen = None;
            for &(fit, entry) in &candidates {
                if entry.piece().range.overlaps(part) && best < Some(fit) {
                    best = Some(fit);
                    chosen = Some(entry);
                }
            }
            if let Some(entry) = chosen {
                self.discard(part, Removal::Replaced);
                self.forget_notes(part);
                self.mapped.restore(entry, part);
            }
        }
    }

    /// What a late call of the parent made, now that its own ledger knows it: the part of
    /// `ranges`, which a child awaits.
    pub(in crate::ledger) fn made_by(&self, event: &VmEvent, ranges: &RangeSet) -> Vec<Late> {
        let destination = match &event.op {
            VmOp::Mremap { new_len, .. } => pages(Addr(event.ret as u64), *new_len),
            _ => AddrRange::new(0, 0),
        };
        let mut made = Vec::new();
        for range in ranges.iter() {
            for (piece, attr) in self.mapped.pieces().overlapping(range) {
                let entry = match attr.owner {
                    Owner::Event(slot) => self.mapped.origins().get(slot),
                    _ => None,
                };
                let own = entry.is_some_and(|e| e.call().event == event.id);
                let part = if own { range } else { range.intersect(destination) }.intersect(piece);
                if !part.is_empty() {
                    let piece = Piece::clip(piece, attr, part);
                    made.push(Late { piece, entry: entry.cloned() });
                }
            }
        }
        made
    }

    /// The parts of `range` without an owner.
    pub(in crate::ledger) fn unowned(
        &self,
        range: AddrRange,
    ) -> impl Iterator<Item = (AddrRange, &Attributes)> {
        let unowned = self.mapped.pieces().overlapping(range).filter(|(_, a)| a.owner == Owner::Unknown);
        unowned.map(move |(r, a)| (r.intersect(range), a))
    }

    /// Gives what had no owner to the parent's late call, where it can be. Returns those ranges.
    pub(in crate::ledger) fn adopt(&mut self, late: &Late) -> Vec<AddrRange> {
        let Late { piece: source, entry } = late;
        let alike = |attr: &Attributes| resembles(attr, &source.attr);
        let ours: Vec<AddrRange> =
            self.unowned(source.range).filter(|(_, a)| alike(a)).map(|(r, _)| r).collect();
        let mut owner = source.attr.owner;
        let bytes = ours.iter().map(|r| r.len()).sum();
        if let (Some(entry), true) = (entry, bytes > 0) {
            owner = self.mapped.adopt(entry, bytes);
        }
        for &range in &ours {
            for piece in self.carve(range, Removal::Moved) {
                let attr = Attributes { owner, prot: piece.attr.prot, ..source.clipped(piece.range).attr };
                let module = attr.file.is_some() && (attr.module || attr.prot.exec);
                self.mapped.put(Piece { range: piece.range, attr: Attributes { module, ..attr } });
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
pub(in crate::ledger) fn may_be(attr: &Attributes, mapping: &Mapping) -> bool {
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
