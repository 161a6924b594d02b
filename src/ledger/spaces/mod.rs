//! All address spaces of the traced processes, and which process uses which.
//!
//! An mm's key is used again by the kernel after its last user is gone, so the key alone names no
//! address space: each fork, exec and last exit starts or ends a generation (a [`SpaceId`]).

mod awaiting;
mod fork;
pub(super) mod process;
mod snapshots;
mod table;

use super::space::origins::FileTable;
use super::space::reconcile::Reconciled;
use super::space::{Ledger, Start};
use crate::model::event::VmOp;
use crate::model::{AddrRange, FileRef, MmKey, Observations, Pid, Tid, TimeZero, VmEvent};
use awaiting::Awaiting;
use process::{ProcessRecord, Processes};
use snapshots::PendingSnapshots;
use std::sync::Arc;
pub use table::SpaceId;
use table::SpaceTable;

/// One [`Ledger`] per address space.
#[derive(Default, Debug)]
pub struct AddressSpaces {
    table: SpaceTable,
    processes: Processes,
    awaiting: Awaiting,
    snapshots: PendingSnapshots,
    files: FileTable,
    any_loss: bool,
    zero: TimeZero,
    /// Since the last query.
    ended: Vec<Pid>,
    /// Time of the newest event, and its value at the last query of ended processes.
    newest_ns: u64,
    taken_ns: u64,
}

impl AddressSpaces {
    pub fn new() -> AddressSpaces {
        AddressSpaces::default()
    }

    /// What times count from: CLOCK_MONOTONIC, ns; 0 before the first event.
    pub fn began_ns(&self) -> u64 {
        self.zero.ns()
    }

    /// Applies one event, in the order of the reports.
    pub fn apply(&mut self, event: &VmEvent) {
        self.zero.see_event(event);
        self.newest_ns = self.newest_ns.max(event.time_ns);
        let pid = event.task.pid;
        let gone = self.process(pid).is_some_and(|p| p.wait_status.is_some());
        if gone && !matches!(event.op, VmOp::Exit { .. }) {
            // The pid was given to a new process whose fork was not seen.
            self.processes.add_new(pid);
        }
        self.processes.get_or_add(pid).see(&event.task);
        match &event.op {
            VmOp::Exec { .. } => self.exec(event),
            VmOp::Fork { .. } => self.fork(event),
            VmOp::Exit { code, group_dead } => self.exit(event, *code, *group_dead),
            _ => {
                let id = self.space_for(event);
                self.apply_in(id, event);
            }
        }
    }

    fn apply_in(&mut self, id: SpaceId, event: &VmEvent) -> u64 {
        let (pending, files) = (self.snapshots.pending(), &mut self.files);
        let Some(previous) = self.table.change(id, |ledger| ledger.apply(event, pending, files)) else {
            return 0;
        };
        self.explain_to_children(id, event, previous);
        previous
    }

    /// The address space that `pid` uses, or used last.
    pub fn space_of_pid(&self, pid: Pid) -> Option<SpaceId> {
        self.process(pid)?.space()
    }

    /// The living address space under this key.
    pub fn space_of_mm(&self, mm: MmKey) -> Option<SpaceId> {
        self.table.of_mm(mm)
    }

    /// False once it cannot be queried any more.
    pub fn has_space(&self, id: SpaceId) -> bool {
        self.ledger(id).is_some()
    }

    #[cfg(test)]
    pub(super) fn files(&self) -> &FileTable {
        &self.files
    }

    pub(super) fn ledger(&self, id: SpaceId) -> Option<&Ledger> {
        self.table.get(id)
    }

    /// Those with users.
    pub(super) fn used_spaces(&self) -> impl Iterator<Item = SpaceId> {
        self.table.used()
    }

    pub(super) fn is_used(&self, id: SpaceId) -> bool {
        self.table.has_users(id)
    }

    /// The ledger of the address space that `pid` uses, or used last.
    pub fn ledger_of_pid(&self, pid: Pid) -> Option<&Ledger> {
        self.ledger(self.space_of_pid(pid)?)
    }

    /// The ledger of a living address space: what holds at the time of an event with this `mm`.
    pub fn ledger_of_mm(&self, mm: MmKey) -> Option<&Ledger> {
        self.ledger(self.space_of_mm(mm)?)
    }

    /// See [`Ledger::module_generation`]; O(1).
    pub fn module_generation(&self, mm: MmKey) -> Option<u64> {
        self.ledger_of_mm(mm).map(Ledger::module_generation)
    }

    /// Executable files (and the vdso) mapped in a living address space: range, file offset, file.
    pub fn executable_regions(&self, mm: MmKey) -> Vec<(AddrRange, u64, Arc<FileRef>)> {
        self.ledger_of_mm(mm)
            .map(|l| l.executable_regions().map(|(r, o, f)| (r, o, Arc::clone(f))).collect())
            .unwrap_or_default()
    }

