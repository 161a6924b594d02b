//! `vmaudit attach`: processes that run already.
//!
//! In this order, so that nothing is missed and no process is mistaken for another: the processes are held by
//! descriptor; all their threads are marked, so that each call is reported from then on; each is examined;
//! only then are reports read, and those skipped that the snapshot contains.

use crate::app::error::AppError;
use crate::app::options::RunOptions;
use crate::cli::AttachArgs;
use crate::session::say::say;
use crate::session::start::Start;
use crate::session::targets::named_container;
use std::time::Duration;

/// How often to take a snapshot, for the last state of those that end.
const SNAPSHOT_PAUSE: Duration = Duration::from_millis(200);

/// Traces running processes; returns vmaudit's exit code.
pub fn attach(args: &AttachArgs) -> Result<u8, AppError> {
    let options = RunOptions::from(args);
    let spec = options.output_spec(&[])?;
    let container = named_container(args.of.named())?;
    let mut sinks = options.dump()?;
    let tracing = options.tracer_options();
    let start = match &container {
        // A process that enters a container later belongs to it, as children do.
        Some(container) => Start::container(container, !args.no_follow_forks, tracing)?,
        None => Start::running(&args.of.pids, tracing)?,
    };
    let command: Vec<_> = std::env::args_os().skip(1).collect();
    let pipeline = options.pipeline(&start, &command, &mut sinks)?;
    let every = args.interval.map_or(SNAPSHOT_PAUSE, Duration::from_secs_f64);
    let schedule = options.schedule(every, SNAPSHOT_PAUSE);
    let mut traced = start.run(pipeline, schedule, |session| {
        // At once: whatever ends from here on has been seen with what is resident.
        session.snapshot_all();
        say("Ctrl-C ends tracing and reports; the target goes on");
        session.run()
    })?;
    options.conclude(&mut traced, (&spec, sinks), None)?;
    traced.detach_in_background();
    Ok(0)
}
