//! The ledger compared with the kernel's maps: regions, and where the two disagree.

use super::copy::may_be;
use super::piece::{Attributes, Owner, Piece, Slot, is_same_file};
use super::range_set::RangeSet;
use super::{Ledger, Start};
use crate::ledger::names::{is_kernel_name, mapping_kind};
use crate::ledger::region::{Doubt, Origin, OriginId, OriginRecord, Region, RegionKind};
use crate::ledger::threads::ThreadRecord;
use crate::model::event::VmOp;
use crate::model::{AddrRange, Bytes, FileRef, Mapping, NoStack, Observations, Prot};
use std::sync::Arc;

const MAX_DRIFT_RANGES: usize = 256;

/// The ledger's view joined with one snapshot of /proc/PID/maps.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reconciled {
    /// Sorted, disjoint; together exactly the kernel's mappings.
    pub regions: Vec<Region>,
    /// Those that `regions` refer to.
    pub origins: Vec<OriginRecord>,
    /// Bytes on which ledger and kernel disagree (mapped in one only, or with another
    /// protection), outside ranges that calls changed while maps was being read.
    pub drift: Bytes,
    /// The disagreeing ranges, at most a few hundred, for `-v` and tests.
    pub drift_ranges: Vec<AddrRange>,
    /// Ranges purged by MADV_DONTNEED/FREE/… and still mapped, sorted and disjoint, whether or
    /// not they were touched again since.
    pub purged: Vec<AddrRange>,
    /// What calls changed after the snapshot that found what was in memory: for these ranges residency is not
    /// known. Sorted, disjoint; none but in processes that ended after their last snapshot.
    pub unseen: Vec<AddrRange>,
    /// Threads of the process, living and gone.
    pub threads: Vec<ThreadRecord>,
    /// Events applied to this address space, failed ones included.
    pub events: u64,
}

impl Ledger {
    /// Joins what the calls show with one snapshot of maps.
    pub(in crate::ledger) fn reconcile(&self, seen: &Observations, threads: &[ThreadRecord]) -> Reconciled {
        let mut join = Join {
            ledger: self,
            busy: self.recent.since(seen.begun_ns),
            removed: self.mapped.history().since(seen.begun_ns).collect(),
            ids: vec![None; self.mapped.origins().slots()],
            rings: 0,
            result: Reconciled {
                regions: Vec::with_capacity(seen.mappings.len()),
                threads: threads.to_vec(),
                events: self.reports.number(),
                ..Reconciled::default()
            },
            image: None,
        };
        join.walk(&seen.mappings);
        join.result.purged = purged_of(self.advice.purged(), &seen.mappings);
        join.result
    }
}

struct Join<'a> {
    ledger: &'a Ledger,
    /// Ranges that calls changed while maps was being read, or after.
    busy: RangeSet,
    /// What they took away, the earliest first.
    removed: Vec<&'a Piece>,
    ids: Vec<Option<OriginId>>,
    /// Rings whose place the backend did not see, taken for one that maps show.
    rings: usize,
    result: Reconciled,
    /// The end of the last region taken as part of an image that execve mapped.
    image: Option<u64>,
}

