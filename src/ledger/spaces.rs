//! All address spaces of the traced processes, and which process uses which.
//!
//! An mm's key is used again by the kernel after its last user is gone, so the key alone names no
//! address space: each fork, exec and last exit starts or ends a generation (a [`SpaceId`]).

use super::found::FirstLook;
use super::looks::Looks;
use super::process::ProcessRecord;
use super::space::origins::FileTable;
use super::space::{Ledger, Start};
use crate::model::event::VmOp;
use crate::model::hash::IntMap;
use crate::model::{Addr, AddrRange, FileRef, Mapping, MmKey, Observations, Pid, Tid, TimeZero, VmEvent};
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

/// One generation of an mm.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SpaceId(pub(super) u64);

/// Last states of exited processes that nobody asked for, kept at most.
const MAX_DEAD: usize = 1024;

#[derive(Debug)]
pub(super) struct Space {
    pub(super) key: MmKey,
    pub(super) users: HashSet<Pid>,
    pub(super) ledger: Ledger,
    /// Forked children with ranges that this space may still explain.
    pub(super) awaiting: Vec<super::fork::Awaiting>,
    /// The spaces that have this one in `awaiting`.
    pub(super) explained_by: Vec<SpaceId>,
}

/// One [`Ledger`] per address space.
#[derive(Default, Debug)]
pub struct AddressSpaces {
    pub(super) spaces: IntMap<SpaceId, Space>,
    pub(super) by_mm: IntMap<MmKey, SpaceId>,
    pub(super) processes: Vec<ProcessRecord>,
    /// The newest process of each pid.
    pub(super) by_pid: IntMap<Pid, usize>,
    pub(super) files: FileTable,
    dead: VecDeque<SpaceId>,
    pub(super) looks: Looks,
    next_space: u64,
    next_generation: u64,
    any_loss: bool,
    zero: TimeZero,
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
        let pid = event.task.pid;
        let gone = self.process(pid).is_some_and(|p| p.wait_status.is_some());
        if gone && !matches!(event.op, VmOp::Exit { .. }) {
            // The pid was given to a new process whose fork was not seen.
            self.add_process(pid);
        }
        self.process_mut(pid).see(&event.task);
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

    pub(super) fn apply_in(&mut self, id: SpaceId, event: &VmEvent) -> u64 {
        let Some(space) = self.spaces.get_mut(&id) else { return 0 };
        space.ledger.look_pending = self.looks.pending;
        let previous = space.ledger.apply(event, &mut self.files);
        self.renew_modules(id);
        self.explain_to_children(id, event, previous);
        previous
    }

    /// The ledger of the address space that `pid` uses, or used last.
    pub fn ledger_of_pid(&self, pid: Pid) -> Option<&Ledger> {
        let id = self.process(pid)?.space?;
        self.spaces.get(&id).map(|s| &s.ledger)
    }

