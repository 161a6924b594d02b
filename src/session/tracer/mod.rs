//! A backend at work, and what all of them can do. Which one it is, `choose` says.

pub mod choose;
pub mod remedy;

use super::error::SessionError;
use crate::capture::bpf::{BpfTracer, MarkedThread};
use crate::capture::nothing::Nothing;
use crate::capture::notify::{self, NotifyConfig, NotifyTracer};
use crate::capture::perf::PerfTracer;
use crate::capture::{CaptureConfig, EventSource, Interpreters, KnownStacks, TouchCounters};
use crate::doctor::Rung;
use crate::launch::{CallSet, HoldStep, NotHeld, NotificationTrial, Prepared, Running};
use crate::model::{MmKey, Pid};
use crate::procfs::parse_maps;
use crate::rights::{Use, with_lent};
use nix::errno::Errno;
use std::os::fd::BorrowedFd;

/// Operations, as far as it depends on them what an error means.
const FORKING: &str = "starting a process (fork)";
const INSTALLING: &str = "installing a filter with a listener (seccomp)";
const READING_PLACE: &str = "reading where a held call was made (/proc/TID/syscall)";

/// What is to be traced, by default with the best backend.
#[derive(Clone, Default, Debug)]
pub struct TracerOptions {
    /// The only one that may be taken; None: the best that works.
    pub only: Option<Rung>,
    /// The mapping audit is an addition to another one: the choice of backend is not reported, and may be
    /// none.
    pub is_optional: bool,
    pub capture: CaptureConfig,
    /// Show the verifier's last lines where it refuses a program.
    pub verbose: bool,
}

/// A backend at work.
pub enum Tracer {
    Bpf(Box<BpfTracer>),
    Perf(Box<PerfTracer>),
    Notify(NotifyTracer),
    /// None works, and none is needed.
    Nothing(Nothing),
}

/// What the `notify` backend has notified.
pub const WATCHED_CALLS: CallSet =
    CallSet { numbers: notify::NUMBERS, prctl_options: notify::PRCTL_OPTIONS, executable_files: false };

impl Tracer {
    /// As in the report: `bpf`, `perf`, `notify`.
    pub fn name(&self) -> &'static str {
        match self {
            Tracer::Bpf(_) => "bpf",
            Tracer::Perf(_) => "perf",
            Tracer::Notify(_) => "notify",
            Tracer::Nothing(_) => "none",
        }
    }

    /// What was attached, for `-v`.
    pub fn attached(&self) -> &str {
        match self {
            Tracer::Bpf(tracer) => &tracer.attached,
            Tracer::Perf(tracer) => tracer.attached(),
            Tracer::Notify(tracer) => &tracer.attached,
            Tracer::Nothing(_) => "nothing",
        }
    }

    /// Marks a process: its calls, and those of its descendants, are reported from now on.
    ///
    /// # Errors
    /// When it is gone, or the kernel refuses.
    pub fn add_target(&self, pid: Pid, pidfd: BorrowedFd<'_>) -> Result<(), SessionError> {
        match self {
            Tracer::Bpf(tracer) => Ok(with_lent(Use::Placing, || tracer.add_target(pid, pidfd))?),
            Tracer::Perf(tracer) => Ok(tracer.add_target(pid)?),
            // The filter selects the watched tasks.
            Tracer::Notify(_) | Tracer::Nothing(_) => Ok(()),
        }
    }

    /// What this backend needs of a command that is about to start.
    ///
    /// # Errors
    /// When the command cannot be started so.
    pub fn prepare(&self, prepared: &mut Prepared) -> Result<(), SessionError> {
        match self {
            Tracer::Bpf(_) | Tracer::Perf(_) | Tracer::Nothing(_) => Ok(()),
            Tracer::Notify(_) => Ok(prepared.watch_calls()?),
        }
    }

    /// The calls come through the listener that also holds exits.
    pub fn watches_calls(&self) -> bool {
        matches!(self, Tracer::Notify(_))
    }

    /// To be called at once when the command runs.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn started(&self, running: &mut Running) -> Result<(), SessionError> {
        let Tracer::Notify(tracer) = self else { return Ok(()) };
        match running.take_calls() {
            Some(calls) => Ok(tracer.serve(calls, running.pid())?),
            None => Ok(()),
        }
    }

    /// Marks processes that run already, with all their threads.
    ///
    /// # Errors
    /// As [`BpfTracer::mark_running`]; `choose` never takes another backend for them.
    pub fn mark_running(&self, targets: &[(Pid, BorrowedFd<'_>)]) -> Result<Vec<MarkedThread>, SessionError> {
        match self {
            Tracer::Bpf(tracer) => Ok(with_lent(Use::Placing, || tracer.mark_running(targets))?),
            Tracer::Nothing(_) => Ok(targets.iter().flat_map(|&(pid, _)| living_threads(pid)).collect()),
            Tracer::Perf(_) | Tracer::Notify(_) => Ok(Vec::new()),
        }
    }

    /// Hands each record to `handle`, oldest first.
    ///
    /// # Errors
    /// When the buffers cannot be mapped.
    pub fn reader<'a>(
        &'a self,
        handle: impl FnMut(&[u8]) + 'a,
    ) -> Result<Box<dyn EventSource + 'a>, SessionError> {
        match self {
            Tracer::Bpf(tracer) => Ok(Box::new(tracer.reader(handle)?)),
            Tracer::Perf(tracer) => Ok(Box::new(tracer.reader(handle)?)),
            Tracer::Notify(tracer) => Ok(Box::new(tracer.reader(handle))),
            Tracer::Nothing(nothing) => Ok(Box::new(nothing.reader())),
        }
    }

    /// Publishes to it which stacks it need not send, if it supports that.
    pub fn known_stacks(&self) -> Option<Box<dyn KnownStacks>> {
        match self {
            // Without the table all are sent.
            Tracer::Bpf(tracer) => tracer.known_stacks().ok(),
            Tracer::Perf(_) | Tracer::Notify(_) | Tracer::Nothing(_) => None,
        }
    }

    /// Publishes to it interpreters whose frames it is to send, if it supports that.
    pub fn interpreters(&self) -> Option<Box<dyn Interpreters>> {
        match self {
            Tracer::Bpf(tracer) => tracer.interpreters().ok(),
            Tracer::Perf(_) | Tracer::Notify(_) | Tracer::Nothing(_) => None,
        }
    }

    /// What was counted of page faults; nothing where they are not recorded.
    ///
    /// # Errors
    /// When the kernel does not hand out the counters.
    pub fn touch_counters(&self) -> Result<Option<TouchCounters>, SessionError> {
        match self {
            Tracer::Bpf(tracer) => Ok(tracer.touch_counters()?),
            Tracer::Perf(_) | Tracer::Notify(_) | Tracer::Nothing(_) => Ok(None),
        }
    }

    /// To be called just before vmaudit exits.
    pub fn detach_in_background(self) {
        match self {
            Tracer::Bpf(tracer) => tracer.detach_in_background(),
            Tracer::Perf(tracer) => tracer.detach_in_background(),
            Tracer::Notify(_) | Tracer::Nothing(_) => {}
        }
    }
}