impl<'a> Join<'a> {
    fn walk(&mut self, mappings: &[Mapping]) {
        let ledger = self.ledger;
        // vsyscall, always the last, is no part of the address space.
        let mappings = match mappings.split_last() {
            Some((last, rest)) if last.is_special("[vsyscall]") => rest,
            _ => mappings,
        };
        let mut pieces = ledger.mapped.pieces().iter().peekable();
        for (vma, mapping) in mappings.iter().enumerate() {
            let mut at = mapping.range.start.0;
            while let Some(&(piece, attr)) = pieces.peek() {
                if piece.start >= mapping.range.end {
                    break;
                }
                let before = AddrRange::new(at, mapping.range.start.0.max(piece.start.0));
                if piece.start < mapping.range.start {
                    // The part below this mapping is not mapped, unless an earlier one had it.
                    let low = AddrRange::new(piece.start.0, mapping.range.start.0.min(piece.end.0));
                    self.unmapped_part(low, mappings, vma);
                }
                if piece.start.0 > at {
                    self.unexplained(vma, mapping, before, Some((piece, attr)));
                }
                let common = piece.intersect(mapping.range);
                if !common.is_empty() {
                    self.explained(vma, mapping, common, attr);
                    at = common.end.0;
                }
                if piece.end > mapping.range.end {
                    break;
                }
                pieces.next();
            }
            if at < mapping.range.end.0 {
                self.unexplained(vma, mapping, AddrRange::new(at, mapping.range.end.0), None);
            }
        }
        let last = mappings.last().map_or(0, |m| m.range.end.0);
        for (piece, _) in pieces {
            let rest = AddrRange::new(piece.start.0.max(last), piece.end.0);
            self.unmapped_part(rest, mappings, mappings.len());
        }
    }

    /// A part of a piece below mapping number `vma`, of which earlier mappings may hold some.
    fn unmapped_part(&mut self, part: AddrRange, mappings: &[Mapping], vma: usize) {
        let start = match vma.checked_sub(1).and_then(|i| mappings.get(i)) {
            Some(previous) => part.start.0.max(previous.range.end.0),
            None => part.start.0,
        };
        let missing = AddrRange::new(start, part.end.0);
        if !missing.is_empty() {
            self.drift(missing);
        }
    }

    fn explained(&mut self, vma: usize, mapping: &Mapping, range: AddrRange, attr: &'a Attributes) {
        if !may_be(attr, mapping) && !is_kernel_name(&mapping.name) {
            self.unexplained_call(vma, mapping, range);
            return;
        }
        if attr.prot != mapping.prot && !is_break_with_code(attr, mapping) {
            self.drift(range);
        }
        let (origin, doubt) = match attr.owner {
            Owner::Event(slot) => self.event_origin(slot),
            Owner::Preexisting => (Origin::Preexisting, self.old_doubt()),
            Owner::Kernel if is_kernel_name(&mapping.name) => (Origin::Kernel, None),
            Owner::Kernel => (Origin::Kernel, self.old_doubt()),
            Owner::Unknown => (Origin::Unknown, self.old_doubt()),
        };
        if attr.owner == Owner::Kernel {
            self.image = Some(range.end.0);
        }
        self.add(
            vma,
            mapping,
            range,
            PartOrigin { origin, doubt, kind: attr.kind, file: attr.file.as_ref() },
        );
    }

