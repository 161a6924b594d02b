//! The ledger beside the kernel's word: regions, and where the two disagree.

use super::copy::may_be;
use super::names::{is_kernel_name, mapping_kind};
use super::region::{Doubt, Origin, OriginId, OriginRecord, Reconciled, Region, RegionKind};
use super::space::origins::Call;
use super::space::piece::{Attributes, Owner, Piece, Slot};
use super::space::range_set::RangeSet;
use super::space::{Ledger, Start};
use super::spaces::AddressSpaces;
use crate::model::{AddrRange, Bytes, FileRef, Mapping, Observations, Pid};
use std::sync::Arc;

const MAX_DRIFT_RANGES: usize = 256;

impl AddressSpaces {
    /// Joins what the calls of `pid`'s address space tell with one look at its maps. Without any
    /// event of it, everything is `Preexisting`.
    pub fn reconcile(&self, pid: Pid, seen: &Observations) -> Reconciled {
        let unseen;
        let ledger = match self.ledger_of_pid(pid) {
            Some(ledger) => ledger,
            None => {
                unseen = Ledger::new(Start::Unseen);
                &unseen
            }
        };
        let mut result = ledger.reconcile(seen);
        if let Some(process) = self.process(pid) {
            result.threads = process.threads.clone();
        }
        result
    }
}

impl Ledger {
    /// All but the threads, which `AddressSpaces` knows.
    pub(super) fn reconcile(&self, seen: &Observations) -> Reconciled {
        let mut join = Join {
            ledger: self,
            busy: self.recent.since(seen.begun_ns),
            removed: self.history.since(seen.begun_ns).collect(),
            ids: vec![None; self.origins.slots()],
            late: Vec::new(),
            result: Reconciled { events: self.events, ..Reconciled::default() },
            image: None,
        };
        join.walk(&seen.mappings);
        join.result.purged = purged_of(&self.purged, &seen.mappings);
        join.result
    }
}

impl Ledger {
    /// True for a mapping of the program itself or, by its name, of an ELF interpreter.
    pub(super) fn is_exec_image(&self, mapping: &Mapping) -> bool {
        let Some(file) = mapping.file else { return false };
        let name = mapping.name.rsplit(|&b| b == b'/').next().unwrap_or_default();
        let is_program = self
            .exe
            .as_ref()
            .is_some_and(|exe| exe.inode == file.inode && exe.inode != 0 || exe.path == mapping.name);
        is_program || [b"ld-".as_slice(), b"ld.so", b"ld64"].iter().any(|start| name.starts_with(start))
    }
}

