//! Which thread's `exit` ends its process? A pure state machine: what it must know of the
//! system comes in as arguments.
//!
//! A thread that was continued in `exit` stays in /proc/PID/task until it is dead (and the leader, as a
//! zombie, until its whole process is). Such threads are *leaving*: they do not count as living, so that of
//! two last threads that exit at once exactly one is the last.

use crate::model::{Pid, Tid};
use std::collections::{HashMap, HashSet};

/// How long a thread that was continued may need to reach `do_exit`. If it still runs after that time, its
/// number has been reused: another thread got it, or the process called execve from another thread, which
/// takes over the leader's number (de_thread, fs/exec.c).
const LEAVING_NS: u64 = 1_000_000_000;

/// Up to so many threads, checking each is cheaper than listing all.
const FEW: usize = 4;

/// More processes than that are not remembered: those killed by a signal never say goodbye.
const MAX_PROCESSES: usize = 1024;

/// Inspects the threads of the process in question. Both checks are expensive, and made only where necessary.
pub trait ThreadProbe {
    /// True for a zombie, and when PF_EXITING (include/linux/sched.h) is set.
    fn is_exiting(&mut self, tid: Tid) -> bool;
    /// True when it is blocked in a call that is not `exit`. To answer, the kernel may wait a
    /// timer tick for the thread to leave its CPU (wait_task_inactive, kernel/sched/core.c).
    fn is_in_other_call(&mut self, tid: Tid) -> bool;
}

/// A thread that called `exit` and is held there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadExit {
    pub pid: Pid,
    pub tid: Tid,
    /// CLOCK_MONOTONIC, nanoseconds.
    pub now_ns: u64,
}

/// Remembers which threads were continued in `exit`, and when.
#[derive(Default, Debug)]
pub struct LastThread {
    leaving: HashMap<Pid, HashMap<Tid, u64>>,
}

impl LastThread {
    /// The cheap check, without a list of the threads: true when, of `threads` in all, there is surely one
    /// more than the exiting and the leaving ones.
    pub fn surely_not_last(&self, exit: ThreadExit, threads: u64) -> bool {
        // A process that was never examined may have a leader that left before.
        self.leaving.get(&exit.pid).is_some_and(|leaving| threads > leaving.len() as u64 + 1)
    }

    /// Forgets those that were continued and are gone, as long as their number is small.
    pub fn forget_gone(&mut self, pid: Pid, mut exists: impl FnMut(Tid) -> bool) {
        if let Some(leaving) = self.leaving.get_mut(&pid)
            && leaving.len() <= FEW
        {
            leaving.retain(|&tid, _| exists(tid));
        }
    }

    /// The exact check: is the exiting thread the only one in `tasks` (the names in /proc/PID/task) that is
    /// alive? Threads that are gone from `tasks` are forgotten.
    pub fn is_last(&mut self, exit: ThreadExit, tasks: &[Tid], mut probe: impl ThreadProbe) -> bool {
        self.bound(exit.pid);
        let leaving = self.leaving.entry(exit.pid).or_default();
        // Only the gone are worth a search; `tasks` is short whenever this is called often.
        if !leaving.is_empty() {
            let present: HashSet<Tid> = tasks.iter().copied().collect();
            leaving.retain(|tid, _| present.contains(tid));
        }
        // A thread that was not continued settles it in most cases: check those first, and at the leader,
        // which stays as a zombie, before all others.
        let others = tasks.iter().copied().filter(|&tid| tid != exit.tid);
        let (known, mut strange): (Vec<Tid>, Vec<Tid>) = others.partition(|tid| leaving.contains_key(tid));
        strange.sort_by_key(|&tid| tid != exit.pid);
        for tid in strange {
            if !probe.is_exiting(tid) {
                return false;
            }
            leaving.insert(tid, exit.now_ns);
        }
        let mut last = true;
        for tid in known {
            let since = leaving.get(&tid).copied().unwrap_or(0);
            let on_its_way = probe.is_exiting(tid)
                || exit.now_ns.saturating_sub(since) < LEAVING_NS
                    // Only the leader's number can have a new owner that soon.
                    && !(tid == exit.pid && probe.is_in_other_call(tid));
            if !on_its_way {
                leaving.remove(&tid);
                last = false;
            }
        }
        last
    }

    /// The thread was continued in `exit` and will die.
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
    use super::*;

    /// All threads are in the same state.
    #[derive(Clone, Copy)]
    enum Others {
        Exiting,
        InOtherCall,
        Running,
    }
    use Others::{Exiting, InOtherCall, Running};

