//! The backend that sees the calls: which one, and what all of them can do.

use super::error::AppError;
use super::remedy::remedy;
use crate::capture::bpf::{BpfConfig, BpfTracer, Entering, MarkedThread, TouchConfig};
use crate::capture::{EventSource, TouchCounters};
use crate::cli::Backend;
use crate::model::Pid;
use std::os::fd::BorrowedFd;

/// What is to be traced.
#[derive(Clone, Debug)]
pub struct TracerOptions {
    pub backend: Backend,
    /// Most bytes of user stack to copy.
    pub stack_bytes: u64,
    /// Room between kernel and vmaudit, and for calls without stack when that is full.
    pub ring_bytes: u32,
    pub spill_bytes: u32,
    pub follow_forks: bool,
    /// The targets run already (`attach`).
    pub running_targets: bool,
    /// Record page faults, too.
    pub touch: Option<TouchConfig>,
    /// Programs executed in a cgroup are targets, whoever started them.
    pub entering: Option<Entering>,
}

/// A backend at work.
pub enum Tracer {
    Bpf(BpfTracer),
}

impl Tracer {
    /// Starts the backend that was asked for, or the best that works.
    ///
    /// # Errors
    /// When none of them works: why, and what would help.
    pub fn start(options: &TracerOptions) -> Result<Tracer, AppError> {
        match options.backend {
            Backend::Auto | Backend::Bpf => bpf(options),
        }
    }

    /// As in the report: `bpf`, `perf`, `notify`.
    pub fn name(&self) -> &'static str {
        match self {
            Tracer::Bpf(_) => "bpf",
        }
    }

    /// What was attached, for `-v`.
    pub fn attached(&self) -> &str {
        match self {
            Tracer::Bpf(tracer) => &tracer.attached,
        }
    }

    /// Marks a process: its calls, and those of its descendants, are reported from now on.
    ///
    /// # Errors
    /// When it is gone, or the kernel refuses.
    pub fn add_target(&self, pid: Pid, pidfd: BorrowedFd<'_>) -> Result<(), AppError> {
        match self {
            Tracer::Bpf(tracer) => Ok(tracer.add_target(pid, pidfd)?),
        }
    }

    /// Marks processes that run already, with all their threads.
    ///
    /// # Errors
    /// As [`BpfTracer::mark_running`].
    pub fn mark_running(&self, targets: &[(Pid, BorrowedFd<'_>)]) -> Result<Vec<MarkedThread>, AppError> {
        match self {
            Tracer::Bpf(tracer) => Ok(tracer.mark_running(targets)?),
        }
    }

    /// Hands each record to `handle`, oldest first.
    ///
    /// # Errors
    /// When the buffers cannot be mapped.
    pub fn reader<'a>(
        &'a self,
        handle: impl FnMut(&[u8]) + 'a,
    ) -> Result<Box<dyn EventSource + 'a>, AppError> {
        match self {
            Tracer::Bpf(tracer) => Ok(Box::new(tracer.reader(handle)?)),
        }
    }

    /// What was counted of page faults; nothing where they are not recorded.
    ///
    /// # Errors
    /// When the kernel does not hand out the counters.
    pub fn touch_counters(&self) -> Result<Option<TouchCounters>, AppError> {
        match self {
            Tracer::Bpf(tracer) => Ok(tracer.touch_counters()?),
        }
    }

    /// To be called just before vmaudit exits.
    pub fn detach_in_background(self) {
        match self {
            Tracer::Bpf(tracer) => tracer.detach_in_background(),
        }
    }
}

fn bpf(options: &TracerOptions) -> Result<Tracer, AppError> {
    let config = BpfConfig {
        stack_bytes: options.stack_bytes,
        ring_bytes: options.ring_bytes,
        spill_bytes: options.spill_bytes,
        follow_forks: options.follow_forks,
        running_targets: options.running_targets,
        touch: options.touch,
        entering: options.entering,
    };
    match BpfTracer::start(&config) {
        Ok(tracer) => Ok(Tracer::Bpf(tracer)),
        Err(source) => Err(AppError::Backend { remedy: remedy(&source), source }),
    }
}
