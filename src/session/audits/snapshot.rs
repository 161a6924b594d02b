//! A snapshot of a process, and how it is joined with the calls that were reported by then.

use crate::ledger::{Origin, Reconciled};
use crate::model::observation::SnapshotMoment;
use crate::model::{Bytes, Observations, Pid};
use crate::procfs::{ObserveError, ObserveOptions, observe};
use crate::session::pipeline::Pipeline;
use crate::session::snapshots::cgroup_limits::with_cgroup_limits;
use crate::session::snapshots::living::for_rules;
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// How long the snapshots took, for `-v`.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotCost {
    pub read: Duration,
    pub reconcile: Duration,
    pub mappings: usize,
}

/// Why a snapshot of a process is discarded.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
pub enum StaleSnapshot {
    #[error("it ended meanwhile")]
    Ended,
    #[error("it executed another program meanwhile")]
    Replaced,
}

/// What was read of a process, not yet compared with its calls.
pub struct Snapshot {
    pub observations: Observations,
    pub(super) read: Duration,
}

impl Snapshot {
    /// Reads through a living thread of the process.
    ///
    /// # Errors
    /// When the process cannot be read.
    pub fn take((pid, tid): (Pid, Pid), moment: SnapshotMoment) -> Result<Snapshot, ObserveError> {
        let begun = Instant::now();
        let options = ObserveOptions { moment, ..for_rules() };
        let observations = with_cgroup_limits(observe(pid, tid, options)?);
        Ok(Snapshot { observations, read: begun.elapsed() })
    }
}

/// How long to wait for the reports of calls that a snapshot of a running process has overtaken: after the
/// snapshot, then again as long as something is not explained. A thread that is not running can be between a
/// call's effect and its report for as long as the machine is busy with others. There is no event to wait for
/// instead: most of these calls have been reported already, the ring does not show that one more is on its
/// way, and no thread is stopped that could be inspected.
const FLIGHTS_MS: [u64; 5] = [1, 3, 10, 40, 150];
/// The ring is read at least this often.
const SLICE_MS: u64 = 10;

/// Joins a snapshot with the calls reported by then.
pub(super) fn joined(
    seen: &Observations,
    pipeline: &RefCell<Pipeline>,
    drain: &mut dyn FnMut() -> bool,
) -> Result<Reconciled, StaleSnapshot> {
    if seen.moment != SnapshotMoment::Live {
        return match drain() {
            true => Ok(pipeline.borrow().spaces.reconcile(seen.pid, seen)),
            false => Err(StaleSnapshot::Ended),
        };
    }
    let mut until = seen.ended_ns;
    let mut result = Err(StaleSnapshot::Ended);
    for (round, flight) in FLIGHTS_MS.into_iter().enumerate() {
        let mut left = flight;
        while left > 0 {
            let slice = left.min(SLICE_MS);
            left -= slice;
            until += slice * 1_000_000;
            pipeline.borrow_mut().hold_after(until);
            if round > 0 {
                std::thread::sleep(Duration::from_millis(slice));
            }
            if !drain() {
                return Err(StaleSnapshot::Ended);
            }
        }
        if pipeline.borrow().spaces.replaced_since(seen.pid, seen.begun_ns) {
            return Err(StaleSnapshot::Replaced);
        }
        let reconciled = pipeline.borrow().spaces.reconcile(seen.pid, seen);
        let explained = reconciled.regions.iter().all(|region| region.origin != Origin::Unknown);
        let agrees = reconciled.drift == Bytes(0) && explained;
        result = Ok(reconciled);
        if agrees {
            break;
        }
    }
    result
}
