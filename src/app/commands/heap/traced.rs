//! What both ways of counting have in common: the audit of mappings that goes with them, and when reports are made.

use crate::app::error::AppError;
use crate::app::heap_record::HeapRecord;
use crate::app::rule_files::rules;
use crate::cli::{Aslr, HeapArgs};
use crate::launch::LaunchConfig;
use crate::session::engine::{AT_THE_END, End, Schedule, Session};
use crate::session::sink::Sink;
use crate::session::start::{Start, Traced};
use crate::session::tracer::TracerOptions;
use std::cell::RefCell;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Seconds between snapshots for what keeps growing.
const LEAK_INTERVAL: f64 = 1.0;

/// The command, held before its first instruction; `config` is what is special about it.
pub fn command(
    args: &HeapArgs,
    config: LaunchConfig,
    options: TracerOptions,
) -> Result<Start<'static>, AppError> {
    let config = LaunchConfig {
        argv: args.command.clone(),
        as_root: args.as_root,
        hold_exits: true,
        aslr_off: args.aslr == Aslr::Off,
        ..config
    };
    let without_filter = "start it by itself, and attach (vmaudit heap -p PID)";
    Ok(Start::command(config, options, (None, without_filter, without_filter))?)
}

/// Runs the session. `watch` is the time in between; `sink` gets the events.
pub fn trace(
    (args, record): (&HeapArgs, Option<&HeapRecord>),
    start: Start<'_>,
    sink: Rc<RefCell<impl Sink + 'static>>,
    watch: impl FnOnce(&mut Session<'_>) -> Result<End, AppError>,
) -> Result<Traced<End>, AppError> {
    let duration = args.duration.map(Duration::from_secs_f64);
    let schedule = Schedule { duration, verbose: args.verbose, ..Schedule::each(AT_THE_END) };
    let mut pipeline = start.pipeline();
    pipeline.rules = rules();
    pipeline.add_sink(sink);
    let traced = start.run(pipeline, schedule, |session| {
        // What is mapped is compared with each process' heap.
        session.audits.keeps_all = true;
        watch(session)
    });
    traced.inspect_err(|_| record.into_iter().for_each(HeapRecord::abandon))
}

/// Until the session ends. `turn` is called now and then; with Some at the end of an interval: true where a report
/// is to be printed or recorded.
pub fn watch(
    (args, record): (&HeapArgs, Option<&HeapRecord>),
    session: &mut Session<'_>,
    mut turn: impl FnMut(Option<bool>) -> Result<(), AppError>,
) -> Result<End, AppError> {
    let is_reported = args.interval.is_some() && (!args.format.is_document() || record.is_some());
    // Growth is measured from one snapshot to the next.
    let interval = args.interval.or(args.leaks_only.then_some(LEAK_INTERVAL)).map(Duration::from_secs_f64);
    let mut due = interval.map(|interval| Instant::now() + interval);
    let mut failed = Ok(());
    let end = session.run_while(|| {
        let mut is_due = None;
        if let (Some(interval), Some(at)) = (interval, due)
            && Instant::now() >= at
        {
            due = Some(at + interval);
            is_due = Some(is_reported);
        }
        failed = turn(is_due);
        if failed.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    failed.map(|()| end)
}
