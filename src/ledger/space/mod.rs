//! One address space: the state, and the primitives that calls are made of.

pub(super) mod effects;
pub(super) mod history;
mod limbo;
pub(super) mod origins;
pub(super) mod piece;
pub(super) mod range_set;
mod recent;
mod remap;

use super::found::FirstLook;
use super::peak::PeakTracker;
use super::region::RegionKind;
use crate::model::hash::IntMap;
use crate::model::{Addr, AddrRange, EventId, FileRef, Prot, Sharing, Tid, VmEvent};
use history::History;
use limbo::{Certainty, Limbo};
use origins::{Call, OriginTable};
use piece::{Attributes, Owner, Piece, PieceMap, Slot};
use range_set::RangeSet;
use recent::Recent;
use std::sync::Arc;

/// What is known about the beginning of an address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Start {
    /// execve was seen, with all that the kernel mapped itself.
    Exec,
    /// execve was seen, but not what the kernel mapped.
    ExecUnlisted,
    /// The mappings were read when tracing of the process began.
    Preexisting,
    /// Nothing: the first thing seen was some call.
    Unseen,
}

/// Who reports, and when: what the order rule needs.
#[derive(Clone, Copy)]
pub(super) struct Report<'a> {
    pub(super) event: &'a VmEvent,
    /// Number of the same thread's report before this one; 0 for its first.
    pub(super) previous: u64,
    /// Number of this report in its address space.
    pub(super) number: u64,
}

/// Why bytes leave an origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Removal {
    Unmapped,
    Replaced,
    /// mremap: they leave a range, not the origin.
    Moved,
}

/// Who owns each byte of one address space, kept up to date report by report.
#[derive(Clone, Debug)]
pub struct Ledger {
    pub(super) pieces: PieceMap,
    pub(super) peak: PeakTracker,
    pub(super) origins: OriginTable,
    pub(super) limbo: Limbo,
    /// What was there before, for forks that are on their way and looks that are not compared yet:
    /// empty without either, as with a single thread.
    pub(super) history: History,
    /// A look may be compared with what is there now.
    pub(super) look_pending: bool,
    pub(super) purged: RangeSet,
    /// MADV_DONTFORK.
    pub(super) dont_fork: RangeSet,
    /// Where a failed call may have changed something before it gave up.
    pub(super) uncertain: RangeSet,
    /// Living threads with the number of their last report.
    pub(super) threads: IntMap<Tid, u64>,
    pub(super) reports: u64,
    pub(super) events: u64,
    pub(super) failed: u64,
    /// mm->brk, not page-aligned.
    pub(super) brk: Option<Addr>,
    /// The break as execve left it: what lies below is the kernel's part of `[heap]`.
    pub(super) exec_brk: Option<Addr>,
    pub(super) start: Start,
    pub(super) exe: Option<Arc<FileRef>>,
    pub(super) recent: Recent,
    /// Time of the latest loss of events.
    pub(super) lost_ns: Option<u64>,
    /// True from a loss until the maps were read again.
    pub(super) unverified: bool,
    /// The look at maps that the ledger began with.
    pub(super) first_look: FirstLook,
    /// What calls touched that overlapped it: there the kernel's word stands.
    pub(super) unsettled: RangeSet,
    /// The call that is being applied is one of those.
    pub(super) in_flight: bool,
    /// Time of the report that is being applied.
    pub(super) now_ns: u64,
    pub(super) modules_changed: bool,
    pub(super) module_generation: u64,
    /// io_setup calls whose ring's address the backend did not see, latest last.
    pub(super) unplaced_rings: Vec<Arc<Call>>,
}

/// A piece of the ledger's map, for readers outside: no kernel's word in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LedgerPiece {
    pub range: AddrRange,
    pub prot: Prot,
    pub sharing: Sharing,
    pub kind: RegionKind,
    /// The event that made it; None for the kernel's, earlier and unexplained mappings.
    pub event: Option<EventId>,
    pub file: Option<Arc<FileRef>>,
    /// File offset of the first byte; 0 without a file.
    pub offset: u64,
}

