//! Sizes in the course of time, as they are written.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TimelinePoint {
    /// Since the command began (attach: since tracing did).
    pub t_ns: u64,
    pub virt: u64,
    pub rss: Option<u64>,
    /// VIRT; adds up to `virt`.
    pub by_category: BTreeMap<String, u64>,
    /// Added: RSS, where it is not 0; adds up to `rss`.
    pub rss_by_category: BTreeMap<String, u64>,
}

/// The most that was mapped at once: VmPeak, and why.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Peak {
    pub virt: u64,
    /// As in [`TimelinePoint`].
    pub t_ns: u64,
    /// The calls that were alive then: the largest, and those that shrank most since. With `rest`
    /// and `on_the_way` they add up to `virt`.
    pub by_stack: Vec<PeakShare>,
    /// What `by_stack` leaves out.
    pub rest: PeakRest,
    /// Several threads: what the kernel had mapped already (negative: unmapped already) when the
    /// calls were not reported yet.
    pub on_the_way: i64,
    /// With `on_the_way` it adds up to `virt`.
    pub by_category: BTreeMap<String, u64>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PeakShare {
    /// `mmap`, `brk` …; `kernel`, `preexisting` or `unknown` where it was no call.
    pub op: String,
    pub stack: Option<u64>,
    /// Of most of it.
    pub category: String,
    pub bytes: u64,
    /// What calls of this kind with this stack have mapped in `regions`.
    pub now_bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PeakRest {
    pub stacks: u64,
    pub bytes: u64,
    pub now_bytes: u64,
}
