//! The system's data for recognising the last thread: names and numbers of threads, and whether one is
//! exiting. Residency and mappings are read elsewhere.

use super::last_thread::ThreadProbe;
use super::protocol::Comm;
use crate::model::{Pid, Tid};
use crate::sys::stat::{self, Stat};
use crate::sys::{file, task};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// The process of a thread; None when it is gone or hidden (hidepid).
pub fn process_of(tid: Tid) -> Option<Pid> {
    if task::belongs(tid, tid) {
        return Some(tid);
    }
    let status = file::read(format!("/proc/{tid}/status")).ok()?;
    tgid_from_status(&status)
}

fn tgid_from_status(status: &[u8]) -> Option<Pid> {
    field(status, "Tgid:")?.parse().ok()
}

fn field<'s>(status: &'s [u8], name: &str) -> Option<&'s str> {
    let lines = status.split(|&byte| byte == b'\n');
    let line = lines.filter_map(|line| line.strip_prefix(name.as_bytes())).next()?;
    Some(std::str::from_utf8(line).ok()?.trim())
}

/// What the process has of stacks that the kernel extends (VmStk: `mm->stack_vm`), bytes.
pub fn stack_bytes(pid: Pid) -> Option<u64> {
    stack_of(&file::read(format!("/proc/{pid}/status")).ok()?)
}

pub fn stack_of(status: &[u8]) -> Option<u64> {
    field(status, "VmStk:")?.strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The thread's name; empty when it is gone.
pub fn comm(tid: Tid) -> Comm {
    let name = file::read(format!("/proc/{tid}/comm")).unwrap_or_default();
    let name = name.strip_suffix(b"\n").unwrap_or(&name);
    let mut comm = Comm::default();
    // At most 15 bytes (TASK_COMM_LEN, include/linux/sched.h).
    comm.iter_mut().zip(name).take(15).for_each(|(to, from)| *to = *from);
    comm
}

/// How many threads the process has, exiting ones and a zombie leader included, without
/// listing them: the links of /proc/PID/task are 2 and one for each (proc_task_getattr,
/// fs/proc/base.c).
pub fn thread_count(pid: Pid) -> Option<u64> {
    fs::metadata(format!("/proc/{pid}/task")).ok()?.nlink().checked_sub(2)
}

/// How often a list is taken again because threads came or went meanwhile.
const LIST_ATTEMPTS: usize = 200;

/// The names in /proc/PID/task, all of them. None when the process is gone, or never holds still.
/// A list ends early when the thread that it has come to is reaped just then (next_tid,
/// fs/proc/base.c), so only one during which the number of threads stayed the same will do.
pub fn threads(pid: Pid) -> Option<Vec<Tid>> {
    for _ in 0..LIST_ATTEMPTS {
        let before = thread_count(pid)?;
        let entries = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        let tids: Vec<Tid> =
            entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
        if tids.len() as u64 == before && thread_count(pid) == Some(before) {
            return Some(tids);
        }
    }
    None
}

/// How often a thread is checked again, at most, and with which pause. The kernel announces neither that a
/// thread has set PF_EXITING nor that it made a call which is not notified: polling is the only way.
const POLLS: usize = 20;
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The threads of a process.
pub struct ThreadsOf {
    pub pid: Pid,
    /// The numbers by which it calls exit and exit_group.
    pub exits: [i32; 2],
}

impl ThreadProbe for ThreadsOf {
    /// True, too, for one that has vanished.
    fn is_exiting(&mut self, tid: Tid) -> bool {
        fs::read(format!("/proc/{}/task/{tid}/stat", self.pid)).map_or(true, |stat| is_exiting(&stat))
    }

    /// Polls for a while: one that was continued has only some instructions left to PF_EXITING, and a new
    /// program seldom computes that long without any call.
    fn is_in_other_call(&mut self, tid: Tid) -> bool {
        for _ in 0..POLLS {
            let line = fs::read(format!("/proc/{}/task/{tid}/syscall", self.pid));
            if line.is_ok_and(|line| is_in_other_call(&line, self.exits)) {
                return true;
            }
            if self.is_exiting(tid) {
                return false;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        false
    }
}

fn is_exiting(bytes: &[u8]) -> bool {
    let Some(stat) = Stat::parse(bytes) else { return false };
    let flags: Option<u64> = stat.field(stat::FLAGS);
    stat.has_ended() || flags.is_some_and(|flags| flags & stat::PF_EXITING != 0)
}

/// `running`, or `nr args… sp pc`, nr -1 when blocked outside of a call.
fn is_in_other_call(line: &[u8], exits: [i32; 2]) -> bool {
    let first = line.split(|&byte| byte == b' ').next().unwrap_or(line);
    let nr = std::str::from_utf8(first).ok().and_then(|word| word.parse::<i32>().ok());
    nr.is_some_and(|nr| nr >= 0 && !exits.contains(&nr))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_process_in_status() {
        assert_eq!(tgid_from_status(b"Name:\tTgid: 3\nTgid:\t4123\nNgid:\t0\n"), Some(4123));
        assert_eq!(tgid_from_status(b"Name:\tx\n"), None);
        assert_eq!(tgid_from_status(b"Tgid:\t\xff\n"), None);
    }

    #[test]
    fn recognises_exiting_threads_whatever_their_name() {
        assert!(!is_exiting(b"7 (a) Z 1 (b) S 1 7 7 0 -1 4194304 0 0"));
        assert!(is_exiting(b"7 (a) S 1 (b) Z 1 7 7 0 -1 4194304 0 0"));
        assert!(is_exiting(b"7 (b) R 1 7 7 0 -1 4194308 0 0"));
        assert!(!is_exiting(b"7 (b"));
        assert!(!is_exiting(b""));
    }

    #[test]
    fn distinguishes_exit_from_other_calls() {
        let in_other = |line: &str| is_in_other_call(line.as_bytes(), [1, 252]);
        assert!(in_other("202 0x1 0x2 0x3 0x4 0x5 0x6 0x7ffe 0x7fff\n"));
        assert!(!in_other("252 0x0"));
        assert!(!in_other("running\n"));
        assert!(!in_other("-1 0x7ffe 0x7fff\n"));
    }

    #[test]
    fn counts_this_process() {
        let own = std::process::id() as Pid;
        let listed = threads(own).map(|all| all.contains(&own));
        assert_eq!(listed, Some(true));
        assert!(thread_count(own).is_some_and(|count| count >= 1));
        assert_eq!(process_of(own), Some(own));
    }
}
