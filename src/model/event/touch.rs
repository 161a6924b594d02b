//! A page fault, as `--touch` records it.

use crate::model::event::{MmKey, NoStack, Pid, Tid};
use crate::model::{Addr, StackId};

/// One page fault on an address of the program's own, or a sample of several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Touch {
    /// CLOCK_MONOTONIC, nanoseconds.
    pub time_ns: u64,
    pub pid: Pid,
    pub tid: Tid,
    pub mm: MmKey,
    /// The address that was touched, not rounded.
    pub address: Addr,
    /// How many faults this one represents: 1 where none was left out.
    pub weight: u32,
    pub write: bool,
    /// Taken inside the kernel, in a system call of the task: read(2) into a fresh buffer.
    pub in_kernel: bool,
    /// A page was there, but the access was not allowed as it was mapped: a page to be copied, or
    /// an access that is refused.
    pub present: bool,
    pub stack: Result<StackId, NoStack>,
}