/// From /proc; the pid is used as the key of the address space, for which no call is reported.
fn living_threads(pid: Pid) -> Vec<MarkedThread> {
    let tids = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let tids = tids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let thread = |tid| {
        let mut comm = std::fs::read(format!("/proc/{pid}/task/{tid}/comm")).ok()?;
        comm.pop_if(|last| *last == b'\n');
        Some(MarkedThread { pid, tid, mm: Some(MmKey(pid as u64)), brk: None, comm })
    };
    tids.filter_map(thread).collect()
}

/// Loads and attaches the programs.
pub fn bpf(options: &TracerOptions) -> Result<Tracer, SessionError> {
    Ok(Tracer::Bpf(Box::new(with_lent(Use::Tracing, || BpfTracer::start(&options.capture))?)))
}

/// Finds the tracepoints.
pub fn perf(options: &TracerOptions) -> Result<Tracer, SessionError> {
    // With the user's own rights: perf events go on when a process makes itself not dumpable, and what
    // an ordinary user may have of them is kernel.perf_event_paranoid's to say.
    Ok(Tracer::Perf(Box::new(PerfTracer::start(options.capture)?)))
}

/// Tries whether a call can be held and examined: later, the command itself would fail.
pub fn notify(options: &TracerOptions) -> Result<Tracer, SessionError> {
    let refused = |operation| move |errno: Errno| SessionError::System { operation, source: errno.into() };
    let not_held = |why: NotHeld| match why.step {
        HoldStep::Process => refused(FORKING)(why.errno),
        HoldStep::Listener => refused(INSTALLING)(why.errno),
        HoldStep::Call => refused("holding a call (seccomp user notification)")(why.errno),
    };
    let trial = NotificationTrial::run().map_err(not_held)?;
    trial.held.map_or(Ok(()), |why| Err(not_held(why)))?;
    let steps = [
        (trial.place, READING_PLACE),
        (trial.stack, "reading the stack of a held call (process_vm_readv, /proc/TID/mem)"),
    ];
    for (failed, operation) in steps {
        failed.map_or(Ok(()), |errno| Err(refused(operation)(errno)))?;
    }
    let config = NotifyConfig {
        stack_bytes: options.capture.stack_bytes,
        queue_bytes: options.capture.ring_bytes,
        follow_forks: options.capture.follow_forks,
        parse_maps: |bytes| parse_maps(bytes).mappings,
    };
    Ok(Tracer::Notify(NotifyTracer::start(config)?))
}
