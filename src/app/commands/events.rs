//! `vmaudit events`: every call in order, of a command or of processes while they run, or from a
//! recording.

use crate::app::conclude::{say_stacks, warn};
use crate::app::error::AppError;
use crate::app::live_events::{LiveEvents, LiveOptions};
use crate::app::output::{self, Other, Output, Stream};
use crate::app::recorded_names::RecordedNames;
use crate::capture::CaptureConfig;
use crate::cli::{Aslr, Backend, EventsArgs, FilterArgs, LiveArgs};
use crate::launch::LaunchConfig;
use crate::model::{AddrRange, Step};
use crate::render::Color;
use crate::render::events::{EventWriter, EventsOptions, Filter, calls_named};
use crate::session::SessionError;
use crate::session::engine::{End, NEVER, Schedule, Session};
use crate::session::say::say;
use crate::session::start::{Start, Traced};
use crate::session::targets::entering::container_of;
use crate::session::tracer::{TracerOptions, WATCHED_CALLS};
use crate::store::Recording;
use crate::sys::clock;
use std::cell::RefCell;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

/// Bytes that are written at once.
const BATCH: usize = 64 << 10;

pub fn events(args: &EventsArgs) -> Result<u8, AppError> {
    let mut others = output::program(&args.command);
    others.extend(args.recording.iter().map(|path| Other { path, what: "the recording that is read" }));
    let to = Output::open(args.report.as_deref(), &others)?;
    match &args.recording {
        Some(recording) => replayed(recording, args, to),
        None if args.command.is_empty() => attached(args, to),
        None => live(args, to),
    }
}

/// In colour on a terminal.
fn color(to: &Output) -> Color {
    if to.is_stdout() { output::color(&io::stdout()) } else { Color::Never }
}