    /// See [`Ledger::generated_code`].
    pub fn generated_code(&self, mm: MmKey) -> Vec<AddrRange> {
        self.ledger_of_mm(mm).map(|ledger| ledger.generated_code().collect()).unwrap_or_default()
    }

    /// All processes seen, in order of appearance. A pid that was used again is there twice.
    pub fn processes(&self) -> &[ProcessRecord] {
        self.processes.records()
    }

    /// The newest process with this pid.
    pub fn process(&self, pid: Pid) -> Option<&ProcessRecord> {
        self.processes.get(pid)
    }

    /// A process that runs already when tracing begins: what it has mapped is `Preexisting`, the
    /// kernel's own mappings are `Kernel`. Events that were applied before keep their word. The snapshot was taken
    /// when the tracer was on already: reports from before it are ignored, reports from during it may be in
    /// it. Threads are known from the start.
    pub fn start_observed(&mut self, mm: MmKey, seen: &Observations) {
        self.zero.see_found(seen);
        let known = self.space_of_mm(mm);
        let id = known.unwrap_or_else(|| self.table.add(mm, Ledger::new(Start::Unseen)));
        self.join(seen.pid, id);
        let (files, window) = (&mut self.files, (seen.begun_ns, seen.ended_ns));
        self.table.change(id, |ledger| match ledger.start() {
            Start::Unseen => ledger.found(seen.pid, &seen.mappings, window, files),
            Start::ExecUnlisted => ledger.found_images(&seen.mappings, files),
            // Another process in the same address space.
            Start::Exec | Start::Preexisting => {}
        });
        self.processes.get_or_add(seen.pid).found(seen);
        for thread in &seen.threads {
            self.note_thread(seen.pid, thread.tid, &thread.comm);
        }
    }

    /// A thread that exists without having been seen to begin. The order rule waits for the
    /// reports of the threads it knows.
    pub fn note_thread(&mut self, pid: Pid, tid: Tid, comm: &[u8]) {
        let process = self.processes.get_or_add(pid);
        process.see_thread(tid, comm);
        if let Some(id) = process.space() {
            self.table.change(id, |ledger| ledger.thread_found(tid));
        }
    }

    /// Events were lost, all of them or of unknown processes, at `time_ns`: whatever is older may
    /// have been replaced since. So may all that processes had which ended since then, and were not taken yet.
    pub fn note_loss(&mut self, time_ns: u64) {
        self.any_loss = true;
        self.table.note_in_all(|ledger, used| {
            if used {
                ledger.note_loss(time_ns);
            }
        });
        let ended_since = |pid: &&Pid| self.process(**pid).is_some_and(|p| p.exited_ns > Some(time_ns));
        let ended: Vec<Pid> = self.ended.iter().filter(ended_since).copied().collect();
        for pid in ended {
            let Some(id) = self.space_of_pid(pid) else { continue };
            self.table.change(id, |ledger| ledger.note_loss(self.newest_ns));
        }
    }

    /// After a loss: makes the ledger agree with the mappings that were read since. False where calls
    /// changed some of them meanwhile: those are left as they were.
    pub fn resync(&mut self, pid: Pid, seen: &Observations) -> bool {
        let Some(id) = self.space_of_pid(pid) else { return true };
        let files = &mut self.files;
        self.table.change(id, |ledger| ledger.resync(seen, files)).unwrap_or(true)
    }

    /// Joins the calls of `pid`'s address space with one snapshot of its maps. Without any event of it,
    /// everything is `Preexisting`.
    pub fn reconcile(&self, pid: Pid, seen: &Observations) -> Reconciled {
        let threads = self.process(pid).map_or(&[][..], ProcessRecord::threads);
        match self.ledger_of_pid(pid) {
            Some(ledger) => ledger.reconcile(seen, threads),
            None => Ledger::new(Start::Unseen).reconcile(seen, threads),
        }
    }

    /// The last state of a process was reconciled (or that was worth nothing): it is given up as soon as the
    /// process is gone, unless others live in its address space.
    pub fn settle(&mut self, pid: Pid, is_settled: bool) {
        if let Some(id) = self.space_of_pid(pid) {
            self.table.settle(id, is_settled);
        }
    }

    /// The processes that have ended since the last call, in order.
    pub fn take_ended(&mut self) -> Vec<Pid> {
        self.taken_ns = self.newest_ns;
        self.table.ends_taken(self.ended.len());
        std::mem::take(&mut self.ended)
    }

    /// How many [`AddressSpaces::take_ended`] would give.
    pub fn unreported_ends(&self) -> usize {
        self.ended.len()
    }

    /// Time of the newest event when [`AddressSpaces::take_ended`] was called last, CLOCK_MONOTONIC.
    pub fn taken_ns(&self) -> u64 {
        self.taken_ns
    }

