//! `vmaudit run`: from the command line to the report.

use super::asked::{RunOptions, Subject};
use super::choose;
use super::conclude::{Gathered, conclude};
use super::entering::{container_of, entering_of, main_process, view_of};
use super::error::AppError;
use super::load::Load;
use super::pipeline::Pipeline;
use super::say::say;
use super::session::{End, Session};
use super::touch;
use super::tracer::WATCHED_CALLS;
use super::watched::Launched;
use crate::cli::{Aslr, RunArgs};
use crate::launch::{Launch, LaunchConfig};
use crate::model::Pid;
use crate::sys;
use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The first look at the command: most that die early by a signal live longer.
const FIRST_LOOK: Duration = Duration::from_millis(200);
/// How often to look, for those that a signal kills later.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// Starts the command under audit; returns vmaudit's exit code.
pub fn run(args: &RunArgs) -> Result<u8, AppError> {
    let begun = Instant::now();
    let asked = RunOptions::from(args);
    let wanted = asked.wanted(&args.command)?;
    let dump = asked.dump()?;
    let container = container_of(&args.command);
    let mut prepared = Launch::prepare(LaunchConfig {
        argv: args.command.clone(),
        env: args.change.environment(),
        aslr_off: args.aslr == Aslr::Off,
        stack_limit: args.change.stack_limit,
        as_root: args.as_root,
        hold_exits: !args.no_exit_hold,
        calls: WATCHED_CALLS,
    })?;
    let pid = prepared.pid();
    let tracer = choose::for_command(&asked.tracer_options(entering_of(container.as_ref())?), &mut prepared)?;
    if args.inside.verbose {
        say(format_args!(
            "backend {}, {} attached after {:.1?}",
            tracer.name(),
            tracer.attached(),
            begun.elapsed()
        ));
    }
    let subject = Subject { main: pid, command: &args.command, container: container.as_ref() };
    let pipeline = RefCell::new(asked.pipeline(&tracer, &subject, dump)?);
    let without_filter;
    let (end, audits, counters) = {
        let mut reader = tracer.reader(|raw| pipeline.borrow_mut().record(raw))?;
        let started = prepared.go().inspect_err(|_| pipeline.borrow_mut().abandon_record());
        let mut running = started?;
        tracer.started(&mut running)?;
        for note in running.notes() {
            say(format_args!("{note}"));
        }
        // What is put into a container is not held at its end.
        let pause = if container.is_some() { FIRST_LOOK } else { LOOK_PAUSE };
        let schedule = asked.schedule(FIRST_LOOK, pause);
        let load =
            args.load.as_ref().map(|script| Load::start(&running, script, args.as_root)).transpose()?;
        without_filter = remedy(running.watches_calls());
        let watched = Launched::new(running, without_filter);
        let mut session = Session::new(watched, &mut *reader, &pipeline, schedule);
        session.load = load;
        session.audits.containers = view_of(container.as_ref(), pid);
        let end = session.run()?;
        let audits = std::mem::take(&mut session.audits);
        drop(session);
        (end, audits, reader.counters()?)
    };
    let mut pipeline = pipeline.into_inner();
    asked.finish_dump(&mut pipeline)?;
    warn(&pipeline, without_filter);
    touch::finish(&mut pipeline, &tracer)?;
    let exit_code = match end {
        End::Exited(status) => Some(status.exit_code()),
        End::NoneLeft | End::LeftRunning | End::LoadEnded(_) => None,
    };
    let main = main_process(pid, container.as_ref(), &audits, &pipeline);
    conclude(Gathered { main, audits, counters, pipeline, exit_code }, &wanted, args.inside.verbose)?;
    tracer.detach_in_background();
    Ok(match end {
        End::LoadEnded(code) => code,
        _ => exit_code.unwrap_or(0),
    })
}

/// What to do about a command that wants no seccomp filter on it.
fn remedy(watches_calls: bool) -> &'static str {
    match watches_calls {
        true => "take --backend bpf or perf, with --no-exit-hold",
        false => "run it with --no-exit-hold",
    }
}

/// What the user should know about the command.
fn warn(pipeline: &Pipeline, without_filter: &str) {
    for process in &pipeline.listener_refused {
        say(format_args!(
            "process {process} asked for a seccomp listener of its own and was refused (EBUSY), because \
             vmaudit has one on it: {without_filter}"
        ));
    }
}

/// A stable handle of a child that has not been waited for.
pub fn pidfd(pid: Pid) -> Result<OwnedFd, AppError> {
    sys::pidfd::open(pid)
        .map_err(|errno| AppError::System { operation: "pidfd_open of the command", source: errno.into() })
}