    impl ThreadProbe for Others {
        fn is_exiting(&mut self, _: Tid) -> bool {
            matches!(self, Exiting)
        }
        fn is_in_other_call(&mut self, _: Tid) -> bool {
            matches!(self, InOtherCall)
        }
    }

    /// No thread is to be examined.
    struct Nobody;
    impl ThreadProbe for Nobody {
        fn is_exiting(&mut self, tid: Tid) -> bool {
            panic!("examined {tid}")
        }
        fn is_in_other_call(&mut self, tid: Tid) -> bool {
            panic!("examined {tid}")
        }
    }

    const PID: Pid = 100;

    fn exit(tid: Tid, now_ns: u64) -> ThreadExit {
        ThreadExit { pid: PID, tid, now_ns }
    }

    /// As in the server: the cheap check first. Lets the thread go when it is not last.
    fn is_last(state: &mut LastThread, who: ThreadExit, tasks: &[Tid], others: Others) -> bool {
        if state.surely_not_last(who, tasks.len() as u64) || !state.is_last(who, tasks, others) {
            state.let_go(who);
            return false;
        }
        true
    }

    #[test]
    fn a_single_thread_is_the_last() {
        assert!(is_last(&mut LastThread::default(), exit(PID, 0), &[PID], Running));
    }

    #[test]
    fn a_worker_of_a_running_main_thread_is_not() {
        let mut state = LastThread::default();
        assert!(!is_last(&mut state, exit(101, 0), &[PID, 101], InOtherCall));
        // The same worker's number is gone from the list; the next one comes.
        assert!(!is_last(&mut state, exit(102, 10), &[PID, 102], InOtherCall));
    }

    #[test]
    fn of_two_last_threads_at_once_one_is_the_last() {
        let mut state = LastThread::default();
        assert!(!is_last(&mut state, exit(101, 0), &[PID, 101], Running));
        assert!(is_last(&mut state, exit(PID, 1), &[PID, 101], Running));
    }

    #[test]
    fn main_may_leave_first_as_a_zombie() {
        let mut state = LastThread::default();
        assert!(!is_last(&mut state, exit(PID, 0), &[PID, 101], Running));
        assert!(is_last(&mut state, exit(101, 60 * LEAVING_NS), &[PID, 101], Exiting));
    }

    #[test]
    fn every_order_of_many_threads_gives_one_last() {
        // Thread `n` leaves in the list `lag` exits after it was continued.
        for lag in 0..6 {
            let mut state = LastThread::default();
            let all: Vec<Tid> = (PID..PID + 50).collect();
            let mut lasts = 0;
            for (index, &tid) in all.iter().enumerate() {
                let tasks = &all[index.saturating_sub(lag)..];
                lasts += i32::from(is_last(&mut state, exit(tid, index as u64), tasks, Running));
            }
            assert_eq!(lasts, 1, "lag {lag}");
        }
    }

    #[test]
    fn execve_from_a_thread_revives_the_leaders_number() {
        let mut state = LastThread::default();
        // The leader exits, thread 101 calls execve and becomes PID, then makes thread 102.
        assert!(!is_last(&mut state, exit(PID, 0), &[PID, 101], Running));
        assert!(!is_last(&mut state, exit(102, 10), &[PID, 102], InOtherCall));
        // The same with a new program that computes rather than waits.
        let mut state = LastThread::default();
        assert!(!is_last(&mut state, exit(PID, 0), &[PID, 101], Running));
        assert!(!is_last(&mut state, exit(102, 2 * LEAVING_NS), &[PID, 102], Running));
    }

    #[test]
    fn a_fresh_server_recognises_a_leader_that_left_before() {
        // The keeper was replaced: the leader's exit was forgotten.
        assert!(is_last(&mut LastThread::default(), exit(101, 5), &[PID, 101], Exiting));
    }

    #[test]
    fn the_thread_that_exits_is_never_examined() {
        let mut state = LastThread::default();
        assert!(state.is_last(exit(PID, 0), &[PID], Nobody));
    }

    #[test]
    fn the_gone_are_forgotten_while_they_are_few() {
        let mut state = LastThread::default();
        for tid in [101, 102] {
            assert!(!is_last(&mut state, exit(tid, 0), &[PID, 101, 102], Running));
        }
        assert!(!state.surely_not_last(exit(103, 1), 2));
        state.forget_gone(PID, |tid| tid == 102);
        assert!(!state.surely_not_last(exit(103, 1), 2));
        state.forget_gone(PID, |_| false);
        assert!(state.surely_not_last(exit(103, 1), 2));
        // Of an unknown process nothing is certain.
        assert!(!state.surely_not_last(ThreadExit { pid: 7, tid: 8, now_ns: 0 }, 2));
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
