//! How to trace.

use super::bpf::{Entering, TouchConfig};
use crate::model::sample;

/// What a backend is to record. Only BPF takes what is named from `running_targets` on: a backend that cannot is
/// not chosen.
#[derive(Clone, Copy, Debug)]
pub struct CaptureConfig {
    /// Most bytes of user stack to copy, at most [`MAX_STACK_BYTES`](super::bpf::MAX_STACK_BYTES); perf copies
    /// fewer where its rings are small.
    pub stack_bytes: u64,
    /// How much of the rings stacks may fill. Perf: over all CPUs, less where the user may lock less.
    pub ring_bytes: u32,
    /// How much there is for calls without stack. BPF has one ring for both: the sum is rounded up to a power of
    /// two of at least a page.
    pub spill_bytes: u32,
    /// Bytes of memory for what was read and not handled yet.
    pub queue_bytes: u32,
    pub follow_forks: bool,
    /// Targets run already when they are added: marking them needs one more program, and the
    /// address spaces of their children are listed.
    pub running_targets: bool,
    /// Record page faults, too.
    pub touch: Option<TouchConfig>,
    /// Programs that are executed in a cgroup are targets, whichever process started them.
    pub entering: Option<Entering>,
}

impl Default for CaptureConfig {
    /// Of a command that is to be started, and its children.
    fn default() -> CaptureConfig {
        CaptureConfig {
            stack_bytes: sample::STACK_BYTES,
            ring_bytes: sample::RING_BYTES,
            spill_bytes: sample::SPILL_BYTES,
            queue_bytes: sample::QUEUE_BYTES,
            follow_forks: true,
            running_targets: false,
            touch: None,
            entering: None,
        }
    }
}
