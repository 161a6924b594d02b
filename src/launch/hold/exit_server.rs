//! Serves the listener: lets threads go that exit from a living process at once, and hands out
//! the final exits.

use super::filter;
use super::last_thread::{LastThread, ThreadExit};
use super::protocol::{HeldNotice, Message};
use super::seccomp::Listener;
use super::task_names::{self, ThreadsOf};
use crate::launch::arch::{self, NR_EXIT, NR_EXIT_GROUP};
use crate::model::{Pid, Tid};
use crate::sys::clock::monotonic_ns;
use crate::sys::task::belongs;
use nix::errno::Errno;

/// What became of one notification.
pub enum Served {
    /// It has its answer, or its task is gone.
    Done,
    /// Its process is at its end and waits for an answer.
    Final(HeldNotice),
    /// It will be refused, and goes on when that is told.
    Strict(Message),
    /// exit_group by a second thread, while the first one's process is held: nobody has to be
    /// told, answering the first kills this one.
    AlsoEnding(HeldNotice),
}

pub struct ExitServer {
    listener: Listener,
    last_thread: LastThread,
    /// Whom the last notification came from: most likely the next one, too.
    recent: Option<Pid>,
    /// Processes held at their end.
    ending: Vec<HeldNotice>,
}

impl ExitServer {
    pub fn new(listener: Listener) -> ExitServer {
        listener.ask_for_sync_wake_up();
        ExitServer { listener, last_thread: LastThread::default(), recent: None, ending: Vec::new() }
    }

    pub fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Decides about a notification that was received (perhaps by somebody else).
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
            NR_EXIT_GROUP => Ok(self.hold(notice)),
            NR_EXIT => {
                let exit = ThreadExit { pid, tid, now_ns: monotonic_ns() };
                if self.is_last(exit, notification.data.arch) {
                    return Ok(self.hold(notice));
                }
                self.last_thread.let_go(exit);
                self.let_go(id)
            }
            _ => self.let_go(id),
        }
    }

    /// What vmaudit is to hear of a call that asks for seccomp's strict mode.
    pub fn strict(&mut self, notification: &libc::seccomp_notif) -> Option<Message> {
        let tid = notification.pid as Tid;
        let (nr, args) = arch::native(&notification.data)?;
        if !filter::asks_for_strict_mode(nr, &args) {
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

    /// Takes over what another server has held and nobody answered.
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

    fn is_last(&mut self, exit: ThreadExit, audit_arch: u32) -> bool {
        if self.surely_not_last(exit) {
            return false;
        }
        // In this order: who is counted must not be forgotten before.
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
