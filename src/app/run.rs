//! `vmaudit run`: from the command line to the report.

use super::conclude::{Gathered, conclude};
use super::dump::Dump;
use super::error::AppError;
use super::load::Load;
use super::output::Destination;
use super::pipeline::Pipeline;
use super::record::{Record, RecordOptions};
use super::say::say;
use super::session::{End, Schedule, Session};
use super::touch;
use super::tracer::{Tracer, TracerOptions};
use super::watched::Launched;
use crate::cli::{Aslr, RunArgs};
use crate::model::Pid;
use crate::target::{Launch, LaunchConfig};
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// The first look at the command: most that die early by a signal live longer.
const FIRST_LOOK: Duration = Duration::from_millis(200);
/// How often to look, for those that a signal kills later.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

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
        env: args.change.environment(),
        aslr_off: args.aslr == Aslr::Off,
        stack_limit: args.change.stack_limit,
        as_root: args.as_root,
        hold_exits: !args.no_exit_hold,
    })?;
    let pid = prepared.pid();
    let tracer = Tracer::start(&TracerOptions {
        backend: args.backend,
        stack_bytes: args.stack_bytes,
        ring_bytes: args.ring_bytes,
        spill_bytes: args.spill_bytes,
        follow_forks: !args.no_follow_forks,
        running_targets: false,
        touch: touch::config(&args.touch),
    })?;
    tracer.add_target(pid, pidfd(pid)?.as_fd())?;
    if args.verbose {
        say(format_args!(
            "backend {}, {} attached after {:.1?}",
            tracer.name(),
            tracer.attached(),
            begun.elapsed()
        ));
    }
    let pipeline = RefCell::new(Pipeline::new(tracer.name(), dump));
    let recorded = RecordOptions {
        backend: tracer.name(),
        path: args.output.as_deref(),
        timeline: args.interval.is_some(),
        touch: args.touch.touch,
        verbose: args.verbose,
    };
    pipeline.borrow_mut().touches = touch::begin(&args.touch);
    pipeline.borrow_mut().record = Record::begin(recorded, pid, &args.command)?;
    let (end, audits, counters) = {
        let mut reader = tracer.reader(|raw| pipeline.borrow_mut().record(raw))?;
        let running = prepared.go()?;
        for note in running.notes() {
            say(format_args!("{note}"));
        }
        let schedule = Schedule {
            duration: args.duration.map(Duration::from_secs_f64),
            first_look: FIRST_LOOK,
            interval: args.interval.map_or(LOOK_PAUSE, Duration::from_secs_f64),
            timeline: args.interval.is_some(),
            verbose: args.verbose,
        };
        let load =
            args.load.as_ref().map(|script| Load::start(&running, script, args.as_root)).transpose()?;
        let mut session = Session::new(Launched::new(running), &mut *reader, &pipeline, schedule);
        session.load = load;
        let end = session.run()?;
        let audits = std::mem::take(&mut session.audits);
        drop(session);
        (end, audits, reader.counters()?)
    };
    let mut pipeline = pipeline.into_inner();
    if let (Err(source), Some(path)) = (pipeline.finish_dump(), &args.dump_events) {
        return Err(AppError::Write { path: path.clone(), source });
    }
    warn(&pipeline);
    touch::finish(&mut pipeline, &tracer)?;
    let destination = Destination { format: args.format, file: args.report.as_deref(), top: args.top };
    let exit_code = match end {
        End::Exited(status) => Some(status.exit_code()),
        End::NoneLeft | End::LeftRunning | End::LoadEnded(_) => None,
    };
    conclude(Gathered { main: pid, audits, counters, pipeline, exit_code }, &destination, args.verbose)?;
    tracer.detach_in_background();
    Ok(match end {
        End::LoadEnded(code) => code,
        _ => exit_code.unwrap_or(0),
    })
}

/// What the user should know about the command.
fn warn(pipeline: &Pipeline) {
    if pipeline.tally.listener_refused > 0 {
        say(format_args!(
            "the command asked for a seccomp listener of its own and was refused (EBUSY), because \
             vmaudit holds exits with one: run it with --no-exit-hold"
        ));
    }
}

/// A stable handle of a child that has not been waited for.
pub fn pidfd(pid: Pid) -> Result<OwnedFd, AppError> {
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