struct Join<'a> {
    ledger: &'a Ledger,
    /// Ranges that calls changed while maps was being read, or after.
    busy: RangeSet,
    /// What they took away, the earliest first.
    removed: Vec<&'a Piece>,
    ids: Vec<Option<OriginId>>,
    /// Origins that own no piece: rings whose place the backend did not see.
    late: Vec<(*const Call, OriginId)>,
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
        let mut pieces = ledger.pieces.iter().peekable();
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
                    self.unmapped_part(low, attr, mappings, vma);
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
        for (piece, attr) in pieces {
            let rest = AddrRange::new(piece.start.0.max(last), piece.end.0);
            self.unmapped_part(rest, attr, mappings, mappings.len());
        }
    }

    /// A part of a piece below mapping number `vma`, of which earlier mappings may hold some.
    fn unmapped_part(&mut self, part: AddrRange, attr: &Attributes, mappings: &[Mapping], vma: usize) {
        let start = match vma.checked_sub(1).and_then(|i| mappings.get(i)) {
            Some(previous) => part.start.0.max(previous.range.end.0),
            None => part.start.0,
        };
        let missing = AddrRange::new(start, part.end.0);
        // io_destroy(2) is not traced.
        if !missing.is_empty() && attr.kind != RegionKind::AioRing {
            self.drift(missing);
        }
    }

    fn explained(&mut self, vma: usize, mapping: &Mapping, range: AddrRange, attr: &'a Attributes) {
        if !may_be(attr, mapping) && !is_kernel_name(&mapping.name) {
            self.unexplained_call(vma, mapping, range);
            return;
        }
        if attr.prot != mapping.prot {
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
        self.add(vma, mapping, range, Found { origin, doubt, kind: attr.kind, file: attr.file.as_ref() });
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
            self.add(vma, mapping, range, Found { origin, doubt, kind: attr.kind, file: None });
            return;
        }
        // The rest of an attachment or of huge pages whose length the call did not tell.
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
        self.add(vma, mapping, range, Found { origin, doubt, kind, file: None });
    }

    /// Something that the ledger does not have now. A call that came after the look may have taken
    /// it away again; else it was mapped by a call that was never seen.
    fn unexplained_call(&mut self, vma: usize, mapping: &Mapping, range: AddrRange) {
        let mut rest = RangeSet::default();
        rest.insert(range);
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
            // What a call touched whose order with the first look is not known.
            let unsettled = self.ledger.unsettled.overlaps_of(left);
            parts.extend(unsettled.iter().map(|&part| (part, None)));
            parts.extend(self.ledger.unsettled.gaps_of(left).into_iter().map(|part| (part, None)));
        }
        parts.sort_by_key(|(part, _)| part.start);
        for (part, attr) in parts {
            let (origin, doubt) = match attr.map(|attr| attr.owner) {
                Some(Owner::Event(slot)) => self.event_origin(slot),
                Some(Owner::Preexisting) => (Origin::Preexisting, self.old_doubt()),
                Some(Owner::Kernel) => (Origin::Kernel, self.old_doubt()),
                Some(Owner::Unknown) => (Origin::Unknown, self.old_doubt()),
                None if self.ledger.unsettled.overlaps(part) => (Origin::Preexisting, self.old_doubt()),
                None => {
                    self.drift(part);
                    (Origin::Unknown, self.old_doubt())
                }
            };
            let kind = attr.map_or_else(|| mapping_kind(mapping), |attr| attr.kind);
            let file = attr.and_then(|attr| attr.file.as_ref());
            self.add(vma, mapping, part, Found { origin, doubt, kind, file });
        }
    }

    fn tail_of_last(&mut self, vma: usize, range: AddrRange, mapping: &Mapping) -> Option<Found<'a>> {
        let last = self.result.regions.last()?;
        if last.vma != vma || last.range.end != range.start {
            return None;
        }
        let Origin::Event(id) = last.origin else { return None };
        let record = self.result.origins.get(id.0 as usize)?;
        use crate::model::event::VmOp;
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
        open.then_some(Found { origin: last.origin, doubt: last.doubt, kind: last.kind, file: None })
    }

    /// What execve maps, where that was not listed: its image, the interpreter, their bss, and
    /// the break's first part.
    fn is_execs(&self, mapping: &Mapping, range: AddrRange) -> bool {
        let ledger = self.ledger;
        if mapping.is_special("[heap]") {
            let first_part = ledger.exec_brk.is_some_and(|brk| range.end <= brk.page_up());
            return first_part || ledger.brk.is_none() && ledger.start != Start::Preexisting;
        }
        if ledger.start != Start::ExecUnlisted {
            return false;
        }
        if mapping.file.is_some() { ledger.is_exec_image(mapping) } else { self.image == Some(range.start.0) }
    }

    /// The ring of the oldest io_setup that is not placed yet.
    fn ring_origin(&mut self) -> Origin {
        let ledger = self.ledger;
        let next = ledger.unplaced_rings.get(self.late.len());
        let Some(call) = next else { return Origin::Kernel };
        let id = OriginId(self.result.origins.len() as u32);
        self.result.origins.push(OriginRecord {
            event: call.event,
            op: call.op.clone(),
            ret: call.ret,
            task: call.task.clone(),
            time_ns: call.time_ns,
            stack: call.stack,
            mapped: Bytes(0),
            unmapped: Bytes(0),
            unmap_calls: 0,
            replaced: Bytes(0),
            mprotect_calls: 0,
            madvise_calls: 0,
            anon_name: None,
        });
        self.late.push((Arc::as_ptr(call), id));
        Origin::Event(id)
    }

    fn event_origin(&mut self, slot: Slot) -> (Origin, Option<Doubt>) {
        let Some(entry) = self.ledger.origins.get(slot) else { return (Origin::Unknown, None) };
        let doubt = if self.ledger.lost_ns.is_some_and(|lost| entry.call.time_ns <= lost) {
            Some(Doubt::EventsLost)
        } else if entry.call.stack == Err(crate::model::NoStack::Lost) {
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
        self.ledger.lost_ns.map(|_| Doubt::EventsLost)
    }

    fn drift(&mut self, range: AddrRange) {
        let mut parts = if self.busy.is_empty() { vec![range] } else { self.busy.gaps_of(range) };
        for doubtful in [&self.ledger.uncertain, &self.ledger.unsettled] {
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

    fn add(&mut self, vma: usize, mapping: &Mapping, range: AddrRange, found: Found<'_>) {
        if let Some(last) = self.result.regions.last_mut()
            && last.vma == vma
            && last.range.end == range.start
            && last.origin == found.origin
            && last.kind == found.kind
            && last.doubt == found.doubt
            && match (&last.file, found.file) {
                (None, None) => true,
                (Some(a), Some(b)) => Arc::ptr_eq(a, b),
                _ => false,
            }
        {
            last.range.end = range.end;
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
struct Found<'a> {
    origin: Origin,
    doubt: Option<Doubt>,
    kind: RegionKind,
    file: Option<&'a Arc<FileRef>>,
}

/// Purged ranges that are still mapped.
fn purged_of(purged: &RangeSet, mappings: &[Mapping]) -> Vec<AddrRange> {
    let mut mapped = RangeSet::default();
    if !purged.is_empty() {
        for mapping in mappings {
            mapped.insert(mapping.range);
        }
    }
    purged.iter().flat_map(|range| mapped.overlaps_of(range)).collect()
}
