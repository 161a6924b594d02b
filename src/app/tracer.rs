//! The backend that sees the calls: which one, and what all of them can do.

use super::error::AppError;
use super::remedy::{failure, hint, remedy};
use super::say::say;
use crate::capture::bpf::{BpfConfig, BpfTracer, MarkedThread, TouchConfig};
use crate::capture::{CaptureError, EventSource, TouchCounters};
use crate::cli::Backend;
use crate::doctor::{Rung, RungFailure, advice_for};
use crate::model::Pid;
use crate::probe;
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
}

/// A backend that may be taken.
pub struct Candidate {
    pub rung: Rung,
    /// It can trace processes that run already.
    attaches: bool,
    start: fn(&TracerOptions) -> Result<Tracer, CaptureError>,
}

/// All there are, the best first.
pub const CANDIDATES: &[Candidate] = &[Candidate { rung: Rung::Bpf, attaches: true, start: bpf }];

impl Candidate {
    /// Starts it and ends it again: why it does not work here, or None.
    pub fn attempt(&self) -> Option<RungFailure> {
        const SMALL: u32 = 1 << 20;
        let options = TracerOptions {
            backend: Backend::Auto,
            stack_bytes: 4096,
            ring_bytes: SMALL,
            spill_bytes: SMALL,
            follow_forks: true,
            running_targets: self.attaches,
            touch: None,
        };
        (self.start)(&options).err().map(|error| failure(&error))
    }
}

/// The only one that was asked for, or None for `auto`.
fn only(backend: Backend) -> Option<Rung> {
    match backend {
        Backend::Auto => None,
        Backend::Bpf => Some(Rung::Bpf),
    }
}

/// A backend at work.
pub enum Tracer {
    Bpf(BpfTracer),
}

impl Tracer {
    /// Starts the backend that was asked for, or the best that works; says so where a better one
    /// does not.
    ///
    /// # Errors
    /// When none of them works: why, and what would help.
    pub fn start(options: &TracerOptions) -> Result<Tracer, AppError> {
        let only = only(options.backend);
        let mut failures = Vec::new();
        for candidate in CANDIDATES.iter().filter(|each| only.is_none_or(|only| each.rung == only)) {
            if options.running_targets && !candidate.attaches {
                continue;
            }
            match (candidate.start)(options) {
                Ok(tracer) => {
                    tell_choice(candidate.rung, &failures);
                    return Ok(tracer);
                }
                Err(error) => failures.push((candidate.rung, failure(&error))),
            }
        }
        let rung = only.unwrap_or(Rung::Bpf).name();
        if failures.is_empty() {
            return Err(AppError::Usage(format!(
                "the {rung} backend cannot attach to running processes: only bpf can"
            )));
        }
        let standing = probe::standing();
        let each = |(rung, failure): &(Rung, RungFailure)| {
            let (name, text) = (rung.name(), &failure.text);
            format!("backend {name} cannot work here: {text}\n{}", remedy(*rung, failure, &standing))
        };
        Err(AppError::Backend(failures.iter().map(each).collect::<Vec<_>>().join("\n\n")))
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

/// One line, where it is not the best one.
fn tell_choice(taken: Rung, failures: &[(Rung, RungFailure)]) {
    if let Some((rung, failure)) = failures.last() {
        let advice = advice_for(*rung, failure.errno, &probe::standing());
        let (taken, better) = (taken.name(), rung.name());
        say(format_args!("backend {taken}, because {better} does not work: {}", hint(&advice)));
    }
}

fn bpf(options: &TracerOptions) -> Result<Tracer, CaptureError> {
    let config = BpfConfig {
        stack_bytes: options.stack_bytes,
        ring_bytes: options.ring_bytes,
        spill_bytes: options.spill_bytes,
        follow_forks: options.follow_forks,
        running_targets: options.running_targets,
        touch: options.touch,
    };
    Ok(Tracer::Bpf(BpfTracer::start(&config)?))
}
