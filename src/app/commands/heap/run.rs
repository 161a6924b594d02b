//! From the command line to the report.

use super::arenas;
use super::combined::Combined;
use super::contexts::name_contexts;
use super::preload;
use super::probes::Probes;
use super::report::{self, ReportOptions};
use super::runtime;
use super::traced::{command, trace, watch};
use super::watch::HeapWatch;
use super::whose::Whose;
use crate::app::error::AppError;
use crate::app::heap::mappings::add_mappings;
use crate::app::heap::symbolizer;
use crate::app::heap_record::HeapRecord;
use crate::app::output::Output;
use crate::app::probed::hold::{self, HELD_CALLS};
use crate::app::probed::{ProbedProcesses, warn_of_all_processes};
use crate::capture::CaptureConfig;
use crate::capture::bpf::BpfTracer;
use crate::capture::heap::{AttachMethod, HeapConfig, HeapTracer};
use crate::capture::members::Reach;
use crate::capture::newcomers::Watch;
use crate::cli::{Backend, HeapArgs, Method};
use crate::heap::describe::ContextLayout;
use crate::heap::silence::TestCall;
use crate::heap::{Description, LedgerOptions, Sampling};
use crate::launch::{LaunchConfig, Prepared};
use crate::model::Pid;
use crate::model::sample;
use crate::rights::{Use, with_lent};
use crate::session::SessionError;
use crate::session::audits::Audits;
use crate::session::engine::End;
use crate::session::pipeline::Pipeline;
use crate::session::say::say;
use crate::session::start::{Start, Traced};
use crate::session::tracer::remedy::explained;
use crate::session::tracer::{Tracer, TracerOptions};
use crate::symbolize::Symbolizer;
use crate::sys::clock::monotonic_ns;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Of the second ring, for what has no space in the first: then without stack.
const SPILL_BYTES: u32 = 8 << 20;

/// Watches the heaps of processes, or of a command; returns vmaudit's exit code.
pub fn heap(args: &HeapArgs) -> Result<u8, AppError> {
    args.check().map_err(AppError::Usage)?;
    let descriptions = super::descriptions(args)?;
    if let Some(folder) = &args.arm {
        return preload::arm(folder.as_deref());
    }
    let to = super::output(args)?;
    if args.all_processes {
        warn_of_all_processes()?;
    }
    if args.command.is_empty() {
        let whose = Whose::of(args)?;
        if args.arenas {
            return arenas::print((args, to), &whose.pids);
        }
        if args.runtime {
            return runtime::print((args, to), &whose.pids);
        }
        let armed = match args.all_processes {
            true => None,
            false => preload::armed(args, &descriptions, &whose.pids)?,
        };
        return match armed {
            Some(armed) => preload::attach((args, to), &descriptions, (&whose, armed)),
            None => attach((args, to), descriptions, &whose),
        };
    }
    match (args.method, preload::unable(args, &descriptions)) {
        (Method::Uprobes, _) => {}
        (Method::Auto, _) if args.all_processes => {}
        (Method::Preload, Some(why)) => return Err(AppError::Usage(format!("--method preload: {why}"))),
        (Method::Auto, Some(why)) => say(format_args!("counted by uprobes: {why}")),
        (Method::Auto | Method::Preload, None) => return preload::start((args, to), &descriptions),
    }
    start((args, to), descriptions)
}

fn options(args: &HeapArgs) -> TracerOptions {
    let capture = CaptureConfig {
        stack_bytes: args.stacks.stack_bytes,
        ring_bytes: args.ring_bytes,
        spill_bytes: SPILL_BYTES,
        queue_bytes: sample::QUEUE_BYTES,
        follow_forks: !args.no_follow_forks,
        ..CaptureConfig::default()
    };
    TracerOptions { only: Backend::Bpf.only(), capture, verbose: args.verbose, is_optional: false }
}

/// The processes that are counted.
struct Counted {
    main: Pid,
    /// The only one, where those that it starts are not.
    only: Option<Pid>,
    /// How many there are to begin with.
    count: usize,
}

/// What both ways have in common.
struct Watcher<'a> {
    args: &'a HeapArgs,
    to: Output,
    heap: HeapTracer,
    watch: Rc<RefCell<HeapWatch>>,
    probes: Arc<Probes>,
    processes: Arc<ProbedProcesses>,
    _newcomers: Option<Watch>,
    options: ReportOptions,
    layout: ContextLayout,
    record: Option<HeapRecord>,
}

/// What is known when all is over.
struct AtTheEnd<'a> {
    audits: Audits,
    test: &'a dyn Fn() -> TestCall,
    end: &'a End,
}

