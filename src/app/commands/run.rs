//! `vmaudit run`: from the command line to the report.

use crate::app::error::AppError;
use crate::app::heap::default_descriptions;
use crate::app::heap::preload::{CountingOptions, Entrance, unsuited};
use crate::app::options::RunOptions;
use crate::capture::preload::is_available;
use crate::cli::{Aslr, RunArgs};
use crate::heap::Filter;
use crate::launch::LaunchConfig;
use crate::model::Pid;
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
/// What to do about a command that does not work under a seccomp filter.
const WITHOUT_FILTER: &str = "run it with --no-exit-hold";
const WITHOUT_LISTENER: &str = "take --backend bpf or perf, with --no-exit-hold";

/// Starts the command under audit; returns vmaudit's exit code.
pub fn run(args: &RunArgs) -> Result<u8, AppError> {
    args.check().map_err(AppError::Usage)?;
    let options = RunOptions::from(args);
    let spec = options.output_spec(&args.command)?;
    let mut sinks = options.dump()?;
    let container = container_of(&args.command);
    let entrance = entrance(args, container.is_some())?;
    let mut env = args.change.environment();
    env.extend(entrance.iter().flat_map(Entrance::environment));
    let config = LaunchConfig {
        argv: args.command.clone(),
        env,
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
    // Processes that are not examined are known by their calls alone.
    let spares = args.min_virt > 0 && !options.touch() && entrance.is_none() && start.knows_all_mappings();
    if let Some(prepared) = start.prepared().filter(|_| spares) {
        prepared.spare_small(args.min_virt)?;
    }
    let mut pipeline = options.pipeline(&start, &args.command, &mut sinks)?;
    if let Some(entrance) = entrance {
        let counting = entrance.open(counting(args, start.main())?, Vec::new(), start.main())?;
        pipeline.add_sink(counting.executed.clone());
        sinks.heap = Some(counting);
    }
    if let Some(script) = &args.load {
        start.on_start(|running| Load::start(running, script, args.start.as_root).map(Some));
    }
    // What is put into a container is not held at its end.
    let pause = if container.is_some() { FIRST_SNAPSHOT } else { SNAPSHOT_PAUSE };
    let schedule = options.schedule(FIRST_SNAPSHOT, pause);
    let keeps_all = options.touch() || args.heap.is_some();
    let mut traced = start.run(pipeline, schedule, |session| {
        session.audits.keeps_all |= keeps_all;
        session.run()
    })?;
    for process in &traced.pipeline.listener_refused {
        say(format_args!(
            "process {process} requested a seccomp listener of its own and was refused (EBUSY), because \
             vmaudit has one on it: {}",
            traced.without_filter
        ));
    }
    let exit_code = match traced.outcome {
        End::Exited(status) => Some(status.exit_code()),
        End::NoneLeft | End::LeftRunning | End::LoadEnded(_) => None,
    };
    traced.main = main_process(traced.main, container.as_ref(), &traced.audits, &traced.pipeline);
    options.conclude(&mut traced, (&spec, sinks), exit_code)?;
    Ok(traced.detach_in_background().exit_code())
}

/// With `--heap`: where the command, which gets the library, reports.
fn entrance(args: &RunArgs, is_contained: bool) -> Result<Option<Entrance>, AppError> {
    let Some(sample) = args.heap else { return Ok(None) };
    let why = match unsuited(&args.command, &default_descriptions().map_err(AppError::Usage)?) {
        _ if !is_available() => Some("there is no library for this processor".to_owned()),
        _ if is_contained => Some("a container does not get the library from its client".to_owned()),
        why => why,
    };
    if let Some(why) = why {
        let sample = sample.map(|mean| format!(" --sample {mean}")).unwrap_or_default();
        return Err(AppError::Usage(format!(
            "--heap: {why}; with root's rights, vmaudit heap --method uprobes{sample} counts it from outside"
        )));
    }
    Ok(Some(Entrance::for_command(args.start.as_root)?))
}

fn counting(args: &RunArgs, main: Pid) -> Result<CountingOptions, AppError> {
    Ok(CountingOptions {
        sample: args.heap.flatten(),
        filter: Filter::default(),
        descriptions: default_descriptions().map_err(AppError::Usage)?,
        only: args.no_follow_forks.then(|| vec![main]),
        attached: false,
        container: None,
    })
}
