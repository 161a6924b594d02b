//! Processes that were seen while tracing.

use super::table::SpaceId;
use crate::ledger::threads::{ThreadRecord, Threads};
use crate::model::hash::IntMap;
use crate::model::{Addr, FileRef, Observations, Pid, Task, Tid, VmEvent, wait_status};
use std::sync::Arc;

/// A process seen while tracing.
#[derive(Clone, Default, Debug)]
pub struct ProcessRecord {
    pub pid: Pid,
    pub parent: Option<Pid>,
    /// Name of its main thread, or of the thread that reported last while that is unknown.
    pub comm: Vec<u8>,
    /// Image of the last execve that was seen.
    pub exe: Option<Arc<FileRef>>,
    /// Time of the last execve that was seen, CLOCK_MONOTONIC.
    pub exec_ns: Option<u64>,
    pub created_ns: Option<u64>,
    /// When it began, as far as that was seen: its fork, or else its first execve.
    pub begun_ns: Option<u64>,
    /// When it was examined first, if it ran before it was traced.
    pub found_ns: Option<u64>,
    pub exited_ns: Option<u64>,
    /// Wait status, once it is gone: `exit code << 8 | signal`; below 0 where only its end is known.
    pub wait_status: Option<i32>,
    threads: Threads,
    space: Option<SpaceId>,
}

impl ProcessRecord {
    /// Exit code, if it exited by itself.
    pub fn exit_code(&self) -> Option<i32> {
        self.wait_status.and_then(wait_status::exit_code)
    }

    /// The signal that killed it.
    pub fn signal(&self) -> Option<i32> {
        self.wait_status.and_then(wait_status::signal)
    }

    /// Threads seen since the last execve, living and gone, in order of appearance.
    pub fn threads(&self) -> &[ThreadRecord] {
        self.threads.records()
    }

    /// All threads ever seen since then, also those no longer in `threads`.
    pub fn threads_seen(&self) -> u64 {
        self.threads.seen()
    }

    /// The address space that it uses, or used last.
    pub(in crate::ledger) fn space(&self) -> Option<SpaceId> {
        self.space
    }

    /// It uses `space` from now on; gives what it used before.
    pub(super) fn use_space(&mut self, space: SpaceId) -> Option<SpaceId> {
        self.space.replace(space)
    }

    /// Notes a task's latest name.
    pub(super) fn see(&mut self, task: &Task) {
        self.threads.see(self.pid, task.tid, &task.comm);
        if (task.tid == self.pid || self.comm.is_empty()) && self.comm != task.comm {
            self.comm.clone_from(&task.comm);
        }
    }

    pub(super) fn see_thread(&mut self, tid: Tid, comm: &[u8]) {
        self.threads.see(self.pid, tid, comm);
    }

    /// It ran already when it was examined.
    pub(super) fn found(&mut self, seen: &Observations) {
        self.found_ns = Some(seen.begun_ns);
        self.comm.clone_from(&seen.comm);
    }

    /// clone by `parent`: a new thread of this process, or its first one.
    pub(super) fn thread_began(&mut self, tid: Tid, event: &VmEvent, sp: Addr) {
        let sp = (sp.0 != 0).then_some(sp);
        self.threads.begin((self.pid, tid), &event.task.comm, sp, event.time_ns);
    }

    pub(super) fn executed(&mut self, event: &VmEvent, exe: Option<Arc<FileRef>>) {
        self.exe = exe;
        self.begun_ns.get_or_insert(event.time_ns);
        self.exec_ns = Some(event.time_ns);
        self.comm.clone_from(&event.task.comm);
        self.threads = Threads::default();
        self.threads.begin((self.pid, event.task.tid), &event.task.comm, None, event.time_ns);
    }

    /// A thread's exit; with the last one's the process ends.
    pub(super) fn exited(&mut self, event: &VmEvent, code: i32, group_dead: bool) {
        self.threads.end(self.pid, event.task.tid, event.time_ns);
        if group_dead {
            self.wait_status = Some(code);
            self.exited_ns = Some(event.time_ns);
        }
    }
}

/// All of them, in order of appearance. A pid that was used again is there twice.
#[derive(Default, Debug)]
pub(super) struct Processes {
    records: Vec<ProcessRecord>,
    /// The newest process of each pid.
    by_pid: IntMap<Pid, usize>,
}

impl Processes {
    pub(super) fn records(&self) -> &[ProcessRecord] {
        &self.records
    }

    /// The newest process with this pid.
    pub(super) fn get(&self, pid: Pid) -> Option<&ProcessRecord> {
        self.by_pid.get(&pid).and_then(|&i| self.records.get(i))
    }

    /// The newest process with this pid; a new one if there is none.
    pub(super) fn get_or_add(&mut self, pid: Pid) -> &mut ProcessRecord {
        match self.by_pid.get(&pid) {
            Some(&index) => &mut self.records[index],
            None => self.add_new(pid),
        }
    }

    /// Another process has this pid from now on.
    pub(super) fn add_new(&mut self, pid: Pid) -> &mut ProcessRecord {
        self.add(ProcessRecord { pid, ..ProcessRecord::default() })
    }

    fn add(&mut self, process: ProcessRecord) -> &mut ProcessRecord {
        let index = self.records.len();
        self.by_pid.insert(process.pid, index);
        self.records.push(process);
        &mut self.records[index]
    }

    /// A fork's new process, whose parent is the event's task.
    pub(super) fn add_forked(&mut self, event: &VmEvent, child: Pid) {
        let parent = self.get(event.task.pid);
        let (exe, exec_ns) = parent.map_or((None, None), |p| (p.exe.clone(), p.exec_ns));
        self.add(ProcessRecord {
            pid: child,
            parent: Some(event.task.pid),
            comm: event.task.comm.clone(),
            exe,
            exec_ns,
            created_ns: Some(event.time_ns),
            begun_ns: Some(event.time_ns),
            ..ProcessRecord::default()
        });
    }
}
