//! `vmaudit run`: from the command line to the report.

use super::audits::EventTotals;
use super::dump::Dump;
use super::error::AppError;
use super::output;
use super::pipeline::Pipeline;
use super::say::say;
use super::session::{End, Schedule, Session};
use crate::capture::bpf::{BpfConfig, BpfTracer, TouchConfig};
use crate::capture::{Counters, EventSource};
use crate::cli::{Aslr, RunArgs};
use crate::model::Pid;
use crate::target::{Launch, LaunchConfig};
use crate::touch::{TouchTotals, Touches};
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

const REMEDY: &str = "vmaudit run needs root, or CAP_BPF and CAP_PERFMON (CAP_SYS_PTRACE for other users' \
                      processes), and a kernel with BTF (5.15 or later): try sudo vmaudit run …";

/// Starts the command under audit; returns vmaudit's exit code.
pub fn run(args: &RunArgs) -> Result<u8, AppError> {
    let begun = Instant::now();
    let dump = match &args.dump_events {
        Some(path) => {
            Some(Dump::create(path).map_err(|source| AppError::Write { path: path.clone(), source })?)
        }
        None => None,
    };
    let prepared = Launch::prepare(LaunchConfig {
        argv: args.command.clone(),
        env: Vec::new(),
        aslr_off: args.aslr == Aslr::Off,
        as_root: args.as_root,
        hold_exits: !args.no_exit_hold,
    })?;
    let pid = prepared.pid();
    let tracer = BpfTracer::start(&BpfConfig {
        stack_bytes: args.stack_bytes,
        ring_bytes: args.ring_bytes,
        spill_bytes: args.spill_bytes,
        follow_forks: !args.no_follow_forks,
        touch: args
            .touch
            .then_some(TouchConfig { budget: args.touch_budget, ring_bytes: args.touch_ring_bytes }),
    })
    .map_err(|source| AppError::Backend { source, remedy: REMEDY })?;
    tracer.add_target(pid, pidfd(pid)?.as_fd())?;
    if args.verbose {
        say(format_args!("backend bpf, {} attached after {:.1?}", tracer.attached, begun.elapsed()));
    }
    let pipeline = RefCell::new(Pipeline::new(dump));
    pipeline.borrow_mut().touches = args.touch.then(Touches::default);
    let (end, audits, counters) = {
        let mut reader = tracer.reader(|raw| pipeline.borrow_mut().record(raw))?;
        let running = prepared.go()?;
        for note in running.notes() {
            say(format_args!("{note}"));
        }
        let schedule = Schedule {
            duration: args.duration.map(Duration::from_secs_f64),
            interval: Duration::from_secs_f64(args.interval),
            verbose: args.verbose,
        };
        let mut session = Session::new(running, &mut reader, &pipeline, schedule);
        let end = session.run()?;
        let audits = std::mem::take(&mut session.audits);
        drop(session);
        (end, audits, reader.counters()?)
    };
    let mut pipeline = pipeline.into_inner();
    if let (Err(source), Some(path)) = (pipeline.finish_dump(), &args.dump_events) {
        return Err(AppError::Write { path: path.clone(), source });
    }
    warn(&pipeline, counters);
    let events = EventTotals {
        dropped: counters.lost + pipeline.undecodable(),
        without_stack: counters.without_stack,
        touch: tracer.touch_counters()?.map_or_else(TouchTotals::default, |counted| TouchTotals {
            faults: counted.faults,
            sampled: counted.sampled,
            lost: counted.lost,
        }),
    };
    let reporting = Instant::now();
    let (report, notes) = audits.report(pid, events, &mut pipeline);
    for note in notes {
        say(format_args!("{note}"));
    }
    output::write(&report, args)?;
    if args.verbose {
        say(format_args!("report made in {:.1?}", reporting.elapsed()));
    }
    tracer.detach_in_background();
    Ok(match end {
        End::Exited(status) => status.exit_code(),
        End::LeftRunning => 0,
    })
}

/// What the user should know about the numbers.
fn warn(pipeline: &Pipeline, counters: Counters) {
    let tally = pipeline.tally;
    if counters.lost_tasks > 0 {
        say(format_args!("{} new threads or processes could not be followed", counters.lost_tasks));
    }
    if tally.listener_refused > 0 {
        say(format_args!(
            "the command asked for a seccomp listener of its own and was refused (EBUSY), because \
             vmaudit holds exits with one: run it with --no-exit-hold"
        ));
    }
    if tally.compat > 0 {
        say(format_args!(
            "32-bit programs were started: their calls are not traced, rows rest on the last look"
        ));
    }
}

/// A stable handle of a child that has not been waited for.
fn pidfd(pid: Pid) -> Result<OwnedFd, AppError> {
    // SAFETY: pidfd_open takes two integers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(AppError::System {
            operation: "pidfd_open of the command",
            source: io::Error::last_os_error(),
        });
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
