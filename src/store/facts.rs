//! What is true of the whole run.

use crate::model::Pid;

/// Known when the recording begins.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RunMeta {
    /// vmaudit's version.
    pub version: String,
    /// `bpf`, `perf`, `notify`, `snapshot`.
    pub backend: String,
    /// What was run, or the targets; bytes that are not UTF-8 are replaced.
    pub command: Vec<String>,
    /// Each snapshot became a point of a timeline (`--interval`).
    pub timeline: bool,
    /// Page faults were traced (`--touch`); they are in the report only.
    pub touch: bool,
    /// It is of a heap and has no calls: how the run printed its report, as JSON.
    pub heap: Option<String>,
    /// The process that the report begins with.
    pub main: Pid,
    /// CLOCK_MONOTONIC and CLOCK_REALTIME at the same moment, ns.
    pub started_ns: u64,
    pub started_unix_ns: u64,
}

/// The owner of the file: the user behind sudo.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

/// Known when it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Facts {
    /// Events that were applied to the ledger.
    pub events: u64,
    /// Events of which nothing is known.
    pub dropped: u64,
    /// Events of which all but the stack is known.
    pub without_stack: u64,
    /// Stacks whose copied bytes ended before the root.
    pub truncated: u64,
    /// Stacks with a frame that could not be unwound.
    pub incomplete: u64,
    /// CLOCK_MONOTONIC at the end, ns.
    pub ended_ns: u64,
    /// What vmaudit exited with, if the target ended.
    pub exit_code: Option<u8>,
}
