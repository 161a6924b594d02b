//! Processes and threads that were seen while tracing.

use super::region::ThreadRecord;
use super::spaces::SpaceId;
use crate::model::hash::IntMap;
use crate::model::{FileRef, Pid, Task, Tid};
use std::sync::Arc;

/// Records of threads that are gone are kept up to this many a process, the newest.
const MAX_THREADS: usize = 8192;

/// A process seen while tracing.
#[derive(Clone, Debug)]
pub struct ProcessRecord {
    pub pid: Pid,
    pub parent: Option<Pid>,
    /// Name of its main thread, or of the thread that reported last while that is unknown.
    pub comm: Vec<u8>,
    /// Image of the last execve that was seen.
    pub exe: Option<Arc<FileRef>>,
    /// Time of the last execve that was seen, CLOCK_MONOTONIC.
    pub exec_ns: Option<u64>,
    pub created_ns: Option<u64>,
    /// When it began, as far as that was seen: its fork, or else its first execve.
    pub begun_ns: Option<u64>,
    /// When it was looked at first, if it ran before it was traced.
    pub found_ns: Option<u64>,
    pub exited_ns: Option<u64>,
    /// Wait status, once it is gone: `exit code << 8 | signal`.
    pub wait_status: Option<i32>,
    /// Threads seen since the last execve, living and gone, in order of appearance.
    pub threads: Vec<ThreadRecord>,
    /// All threads ever seen, also those no longer in `threads`.
    pub threads_seen: u64,
    pub(super) thread_index: IntMap<Tid, usize>,
    pub(super) space: Option<SpaceId>,
}

impl ProcessRecord {
    pub(super) fn new(pid: Pid) -> ProcessRecord {
        ProcessRecord {
            pid,
            parent: None,
            comm: Vec::new(),
            exe: None,
            exec_ns: None,
            created_ns: None,
            begun_ns: None,
            found_ns: None,
            exited_ns: None,
            wait_status: None,
            threads: Vec::new(),
            threads_seen: 0,
            thread_index: IntMap::default(),
            space: None,
        }
    }

    /// Exit code, if it exited by itself.
    pub fn exit_code(&self) -> Option<i32> {
        self.wait_status.filter(|&s| s >= 0 && s & 0x7f == 0).map(|s| (s >> 8) & 0xff)
    }

    /// The signal that killed it.
    pub fn signal(&self) -> Option<i32> {
        self.wait_status.filter(|&s| s >= 0).map(|s| s & 0x7f).filter(|&s| s != 0)
    }

    /// The record of a thread that reports or is created now.
    pub(super) fn thread(&mut self, tid: Tid) -> Option<&mut ThreadRecord> {
        let known = self.thread_index.get(&tid).copied();
        let index = match known {
            Some(index) => index,
            None => {
                self.make_room();
                self.threads_seen += 1;
                self.threads.push(ThreadRecord {
                    pid: self.pid,
                    tid,
                    comm: Vec::new(),
                    initial_sp: None,
                    created_ns: None,
                    exited_ns: None,
                });
                let index = self.threads.len() - 1;
                self.thread_index.insert(tid, index);
                index
            }
        };
        self.threads.get_mut(index)
    }

    /// A thread id may come again for a new thread.
    pub(super) fn forget_tid(&mut self, tid: Tid) {
        self.thread_index.remove(&tid);
    }

    fn make_room(&mut self) {
        if self.threads.len() < MAX_THREADS {
            return;
        }
        // The older half of those that are gone.
        let gone = self.threads.iter().filter(|t| t.exited_ns.is_some()).count();
        let mut to_drop = gone.div_ceil(2);
        self.threads.retain(|t| {
            let drop = to_drop > 0 && t.exited_ns.is_some();
            to_drop -= usize::from(drop);
            !drop
        });
        self.thread_index = self
            .threads
            .iter()
            .enumerate()
            .filter(|(_, t)| t.exited_ns.is_none())
            .map(|(i, t)| (t.tid, i))
            .collect();
    }

    /// Notes a task's latest name.
    pub(super) fn see(&mut self, task: &Task) {
        let main = task.tid == self.pid;
        if let Some(thread) = self.thread(task.tid)
            && thread.comm != task.comm
        {
            thread.comm.clone_from(&task.comm);
        }
        if (main || self.comm.is_empty()) && self.comm != task.comm {
            self.comm.clone_from(&task.comm);
        }
    }
}
