//! A report's input besides ledger and observations.

use super::model;
use super::timeline::Timeline;
use crate::ledger::Peak;

/// What is true of the whole run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RunFacts {
    /// `bpf`, `perf`, `notify`, `snapshot`.
    pub backend: String,
    pub events: EventCounts,
    /// Containers given by the user.
    pub containers: Vec<model::Container>,
}

/// Counted by the event source and the unwinder.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EventCounts {
    pub seen: u64,
    pub lost: u64,
    pub without_stack: u64,
    pub truncated_stacks: u64,
    pub unwind_incomplete: u64,
}

/// What is known of one process beyond ledger and observations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ProcessFacts {
    pub exit_code: Option<i32>,
    /// The signal that killed it.
    pub signal: Option<i32>,
    /// For a process in a container.
    pub inside: Inside,
    /// Threads ever seen, where that is more than the ledger's records and the living ones.
    pub threads_seen: Option<u64>,
    /// How long it was observed, nanoseconds.
    pub wall_ns: Option<u64>,
    /// It ran already when tracing began.
    pub attached: bool,
    /// Set when the process died without being held and `observations` is the last periodic
    /// snapshot: how long before the death it was taken, nanoseconds.
    pub snapshot_age_ns: Option<u64>,
    /// It was not examined: `observations` are derived from its calls.
    pub by_calls: bool,
    /// CLOCK_MONOTONIC of the first thing seen: what times in the report count from.
    pub began_ns: u64,
    /// From the ledger; None without one.
    pub peak: Option<Peak>,
    /// Its periodic snapshots, where requested.
    pub timeline: Option<Timeline>,
    /// The saved smaps or maps file that `observations` were read from.
    pub source: Option<String>,
}

/// A process as its container sees it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Inside {
    /// The container's name; None outside of containers.
    pub container: Option<String>,
    /// Its number in its own PID namespace.
    pub pid: Option<i32>,
    /// Its share of what is resident: a page that n processes have counts for one n-th.
    pub pss: Option<u64>,
    /// Its threads with names, those of the last snapshot.
    pub threads: Vec<model::NamedThread>,
}
