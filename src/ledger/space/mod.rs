//! One address space: the state, and the primitives that calls are made of.

mod advice;
pub(super) mod alive;
mod brk;
pub(super) mod copy;
mod doubts;
mod effects;
mod first_snapshot;
mod history;
pub(super) mod holder;
mod limbo;
mod mapped;
pub(super) mod origins;
mod peak;
pub(super) mod piece;
pub(super) mod range_set;
mod recent;
pub(super) mod reconcile;
mod remap;
mod reports;
mod resync;
mod shared;
#[cfg(test)]
mod tests;

use super::names::is_kernel_name;
use super::region::RegionKind;
use crate::model::{Addr, AddrRange, EventId, FileRef, Mapping, Pid, Prot, Sharing, Tid, VmEvent};
use advice::Advice;
use brk::Break;
use doubts::Doubts;
use first_snapshot::FirstSnapshot;
use limbo::Certainty;
use mapped::Mapped;
use origins::{FileTable, Removal, Touch};
use peak::Moment;
use piece::{Attributes, Owner, Piece, Slot};
use range_set::RangeSet;
use recent::Recent;
use reports::{Report, Reports};
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

/// The owner of each byte of one address space, kept up to date report by report.
#[derive(Clone, Debug)]
pub struct Ledger {
    mapped: Mapped,
    advice: Advice,
    doubts: Doubts,
    first_snapshot: FirstSnapshot,
    reports: Reports,
    recent: Recent,
    brk: Break,
    start: Start,
    exe: Option<Arc<FileRef>>,
    /// A snapshot may be compared with the current state.
    snapshot_pending: bool,
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
            mapped: Mapped::new(),
            advice: Advice::default(),
            doubts: Doubts::default(),
            first_snapshot: FirstSnapshot::default(),
            reports: Reports::default(),
            recent: Recent::default(),
            brk: Break::default(),
            start,
            exe: None,
            snapshot_pending: false,
        }
    }

    /// A new program's; `mappings` are those that the kernel made.
    pub(super) fn of_exec(
        exe: Option<&FileRef>,
        brk: Addr,
        mappings: Option<&[Mapping]>,
        files: &mut FileTable,
    ) -> Ledger {
        let start = if mappings.is_some() { Start::Exec } else { Start::ExecUnlisted };
        let exe = exe.map(|file| files.intern(file));
        let mut ledger = Ledger { exe, brk: Break::of_exec(brk), ..Ledger::new(start) };
        ledger.fill_gaps(mappings.unwrap_or_default(), Owner::Kernel, files);
        ledger
    }

    /// `mappings` were read, from a time on to another, when tracing of the process `pid` began.
    pub(super) fn found(
        &mut self,
        pid: Pid,
        mappings: &[Mapping],
        window: (u64, u64),
        files: &mut FileTable,
    ) {
        self.start = Start::Preexisting;
        self.first_snapshot.take(window);
        self.fill_gaps(mappings, Owner::Preexisting, files);
        self.reports.thread_found(pid);
        self.mapped.begin_peak(window.1);
        if !self.brk.is_known() {
            self.brk.see(mappings);
        }
    }

    /// execve was seen without its mappings: it mapped the images, other mappings are known from calls.
    pub(super) fn found_images(&mut self, mappings: &[Mapping], files: &mut FileTable) {
        let by_exec = |m: &&Mapping| is_kernel_name(&m.name) || self.is_exec_image(m);
        let images: Vec<Mapping> = mappings.iter().filter(by_exec).cloned().collect();
        self.fill_gaps(&images, Owner::Kernel, files);
    }

    /// Maps the parts of each mapping that the ledger has nothing at.
    fn fill_gaps(&mut self, mappings: &[Mapping], owner: Owner, files: &mut FileTable) {
        for mapping in mappings.iter().filter(|m| !m.is_special("[vsyscall]")) {
            self.mapped.fill(mapping, owner, files);
        }
    }

    /// True for a mapping of the program itself or, by its name, of an ELF interpreter.
    fn is_exec_image(&self, mapping: &Mapping) -> bool {
        let Some(file) = mapping.file else { return false };
        let name = mapping.name.rsplit(|&b| b == b'/').next().unwrap_or_default();
        let is_program = self
            .exe
            .as_ref()
            .is_some_and(|exe| exe.inode == file.inode && exe.inode != 0 || exe.path == mapping.name);
        is_program || [b"ld-".as_slice(), b"ld.so", b"ld64"].iter().any(|start| name.starts_with(start))
    }

    pub(super) fn start(&self) -> Start {
        self.start
    }

    pub(super) fn exe(&self) -> Option<&Arc<FileRef>> {
        self.exe.as_ref()
    }

    pub(super) fn reports(&self) -> &Reports {
        &self.reports
    }

    /// A thread that existed already.
    pub(super) fn thread_found(&mut self, tid: Tid) {
        self.reports.thread_found(tid);
    }

    pub(super) fn thread_began(&mut self, tid: Tid) {
        self.reports.thread_began(tid);
    }

    /// A thread's exit was reported: nothing waits for it any more.
    pub(super) fn thread_exited(&mut self, tid: Tid, time_ns: u64) {
        self.reports.thread_ended(tid);
        self.expire_limbo(0, time_ns);
    }

    pub(super) fn thread_left(&mut self, tid: Tid) {
        self.reports.thread_ended(tid);
    }

    /// Events were lost.
    pub(super) fn note_loss(&mut self, time_ns: u64) {
        self.doubts.note_loss(time_ns);
    }

    /// Takes the next number for [`Ledger::module_generation`] where it needs one.
    pub(super) fn renew_modules(&mut self, next: impl FnOnce() -> u64) {
        self.mapped.renew_modules(next);
    }

    /// Forgets what was there before.
    pub(super) fn forget_removed(&mut self) {
        self.mapped.forget_removed();
    }

    /// No snapshot waits any more. Forks that are not reported yet may still need what was there before.
    pub(super) fn snapshots_compared(&mut self, ended: bool) {
        self.snapshot_pending = false;
        if ended || !self.remembers() {
            self.forget_removed();
        }
    }

    /// What calls unmap may be queried later.
    fn remembers(&self) -> bool {
        !self.reports.alone() || self.start == Start::Preexisting || self.snapshot_pending
    }

    /// One report of a call in this address space. Fork, exec and exit are
    /// `AddressSpaces`' business; here they only count as reports of their thread.
    pub(super) fn apply(&mut self, event: &VmEvent, snapshot_pending: bool, files: &mut FileTable) -> u64 {
        self.snapshot_pending = snapshot_pending;
        let call = self.reports.next(event);
        if !self.first_snapshot.see(&call) {
            return call.previous;
        }
        // A refused brk returns the break that holds; an error comes from seccomp only.
        if event.failed() {
            self.apply_failed(&call);
        } else {
            self.apply_done(&call, files);
        }
        self.expire_limbo(call.previous, event.time_ns);
        self.mapped.settle(Moment {
            time_ns: event.time_ns,
            total_vm: event.total_vm,
            alone: self.reports.alone(),
        });
        call.previous
    }

    /// Drops limbo entries that no thread can claim any more. Only a thread's first report since
    /// the oldest entry can change that.
    fn expire_limbo(&mut self, previous: u64, now_ns: u64) {
        let limbo = self.mapped.limbo();
        if !limbo.is_empty() && (limbo.awaits(previous) || limbo.is_stale(now_ns)) {
            self.mapped.expire(self.reports.oldest(), now_ns);
        }
    }

    /// Everything mapped as far as the calls show, sorted. Neighbours differ in some attribute.
    pub fn pieces(&self) -> impl Iterator<Item = LedgerPiece> + '_ {
        self.mapped.pieces().iter().map(|(range, a)| self.described(range, a))
    }

    fn described(&self, range: AddrRange, a: &Attributes) -> LedgerPiece {
        LedgerPiece {
            range,
            prot: a.prot,
            sharing: a.sharing,
            kind: a.kind,
            event: match a.owner {
                Owner::Event(slot) => self.mapped.origins().get(slot).map(|o| o.call().event),
                _ => None,
            },
            file: a.file.clone(),
            offset: a.offset,
        }
    }

    /// Bytes mapped as far as the calls show.
    pub fn mapped_bytes(&self) -> u64 {
        self.mapped.peak().mapped()
    }

    /// The most that was mapped at once.
    pub fn peak_bytes(&self) -> u64 {
        self.mapped.peak().virt()
    }

    /// What calls reported since then have changed, sorted and disjoint: what is not remembered, everywhere.
    /// None where events were lost since.
    pub(in crate::ledger) fn changed_since(&self, since_ns: u64) -> Option<Vec<AddrRange>> {
        if self.doubts.lost_since(since_ns) {
            return None;
        }
        Some(match self.recent.remembers(since_ns) {
            true => self.recent.since(since_ns).iter().collect(),
            false => vec![AddrRange::new(0, u64::MAX)],
        })
    }

    /// Bytes by which the kernel's own count exceeded the calls' with a single thread: its stack has
    /// grown, which no call shows.
    pub fn stack_growth(&self) -> u64 {
        self.mapped.peak().stack_growth()
    }

    /// Mapped files (and the vdso) that are or were executable: range, file offset of its start,
    /// file. What an unwinder needs; it changes only when [`Ledger::module_generation`] does.
    pub fn executable_regions(&self) -> impl Iterator<Item = (AddrRange, u64, &Arc<FileRef>)> + '_ {
        self.mapped
            .pieces()
            .iter()
            .filter(|(_, a)| a.module)
            .filter_map(|(r, a)| Some((r, a.offset, a.file.as_ref()?)))
    }

    /// Memory without a file that is or was executable: code that was made at run time. It, too, changes only
    /// when [`Ledger::module_generation`] does.
    pub fn generated_code(&self) -> impl Iterator<Item = AddrRange> + '_ {
        self.mapped.generated().iter()
    }

    /// A number that no two different sets of [`Ledger::executable_regions`] and [`Ledger::generated_code`] share,
    /// over all address spaces: equal numbers mean equal sets.
    pub fn module_generation(&self) -> u64 {
        self.mapped.module_generation()
    }

    /// Waiting for the reports of unmappings that are proven: 0 when all reports are in.
    pub fn unreported_bytes(&self) -> u64 {
        self.mapped.limbo().pieces().map(|p| p.range.len()).sum()
    }

    /// What is mapped at `at`, as far as the calls show.
    pub fn piece_at(&self, at: Addr) -> Option<LedgerPiece> {
        let (range, attributes) = self.mapped.pieces().at(at)?;
        Some(self.described(range, attributes))
    }

    /// Maps `range`, which has to be free, for the call, whose origin `slot` is once it has one.
    fn map_more(&mut self, call: &Report<'_>, slot: &mut Option<Slot>, range: AddrRange, attr: Attributes) {
        if !range.is_empty() {
            self.mapped.map(call.event, slot, range, attr);
            self.forget_notes(range);
        }
    }

    /// The same, for a new origin, and notes that `range` has changed.
    fn map(&mut self, call: &Report<'_>, range: AddrRange, attr: Attributes) {
        self.map_more(call, &mut None, range, attr);
        self.touch(call.event.time_ns, range);
    }

    /// Takes what is mapped in `range`; its owners still count it.
    fn carve(&mut self, range: AddrRange, removal: Removal) -> Vec<Piece> {
        let when = self.remembers().then(|| (self.reports.number(), self.reports.now_ns()));
        self.mapped.carve(range, removal, when)
    }

    /// What is mapped in `range` is gone for good.
    fn discard(&mut self, range: AddrRange, removal: Removal) {
        let gone = self.carve(range, removal);
        self.mapped.release(gone, removal);
    }

    /// `range` holds something new: what was noted about the old content is void.
    fn forget_notes(&mut self, range: AddrRange) {
        self.advice.forget(range);
        self.doubts.forget(range);
        self.first_snapshot.settle(range);
    }

    /// A mapping that had to be placed on free memory came to `range`: what the ledger still has
    /// there was unmapped by a call that has not been reported yet.
    fn vacate(&mut self, call: &Report<'_>, range: AddrRange) {
        if self.mapped.pieces().is_free(range) {
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
        self.mapped.release(gone, Removal::Unmapped);
        let when = (call.number, call.event.time_ns);
        self.mapped.await_report(when, Certainty::Proven, certain);
        self.mapped.await_report(when, Certainty::Possible, possible);
    }

    /// Whether a report of the unmapping of `piece` is to come: None where there will be none.
    fn unmap_to_be_reported(&self, piece: &Piece) -> Option<Certainty> {
        let attr = &piece.attr;
        let expected = match attr.owner {
            // Read from maps: possibly this very mapping, seen before its report.
            Owner::Unknown => false,
            Owner::Preexisting | Owner::Kernel => !self.doubts.is_unverified(),
            Owner::Event(slot) => {
                let made = self.mapped.origins().get(slot).map_or(0, |o| o.call().time_ns);
                !(self.doubts.is_unverified() && self.doubts.lost_since(made))
            }
        };
        let doubtful = self.first_snapshot.is_doubtful(piece.range);
        expected.then_some(if doubtful { Certainty::Possible } else { Certainty::Proven })
    }

    /// Takes `range` out of the address space for the call that is reported: bytes whose
    /// unmapping is already known come from limbo, the rest from the map.
    fn take(&mut self, call: &Report<'_>, range: AddrRange, removal: Removal) -> Vec<Piece> {
        let (mut taken, doubtful) = self.mapped.claim(range, call.previous);
        doubtful.into_iter().for_each(|range| self.first_snapshot.unsettle(range));
        let mut rest = RangeSet::from_iter([range]);
        taken.iter().for_each(|piece| rest.remove(piece.range));
        for part in rest.iter() {
            self.forget_notes(part);
            taken.append(&mut self.carve(part, removal));
        }
        taken.sort_by_key(|p| p.range.start);
        taken
    }

    /// munmap and its like.
    fn unmap(&mut self, call: &Report<'_>, range: AddrRange) {
        let pieces = self.take(call, range, Removal::Unmapped);
        self.mapped.count(Touch::Unmap, &pieces);
        self.mapped.release(pieces, Removal::Unmapped);
        self.touch(call.event.time_ns, range);
    }

    /// Remembers that a call changed `range`.
    fn touch(&mut self, time_ns: u64, range: AddrRange) {
        self.recent.note(time_ns, range);
        self.first_snapshot.touch(range);
    }
}
