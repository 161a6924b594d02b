//! Serves the listener: lets threads go that exit from a living process at once, and hands out
//! the final exits.

use super::filter;
use super::last_thread::{LastThread, ThreadExit};
use super::protocol::{HeldNotice, Message, Spared};
use super::seccomp::Listener;
use super::task_names::{self, ThreadsOf};
use crate::launch::arch::{self, NR_EXIT, NR_EXIT_GROUP};
use crate::model::{PAGE, Pid, Tid};
use crate::sys::clock::{boottime_ns, monotonic_ns};
use crate::sys::stat::{self, Stat};
use crate::sys::task::belongs;
use nix::errno::Errno;
use std::fmt::Display;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// What became of one notification.
pub enum Served {
    /// It has its answer, or its task is gone.
    Done,
    /// A thread of a process that goes on: to be continued, see [`Leaving`].
    Leaves,
    /// Its process is at its end and waits for an answer.
    Final(HeldNotice),
    /// It will be refused, and continues when that is reported.
    Strict(Message),
    /// exit_group by a second thread, while the first one's process is held: it need not be reported,
    /// answering the first kills this one.
    AlsoEnding(HeldNotice),
}

/// The thread whose exit was judged last: it is continued after the next poll of the listener, and not before. A poll
/// goes through all that wait until it has found one that was received and one that was not (seccomp_notify_poll,
/// kernel/seccomp.c, 6.18). With none received, each poll goes through all: the ends of 10,000 threads took 14 s of a
/// processor, and 0.15 s so.
#[derive(Default)]
pub struct Leaving(Option<u64>);

impl Leaving {
    /// Returns the one before, which is to be continued now: several may be judged between two polls.
    pub fn replace(&mut self, id: u64) -> Option<u64> {
        self.0.replace(id)
    }

    /// How long the poll may wait: not at all while a thread waits for it.
    pub fn patience(&self, timeout: Option<Duration>) -> Option<Duration> {
        if self.0.is_some() { Some(Duration::ZERO) } else { timeout }
    }

    /// What is to be continued now, after a poll.
    pub fn take(&mut self) -> Option<u64> {
        self.0.take()
    }
}

pub struct ExitServer {
    listener: Listener,
    last_thread: LastThread,
    /// The process of the last notification: most likely of the next one, too.
    recent: Option<Pid>,
    /// Processes held at their end.
    ending: Vec<HeldNotice>,
    /// With the namespace that PIDs are of, as [`pid_namespace`].
    spared: Option<(Spared, u64)>,
}

/// Processes that live longer are never spared.
const SHORT_NS: u64 = 1_000_000_000;

impl ExitServer {
    pub fn new(listener: Listener) -> ExitServer {
        listener.request_sync_wake_up();
        let last_thread = LastThread::default();
        ExitServer { listener, last_thread, recent: None, ending: Vec::new(), spared: None }
    }

    pub fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Decides about a notification that was received (perhaps by another process).
    pub fn judge(&mut self, notification: &libc::seccomp_notif) -> Result<Served, Errno> {
        let id = notification.id;
        let tid = notification.pid as Tid;
        if let Some(message) = self.strict(notification) {
            return Ok(Served::Strict(message));
        }
        let nr = match arch::native(&notification.data) {
            Some((libc::SYS_exit, _)) => NR_EXIT,
            Some((libc::SYS_exit_group, _)) => NR_EXIT_GROUP,
            _ => return self.let_go(id),
        };
        let Some(pid) = self.process_of(tid) else {
            return self.let_go(id);
        };
        let status = notification.data.args[0] as i32;
        let notice = HeldNotice { id, pid, tid, nr, status };
        match nr {
            NR_EXIT_GROUP if self.is_spared(tid) => self.let_go(id),
            NR_EXIT_GROUP => Ok(self.hold(notice)),
            NR_EXIT => {
                let exit = ThreadExit { pid, tid, now_ns: monotonic_ns() };
                if self.is_last(exit, notification.data.arch) {
                    return Ok(self.hold(notice));
                }
                self.last_thread.let_go(exit);
                Ok(Served::Leaves)
            }
            _ => self.let_go(id),
        }
    }

    /// The message to vmaudit about a call that requests seccomp's strict mode.
    pub fn strict(&mut self, notification: &libc::seccomp_notif) -> Option<Message> {
        let tid = notification.pid as Tid;
        let (nr, args) = arch::native(&notification.data)?;
        if !filter::requests_strict_mode(nr, &args) {
            return None;
        }
        Some(Message::Strict { pid: self.process_of(tid)?, comm: task_names::comm(tid) })
    }

    /// A final exit has its answer, or its task is gone. Others of its process die with it.
    pub fn answered(&mut self, id: u64) {
        if let Some(pid) = self.ending.iter().find(|held| held.id == id).map(|held| held.pid) {
            self.ending.retain(|held| held.pid != pid);
        }
    }

    /// From now on these are continued like exiting threads of a running process.
    pub fn spare(&mut self, spared: Spared) {
        self.spared = pid_namespace("self").map(|own| (spared, own));
    }

    /// Takes over what another server has held and not answered.
    pub fn inherit(&mut self, held: Vec<HeldNotice>) {
        self.ending = held;
    }

    /// The ids of all that wait for an answer, the first of each process first.
    pub fn ending(&self) -> Vec<u64> {
        self.ending.iter().map(|held| held.id).collect()
    }

    pub fn is_unknown_and_held(&self, id: u64) -> bool {
        self.ending.iter().all(|held| held.id != id) && self.listener.is_held(id)
    }

