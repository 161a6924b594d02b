//! The ends of threads, processes and address spaces.

use super::emit::TaskKey;
use super::peek;
use super::server::Server;
use crate::capture::record::{UNKNOWN_STATUS, op};
use crate::model::{HeldCall, HeldCalls, Pid};
use crate::sys::pidfd;
use std::os::fd::AsFd;

impl<C: HeldCalls> Server<C> {
    pub fn thread_ended(&mut self, pid: Pid, call: &HeldCall, key: u64) {
        let mut record = TaskKey { pid, tid: call.tid, mm: key }.record(op::EXIT);
        record.args[0] = (call.args[0] & 0xff) << 8;
        self.tasks.threads.remove(&call.tid);
        self.records.event(record, &[]);
    }

    /// The kernel says that a process has ended.
    pub fn process_ended(&mut self, pid: Pid) {
        let Some(process) = self.tasks.processes.get(&pid) else { return };
        let key = process.space;
        let ended_by = process.ended_by;
        let notified = ended_by.map(|(_, status)| status);
        let code = notified.or_else(|| pidfd::exit_status(pid, process.pidfd.as_ref().map(AsFd::as_fd)));
        if self.tasks.running_tid(key).and_then(|tid| self.tasks.pid_of(tid)) == Some(pid) {
            self.conclude(key, true);
        }
        let tid = ended_by.map_or(pid, |(tid, _)| tid);
        let mut record = TaskKey { pid, tid, mm: key }.record(op::EXIT);
        record.args = [i64::from(code.unwrap_or(UNKNOWN_STATUS)) as u64, 1, 0, 0, 0, 0];
        self.forget_process(pid);
        self.records.event(record, &[]);
    }

    /// Processes for which there was no descriptor: the kernel does not say that they have ended.
    pub fn find_ended(&mut self) {
        let unwatched = self.tasks.processes.iter().filter(|(_, process)| process.pidfd.is_none());
        let ended: Vec<Pid> = unwatched.map(|(&pid, _)| pid).filter(|&pid| peek::has_ended(pid)).collect();
        ended.into_iter().for_each(|pid| self.process_ended(pid));
    }

    pub fn forget_process(&mut self, pid: Pid) {
        let Some(process) = self.tasks.processes.remove(&pid) else { return };
        self.tasks.threads.retain(|_, task| task.pid != pid);
        self.leave_space(pid, process.space);
    }

    pub fn leave_space(&mut self, pid: Pid, key: u64) {
        let Some(space) = self.tasks.spaces.get_mut(&key) else { return };
        space.users -= 1;
        // Closed for an execve or an end of the one that leaves; threads that stay, or come, go on.
        space.closed = false;
        if space.users > 0 {
            // A vfork child's call that was on its way.
            let tid = space.running.as_ref().map(|running| running.call.tid);
            if tid.is_some_and(|tid| self.tasks.pid_of(tid).is_none_or(|owner| owner == pid)) {
                self.conclude(key, true);
            }
            self.dispatch_next(key);
            return;
        }
        for call in std::mem::take(&mut space.waiting) {
            self.calls.go_on(call.id);
        }
        // A child that was requested and not seen yet uses it, or has a copy.
        if !self.tasks.begun.iter().any(|begun| begun.space == key && !begun.new.is_thread) {
            self.tasks.spaces.remove(&key);
        }
    }
}