/// Prints what a recording holds.
fn replayed(path: &Path, args: &EventsArgs, to: Output) -> Result<u8, AppError> {
    let recording = Recording::open(path)?;
    recording.has_steps()?;
    let (color, mut to) = (color(&to), to.stream());
    let meta = recording.meta();
    let clock = i64::try_from(meta.started_unix_ns).ok().zip(i64::try_from(meta.started_ns).ok());
    let offset = clock.and_then(|(unix, monotonic)| unix.checked_sub(monotonic));
    let mut writer = EventWriter::new(options(args, color, offset)?);
    let mut names = RecordedNames::of(&recording)?;
    if recording.facts().is_none() {
        say(format_args!(
            "{}: the vmaudit that made it was killed or could not go on writing: these are the events \
             recorded by then, with names from the files as they are now",
            path.display()
        ));
    }
    let mut text = String::new();
    let mut outcome = Ok(());
    let mut seen: u64 = 0;
    recording.steps(&mut |step| {
        seen += u64::from(matches!(step, Step::Event(_)));
        writer.step(step, &mut names, &mut text);
        if text.len() >= BATCH || writer.is_over() {
            outcome = to.write_all(text.as_bytes());
            text.clear();
        }
        if outcome.is_err() || writer.is_over() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    let outcome = outcome.and_then(|()| to.write_all(text.as_bytes())).and_then(|()| to.flush());
    match outcome {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(to.failed(error)),
        // `vmaudit events REC | head` is no failure.
        _ => {
            if writer.printed() == 0 {
                say(format_args!("nothing to print: none of {seen} events matches the filter"));
            }
            Ok(0)
        }
    }
}

/// Starts the command and prints its calls; its exit status becomes vmaudit's.
fn live(args: &EventsArgs, to: Output) -> Result<u8, AppError> {
    let (color, to) = match &args.report {
        Some(_) => (color(&to), to.stream()),
        // As strace: standard output is the command's.
        None => (output::color(&io::stderr()), Stream::stderr()),
    };
    let writer = EventWriter::new(options(args, color, clock_offset_ns())?);
    let options = &args.live;
    let container = container_of(&args.command);
    let config = LaunchConfig {
        stack_limit: None,
        argv: args.command.clone(),
        env: Vec::new(),
        aslr_off: options.aslr == Aslr::Off,
        as_root: options.as_root,
        // The calls may come through the same listener.
        hold_exits: matches!(options.backend, Backend::Auto | Backend::Notify),
        calls: WATCHED_CALLS,
    };
    let without_filter = "take --backend bpf or perf";
    let remedies = (container.as_ref(), without_filter, without_filter);
    let mut start = Start::command(config, tracer_options(options), remedies)?;
    if !start.tracer.watches_calls()
        && let Some(prepared) = start.prepared()
    {
        prepared.hold_nothing();
    }
    let traced =
        print(start, (args, LiveEvents::new(writer, to, live_options(args))), |session| session.run())?;
    Ok(traced.detach_in_background().exit_code())
}

/// Prints the calls of processes that run already.
fn attached(args: &EventsArgs, to: Output) -> Result<u8, AppError> {
    let (color, to) = (color(&to), to.stream());
    // Those that they start are meant as well.
    let everything = FilterArgs { pid: Vec::new(), ..args.filter.clone() };
    let writer = EventWriter::new(EventsOptions {
        filter: filter(&everything)?,
        ..self::options(args, color, clock_offset_ns())?
    });
    let start = Start::running(&args.filter.pid, tracer_options(&args.live))?;
    let traced = print(start, (args, LiveEvents::new(writer, to, live_options(args))), |session| {
        say("Ctrl-C ends tracing; the target goes on");
        session.run()
    })?;
    traced.detach_in_background();
    Ok(0)
}

/// Prints events until the end, and reports what was lost.
fn print(
    start: Start<'_>,
    (args, live): (&EventsArgs, LiveEvents),
    during: impl FnOnce(&mut Session<'_>) -> Result<End, SessionError>,
) -> Result<Traced<End>, AppError> {
    let live = Rc::new(RefCell::new(live));
    let mut pipeline = start.pipeline();
    pipeline.add_sink(live.clone());
    let mut traced = start.run(pipeline, schedule(&args.live), during)?;
    traced.pipeline.turn();
    live.borrow_mut().finish()?;
    let counters = traced.counters;
    warn(&traced.pipeline, counters);
    if args.live.verbose {
        say_stacks(&traced.pipeline, counters);
    }
    let dropped = counters.lost + traced.pipeline.undecodable();
    if dropped + counters.without_stack > 0 {
        let without = counters.without_stack;
        match traced.pipeline.backend.as_str() {
            "notify" => say(format_args!(
                "what {dropped} calls did could not be determined, and the stacks of {without} could not be read"
            )),
            _ => say(format_args!(
                "{dropped} events were lost and {without} have no stack because the buffer was full (--ring-bytes)"
            )),
        }
    }
    Ok(traced)
}

fn live_options(args: &EventsArgs) -> LiveOptions {
    LiveOptions {
        needs_names: !args.no_stacks || args.filter.stack.is_some(),
        to_the_end: !args.command.is_empty(),
    }
}

fn tracer_options(options: &LiveArgs) -> TracerOptions {
    let capture = CaptureConfig {
        stack_bytes: options.stacks.stack_bytes,
        ring_bytes: options.rings.ring_bytes,
        spill_bytes: options.rings.spill_bytes,
        queue_bytes: options.rings.queue_bytes,
        follow_forks: !options.no_follow_forks,
        ..CaptureConfig::default()
    };
    TracerOptions { only: options.backend.only(), capture, verbose: options.verbose, is_optional: false }
}

fn schedule(options: &LiveArgs) -> Schedule {
    let duration = options.duration.map(Duration::from_secs_f64);
    Schedule { duration, verbose: options.verbose, ..Schedule::each(NEVER) }
}

fn options(args: &EventsArgs, color: Color, clock_offset_ns: Option<i64>) -> Result<EventsOptions, AppError> {
    Ok(EventsOptions {
        format: args.format,
        time: args.time,
        clock_offset_ns,
        stacks: !args.no_stacks,
        color,
        filter: filter(&args.filter)?,
        head: args.filter.head,
    })
}

fn filter(args: &FilterArgs) -> Result<Filter, AppError> {
    let wrong = |option: &str, word: &str, why: &dyn std::fmt::Display| {
        AppError::Usage(format!("invalid value '{word}' for '{option}': {why}"))
    };
    let mut calls = Vec::new();
    for word in &args.call {
        calls.extend(calls_named(word).map_err(|why| wrong("--call", word, &why))?);
    }
    let stack = match &args.stack {
        Some(pattern) => Some(regex::Regex::new(pattern).map_err(|why| wrong("--stack", pattern, &why))?),
        None => None,
    };
    let ns = |seconds: f64| (seconds * 1e9) as u64;
    if let (Some(since), Some(until)) = (args.since, args.until)
        && since > until
    {
        return Err(wrong("--until", &until.to_string(), &"it is before --since"));
    }
    if let (Some(min), Some(max)) = (args.min_size, args.max_size)
        && min > max
    {
        return Err(wrong("--max-size", &max.to_string(), &"it is less than --min-size"));
    }
    Ok(Filter {
        tids: args.tid.clone(),
        pids: args.pid.clone(),
        comms: args.comm.iter().map(|comm| comm.as_bytes().to_vec()).collect(),
        calls,
        min_size: args.min_size,
        max_size: args.max_size,
        addr: args.addr.map(|(start, end)| AddrRange::new(start, end)),
        stack,
        failed: args.failed,
        since_ns: args.since.map(ns),
        until_ns: args.until.map(ns),
    })
}

/// CLOCK_REALTIME minus CLOCK_MONOTONIC now, nanoseconds.
fn clock_offset_ns() -> Option<i64> {
    i64::try_from(clock::realtime_ns()).ok()?.checked_sub_unsigned(clock::monotonic_ns())
}
