//! Threads, processes and address spaces: the tables. How they come and go: `task_creation`, `exec`, `task_exit`.

use super::peek::{self, Thread};
use super::space::{Begun, Space};
use crate::model::{HeldCall, Pid, Tid};
use crate::sys::clock::monotonic_ns;
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::time::Instant;

/// Where there are more tasks, they are not searched for those of one address space.
const MANY: usize = 16;

pub struct Task {
    pub pid: Pid,
    pub thread: Thread,
    pub comm: Vec<u8>,
    pub named_ns: u64,
    pub control_block: u64,
}

pub struct Process {
    /// 0 before the first program.
    pub space: u64,
    pub pidfd: Option<OwnedFd>,
    pub executing: Option<Executing>,
    /// The thread that ended it, and the requested status.
    pub ended_by: Option<(Tid, i32)>,
}

/// The thread that is in execve.
#[derive(Clone, Copy, Debug)]
pub struct Executing {
    pub tid: Tid,
    /// The number that execve was called by.
    pub entry: i64,
    pub since: Instant,
    /// What it had run before, ns.
    pub ran: u64,
}

#[derive(Default)]
pub struct Tasks {
    pub main: Pid,
    pub threads: HashMap<Tid, Task>,
    pub processes: HashMap<Pid, Process>,
    pub spaces: HashMap<u64, Space>,
    pub begun: Vec<Begun>,
    /// Processes that are not watched.
    pub passed: HashSet<Pid>,
    last_space: u64,
}

impl Tasks {
    pub fn new(main: Pid) -> Tasks {
        Tasks { main, ..Tasks::default() }
    }

    pub fn thread(&self, tid: Tid) -> Option<&Task> {
        self.threads.get(&tid)
    }

    pub fn thread_mut(&mut self, tid: Tid) -> Option<&mut Task> {
        self.threads.get_mut(&tid)
    }

    pub fn pid_of(&self, tid: Tid) -> Option<Pid> {
        self.threads.get(&tid).map(|task| task.pid)
    }

    pub fn space_of(&self, pid: Pid) -> Option<u64> {
        self.processes.get(&pid).map(|process| process.space).filter(|&key| key != 0)
    }

    /// Other threads may have to wait for a call of this thread.
    pub fn has_others(&self, pid: Pid, tid: Tid) -> bool {
        let space = self.space_of(pid);
        let others = self.threads.iter().filter(|&(&other, _)| other != tid);
        others.take(MANY).any(|(_, task)| self.space_of(task.pid) == space) || self.threads.len() > MANY
    }

    /// The thread whose call runs in the address space.
    pub fn running_tid(&self, key: u64) -> Option<Tid> {
        Some(self.spaces.get(&key)?.running.as_ref()?.call.tid)
    }

    pub fn any_process(&self) -> bool {
        !self.processes.is_empty()
    }

    pub fn somebody_waits(&self) -> bool {
        self.spaces.values().any(|space| !space.waiting.is_empty() && !space.closed)
    }

    /// Something is pending that is not reported yet.
    pub fn is_unsettled(&self) -> bool {
        self.spaces.values().any(|space| space.running.is_some())
            || self.processes.values().any(|process| process.executing.is_some())
    }

    pub fn busy_spaces(&self) -> Vec<u64> {
        let busy = |space: &Space| space.running.is_some() || !space.waiting.is_empty();
        self.spaces.iter().filter(|(_, space)| busy(space)).map(|(&key, _)| key).collect()
    }

    /// Until it is known how that ends, nothing else begins in the address space.
    pub fn executes(&mut self, pid: Pid, tid: Tid, entry: i64) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let ran = peek::processor_time(tid).unwrap_or(0);
        process.executing = Some(Executing { tid, entry, since: Instant::now(), ran });
        if let Some(space) = self.spaces.get_mut(&process.space).filter(|space| space.users == 1) {
            space.closed = true;
        }
    }

    /// The fork that the thread has begun will not be.
    pub fn forget_fork(&mut self, key: u64, tid: Tid) {
        self.begun.retain(|begun| !(begun.parent_tid == tid && begun.space == key && !begun.new.is_thread));
    }

    pub fn name_is_stale(&mut self, tid: Tid) {
        if let Some(task) = self.threads.get_mut(&tid) {
            task.named_ns = 0;
        }
    }

    pub fn note_status(&mut self, pid: Pid, call: &HeldCall) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.ended_by = Some((call.tid, (call.args[0] as i32 & 0xff) << 8));
        }
    }

    pub fn add_thread(&mut self, tid: Tid, pid: Pid, control_block: u64) -> &Task {
        let thread = Thread::open(tid);
        let comm = thread.comm().unwrap_or_default();
        let task = Task { pid, thread, comm, named_ns: monotonic_ns(), control_block };
        self.threads.insert(tid, task);
        &self.threads[&tid]
    }

    pub fn add_space(&mut self, space: Space) -> u64 {
        self.last_space += 1;
        self.spaces.insert(self.last_space, space);
        self.last_space
    }
}
