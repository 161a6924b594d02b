//! The order of reports in one address space.

use crate::model::hash::IntMap;
use crate::model::{Tid, VmEvent};

/// Which thread reports, and when: what the order rule needs.
#[derive(Clone, Copy)]
pub(super) struct Report<'a> {
    pub(super) event: &'a VmEvent,
    /// Number of the same thread's report before this one; 0 for its first.
    pub(super) previous: u64,
    /// Number of this report in its address space.
    pub(super) number: u64,
}

/// Reports are numbered from 1 on.
#[derive(Clone, Default, Debug)]
pub(in crate::ledger) struct Reports {
    /// Living threads with the number of their last report.
    threads: IntMap<Tid, u64>,
    number: u64,
    /// Time of the latest one.
    now_ns: u64,
}

impl Reports {
    /// Those of a child of one thread that has not reported anything yet.
    pub(super) fn of_child(&self, tid: Tid) -> Reports {
        Reports { threads: IntMap::from_iter([(tid, 0)]), number: 0, now_ns: self.now_ns }
    }

    pub(super) fn next<'a>(&mut self, event: &'a VmEvent) -> Report<'a> {
        self.number += 1;
        self.now_ns = event.time_ns;
        let previous = self.threads.insert(event.task.tid, self.number).unwrap_or(0);
        Report { event, previous, number: self.number }
    }

    /// A thread that existed already.
    pub(in crate::ledger) fn thread_found(&mut self, tid: Tid) {
        self.threads.entry(tid).or_insert(0);
    }

    /// It did not exist before: no earlier unmapping can be its.
    pub(in crate::ledger) fn thread_began(&mut self, tid: Tid) {
        self.threads.insert(tid, self.number);
    }

    pub(in crate::ledger) fn thread_ended(&mut self, tid: Tid) {
        self.threads.remove(&tid);
    }

    pub(in crate::ledger) fn threads(&self) -> impl Iterator<Item = Tid> {
        self.threads.keys().copied()
    }

    /// One thread at most, so that nothing is on its way.
    pub(in crate::ledger) fn alone(&self) -> bool {
        self.threads.len() <= 1
    }

    /// The smallest last report of all living threads.
    pub(super) fn oldest(&self) -> u64 {
        self.threads.values().copied().min().unwrap_or(u64::MAX)
    }

    /// Number of the latest report.
    pub(in crate::ledger) fn number(&self) -> u64 {
        self.number
    }

    pub(in crate::ledger) fn now_ns(&self) -> u64 {
        self.now_ns
    }
}
