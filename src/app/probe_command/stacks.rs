//! Counting with stacks: the tracer of mappings runs beside, because a stack is unwound by what is
//! mapped at that time.

use super::counting::{exit_code, launch, of_command};
use super::select::Selection;
use super::{Counted, detach, mark, place, start, way};
use crate::app::attach;
use crate::app::choose;
use crate::app::code_files::CodeFile;
use crate::app::conclude;
use crate::app::error::AppError;
use crate::app::pipeline::Pipeline;
use crate::app::say::say;
use crate::app::session::{End, NEVER, Schedule, Session};
use crate::app::tracer::{Tracer, TracerOptions, WATCHED_CALLS};
use crate::app::watched::{Launched, Watched};
use crate::capture::uprobe::{CallCounter, CounterConfig, Placed, wire};
use crate::cli::{Backend, ProbeArgs};
use crate::launch::{Attached, Launch, LaunchConfig};
use crate::model::StackId;
use crate::render::probe::{StackCalls, StackCounts};
use crate::report::named_stack;
use crate::symbolize::{Config, Symbolizer};
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Calls by function and stack.
type Stacks = HashMap<(u32, StackId), u64>;

pub fn count(args: &ProbeArgs, file: &CodeFile, selection: &Selection) -> Result<Counted, AppError> {
    match args.pid {
        Some(pid) => attached(args, pid, (file, selection)),
        None => launched(args, (file, selection)),
    }
}

fn options(args: &ProbeArgs) -> TracerOptions {
    TracerOptions {
        backend: Backend::Bpf,
        stack_bytes: args.stack_bytes,
        ring_bytes: args.ring_bytes,
        spill_bytes: 4 << 20,
        follow_forks: !args.no_follow_forks,
        running_targets: args.pid.is_some(),
        touch: None,
        entering: None,
        verbose: args.verbose,
    }
}

fn counter(args: &ProbeArgs, tracer: &Tracer, functions: usize) -> Result<CallCounter, AppError> {
    let Tracer::Bpf(tracer) = tracer else {
        return Err(AppError::Usage("--stacks needs the bpf backend".to_owned()));
    };
    start(
        &CounterConfig {
            functions,
            only_marked: true,
            follow_forks: !args.no_follow_forks,
            stacks: Some((tracer, args.stack_bytes)),
            way: way(args),
        },
        args.verbose,
    )
}

fn launched(args: &ProbeArgs, which: (&CodeFile, &Selection)) -> Result<Counted, AppError> {
    let mut prepared = Launch::prepare(LaunchConfig { calls: WATCHED_CALLS, ..launch(args) })?;
    let tracer = choose::for_command(&options(args), &mut prepared)?;
    let mut counter = counter(args, &tracer, which.1.functions.len())?;
    let pidfd = crate::app::run::pidfd(prepared.pid())?;
    mark(&counter, (prepared.pid(), std::os::fd::AsFd::as_fd(&pidfd)), true)?;
    let placed = place(&mut counter, which, None, args.verbose)?;
    let gathering = Gathering::new(&tracer);
    let (end, of) = {
        let mut reader = tracer.reader(|raw| gathering.record(raw))?;
        let running = prepared.go()?;
        running.notes().iter().for_each(say);
        let of = of_command(args, running.pid());
        let session = Session::new(
            Launched::new(running, "start it without vmaudit"),
            &mut *reader,
            &gathering.pipeline,
            schedule(args),
        );
        (run(session)?, of)
    };
    finish(args, Finished { tracer, counter, gathering, placed, of, end })
}

fn attached(args: &ProbeArgs, pid: i32, which: (&CodeFile, &Selection)) -> Result<Counted, AppError> {
    let attached = Attached::new(attach::targets(&[pid])?)?;
    let tracer = choose::for_running(&options(args))?;
    let threads = attach::mark(&attached, &tracer)?;
    let mut counter = counter(args, &tracer, which.1.functions.len())?;
    let gathering = Gathering::new(&tracer);
    attach::begin(&attached, &threads, &mut gathering.pipeline.borrow_mut())?;
    let only = attached.processes().first().filter(|_| args.no_follow_forks).map(|process| process.pid());
    let placed = place(&mut counter, which, only, args.verbose)?;
    let of = attached
        .processes()
        .first()
        .map_or_else(String::new, |process| format!("{} (pid {})", process.name(), process.pid()));
    let end = {
        let mut reader = tracer.reader(|raw| gathering.record(raw))?;
        run(Session::new(attached, &mut *reader, &gathering.pipeline, schedule(args)))?
    };
    finish(args, Finished { tracer, counter, gathering, placed, of, end })
}