impl Ledger {
    pub(super) fn new(start: Start) -> Ledger {
        Ledger {
            pieces: PieceMap::default(),
            peak: PeakTracker::default(),
            origins: OriginTable::default(),
            limbo: Limbo::default(),
            history: History::default(),
            look_pending: false,
            purged: RangeSet::default(),
            dont_fork: RangeSet::default(),
            uncertain: RangeSet::default(),
            threads: IntMap::default(),
            reports: 0,
            events: 0,
            failed: 0,
            brk: None,
            exec_brk: None,
            start,
            exe: None,
            recent: Recent::default(),
            lost_ns: None,
            unverified: false,
            first_look: FirstLook::default(),
            unsettled: RangeSet::default(),
            in_flight: false,
            now_ns: 0,
            modules_changed: true,
            module_generation: 0,
            unplaced_rings: Vec::new(),
        }
    }

    /// Everything mapped as far as the calls tell, sorted. Neighbours differ in some attribute.
    pub fn pieces(&self) -> impl Iterator<Item = LedgerPiece> + '_ {
        self.pieces.iter().map(|(range, a)| self.described(range, a))
    }

    pub(super) fn described(&self, range: AddrRange, a: &Attributes) -> LedgerPiece {
        LedgerPiece {
            range,
            prot: a.prot,
            sharing: a.sharing,
            kind: a.kind,
            event: match a.owner {
                Owner::Event(slot) => self.origins.get(slot).map(|o| o.call.event),
                _ => None,
            },
            file: a.file.clone(),
            offset: a.offset,
        }
    }

    /// Bytes mapped as far as the calls tell.
    pub fn mapped_bytes(&self) -> u64 {
        self.peak.mapped()
    }

    /// Bytes by which the kernel's own count exceeded the calls' with a single thread: its stack has
    /// grown, which no call tells.
    pub fn stack_growth(&self) -> u64 {
        self.peak.stack_growth()
    }

    /// Mapped files (and the vdso) that are or were executable: range, file offset of its start,
    /// file. What an unwinder needs; it changes only when [`Ledger::module_generation`] does.
    pub fn executable_regions(&self) -> impl Iterator<Item = (AddrRange, u64, &Arc<FileRef>)> + '_ {
        self.pieces
            .iter()
            .filter(|(_, a)| a.module)
            .filter_map(|(r, a)| Some((r, a.offset, a.file.as_ref()?)))
    }

    /// A number that no two different sets of [`Ledger::executable_regions`] share, over all
    /// address spaces: equal numbers mean equal sets.
    pub fn module_generation(&self) -> u64 {
        self.module_generation
    }

    /// Calls that the kernel refused.
    pub fn failed_calls(&self) -> u64 {
        self.failed
    }

    /// Waiting for the reports of unmappings that are proven: 0 when all reports are in.
    pub fn unreported_bytes(&self) -> u64 {
        self.limbo.pieces().map(|p| p.range.len()).sum()
    }

    /// Maps `range`, which has to be free, for a new origin.
    pub(super) fn map_for(&mut self, call: &Report<'_>, range: AddrRange, attr: Attributes) -> Option<Slot> {
        if range.is_empty() {
            return None;
        }
        let slot = self.origins.add(Call::of(call.event));
        self.origins.own(slot, range.len());
        if let Some(entry) = self.origins.get_mut(slot) {
            entry.mapped = range.len();
        }
        self.put(Piece { range, attr: Attributes { owner: Owner::Event(slot), ..attr } });
        self.forget_history(range);
        Some(slot)
    }

    /// Maps more bytes for the call, whose origin `slot` is once it has one.
    pub(super) fn map_more(
        &mut self,
        call: &Report<'_>,
        slot: &mut Option<Slot>,
        range: AddrRange,
        attr: Attributes,
    ) {
        let Some(known) = *slot else {
            *slot = self.map_for(call, range, attr);
            return;
        };
        if range.is_empty() {
            return;
        }
        self.origins.own(known, range.len());
        if let Some(entry) = self.origins.get_mut(known) {
            entry.mapped += range.len();
        }
        self.put(Piece { range, attr: Attributes { owner: Owner::Event(known), ..attr } });
        self.forget_history(range);
    }

    /// Places a piece whose owner already counts it.
    pub(super) fn put(&mut self, piece: Piece) {
        self.modules_changed |= piece.attr.module;
        self.peak.added(&piece, &self.origins);
        self.pieces.place(piece);
    }

    /// Takes what is mapped in `range`; its owners still count it.
    pub(super) fn carve(&mut self, range: AddrRange, removal: Removal) -> Vec<Piece> {
        let pieces = self.pieces.carve(range);
        for piece in &pieces {
            self.modules_changed |= piece.attr.module;
            self.peak.removed(piece, &self.origins);
        }
        if self.threads.len() > 1 || self.start == Start::Preexisting || self.look_pending {
            for piece in &pieces {
                let when = (self.reports, self.now_ns);
                self.history.add(when, removal, piece, &mut self.origins);
            }
        }
        pieces
    }

    /// `range` holds something new: what was noted about the old content is void.
    pub(super) fn forget_history(&mut self, range: AddrRange) {
        self.purged.remove(range);
        self.dont_fork.remove(range);
        self.uncertain.remove(range);
        self.unsettled.remove(range);
    }

    /// The bytes of `pieces` are gone for good.
    pub(super) fn release(&mut self, pieces: Vec<Piece>, removal: Removal) {
        for piece in pieces {
            let Owner::Event(slot) = piece.attr.owner else { continue };
            let len = piece.range.len();
            if let Some(entry) = self.origins.get_mut(slot) {
                match removal {
                    Removal::Unmapped => entry.unmapped += len,
                    Removal::Replaced => entry.replaced += len,
                    Removal::Moved => {}
                }
            }
            self.origins.disown(slot, len);
        }
    }

    /// One call touched these origins: counts it once for each.
    pub(super) fn count_unmap_call(&mut self, pieces: &[Piece]) {
        let mut last = None;
        for piece in pieces {
            let Owner::Event(slot) = piece.attr.owner else { continue };
            if last != Some(slot)
                && let Some(entry) = self.origins.get_mut(slot)
            {
                entry.unmap_calls += 1;
            }
            last = Some(slot);
        }
    }

    /// MAP_FIXED and the like: what is there now goes.
    pub(super) fn replace(&mut self, range: AddrRange) {
        let old = self.carve(range, Removal::Replaced);
        self.release(old, Removal::Replaced);
    }

    /// A mapping that had to be placed on free memory came to `range`: what the ledger still has
    /// there was unmapped by a call that has not been reported yet.
    pub(super) fn vacate(&mut self, call: &Report<'_>, range: AddrRange) {
        if self.pieces.is_free(range) {
            return;
        }
        let (mut certain, mut possible, mut gone) = (Vec::new(), Vec::new(), Vec::new());
        for piece in self.carve(range, Removal::Unmapped) {
            match self.unmap_to_be_reported(&piece) {
                Some(Certainty::Proven) => certain.push(piece),
                Some(Certainty::Possible) => possible.push(piece),
                None => gone.push(piece),
            }
        }
        self.release(gone, Removal::Unmapped);
        for (pieces, certainty) in [(certain, Certainty::Proven), (possible, Certainty::Possible)] {
            let dropped = self.limbo.add((call.number, call.event.time_ns), certainty, pieces);
            self.release(dropped, Removal::Unmapped);
        }
    }

    /// Whether a report of the unmapping of `piece` is to come: None where there will be none.
    fn unmap_to_be_reported(&self, piece: &Piece) -> Option<Certainty> {
        let attr = &piece.attr;
        // io_destroy(2) is not traced.
        if attr.kind == RegionKind::AioRing {
            return None;
        }
        let expected = match attr.owner {
            // Read from maps: possibly this very mapping, seen before its report.
            Owner::Unknown => false,
            Owner::Preexisting | Owner::Kernel => !self.unverified,
            Owner::Event(slot) => {
                let made = self.origins.get(slot).map_or(0, |o| o.call.time_ns);
                !(self.unverified && self.lost_ns.is_some_and(|lost| made <= lost))
            }
        };
        let doubtful = self.in_flight || self.unsettled.overlaps(piece.range);
        expected.then_some(if doubtful { Certainty::Possible } else { Certainty::Proven })
    }

    /// Takes `range` out of the address space for the call that is reported: bytes whose
    /// unmapping is already known come from limbo, the rest from the map.
    pub(super) fn take(&mut self, call: &Report<'_>, range: AddrRange, removal: Removal) -> Vec<Piece> {
        let (claimed, doubtful) = self.limbo.claim(range, call.previous);
        for &range in &doubtful {
            self.unsettled.insert(range);
        }
        if claimed.is_empty() {
            self.forget_history(range);
            return self.carve(range, removal);
        }
        let mut rest = RangeSet::default();
        rest.insert(range);
        for piece in &claimed {
            rest.remove(piece.range);
        }
        let mut taken = claimed;
        let parts: Vec<AddrRange> = rest.iter().collect();
        for part in parts {
            self.forget_history(part);
            taken.append(&mut self.carve(part, removal));
        }
        taken.sort_by_key(|p| p.range.start);
        taken
    }

    /// munmap and its like.
    pub(super) fn unmap(&mut self, call: &Report<'_>, range: AddrRange) {
        let pieces = self.take(call, range, Removal::Unmapped);
        self.count_unmap_call(&pieces);
        self.release(pieces, Removal::Unmapped);
        self.touch(call.event.time_ns, range);
    }

    /// Remembers that a call changed `range`.
    pub(super) fn touch(&mut self, time_ns: u64, range: AddrRange) {
        self.recent.note(time_ns, range);
        self.unsettle(range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::AddressSpaces;
    use crate::model::event::VmOp;
    use crate::model::{MmKey, NoStack, Task};

    fn event(id: u64, tid: Tid, op: VmOp, ret: u64) -> VmEvent {
        VmEvent {
            id: EventId(id),
            time_ns: id * 100,
            task: Task { pid: 1, tid, comm: b"loop".to_vec() },
            mm: MmKey(1),
            op,
            ret: ret as i64,
            stack: Err(NoStack::NotTaken),
            total_vm: None,
        }
    }

    /// Two threads map, name, shrink, and hand each other addresses; nothing of it stays.
    #[test]
    fn a_long_run_leaves_no_traces() {
        let mut spaces = AddressSpaces::new();
        let at = |page: u64| Addr(0x7f00_0000_0000 + page * 4096);
        for round in 0..30_000u64 {
            let file = FileRef { major: 0, minor: 1, inode: round, path: b"/tmp/x".to_vec(), deleted: true };
            let (addr, fd, file) = (Addr(0), 3, Some(file));
            let map = VmOp::Mmap { addr, len: 0x8000, prot: 5, flags: 2, fd, offset: 0, file };
            let place = at(round % 100 * 16);
            let tid = 1 + (round % 2) as Tid;
            spaces.apply(&event(round * 4 + 1, tid, map, place.0));
            let protect = VmOp::Mprotect { addr: place, len: 0x1000, prot: 1, pkey: None };
            spaces.apply(&event(round * 4 + 2, tid, protect, 0));
            if round % 3 != 0 {
                let unmap = VmOp::Munmap { addr: place, len: 0x8000 };
                spaces.apply(&event(round * 4 + 3, tid, unmap, 0));
            }
        }
        let ledger = spaces.ledger_of_pid(1).expect("seen");
        let kept = super::history::MAX_ENTRIES;
        assert!(ledger.origins.live() <= 100 + kept, "{}", ledger.origins.live());
        assert!(ledger.origins.slots() <= 202 + kept, "{}", ledger.origins.slots());
        assert!(ledger.recent.len() <= super::recent::MAX_ENTRIES);
        assert!(spaces.files.len() <= 4096, "{}", spaces.files.len());
        let mut ledger = ledger.clone();
        ledger.forget_removed();
        assert!(ledger.origins.live() <= 100, "{}", ledger.origins.live());
        let used: u64 = ledger.pieces.iter().map(|(r, _)| r.len()).sum();
        assert!(used <= 100 * 0x8000);
    }
}