    /// Gives up the last state of a process that is gone.
    pub fn forget(&mut self, pid: Pid) {
        if let Some(id) = self.space_of_pid(pid).filter(|&id| !self.table.has_users(id)) {
            self.table.remove(id);
        }
    }

    /// Living processes are examined from now on: what calls take away is remembered until
    /// [`AddressSpaces::snapshots_compared`].
    pub fn snapshot_begins(&mut self) {
        self.snapshots.begin();
    }

    /// The snapshots were joined with the ledger, or given up.
    pub fn snapshots_compared(&mut self) {
        self.snapshots.compared();
        self.table.note_in_all(|ledger, used| ledger.snapshots_compared(!used));
    }

    /// True when `pid` has executed another program since, or is another process than it was: a
    /// snapshot that began at `since_ns` (CLOCK_MONOTONIC) is not one at what the ledger knows now.
    pub fn replaced_since(&self, pid: Pid, since_ns: u64) -> bool {
        let after = |time: Option<u64>| time.is_some_and(|time| time >= since_ns);
        self.process(pid).is_some_and(|process| after(process.exec_ns) || after(process.created_ns))
    }

    /// What calls have changed in the address space of `pid` since a snapshot that began at `since_ns`
    /// (CLOCK_MONOTONIC), sorted and disjoint; None where events were lost since.
    pub fn changed_since(&self, pid: Pid, since_ns: u64) -> Option<Vec<AddrRange>> {
        self.ledger_of_pid(pid)?.changed_since(since_ns)
    }

    // ---- life of processes -------------------------------------------------------------------

    /// `pid` uses `id` from now on, and what it used before no longer.
    fn join(&mut self, pid: Pid, id: SpaceId) {
        let before = self.processes.get_or_add(pid).use_space(id);
        self.table.join(id, pid);
        if let Some(before) = before.filter(|&before| before != id) {
            self.leave(pid, before);
        }
    }

    /// `pid` no longer uses `id`. After its last user the space is kept only if the process still refers to it.
    fn leave(&mut self, pid: Pid, id: SpaceId) {
        let tids: Vec<Tid> =
            self.process(pid).into_iter().flat_map(ProcessRecord::threads).map(|t| t.tid).collect();
        if !self.table.leave(id, pid, &tids) {
            return;
        }
        self.awaiting.forget(id);
        let now_ns = self.ledger(id).map_or(0, |ledger| ledger.reports().now_ns());
        for unasked in self.snapshots.ended(id, now_ns) {
            self.table.change(unasked, Ledger::forget_removed);
        }
        if self.space_of_pid(pid) == Some(id) {
            self.table.keep_dead(id);
        } else {
            self.table.remove(id);
        }
    }

    /// Where the event's call took effect.
    fn space_for(&mut self, event: &VmEvent) -> SpaceId {
        let pid = event.task.pid;
        let mine = self.space_of_pid(pid);
        let living = self.space_of_mm(event.mm);
        if event.mm.0 == 0
            && let Some(mine) = mine
        {
            // The backend does not know it.
            return mine;
        }
        if let Some(id) = living {
            if mine == Some(id) {
                return id;
            }
            // Another process' mm. Every way into it is reported, unless events were lost or it was so before
            // tracing began; after a loss the key may have been used again.
            if !self.any_loss {
                self.join(pid, id);
                return id;
            }
        }
        let id = self.table.add(event.mm, Ledger::new(Start::Unseen));
        self.join(pid, id);
        id
    }

    /// fs/exec.c, begin_new_exec: a new address space; all other threads are gone.
    fn exec(&mut self, event: &VmEvent) {
        let VmOp::Exec { exe, brk, mappings, .. } = &event.op else { return };
        let pid = event.task.pid;
        let ledger = Ledger::of_exec(exe.as_ref(), *brk, mappings.as_deref(), &mut self.files);
        let exe = ledger.exe().cloned();
        let id = self.table.add(event.mm, ledger);
        self.join(pid, id);
        let files = &mut self.files;
        self.table.change(id, |ledger| ledger.apply(event, false, files));
        self.processes.get_or_add(pid).executed(event, exe);
    }

    fn exit(&mut self, event: &VmEvent, code: i32, group_dead: bool) {
        let pid = event.task.pid;
        // The task may have released its mm before it reports: its process decides.
        let id = self.space_of_pid(pid);
        if let Some(id) = id {
            self.apply_in(id, event);
            self.table.change(id, |ledger| ledger.thread_exited(event.task.tid, event.time_ns));
        }
        self.processes.get_or_add(pid).exited(event, code, group_dead);
        if let Some(id) = id.filter(|_| group_dead) {
            self.leave(pid, id);
            self.ended.push(pid);
        }
    }
}