/// Nothing is looked at: calls are counted, not mappings.
fn schedule(args: &ProbeArgs) -> Schedule {
    Schedule {
        duration: args.duration.map(Duration::from_secs_f64),
        first_look: NEVER,
        interval: NEVER,
        timeline: false,
        verbose: false,
    }
}

fn run<W: Watched>(mut session: Session<'_, '_, W>) -> Result<(End, Duration), AppError> {
    let begun = Instant::now();
    let end = session.run()?;
    Ok((end, begun.elapsed()))
}

/// Both kinds of records: calls of probed functions are counted by stack, all others are the pipeline's.
struct Gathering {
    pipeline: RefCell<Pipeline>,
    stacks: RefCell<Stacks>,
}

impl Gathering {
    fn new(tracer: &Tracer) -> Gathering {
        Gathering { pipeline: RefCell::new(Pipeline::new(tracer.name(), None)), stacks: RefCell::default() }
    }

    fn record(&self, raw: &[u8]) {
        let mut pipeline = self.pipeline.borrow_mut();
        if !wire::is_call(raw) {
            return pipeline.record(raw);
        }
        // What does not decode is found missing by the counts.
        let Some(call) = wire::decode(raw) else { return };
        let stack = pipeline.stack_of_call(&call);
        *self.stacks.borrow_mut().entry((call.function, stack)).or_default() += 1;
    }
}

struct Finished {
    tracer: Tracer,
    counter: CallCounter,
    gathering: Gathering,
    placed: Placed,
    of: String,
    end: (End, Duration),
}

fn finish(args: &ProbeArgs, finished: Finished) -> Result<Counted, AppError> {
    let Finished { tracer, mut counter, gathering, placed, of, end: (end, took) } = finished;
    let way = counter.way();
    // First the probes, then what they had sent by then: the counts are those of the stacks.
    let detached = counter.detach();
    if args.verbose {
        say(format_args!("probes taken away in {detached:.1?}"));
    }
    let calls = counter.counts()?;
    let counters = {
        let mut reader = tracer.reader(|raw| gathering.record(raw))?;
        reader.settle()?;
        reader.counters()?
    };
    let Gathering { pipeline, stacks } = gathering;
    let (mut pipeline, stacks) = (pipeline.into_inner(), stacks.into_inner());
    conclude::warn(&pipeline, counters);
    if counters.lost > 0 {
        say(format_args!(
            "{} changes of mappings were lost: stacks of libraries loaded then may be incomplete",
            counters.lost
        ));
    }
    let counted = StackCounts {
        calls: stacks.values().sum(),
        lost: calls.iter().sum::<u64>().saturating_sub(stacks.values().sum()),
        distinct: named(stacks, &mut pipeline),
    };
    detach(counter, false);
    tracer.detach_in_background();
    Ok(Counted { calls, of, placed, way, took, stacks: Some(counted), exit_code: exit_code(end) })
}

fn named(stacks: Stacks, pipeline: &mut Pipeline) -> Vec<StackCalls> {
    let mut symbolizer = Symbolizer::new(Config::default());
    let ids = stacks.keys().map(|&(_, id)| id).collect::<Vec<_>>();
    let names = symbolizer.symbolize(&pipeline.stacks, ids, pipeline.unwinder.files_mut());
    symbolizer.take_notes().iter().for_each(say);
    let mut rows: Vec<((u32, StackId), u64)> = stacks.into_iter().collect();
    rows.sort_by_key(|&((function, id), calls)| (Reverse(calls), function, id.0));
    rows.into_iter()
        .map(|((function, id), calls)| StackCalls {
            function: function as usize,
            calls,
            stack: named_stack(id, &pipeline.stacks, &names),
        })
        .collect()
}
