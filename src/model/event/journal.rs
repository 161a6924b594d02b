//! The ledger's input, in order: a recording is a sequence of these steps, and replaying it gives the same
//! ledger.

use crate::model::event::{MmKey, VmEvent};
use crate::model::observation::Observations;
use crate::model::timeline::SizePoint;

/// One input of the ledger.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// A call, or a step in the life of a task.
    Event(VmEvent),
    /// A process that ran before it was traced, as it was found.
    Found { mm: MmKey, seen: Box<Observations> },
    /// Events older than this were lost (CLOCK_MONOTONIC, ns).
    Lost { time_ns: u64 },
    /// What the kernel showed after a loss.
    Resync(Box<Observations>),
    /// A snapshot that reports are made from: the newest of each process counts.
    Snapshot(Box<Observations>),
    /// The sums of a snapshot: a point of the timeline. It does not change the ledger.
    Point(Box<SizePoint>),
}