impl<'a> Watcher<'a> {
    fn new(
        (args, to): (&'a HeapArgs, Output),
        tracer: &Tracer,
        descriptions: Vec<Description>,
        whose: &Counted,
    ) -> Result<Watcher<'a>, AppError> {
        let reach = if args.all_processes { Reach::AllProcesses } else { Reach::Members };
        let newcomers = whose.only.is_none() && reach == Reach::Members;
        let config = HeapConfig {
            stack_bytes: args.stacks.stack_bytes,
            sample: Sampling::every(args.sample.unwrap_or(0)).mean(),
            reach,
            processes: whose.count,
            newcomers,
            combined: args.combined,
            way: match std::env::var("VMAUDIT_UPROBES").as_deref() {
                Ok("multi") => AttachMethod::Multi,
                Ok("single") => AttachMethod::Single,
                _ => AttachMethod::Best,
            },
        };
        let mappings = bpf_of(tracer)?;
        let heap = with_lent(Use::Placing, || HeapTracer::start(mappings, &config))
            .map_err(|error| explained(error, args.verbose))?;
        let prober = heap.prober();
        let processes = ProbedProcesses::new(prober.members(), whose.only);
        let told = Arc::clone(&processes);
        let watch = || heap.watch_newcomers(move |newcomer| told.seen(newcomer));
        let watch = newcomers.then(watch).transpose();
        let _newcomers = watch.map_err(|error| explained(error, args.verbose))?;
        let options = ReportOptions {
            filter: super::filter(args),
            allocators: descriptions.iter().map(|each| each.name.clone()).collect(),
            combined: args.combined,
            start_ns: monotonic_ns(),
            main: Cell::new(whose.main),
            container: None,
        };
        let layouts = descriptions.iter().map(|each| each.context_layout);
        let layout = layouts.into_iter().find(|each| *each != ContextLayout::default()).unwrap_or_default();
        let probes = Arc::new(Probes::new(prober, descriptions));
        if args.verbose {
            say(format_args!("{} and {}", tracer.attached(), heap.attached));
        }
        let ledger =
            LedgerOptions { sampling: Sampling::every(args.sample.unwrap_or(0)), start_ns: options.start_ns };
        let mut watch = HeapWatch::new(ledger, Arc::clone(&probes), Arc::clone(&processes));
        if args.combined {
            watch.combined = Some(Combined::new(heap.counted()?));
        }
        let record = HeapRecord::begin(args, ("bpf", whose.main))?;
        let watch = Rc::new(RefCell::new(watch));
        Ok(Watcher { args, to, heap, watch, probes, processes, _newcomers, options, layout, record })
    }

    fn say_probed(&self) {
        let notes = self.probes.take_notes();
        if self.args.verbose {
            notes.into_iter().for_each(say);
        }
    }

    /// Until the end; prints the reports.
    fn run(&self, start: Start<'_>) -> Result<Traced<End>, AppError> {
        let mut symbolizer = symbolizer();
        let attached = !start.processes().is_empty();
        let to = (self.args, self.record.as_ref());
        let mut traced = trace(to, start, self.watch.clone(), |session| {
            self.options.main.set(session.main);
            self.say_probed();
            if attached {
                if self.probes.functions().is_empty() {
                    say(
                        "no function of these allocators is in what is mapped now; files that are mapped later \
                         are examined",
                    );
                }
                say("Ctrl-C ends watching and reports; the target goes on");
            }
            let pipeline = session.pipeline;
            watch(to, session, |due| {
                self.watch.borrow_mut().note_losses(self.heap.counters());
                let Some(is_reported) = due else { return Ok(()) };
                self.watch.borrow_mut().snapshot();
                let printed = match is_reported {
                    true => self.print(&mut pipeline.borrow_mut(), &mut symbolizer, None).map(drop),
                    false => Ok(()),
                };
                self.watch.borrow_mut().heaps.mark(monotonic_ns());
                printed
            })
        })?;
        let lost = traced.counters.lost;
        if lost > 0 {
            say(format_args!("{lost} calls that change mappings were lost: frames may have no module"));
        }
        self.say_probed();
        // With --all-processes vmaudit's own allocations would hit them while it makes the report.
        self.heap.prober().members().clear();
        let troubles = {
            let mut heap = self.watch.borrow_mut();
            heap.note_losses(self.heap.counters());
            heap.snapshot();
            heap.combined.as_ref().map_or(0, |combined| combined.troubles)
        };
        if troubles > 0 {
            say(format_args!(
                "the tables of --combined were full or could not be read {troubles} times: counts may be old"
            ));
        }
        let audits = std::mem::take(&mut traced.audits);
        let tracer = bpf_of(&traced.tracer)?;
        let test = || self.test_call(tracer);
        let last = AtTheEnd { audits, test: &test, end: &traced.outcome };
        match self.print(&mut traced.pipeline, &mut symbolizer, Some(last))? {
            Some(why) => Err(AppError::NothingSeen { why }),
            None => Ok(traced),
        }
    }

