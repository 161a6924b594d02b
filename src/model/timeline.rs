//! How much each category of a process had at one moment, and which of many such points are kept.

use super::event::Pid;
use std::borrow::Cow;

/// One snapshot of a process, reduced to sums.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SizePoint {
    pub pid: Pid,
    /// Counts the points of this process, from 1.
    pub number: u64,
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// What is resident was read, too.
    pub rss_known: bool,
    pub categories: Vec<CategorySize>,
}

/// Bytes of one category.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CategorySize {
    /// Its id, as in the report.
    pub category: Cow<'static, str>,
    pub virt: u64,
    /// 0 where it is not known.
    pub rss: u64,
}

/// Of points numbered 1 to `newest`, those whose number this divides are fewer than `most`: a
/// power of two. What is kept depends on the numbers alone, so that two places that thin out the
/// same points, one of them later, end with the same ones.
pub fn stride(newest: u64, most: u64) -> u64 {
    let mut every = 1;
    while newest / every >= most.max(1) {
        every *= 2;
    }
    every
}
