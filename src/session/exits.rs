//! Processes that were held at their exit and continued before all their calls were processed: the snapshot
//! waits until the ledger has caught up, and not the process.

use super::audits::Snapshot;
use super::pipeline::Pipeline;
use crate::model::{Observations, Pid};
use crate::objects::OpenRequest;
use std::collections::VecDeque;

/// With as many mappings in what waits (some 20 MB), no more is added.
const MAX_MAPPINGS: usize = 1 << 16;

/// Final snapshots in the order of time.
#[derive(Default)]
pub struct Exits {
    waiting: VecDeque<Snapshot>,
    mappings: usize,
}

impl Exits {
    /// False where so much waits already that the next one has to.
    pub fn has_space(&self) -> bool {
        self.mappings < MAX_MAPPINGS
    }

    pub fn push(&mut self, snapshot: Snapshot) {
        self.mappings += snapshot.observations.mappings.len();
        self.waiting.push_back(snapshot);
    }

    pub fn pop(&mut self) -> Option<Snapshot> {
        let snapshot = self.waiting.pop_front()?;
        self.mappings -= snapshot.observations.mappings.len();
        Some(snapshot)
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// What was reported after this time belongs after the first of them (CLOCK_MONOTONIC, ns).
    pub fn next_ns(&self) -> u64 {
        self.waiting.front().map_or(u64::MAX, |snapshot| snapshot.observations.ended_ns)
    }
}

/// The files that a held process executes are opened: stacks of its calls are still to be unwound when it is
/// gone, and perhaps the files with it (a build deletes what it has tried).
pub fn open_files(seen: &Observations, pipeline: &mut Pipeline) {
    let files = pipeline.unwinder.files_mut();
    for mapping in seen.mappings.iter().filter(|mapping| mapping.prot.exec) {
        let Some(file) = mapping.file_ref() else { continue };
        let request =
            OpenRequest { file: &file, range: mapping.range, pid: Some(seen.pid as Pid), build_id: None };
        // What cannot be opened now is opened again with the first stack, and reported then.
        drop(files.open(&request));
    }
}

/// It may be the last one that has a segment of System V shared memory attached. The size of a removed
/// segment cannot be queried any more: unprocessed calls of other processes may need it (ipc/shm.c,
/// do_shmat).
pub fn keeps_segments(seen: &Observations) -> bool {
    seen.mappings.iter().any(|mapping| mapping.name.starts_with(b"/SYSV"))
}

/// It has made code at run time: frames in it are resolved from its memory.
pub fn has_generated_code(seen: &Observations) -> bool {
    let is_anonymous = |name: &[u8]| name.is_empty() || name.starts_with(b"[anon");
    seen.mappings.iter().any(|m| m.prot.exec && m.file.is_none() && is_anonymous(&m.name))
}