    /// With the mappings, where they were examined: at the end. Returns why nothing was seen, where there was
    /// something to see.
    fn print(
        &self,
        pipeline: &mut Pipeline,
        symbolizer: &mut Symbolizer,
        at_the_end: Option<AtTheEnd<'_>>,
    ) -> Result<Option<String>, AppError> {
        let counters = self.heap.counters();
        let (mut report, rows) = {
            let heap = &mut *self.watch.borrow_mut();
            if self.args.verbose {
                say(format_args!("{counters:?}, {} frees inside of an allocator", heap.own_frees));
            }
            name_contexts(heap, self.layout);
            report::report((&self.options, heap), (pipeline, symbolizer), (counters, 0))
        };
        let is_last = at_the_end.is_some();
        let end = at_the_end.as_ref().map(|last| last.end);
        let test = at_the_end.as_ref().map(|last| last.test).filter(|_| counters.skipped == 0);
        if let Some(AtTheEnd { audits, .. }) = at_the_end {
            add_mappings(&mut report, self.options.main.get(), audits, pipeline);
            arenas::add(&mut report, &rows, |pid| self.watch.borrow().known_blocks(pid));
        }
        let failure = report::explain_silence(&mut report, &self.watch.borrow(), (self.heap.attached, test));
        if is_last {
            runtime::mention(&mut report);
        }
        symbolizer.take_notes().iter().for_each(say);
        super::put((self.args, &self.to, self.record.as_ref()), &report, end)?;
        Ok(failure)
    }

    /// Whether these probes see anything on this kernel.
    fn test_call(&self, tracer: &BpfTracer) -> TestCall {
        match self.heap.sees_a_call(tracer) {
            Ok(true) => TestCall::Seen,
            Ok(false) => TestCall::Unseen,
            Err(error) => {
                if self.args.verbose {
                    say(format_args!("no test call could be made: {error}"));
                }
                TestCall::NotMade
            }
        }
    }
}

fn bpf_of(tracer: &Tracer) -> Result<&BpfTracer, AppError> {
    match tracer {
        Tracer::Bpf(tracer) => Ok(tracer),
        _ => Err(AppError::Usage("heap needs the backend bpf".to_owned())),
    }
}

fn attach(
    (args, to): (&HeapArgs, Output),
    descriptions: Vec<Description>,
    whose: &Whose,
) -> Result<u8, AppError> {
    let start = whose.start(args, options(args))?;
    let only = match start.processes() {
        [one] if args.no_follow_forks => Some(one.pid()),
        _ => None,
    };
    let counted = Counted { main: start.main(), only, count: start.processes().len() };
    let mut watcher = Watcher::new((args, to), &start.tracer, descriptions, &counted)?;
    watcher.processes.admit(start.processes())?;
    watcher.options.container = whose.name();
    let traced = watcher.run(start)?;
    drop(watcher);
    traced.detach_in_background();
    Ok(0)
}

fn start((args, to): (&HeapArgs, Output), descriptions: Vec<Description>) -> Result<u8, AppError> {
    let config = LaunchConfig { calls: HELD_CALLS, ..LaunchConfig::default() };
    let mut start = command(args, config, options(args))?;
    let only = args.no_follow_forks.then_some(start.main());
    let counted = Counted { main: start.main(), only, count: 1 };
    let watcher = Watcher::new((args, to), &start.tracer, descriptions, &counted)?;
    if let Some(prepared) = start.prepared() {
        watcher.processes.admit_command(prepared.pid(), prepared.file().as_deref())?;
        hold_code(prepared, &watcher);
    }
    let (probes, processes) = (Arc::clone(&watcher.probes), Arc::clone(&watcher.processes));
    start.on_start(move |running| {
        if let Some(calls) = running.take_calls() {
            hold::serve(calls, processes, move |path, name| probes.cover_path(path, name))
                .map_err(|source| SessionError::System { operation: "starting a thread", source })?;
        }
        Ok(None)
    });
    let traced = watcher.run(start)?;
    drop(watcher);
    Ok(traced.detach_in_background().exit_code())
}

/// The command's own file is probed now, what it maps when it maps it.
fn hold_code(prepared: &mut Prepared, watcher: &Watcher<'_>) {
    if let Err(error) = prepared.watch_calls() {
        say(format_args!(
            "{error}\nlibraries and children are probed while they run already: their first allocations are missed"
        ));
    }
    if let Some(path) = prepared.file() {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        watcher.probes.cover_path(&path, &name);
    }
}
