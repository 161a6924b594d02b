//! Which thread's `exit` ends its process? A pure state machine: what it must know of the
//! system comes in as arguments.
//!
//! A thread that was let go on in `exit` stays in /proc/PID/task until it is dead (and the
//! leader, as a zombie, until its whole process is). Such threads are *leaving*: they do not
//! count as living, so that of two last threads that exit at once exactly one is the last.

use crate::model::{Pid, Tid};
use std::collections::{HashMap, HashSet};

/// How long a thread that was let go may need to reach `do_exit`. If it still runs after that
/// time, its number belongs to somebody else: another thread got it, or the process called
/// execve from another thread, which takes over the leader's number (de_thread, fs/exec.c).
const LEAVING_NS: u64 = 1_000_000_000;

/// More processes than that are not remembered: those killed by a signal never say goodbye.
const MAX_PROCESSES: usize = 1024;

/// What /proc tells of one other thread of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ThreadState {
    /// Zombie, dead, or PF_EXITING (include/linux/sched.h) is set.
    Exiting,
    /// It is blocked in a call that is not `exit`.
    InOtherCall,
    /// It runs, or nothing could be read.
    Running,
}

/// Looks at one thread of the process in question.
pub trait LookAtThread {
    fn state(&mut self, tid: Tid) -> ThreadState;
}

impl<F: FnMut(Tid) -> ThreadState> LookAtThread for F {
    fn state(&mut self, tid: Tid) -> ThreadState {
        self(tid)
    }
}

/// A thread that called `exit` and is held there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadExit {
    pub pid: Pid,
    pub tid: Tid,
    /// CLOCK_MONOTONIC, nanoseconds.
    pub now_ns: u64,
}

/// Remembers which threads were let go on in `exit`, and when.
#[derive(Default, Debug)]
pub struct LastThread {
    leaving: HashMap<Pid, HashMap<Tid, u64>>,
}

impl LastThread {
    /// The cheap question, without a list of the threads: true when, of `threads` in all,
    /// there is surely one more beside the exiting and the leaving ones.
    pub fn surely_not_last(&self, exit: ThreadExit, threads: u64) -> bool {
        // A process that was never looked at may have a leader that left before.
        self.leaving.get(&exit.pid).is_some_and(|leaving| threads > leaving.len() as u64 + 1)
    }

    /// The exact question: is nobody in `tasks` (the names in /proc/PID/task) alive but the
    /// one that exits? Threads that are gone from `tasks` are forgotten.
    pub fn is_last(&mut self, exit: ThreadExit, tasks: &[Tid], mut look: impl LookAtThread) -> bool {
        self.bound(exit.pid);
        let leaving = self.leaving.entry(exit.pid).or_default();
        // Only the gone are worth a search; `tasks` is short whenever this is asked often.
        if !leaving.is_empty() {
            let present: HashSet<Tid> = tasks.iter().copied().collect();
            leaving.retain(|tid, _| present.contains(tid));
        }
        // A thread that nobody let go settles it in most cases: look at those first, and at the
        // leader, which stays as a zombie, before all others.
        let others = tasks.iter().copied().filter(|&tid| tid != exit.tid);
        let (known, mut strange): (Vec<Tid>, Vec<Tid>) = others.partition(|tid| leaving.contains_key(tid));
        strange.sort_by_key(|&tid| tid != exit.pid);
        for tid in strange {
            if look.state(tid) != ThreadState::Exiting {
                return false;
            }
            leaving.insert(tid, exit.now_ns);
        }
        let mut last = true;
        for tid in known {
            let since = leaving.get(&tid).copied().unwrap_or(0);
            let on_its_way = match look.state(tid) {
                ThreadState::Exiting => true,
                ThreadState::InOtherCall => false,
                ThreadState::Running => exit.now_ns.saturating_sub(since) < LEAVING_NS,
            };
            if !on_its_way {
                leaving.remove(&tid);
                last = false;
            }
        }
        last
    }

    /// The thread was let go on in `exit` and will die.
    pub fn let_go(&mut self, exit: ThreadExit) {
        self.bound(exit.pid);
        self.leaving.entry(exit.pid).or_default().insert(exit.tid, exit.now_ns);
    }