    /// A part of a mapping that the ledger has nothing at. `above` is the piece that follows.
    fn unexplained(
        &mut self,
        vma: usize,
        mapping: &Mapping,
        range: AddrRange,
        above: Option<(AddrRange, &'a Attributes)>,
    ) {
        if range.is_empty() {
            return;
        }
        // A mapping that grows down does so without a call (mm/mmap.c, expand_downwards).
        if let Some((piece, attr)) = above
            && attr.grows_down
            && piece.start == range.end
        {
            let (origin, doubt) = match attr.owner {
                Owner::Event(slot) => self.event_origin(slot),
                _ => (Origin::Kernel, None),
            };
            self.add(vma, mapping, range, PartOrigin { origin, doubt, kind: attr.kind, file: None });
            return;
        }
        // The rest of an attachment or of huge pages whose length the call does not contain.
        if let Some(found) = self.tail_of_last(vma, range, mapping) {
            self.add(vma, mapping, range, found);
            return;
        }
        let kind = mapping_kind(mapping);
        let origin = if is_kernel_name(&mapping.name) {
            Origin::Kernel
        } else if kind == RegionKind::AioRing {
            self.ring_origin()
        } else if self.is_execs(mapping, range) {
            self.image = Some(range.end.0);
            Origin::Kernel
        } else if self.ledger.start == Start::Unseen {
            Origin::Preexisting
        } else {
            return self.unexplained_call(vma, mapping, range);
        };
        let doubt = if is_kernel_name(&mapping.name) { None } else { self.old_doubt() };
        self.add(vma, mapping, range, PartOrigin { origin, doubt, kind, file: None });
    }

    /// Something that the ledger does not have now. A call that came after the snapshot may have taken
    /// it away again; else it was mapped by a call that was never seen.
    fn unexplained_call(&mut self, vma: usize, mapping: &Mapping, range: AddrRange) {
        let mut rest = RangeSet::from_iter([range]);
        let mut parts: Vec<(AddrRange, Option<&'a Attributes>)> = Vec::new();
        if self.busy.overlaps(range) {
            // Of several that were there one after the other the one with the same rights, else the first.
            for same_prot in [true, false] {
                for &piece in &self.removed {
                    let fits =
                        may_be(&piece.attr, mapping) && (piece.attr.prot == mapping.prot || !same_prot);
                    if fits && piece.range.overlaps(range) {
                        let free = rest.overlaps_of(piece.range);
                        parts.extend(free.iter().map(|&part| (part, Some(&piece.attr))));
                        free.into_iter().for_each(|part| rest.remove(part));
                    }
                }
            }
        }
        for left in rest.iter() {
            // What a call touched whose order with the first snapshot is not known.
            let unsettled = self.ledger.first_snapshot.unsettled().overlaps_of(left);
            parts.extend(unsettled.iter().map(|&part| (part, None)));
            parts.extend(
                self.ledger.first_snapshot.unsettled().gaps_of(left).into_iter().map(|part| (part, None)),
            );
        }
        parts.sort_by_key(|(part, _)| part.start);
        for (part, attr) in parts {
            let (origin, doubt) = match attr.map(|attr| attr.owner) {
                Some(Owner::Event(slot)) => self.event_origin(slot),
                Some(Owner::Preexisting) => (Origin::Preexisting, self.old_doubt()),
                Some(Owner::Kernel) => (Origin::Kernel, self.old_doubt()),
                Some(Owner::Unknown) => (Origin::Unknown, self.old_doubt()),
                None if self.ledger.first_snapshot.unsettled().overlaps(part) => {
                    (Origin::Preexisting, self.old_doubt())
                }
                None => {
                    self.drift(part);
                    (Origin::Unknown, self.old_doubt())
                }
            };
            let kind = attr.map_or_else(|| mapping_kind(mapping), |attr| attr.kind);
            let file = attr.and_then(|attr| attr.file.as_ref());
            self.add(vma, mapping, part, PartOrigin { origin, doubt, kind, file });
        }
    }

    fn tail_of_last(&mut self, vma: usize, range: AddrRange, mapping: &Mapping) -> Option<PartOrigin<'a>> {
        let last = self.result.regions.last()?;
        if last.vma != vma || last.range.end != range.start {
            return None;
        }
        let Origin::Event(id) = last.origin else { return None };
        let record = self.result.origins.get(id.0 as usize)?;
        let open = match &record.op {
            VmOp::Shmat { mapped: None, .. } => last.kind == RegionKind::SysvShm,
            // A hugetlbfs file that its path did not give away: lengths are whole huge pages.
            VmOp::Mmap { len, .. } => {
                mapping.file.is_some()
                    && mapping.range.end.is_aligned(2 << 20)
                    && mapping.range.start.is_aligned(2 << 20)
                    && last.kind == RegionKind::File
                    && mapping.range.len().checked_sub(*len).is_some_and(|rest| rest < 2 << 20)
            }
            _ => false,
        };
        open.then_some(PartOrigin { origin: last.origin, doubt: last.doubt, kind: last.kind, file: None })
    }

    /// What execve maps, where that was not listed: its image, the interpreter, their bss, and
    /// the break's first part.
    fn is_execs(&self, mapping: &Mapping, range: AddrRange) -> bool {
        let ledger = self.ledger;
        if mapping.is_special("[heap]") {
            let first_part = ledger.brk.end_at_exec().is_some_and(|end| range.end <= end);
            return first_part || !ledger.brk.is_known() && ledger.start != Start::Preexisting;
        }
        if ledger.start != Start::ExecUnlisted {
            return false;
        }
        if mapping.file.is_some() { ledger.is_exec_image(mapping) } else { self.image == Some(range.start.0) }
    }

    /// The ring of the oldest io_setup that is not placed yet.
    fn ring_origin(&mut self) -> Origin {
        let Some(record) = self.ledger.mapped.origins().unplaced_ring(self.rings) else {
            return Origin::Kernel;
        };
        self.rings += 1;
        let id = OriginId(self.result.origins.len() as u32);
        self.result.origins.push(record);
        Origin::Event(id)
    }

    fn event_origin(&mut self, slot: Slot) -> (Origin, Option<Doubt>) {
        let Some(entry) = self.ledger.mapped.origins().get(slot) else { return (Origin::Unknown, None) };
        let doubt = if self.ledger.doubts.lost_since(entry.call().time_ns) {
            Some(Doubt::EventsLost)
        } else if entry.call().stack == Err(NoStack::Lost) {
            Some(Doubt::StackLost)
        } else {
            None
        };
        let known = self.ids.get(slot.0 as usize).copied().flatten();
        let id = known.unwrap_or_else(|| {
            let id = OriginId(self.result.origins.len() as u32);
            self.result.origins.push(entry.record());
            if let Some(place) = self.ids.get_mut(slot.0 as usize) {
                *place = Some(id);
            }
            id
        });
        (Origin::Event(id), doubt)
    }

    /// Doubt about mappings older than any loss.
    fn old_doubt(&self) -> Option<Doubt> {
        self.ledger.doubts.any_loss().then_some(Doubt::EventsLost)
    }

    fn drift(&mut self, range: AddrRange) {
        let mut parts = if self.busy.is_empty() { vec![range] } else { self.busy.gaps_of(range) };
        for doubtful in [self.ledger.doubts.uncertain(), self.ledger.first_snapshot.unsettled()] {
            if !doubtful.is_empty() {
                parts = parts.into_iter().flat_map(|p| doubtful.gaps_of(p)).collect();
            }
        }
        for part in parts {
            self.result.drift += part.bytes();
            if self.result.drift_ranges.len() < MAX_DRIFT_RANGES {
                self.result.drift_ranges.push(part);
            }
        }
    }

    fn add(&mut self, vma: usize, mapping: &Mapping, range: AddrRange, found: PartOrigin<'_>) {
        if let Some(last) = self.result.regions.last_mut()
            && last.vma == vma
            && last.range.end == range.start
            && last.origin == found.origin
            && last.kind == found.kind
            && last.doubt == found.doubt
            && is_same_file(last.file.as_ref(), found.file)
        {
            last.extend(range.end);
            return;
        }
        self.result.regions.push(Region {
            range,
            prot: mapping.prot,
            sharing: mapping.sharing,
            kind: found.kind,
            origin: found.origin,
            doubt: found.doubt,
            file: found.file.cloned(),
            vma,
        });
    }
}

/// What a part of a mapping turned out to be.
struct PartOrigin<'a> {
    origin: Origin,
    doubt: Option<Doubt>,
    kind: RegionKind,
    file: Option<&'a Arc<FileRef>>,
}

/// brk says nothing of rights: with READ_IMPLIES_EXEC the kernel's default is executable (VM_DATA_DEFAULT_FLAGS).
fn is_break_with_code(attr: &Attributes, mapping: &Mapping) -> bool {
    let code = Prot { exec: true, ..Prot::RW };
    attr.kind == RegionKind::Brk && attr.prot == Prot::RW && mapping.prot == code
}

/// Purged ranges that are still mapped.
fn purged_of(purged: &RangeSet, mappings: &[Mapping]) -> Vec<AddrRange> {
    if purged.is_empty() {
        return Vec::new();
    }
    let mapped: RangeSet = mappings.iter().map(|mapping| mapping.range).collect();
    purged.iter().flat_map(|range| mapped.overlaps_of(range)).collect()
}
