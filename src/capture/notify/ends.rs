//! The ends of threads, processes and address spaces.

use super::server::Server;
use super::tell::Who;
use crate::capture::record::op;
use crate::model::{HeldCall, HeldCalls, Pid};
use std::os::fd::OwnedFd;

/// The wait status of a process of whose end nothing is known but that it was.
const UNKNOWN_STATUS: i32 = -1;

impl<C: HeldCalls> Server<C> {
    pub fn thread_ended(&mut self, pid: Pid, call: &HeldCall, key: u64) {
        let mut record = Who { pid, tid: call.tid, mm: key }.record(op::EXIT);
        record.args[0] = (call.args[0] & 0xff) << 8;
        self.tasks.threads.remove(&call.tid);
        self.tell.event(record, &[]);
    }

    /// The kernel says that a process has ended.
    pub fn process_ended(&mut self, pid: Pid) {
        let Some(process) = self.tasks.processes.get(&pid) else { return };
        let key = process.space;
        let ended_by = process.ended_by;
        let code = ended_by.map(|(_, status)| status).or_else(|| exit_code(pid, process.pidfd.as_ref()));
        if self.tasks.running_tid(key).and_then(|tid| self.tasks.pid_of(tid)) == Some(pid) {
            self.conclude(key, true);
        }
        let tid = ended_by.map_or(pid, |(tid, _)| tid);
        let mut record = Who { pid, tid, mm: key }.record(op::EXIT);
        record.args = [i64::from(code.unwrap_or(UNKNOWN_STATUS)) as u64, 1, 0, 0, 0, 0];
        self.forget_process(pid);
        self.tell.event(record, &[]);
    }

    pub fn forget_process(&mut self, pid: Pid) {
        let Some(process) = self.tasks.processes.remove(&pid) else { return };
        self.tasks.threads.retain(|_, task| task.pid != pid);
        self.leave_space(pid, process.space);
    }

    pub fn leave_space(&mut self, pid: Pid, key: u64) {
        let Some(space) = self.tasks.spaces.get_mut(&key) else { return };
        space.users -= 1;
        // Closed for an execve or an end of the one that leaves; who stays, or comes, goes on.
        space.closed = false;
        if space.users > 0 {
            // A vfork child's call that was on its way.
            let tid = space.running.as_ref().map(|running| running.call.tid);
            if tid.is_some_and(|tid| self.tasks.pid_of(tid).is_none_or(|owner| owner == pid)) {
                self.conclude(key, true);
            }
            self.pump(key);
            return;
        }
        for call in std::mem::take(&mut space.waiting) {
            self.calls.go_on(call.id);
        }
        // A child that was asked for and not met yet lives in it, or has a copy.
        if !self.tasks.begun.iter().any(|begun| begun.space == key && !begun.new.is_thread) {
            self.tasks.spaces.remove(&key);
        }
    }
}

/// The wait status of a process that has ended: from its pidfd once it has been waited for (6.15),
/// until then from /proc. Somebody may wait for it between the two, hence a second look.
fn exit_code(pid: Pid, pidfd: Option<&OwnedFd>) -> Option<i32> {
    let reaped = || pidfd.and_then(super::pidfd_info::exit_code);
    reaped().or_else(|| zombie_code(pid)).or_else(reaped)
}

fn zombie_code(pid: Pid) -> Option<i32> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let after = stat.iter().rposition(|&b| b == b')')? + 2;
    let text = std::str::from_utf8(stat.get(after..)?).ok()?;
    // Field 52; the first here is 3.
    text.split_ascii_whitespace().nth(49)?.parse().ok()
}