    fn let_go(&mut self, id: u64) -> Result<Served, Errno> {
        self.listener.let_continue(id)?;
        Ok(Served::Done)
    }

    fn hold(&mut self, notice: HeldNotice) -> Served {
        self.last_thread.forget(notice.pid);
        // An earlier one that is no longer held was killed, or taken away by another thread's
        // execve (de_thread, fs/exec.c): then the process lived on.
        let listener = &self.listener;
        self.ending.retain(|held| held.pid != notice.pid || listener.is_held(held.id));
        let second = self.ending.iter().any(|held| held.pid == notice.pid);
        self.ending.push(notice);
        if second { Served::AlsoEnding(notice) } else { Served::Final(notice) }
    }

    /// A process of one thread, if anybody is to be spared.
    fn is_spared(&self, tid: Tid) -> bool {
        let Some((spared, own)) = self.spared else { return false };
        let judge = |stat: Stat<'_>| is_small_and_short(stat, spared)?.then(|| first_stack(stat)).flatten();
        let Some(first) = stat::of(tid, judge) else { return false };
        // Processes of a container are recognised by their PID namespace.
        task_names::stack_bytes(tid) == Some(first) && pid_namespace(tid) == Some(own)
    }

    fn is_last(&mut self, exit: ThreadExit, audit_arch: u32) -> bool {
        if self.surely_not_last(exit) {
            return false;
        }
        // In this order: a counted process must not be forgotten before.
        self.last_thread.forget_gone(exit.pid, |tid| belongs(tid, exit.pid));
        if self.surely_not_last(exit) {
            return false;
        }
        let Some(tasks) = task_names::threads(exit.pid) else { return false };
        self.last_thread.is_last(exit, &tasks, ThreadsOf { pid: exit.pid, exits: arch::exits(audit_arch) })
    }

    fn surely_not_last(&self, exit: ThreadExit) -> bool {
        task_names::thread_count(exit.pid).is_some_and(|count| self.last_thread.surely_not_last(exit, count))
    }

    fn process_of(&mut self, tid: Tid) -> Option<Pid> {
        if let Some(pid) = self.recent
            && belongs(tid, pid)
        {
            return Some(pid);
        }
        self.recent = task_names::process_of(tid);
        self.recent
    }
}

/// The number of the PID namespace that a thread is in; None where that may not be read.
fn pid_namespace(tid: impl Display) -> Option<u64> {
    std::fs::metadata(format!("/proc/{tid}/ns/pid")).ok().map(|file| file.ino())
}

/// Of the only thread of a process: a first thread that has left has no address space any more, another one is
/// younger than its process.
fn is_small_and_short(stat: Stat<'_>, spared: Spared) -> Option<bool> {
    let started = stat.field::<u64>(stat::START_TIME)?.saturating_mul(stat::TICK_NS);
    let is_alone = stat.field::<u64>(stat::THREADS)? == 1 && !stat.has_ended();
    let is_inner = stat.field::<Pid>(stat::PARENT)? != spared.parent;
    let is_small = stat.field::<u64>(stat::VIRTUAL_SIZE)? < spared.below;
    Some(is_alone && is_inner && is_small && boottime_ns().saturating_sub(started) < SHORT_NS)
}

/// What execve makes of the stack, bytes (`setup_arg_pages`, fs/exec.c): the strings, and space below them.
/// No call shows that it has grown since.
fn first_stack(stat: Stat<'_>) -> Option<u64> {
    const MARGIN: u64 = 128 << 10;
    let from = stat.field::<u64>(stat::ARG_START)? / PAGE * PAGE;
    // The program's name follows: where it begins another page, the process is examined for nothing.
    let to = stat.field::<u64>(stat::ENV_END)?.checked_next_multiple_of(PAGE)?;
    Some(to.checked_sub(from)?.saturating_add(MARGIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: Pid = 40;

    /// A line of stat.
    fn line(parent: Pid, threads: u64, age_ns: u64, size: u64) -> String {
        let started = boottime_ns().saturating_sub(age_ns) / stat::TICK_NS;
        format!("77 (a) b) S {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 {started} {size} 200")
    }

    fn is_spared(line: &str) -> Option<bool> {
        is_small_and_short(Stat::parse(line.as_bytes())?, Spared { below: 1000, parent: PARENT })
    }

    #[test]
    fn small_and_short_processes_that_others_started_are_spared() {
        assert_eq!(is_spared(&line(50, 1, SHORT_NS / 2, 999)), Some(true));
        let others = [
            line(PARENT, 1, SHORT_NS / 2, 999),
            line(50, 2, SHORT_NS / 2, 999),
            line(50, 1, 2 * SHORT_NS, 999),
            line(50, 1, SHORT_NS / 2, 1000),
        ];
        for held in others {
            assert_eq!(is_spared(&held), Some(false), "{held}");
        }
        assert_eq!(is_spared("77 (a) Z 50"), None);
    }

    #[test]
    fn a_stack_that_has_not_grown_is_as_execve_made_it() {
        let own = |strings: &str| {
            let output = std::process::Command::new("/bin/cat")
                .args(["/proc/self/stat", "/proc/self/status"])
                .env("STRINGS", strings)
                .output()
                .expect("cat");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let (stat, status) = text.split_once('\n').expect("two files");
            let stat = Stat::parse(stat.as_bytes()).expect("sound");
            (first_stack(stat), task_names::stack_of(status.as_bytes()))
        };
        for strings in ["", &"a".repeat(5000), &"b".repeat(100_000)] {
            let (first, now) = own(strings);
            assert!(first.is_some() && first == now, "{first:?} {now:?}");
        }
    }
}
