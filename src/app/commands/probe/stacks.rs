//! Counting with stacks: the tracer of mappings runs as well, because a stack is unwound by what is mapped at
//! that time.

use super::counting::{launch, of_command, serve};
use super::select::Selection;
use super::{Counted, detach, hold_calls, mark, place, processes, reach, start, way};
use crate::app::code_files::CodeFile;
use crate::app::conclude;
use crate::app::error::AppError;
use crate::app::probed::ProbedProcesses;
use crate::capture::CaptureConfig;
use crate::capture::newcomers::{Newcomer, Watch};
use crate::capture::uprobe::wire::CapturedCall;
use crate::capture::uprobe::{CallCounter, CounterConfig, CountersPlaced};
use crate::cli::{Backend, ProbeArgs};
use crate::launch::Process;
use crate::model::{StackId, VmEvent, VmOp};
use crate::render::probe::{StackCalls, StackCounts};
use crate::report::named_stack;
use crate::session::engine::{NEVER, Schedule};
use crate::session::pipeline::Pipeline;
use crate::session::say::say;
use crate::session::sink::{Context, Sink};
use crate::session::start::Start;
use crate::session::targets::pidfd;
use crate::session::tracer::{Tracer, TracerOptions};
use crate::symbolize::{Config, Symbolizer};
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
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
    let capture = CaptureConfig {
        stack_bytes: args.sample.stack_bytes,
        ring_bytes: args.ring_bytes,
        follow_forks: !args.no_follow_forks,
        ..CaptureConfig::default()
    };
    TracerOptions { only: Backend::Bpf.only(), capture, verbose: args.verbose, is_optional: false }
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
            reach: reach(args),
            stacks: Some((tracer, args.sample.stack_bytes)),
            way: way(args),
        },
        args.verbose,
    )
}

fn launched(args: &ProbeArgs, which: (&CodeFile, &Selection)) -> Result<Counted, AppError> {
    let without_filter = "start it without vmaudit";
    let mut start = Start::command(launch(args), options(args), (None, without_filter, without_filter))?;
    let counter = counter(args, &start.tracer, which.1.functions.len())?;
    let (processes, newcomers) = processes(args, &counter, Some(start.main()))?;
    mark(&counter, (start.main(), pidfd(start.main())?.as_fd()), true)?;
    if let Some(prepared) = start.prepared() {
        processes.admit_command(prepared.pid(), prepared.file().as_deref())?;
        hold_calls(prepared);
    }
    let placed = place(&counter, which, args.verbose)?;
    let of = of_command(args, start.main());
    let served = Arc::clone(&processes);
    start.on_start(move |running| serve(running, &served).map(|()| None));
    finish(args, start, Placement { counter, placed, of, processes, _newcomers: newcomers })
}

fn attached(args: &ProbeArgs, pid: i32, which: (&CodeFile, &Selection)) -> Result<Counted, AppError> {
    let start = Start::running(&[pid], options(args))?;
    let counter = counter(args, &start.tracer, which.1.functions.len())?;
    let process = start.processes().first();
    let (processes, newcomers) = processes(args, &counter, process.map(Process::pid))?;
    processes.admit(start.processes())?;
    let of =
        process.map_or_else(String::new, |process| format!("{} (pid {})", process.name(), process.pid()));
    let placed = place(&counter, which, args.verbose)?;
    finish(args, start, Placement { counter, placed, of, processes, _newcomers: newcomers })
}

/// Nothing is examined: calls are counted, not mappings.
fn schedule(args: &ProbeArgs) -> Schedule {
    Schedule { duration: args.duration.map(Duration::from_secs_f64), ..Schedule::each(NEVER) }
}

/// Probes that are in place.
struct Placement {
    counter: CallCounter,
    placed: CountersPlaced,
    of: String,
    processes: Arc<ProbedProcesses>,
    _newcomers: Option<Watch>,
}

/// Counts calls by stack.
struct Counting {
    stacks: Stacks,
    processes: Arc<ProbedProcesses>,
}

impl Sink for Counting {
    fn event(&mut self, event: &VmEvent, _context: &mut Context<'_>) {
        if let VmOp::Fork { child_pid, is_thread: false, .. } = event.op {
            let (parent, time_ns) = (event.task.pid, event.time_ns);
            self.processes.seen_later(Newcomer::Forked { pid: child_pid, parent, time_ns });
        }
    }

    fn probed(&mut self, call: &CapturedCall<'_>, stack: StackId) {
        *self.stacks.entry((call.function, stack)).or_default() += 1;
    }
}

fn finish(args: &ProbeArgs, start: Start<'_>, placement: Placement) -> Result<Counted, AppError> {
    let Placement { counter, placed, of, processes, _newcomers } = placement;
    let counting =
        Rc::new(RefCell::new(Counting { stacks: Stacks::default(), processes: Arc::clone(&processes) }));
    let mut pipeline = start.pipeline();
    pipeline.add_sink(counting.clone());
    let mut traced = start.run(pipeline, schedule(args), |session| {
        let begun = Instant::now();
        session.run().map(|end| (end, begun.elapsed()))
    })?;
    let (end, took) = traced.outcome;
    let way = counter.way();
    // First the probes, then what they had sent by then: the counts are those of the stacks.
    let detached = counter.detach();
    if args.verbose {
        say(format_args!("probes taken away in {detached:.1?}"));
    }
    let calls = counter.counts()?;
    traced.settle()?;
    conclude::warn(&traced.pipeline, traced.counters);
    if traced.counters.lost > 0 {
        say(format_args!(
            "{} changes of mappings were lost: stacks of libraries loaded then may be incomplete",
            traced.counters.lost
        ));
    }
    let stacks = std::mem::take(&mut counting.borrow_mut().stacks);
    let counted = StackCounts {
        calls: stacks.values().sum(),
        lost: calls.iter().sum::<u64>().saturating_sub(stacks.values().sum()),
        distinct: named(stacks, &mut traced.pipeline),
    };
    detach(counter, false);
    traced.detach_in_background();
    let (exit_code, gap) = (end.exit_code(), processes.all_gaps());
    Ok(Counted { calls, of, placed, way, took, stacks: Some(counted), gap, exit_code })
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
