//! `vmaudit run`: from the command line to the report.

use crate::app::error::AppError;
use crate::app::options::RunOptions;
use crate::cli::{Aslr, RunArgs};
use crate::launch::LaunchConfig;
use crate::session::engine::End;
use crate::session::load::Load;
use crate::session::say::say;
use crate::session::start::Start;
use crate::session::targets::entering::{container_of, main_process};
use crate::session::tracer::WATCHED_CALLS;
use std::time::Duration;

/// The first snapshot of the command: most that die early by a signal live longer.
const FIRST_SNAPSHOT: Duration = Duration::from_millis(200);
/// How often to take a snapshot, for those that a signal kills later.
const SNAPSHOT_PAUSE: Duration = Duration::from_secs(1);
/// What to do about a command that wants no seccomp filter on it.
const WITHOUT_FILTER: &str = "run it with --no-exit-hold";
const WITHOUT_LISTENER: &str = "take --backend bpf or perf, with --no-exit-hold";

/// Starts the command under audit; returns vmaudit's exit code.
pub fn run(args: &RunArgs) -> Result<u8, AppError> {
    let options = RunOptions::from(args);
    let wanted = options.wanted(&args.command)?;
    let mut sinks = options.dump()?;
    let container = container_of(&args.command);
    let config = LaunchConfig {
        argv: args.command.clone(),
        env: args.change.environment(),
        aslr_off: args.aslr == Aslr::Off,
        stack_limit: args.change.stack_limit,
        as_root: args.start.as_root,
        hold_exits: !args.start.no_exit_hold,
        calls: WATCHED_CALLS,
    };
    let mut start = Start::command(
        config,
        options.tracer_options(),
        (container.as_ref(), WITHOUT_FILTER, WITHOUT_LISTENER),
    )?;
    // What nobody looks at is known by its calls alone.
    let spares = args.min_virt > 0 && !options.touch() && start.knows_all_mappings();
    if let Some(prepared) = start.prepared().filter(|_| spares) {
        prepared.spare_small(args.min_virt)?;
    }
    let pipeline = options.pipeline(&start, &args.command, &mut sinks)?;
    if let Some(script) = &args.load {
        start.on_start(|running| Load::start(running, script, args.start.as_root).map(Some));
    }
    // What is put into a container is not held at its end.
    let pause = if container.is_some() { FIRST_SNAPSHOT } else { SNAPSHOT_PAUSE };
    let schedule = options.schedule(FIRST_SNAPSHOT, pause);
    let touch = options.touch();
    let mut traced = start.run(pipeline, schedule, |session| {
        session.audits.keeps_all |= touch;
        session.run()
    })?;
    for process in &traced.pipeline.listener_refused {
        say(format_args!(
            "process {process} asked for a seccomp listener of its own and was refused (EBUSY), because \
             vmaudit has one on it: {}",
            traced.without_filter
        ));
    }
    let exit_code = match traced.outcome {
        End::Exited(status) => Some(status.exit_code()),
        End::NoneLeft | End::LeftRunning | End::LoadEnded(_) => None,
    };
    traced.main = main_process(traced.main, container.as_ref(), &traced.audits, &traced.pipeline);
    options.conclude(&mut traced, (&wanted, sinks), exit_code)?;
    let code = match traced.outcome {
        End::LoadEnded(code) => code,
        _ => exit_code.unwrap_or(0),
    };
    traced.detach_in_background();
    Ok(code)
}
