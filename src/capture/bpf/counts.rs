//! Counters of the kernel's side, read in memory that is shared with it.
//!
//! No bpf(2): while one is in a map, the kernel skips programs of function returns and of perf events on
//! that CPU (`bpf_prog_active`), and vmaudit may be preempted in there.

use super::shared::SharedArray;
use crate::capture::CaptureError;
use nix::sys::mman::ProtFlags;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// Entries that such a map needs: one for each CPU that may be there.
///
/// # Errors
/// When the kernel does not say how many.
pub(in crate::capture) fn entries() -> Result<u32, CaptureError> {
    let cpus = libbpf_rs::num_possible_cpus().map_err(CaptureError::Load)?;
    Ok(cpus as u32)
}

/// Of an array map whose value is `V`: nothing but counters (u64) of one CPU.
pub(in crate::capture) struct Counts {
    counters: SharedArray,
    cpus: usize,
    /// Counters of each CPU.
    each: usize,
}

impl Counts {
    /// # Errors
    /// When the kernel does not map it.
    pub fn of<V>(map: impl AsFd) -> Result<Counts, CaptureError> {
        let cpus = entries()? as usize;
        let each = size_of::<V>() / size_of::<u64>();
        Ok(Counts { counters: SharedArray::of::<V>(map, cpus, ProtFlags::PROT_READ)?, cpus, each })
    }

    /// The sum over all CPUs; 0 for a counter that the map has not.
    pub fn sum(&self, which: usize) -> u64 {
        if which >= self.each {
            return 0;
        }
        // SAFETY: the mapping has `cpus` times `each` counters, aligned to a page, for the life of `self`; the
        // kernel's side changes them atomically.
        let counters = unsafe {
            std::slice::from_raw_parts(self.counters.first::<AtomicU64>().as_ptr(), self.cpus * self.each)
        };
        counters.iter().skip(which).step_by(self.each).map(|counter| counter.load(Ordering::Relaxed)).sum()
    }
}