    fn bound(&mut self, pid: Pid) {
        if self.leaving.len() >= MAX_PROCESSES && !self.leaving.contains_key(&pid) {
            self.leaving.clear();
        }
    }

    /// The process is at its end.
    pub fn forget(&mut self, pid: Pid) {
        self.leaving.remove(&pid);
    }
}

#[cfg(test)]
mod tests {
    use super::ThreadState::{Exiting, InOtherCall, Running};
    use super::*;

    const PID: Pid = 100;

    fn exit(tid: Tid, now_ns: u64) -> ThreadExit {
        ThreadExit { pid: PID, tid, now_ns }
    }

    /// As the server asks: the cheap question first. Lets the thread go when it is not last.
    fn ask(state: &mut LastThread, who: ThreadExit, tasks: &[Tid], others: ThreadState) -> bool {
        if state.surely_not_last(who, tasks.len() as u64) || !state.is_last(who, tasks, |_| others) {
            state.let_go(who);
            return false;
        }
        true
    }

    #[test]
    fn a_single_thread_is_the_last() {
        assert!(ask(&mut LastThread::default(), exit(PID, 0), &[PID], Running));
    }

    #[test]
    fn a_worker_beside_a_living_main_is_not() {
        let mut state = LastThread::default();
        assert!(!ask(&mut state, exit(101, 0), &[PID, 101], InOtherCall));
        // The same worker's number is gone from the list; the next one comes.
        assert!(!ask(&mut state, exit(102, 10), &[PID, 102], InOtherCall));
    }

    #[test]
    fn of_two_last_threads_at_once_one_is_the_last() {
        let mut state = LastThread::default();
        assert!(!ask(&mut state, exit(101, 0), &[PID, 101], Running));
        assert!(ask(&mut state, exit(PID, 1), &[PID, 101], Running));
    }

    #[test]
    fn main_may_leave_first_as_a_zombie() {
        let mut state = LastThread::default();
        assert!(!ask(&mut state, exit(PID, 0), &[PID, 101], Running));
        assert!(ask(&mut state, exit(101, 60 * LEAVING_NS), &[PID, 101], Exiting));
    }

    #[test]
    fn every_order_of_many_threads_gives_one_last() {
        // Thread `n` leaves in the list `lag` exits after it was let go.
        for lag in 0..6 {
            let mut state = LastThread::default();
            let all: Vec<Tid> = (PID..PID + 50).collect();
            let mut lasts = 0;
            for (index, &tid) in all.iter().enumerate() {
                let tasks = &all[index.saturating_sub(lag)..];
                lasts += i32::from(ask(&mut state, exit(tid, index as u64), tasks, Running));
            }
            assert_eq!(lasts, 1, "lag {lag}");
        }
    }

    #[test]
    fn execve_from_a_thread_revives_the_leaders_number() {
        let mut state = LastThread::default();
        // The leader exits, thread 101 calls execve and becomes PID, then makes thread 102.
        assert!(!ask(&mut state, exit(PID, 0), &[PID, 101], Running));
        assert!(!ask(&mut state, exit(102, 10), &[PID, 102], InOtherCall));
        // The same with a new program that computes rather than waits.
        let mut state = LastThread::default();
        assert!(!ask(&mut state, exit(PID, 0), &[PID, 101], Running));
        assert!(!ask(&mut state, exit(102, 2 * LEAVING_NS), &[PID, 102], Running));
    }

    #[test]
    fn a_fresh_server_recognises_a_leader_that_left_before() {
        // The keeper was replaced: nobody remembers that the leader left.
        assert!(ask(&mut LastThread::default(), exit(101, 5), &[PID, 101], Exiting));
    }

    #[test]
    fn the_thread_that_exits_is_never_looked_at() {
        let mut state = LastThread::default();
        assert!(state.is_last(exit(PID, 0), &[PID], |_| -> ThreadState { panic!("looked") }));
    }

    #[test]
    fn memory_is_bounded() {
        let mut state = LastThread::default();
        for pid in 0..10 * MAX_PROCESSES as Pid {
            state.let_go(ThreadExit { pid, tid: pid, now_ns: 0 });
        }
        assert!(state.leaving.len() <= MAX_PROCESSES);
        state.let_go(exit(PID, 0));
        state.forget(PID);
        assert!(!state.leaving.contains_key(&PID));
    }
}
