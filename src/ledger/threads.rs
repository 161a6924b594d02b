//! The threads of one process.

use crate::model::hash::IntMap;
use crate::model::{Addr, Pid, Tid};

/// Records of threads that are gone are kept up to this many a process, the newest.
const MAX_THREADS: usize = 8192;

/// A thread seen during tracing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ThreadRecord {
    pub pid: Pid,
    pub tid: Tid,
    /// Latest name.
    pub comm: Vec<u8>,
    /// User stack pointer given to clone: it lies in the thread's stack mapping. None for the
    /// first thread and for threads older than tracing.
    pub initial_sp: Option<Addr>,
    pub created_ns: Option<u64>,
    pub exited_ns: Option<u64>,
}

/// Those seen since the last execve, living and gone, in order of appearance.
#[derive(Clone, Default, Debug)]
pub(super) struct Threads {
    records: Vec<ThreadRecord>,
    /// The newest thread of each id, while it lives.
    index: IntMap<Tid, usize>,
    seen: u64,
}

impl Threads {
    pub(super) fn records(&self) -> &[ThreadRecord] {
        &self.records
    }

    /// All ever seen, also those no longer in `records`.
    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    /// A thread reports, or is examined, under its latest name.
    pub(super) fn see(&mut self, pid: Pid, tid: Tid, comm: &[u8]) {
        let thread = self.record(pid, tid);
        if thread.comm != comm {
            thread.comm = comm.to_vec();
        }
    }

    /// A thread was created; its id may be one that was used before. `sp`: where that is known.
    pub(super) fn begin(&mut self, (pid, tid): (Pid, Tid), comm: &[u8], sp: Option<Addr>, time_ns: u64) {
        self.index.remove(&tid);
        let thread = self.record(pid, tid);
        thread.comm = comm.to_vec();
        thread.initial_sp = sp;
        thread.created_ns = Some(time_ns);
    }

    pub(super) fn end(&mut self, pid: Pid, tid: Tid, time_ns: u64) {
        self.record(pid, tid).exited_ns = Some(time_ns);
        self.index.remove(&tid);
    }

    fn record(&mut self, pid: Pid, tid: Tid) -> &mut ThreadRecord {
        let index = match self.index.get(&tid) {
            Some(&index) => index,
            None => {
                self.drop_exited();
                self.seen += 1;
                let (comm, initial_sp) = (Vec::new(), None);
                self.records.push(ThreadRecord {
                    pid,
                    tid,
                    comm,
                    initial_sp,
                    created_ns: None,
                    exited_ns: None,
                });
                let index = self.records.len() - 1;
                self.index.insert(tid, index);
                index
            }
        };
        &mut self.records[index]
    }

    fn drop_exited(&mut self) {
        if self.records.len() < MAX_THREADS {
            return;
        }
        // The older half of those that are gone.
        let gone = self.records.iter().filter(|t| t.exited_ns.is_some()).count();
        let mut to_drop = gone.div_ceil(2);
        self.records.retain(|t| {
            let drop = to_drop > 0 && t.exited_ns.is_some();
            to_drop -= usize::from(drop);
            !drop
        });
        let living = self.records.iter().enumerate().filter(|(_, t)| t.exited_ns.is_none());
        self.index = living.map(|(i, t)| (t.tid, i)).collect();
    }
}