    /// The ledger of a living address space: what holds at the time of an event with this `mm`.
    pub fn ledger_of_mm(&self, mm: MmKey) -> Option<&Ledger> {
        self.spaces.get(self.by_mm.get(&mm)?).map(|s| &s.ledger)
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

    /// All processes seen, in order of appearance. A pid that was used again is there twice.
    pub fn processes(&self) -> &[ProcessRecord] {
        &self.processes
    }

    /// The newest process with this pid.
    pub fn process(&self, pid: Pid) -> Option<&ProcessRecord> {
        self.by_pid.get(&pid).and_then(|&i| self.processes.get(i))
    }

    /// A process that runs already when tracing begins: what it has mapped is `Preexisting`, the
    /// kernel's own mappings are `Kernel`. Events that were applied before keep their word.
    pub fn start_preexisting(&mut self, pid: Pid, mm: MmKey, mappings: &[Mapping]) {
        self.start_read(pid, mm, mappings, (0, 0));
    }

    /// As [`AddressSpaces::start_preexisting`], from a look at the process taken when the tracer
    /// was on already: reports from before the look are ignored, reports from during it may be in
    /// it. Threads are known from the start.
    pub fn start_observed(&mut self, mm: MmKey, seen: &Observations) {
        self.zero.see_found(seen);
        self.start_read(seen.pid, mm, &seen.mappings, (seen.begun_ns, seen.ended_ns));
        let process = self.process_mut(seen.pid);
        process.found_ns = Some(seen.begun_ns);
        process.comm.clone_from(&seen.comm);
        for thread in &seen.threads {
            self.note_thread(seen.pid, thread.tid, &thread.comm);
        }
    }

    /// A thread that exists without having been seen to begin. The order rule waits for the
    /// reports of the threads it knows.
    pub fn note_thread(&mut self, pid: Pid, tid: Tid, comm: &[u8]) {
        let process = self.process_mut(pid);
        let space = process.space;
        if let Some(thread) = process.thread(tid) {
            thread.comm = comm.to_vec();
        }
        if let Some(space) = space.and_then(|id| self.spaces.get_mut(&id)) {
            space.ledger.threads.entry(tid).or_insert(0);
        }
    }

    fn start_read(&mut self, pid: Pid, mm: MmKey, mappings: &[Mapping], window: (u64, u64)) {
        if let Some(&id) = self.by_mm.get(&mm)
            && let Some(space) = self.spaces.get_mut(&id)
            && space.ledger.start == Start::ExecUnlisted
        {
            // execve was seen without its mappings: the images are its work, the rest is told by calls.
            let ledger = &mut space.ledger;
            let by_exec = |m: &&Mapping| super::names::is_kernel_name(&m.name) || ledger.is_exec_image(m);
            let images: Vec<Mapping> = mappings.iter().filter(by_exec).cloned().collect();
            ledger.fill_gaps(&images, super::space::piece::Owner::Kernel, &mut self.files);
            self.renew_modules(id);
            self.join(pid, id);
            return;
        }
        if let Some(&id) = self.by_mm.get(&mm)
            && self.spaces.get(&id).is_some_and(|s| s.ledger.start != Start::Unseen)
        {
            // Another process in the same address space.
            self.join(pid, id);
            return;
        }
        let id = match self.by_mm.get(&mm) {
            Some(&id) => id,
            None => self.add_space(mm, Ledger::new(Start::Preexisting)),
        };
        self.join(pid, id);
        let Some(space) = self.spaces.get_mut(&id) else { return };
        let ledger = &mut space.ledger;
        ledger.start = Start::Preexisting;
        ledger.first_look = FirstLook::taken(window);
        ledger.fill_gaps(mappings, super::space::piece::Owner::Preexisting, &mut self.files);
        ledger.threads.entry(pid).or_insert(0);
        ledger.peak = ledger.peak.for_copy(window.1);
        if ledger.brk.is_none() {
            ledger.brk = mappings.iter().rfind(|m| m.is_special("[heap]")).map(|m| m.range.end);
        }
        self.renew_modules(id);
    }

    /// Events were lost, all of them or of unknown processes, at `time_ns`: whatever is older may
    /// have been replaced since.
    pub fn note_loss(&mut self, time_ns: u64) {
        self.any_loss = true;
        for space in self.spaces.values_mut().filter(|s| !s.users.is_empty()) {
            let ledger = &mut space.ledger;
            ledger.lost_ns = Some(ledger.lost_ns.map_or(time_ns, |t| t.max(time_ns)));
            ledger.unverified = true;
        }
    }

    /// After a loss: makes the ledger agree with the mappings that were read since. False where calls
    /// changed some of them meanwhile: those are left as they were.
    pub fn resync(&mut self, pid: Pid, seen: &Observations) -> bool {
        let Some(id) = self.process(pid).and_then(|p| p.space) else { return true };
        let space = self.spaces.get_mut(&id);
        let whole = space.is_none_or(|space| space.ledger.resync(seen, &mut self.files));
        self.renew_modules(id);
        whole
    }

    /// Gives up the last state of a process that is gone, once it is reconciled.
    pub fn forget(&mut self, pid: Pid) {
        let Some(&index) = self.by_pid.get(&pid) else { return };
        let Some(id) = self.processes.get(index).and_then(|p| p.space) else { return };
        if self.spaces.get(&id).is_some_and(|s| s.users.is_empty()) {
            self.spaces.remove(&id);
            self.dead.retain(|&d| d != id);
        }
    }

    // ---- life of processes -------------------------------------------------------------------

    /// The newest process of this pid; a new one if there is none.
    pub(super) fn process_mut(&mut self, pid: Pid) -> &mut ProcessRecord {
        let index = match self.by_pid.get(&pid) {
            Some(&index) => index,
            None => self.add_process(pid),
        };
        &mut self.processes[index]
    }

    pub(super) fn add_process(&mut self, pid: Pid) -> usize {
        self.processes.push(ProcessRecord::new(pid));
        let index = self.processes.len() - 1;
        self.by_pid.insert(pid, index);
        index
    }

    pub(super) fn add_space(&mut self, key: MmKey, ledger: Ledger) -> SpaceId {
        self.next_space += 1;
        let id = SpaceId(self.next_space);
        // An older generation under this key lost its end; it must not get this one's events.
        self.by_mm.insert(key, id);
        let (awaiting, explained_by) = (Vec::new(), Vec::new());
        self.spaces.insert(id, Space { key, users: HashSet::new(), ledger, awaiting, explained_by });
        self.renew_modules(id);
        id
    }

    /// `pid` uses `id` from now on, and what it used before no longer.
    pub(super) fn join(&mut self, pid: Pid, id: SpaceId) {
        let before = self.process_mut(pid).space.replace(id);
        if let Some(space) = self.spaces.get_mut(&id) {
            space.users.insert(pid);
        }
        if let Some(before) = before
            && before != id
        {
            self.leave(pid, before);
        }
    }

    /// `pid` no longer uses `id`. True when it was the last user; then the space is kept only if
    /// a process still refers to it.
    fn leave(&mut self, pid: Pid, id: SpaceId) {
        let tids: Vec<Tid> =
            self.process(pid).map(|p| p.threads.iter().map(|t| t.tid).collect()).unwrap_or_default();
        let Some(space) = self.spaces.get_mut(&id) else { return };
        space.users.remove(&pid);
        for tid in tids {
            space.ledger.threads.remove(&tid);
        }
        if !space.users.is_empty() {
            return;
        }
        let key = space.key;
        space.awaiting.clear();
        self.forget_when_compared(id);
        if self.by_mm.get(&key) == Some(&id) {
            self.by_mm.remove(&key);
        }
        if self.process(pid).and_then(|p| p.space) == Some(id) {
            self.dead.push_back(id);
            if self.dead.len() > MAX_DEAD
                && let Some(oldest) = self.dead.pop_front()
            {
                self.spaces.remove(&oldest);
            }
        } else {
            self.spaces.remove(&id);
        }
    }

    /// Where the event's call took effect.
    pub(super) fn space_for(&mut self, event: &VmEvent) -> SpaceId {
        let pid = event.task.pid;
        let mine = self.process(pid).and_then(|p| p.space);
        let living = self.by_mm.get(&event.mm).copied();
        if event.mm.0 == 0
            && let Some(mine) = mine
        {
            // The backend could not tell.
            return mine;
        }
        if let Some(id) = living {
            if mine == Some(id) {
                return id;
            }
            // Somebody else's mm. Every way into it is reported, unless events were lost or it
            // was so before tracing began; after a loss the key may have been used again.
            if !self.any_loss {
                self.join(pid, id);
                return id;
            }
        }
        let id = self.add_space(event.mm, Ledger::new(Start::Unseen));
        self.join(pid, id);
        id
    }

    /// fs/exec.c, begin_new_exec: a new address space; all other threads are gone.
    fn exec(&mut self, event: &VmEvent) {
        let VmOp::Exec { exe, brk, mappings, .. } = &event.op else { return };
        let pid = event.task.pid;
        let start = if mappings.is_some() { Start::Exec } else { Start::ExecUnlisted };
        let mut ledger = Ledger::new(start);
        ledger.exe = exe.as_ref().map(|f| self.files.intern(f));
        if brk.0 != 0 {
            ledger.brk = Some(*brk);
            ledger.exec_brk = Some(*brk);
        }
        if let Some(mappings) = mappings {
            ledger.fill_gaps(mappings, super::space::piece::Owner::Kernel, &mut self.files);
        }
        let exe = ledger.exe.clone();
        let id = self.add_space(event.mm, ledger);
        self.join(pid, id);
        if let Some(space) = self.spaces.get_mut(&id) {
            space.ledger.apply(event, &mut self.files);
        }

        let process = self.process_mut(pid);
        process.exe = exe;
        process.begun_ns.get_or_insert(event.time_ns);
        process.exec_ns = Some(event.time_ns);
        process.comm.clone_from(&event.task.comm);
        process.threads.clear();
        process.thread_index.clear();
        process.threads_seen = 0;
        if let Some(thread) = process.thread(event.task.tid) {
            thread.comm.clone_from(&event.task.comm);
            thread.created_ns = Some(event.time_ns);
        }
    }

    fn exit(&mut self, event: &VmEvent, code: i32, group_dead: bool) {
        let (pid, tid) = (event.task.pid, event.task.tid);
        // The task may have let go of its mm before it reports: its process tells.
        let id = self.process(pid).and_then(|p| p.space);
        if let Some(id) = id {
            self.apply_in(id, event);
            if let Some(space) = self.spaces.get_mut(&id) {
                space.ledger.threads.remove(&tid);
                space.ledger.expire_limbo(0, event.time_ns);
            }
        }
        let process = self.process_mut(pid);
        if let Some(thread) = process.thread(tid) {
            thread.exited_ns = Some(event.time_ns);
        }
        process.forget_tid(tid);
        if !group_dead {
            return;
        }
        process.wait_status = Some(code);
        process.exited_ns = Some(event.time_ns);
        if let Some(id) = id {
            self.leave(pid, id);
        }
    }

    pub(super) fn renew_modules(&mut self, id: SpaceId) {
        if let Some(space) = self.spaces.get_mut(&id)
            && std::mem::take(&mut space.ledger.modules_changed)
        {
            self.next_generation += 1;
            space.ledger.module_generation = self.next_generation;
        }
    }

    /// Where a forked child's stack pointer lies is told by its record.
    pub(super) fn note_child_thread(&mut self, pid: Pid, tid: Tid, event: &VmEvent, sp: Addr) {
        let process = self.process_mut(pid);
        process.forget_tid(tid);
        if let Some(thread) = process.thread(tid) {
            thread.comm.clone_from(&event.task.comm);
            thread.initial_sp = (sp.0 != 0).then_some(sp);
            thread.created_ns = Some(event.time_ns);
        }
    }
}
