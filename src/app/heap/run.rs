//! From the command line to the report.

use super::combined::Combined;
use super::contexts::name_contexts;
use super::hold::{self, HELD_CALLS};
use super::mappings::put_beside;
use super::probes::Probes;
use super::tell::{self, Asked};
use super::watch::HeapWatch;
use crate::app::attach;
use crate::app::audits::Audits;
use crate::app::choose;
use crate::app::error::AppError;
use crate::app::output::Output;
use crate::app::pipeline::Pipeline;
use crate::app::remedy::explained;
use crate::app::say::say;
use crate::app::session::{AT_THE_END, End, Schedule, Session};
use crate::app::tracer::{Tracer, TracerOptions};
use crate::app::watched::{Launched, Watched};
use crate::capture::EventSource;
use crate::capture::bpf::BpfTracer;
use crate::capture::heap::{HeapConfig, HeapTracer, WayWanted};
use crate::cli::{Aslr, Backend, HeapArgs};
use crate::heap::describe::ContextLayout;
use crate::heap::silence::TestCall;
use crate::heap::{Description, LedgerOptions, Sampling};
use crate::launch::{Attached, Launch, LaunchConfig, Prepared};
use crate::model::Pid;
use crate::rights::{Use, viewer, with_lent};
use crate::symbolize::Symbolizer;
use crate::sys::clock::monotonic_ns;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Of the second ring, for what has no room in the first: then without stack.
const SPILL_BYTES: u32 = 8 << 20;

/// Seconds between looks for what keeps growing.
const LEAK_LOOKS: f64 = 1.0;

/// Watches the heaps of processes, or of a command; returns vmaudit's exit code.
pub fn heap(args: &HeapArgs) -> Result<u8, AppError> {
    args.check().map_err(AppError::Usage)?;
    let descriptions = super::descriptions(args)?;
    let to = super::output(args)?;
    if args.command.is_empty() { attach((args, to), descriptions) } else { start((args, to), descriptions) }
}

fn options(args: &HeapArgs, running_targets: bool) -> TracerOptions {
    TracerOptions {
        backend: Backend::Bpf,
        stack_bytes: args.stack_bytes,
        ring_bytes: args.ring_bytes,
        spill_bytes: SPILL_BYTES,
        follow_forks: !args.no_follow_forks,
        running_targets,
        touch: None,
        entering: None,
        verbose: args.verbose,
    }
}

/// What both ways have in common.
struct Watcher<'a> {
    args: &'a HeapArgs,
    to: Output,
    tracer: &'a Tracer,
    heap: HeapTracer,
    probes: Arc<Probes>,
    asked: Asked,
    layout: ContextLayout,
}

impl<'a> Watcher<'a> {
    fn new(
        (args, to): (&'a HeapArgs, Output),
        tracer: &'a Tracer,
        (descriptions, only): (Vec<Description>, Option<Pid>),
    ) -> Result<Watcher<'a>, AppError> {
        let config = HeapConfig {
            stack_bytes: args.stack_bytes,
            sample: Sampling::every(args.sample.unwrap_or(0)).mean(),
            only,
            combined: args.combined,
            way: match std::env::var("VMAUDIT_UPROBES").as_deref() {
                Ok("multi") => WayWanted::Multi,
                Ok("single") => WayWanted::Single,
                _ => WayWanted::Best,
            },
        };
        let mappings = bpf_of(tracer)?;
        let heap = with_lent(Use::Placing, || HeapTracer::start(mappings, &config))
            .map_err(|error| explained(error, args.verbose))?;
        if viewer().is_some() && only.is_none() && !heap.leaves_others_alone() {
            return Err(AppError::Usage(
                "on this kernel (before Linux 6.13) the return from a probed function is changed in every process \
                 that maps the file, also in those of others: name one process (-p PID --no-follow-forks, or \
                 --no-follow-forks -- CMD), or sudo vmaudit heap …"
                    .to_owned(),
            ));
        }
        let asked = Asked {
            filter: super::filter(args),
            allocators: descriptions.iter().map(|each| each.name.clone()).collect(),
            combined: args.combined,
            start_ns: monotonic_ns(),
            main: 0,
        };
        let layouts = descriptions.iter().map(|each| each.context_layout);
        let layout = layouts.into_iter().find(|each| *each != ContextLayout::default()).unwrap_or_default();
        let probes = Arc::new(Probes::new(heap.prober(), descriptions));
        if args.verbose {
            say(format_args!("{} and {}", tracer.attached(), heap.attached));
        }
        Ok(Watcher { args, to, tracer, heap, probes, asked, layout })
    }

    fn pipeline(&self) -> Result<Pipeline, AppError> {
        let mut pipeline = Pipeline::new(self.tracer.name(), None);
        let options = LedgerOptions {
            sampling: Sampling::every(self.args.sample.unwrap_or(0)),
            start_ns: self.asked.start_ns,
        };
        let mut watch = HeapWatch::new(options, Arc::clone(&self.probes));
        if self.args.combined {
            watch.combined = Some(Combined::new(self.heap.counted()?));
        }
        pipeline.heap = Some(Box::new(watch));
        Ok(pipeline)
    }

    fn tell_probed(&self) {
        let notes = self.probes.take_notes();
        if self.args.verbose {
            notes.into_iter().for_each(say);
        }
    }

    /// Until the end; prints the reports.
    fn watch<W: Watched>(
        &self,
        (watched, reader): (W, &mut dyn EventSource),
        pipeline: &RefCell<Pipeline>,
    ) -> Result<End, AppError> {
        let schedule = Schedule {
            duration: self.args.duration.map(Duration::from_secs_f64),
            first_look: AT_THE_END,
            interval: AT_THE_END,
            timeline: false,
            verbose: self.args.verbose,
        };
        let mut symbolizer = tell::symbolizer();
        let mut session = Session::new(watched, reader, pipeline, schedule);
        let printed = self.args.interval.is_some();
        // Growth is told from one look to the next.
        let interval = self.args.interval.or(self.args.leaks_only.then_some(LEAK_LOOKS));
        let interval = interval.map(Duration::from_secs_f64);
        let mut due = interval.map(|interval| Instant::now() + interval);
        let symbols = &mut symbolizer;
        session.each_turn = Some(Box::new(move || {
            let counters = self.heap.counters();
            let mut pipeline = pipeline.borrow_mut();
            if let Some(heap) = &mut pipeline.heap {
                heap.note_losses(counters);
            }
            if let (Some(interval), Some(at)) = (interval, due)
                && Instant::now() >= at
            {
                due = Some(at + interval);
                if let Some(heap) = &mut pipeline.heap {
                    heap.look();
                }
                if printed {
                    drop(self.print(&mut pipeline, symbols, None)?);
                }
                if let Some(heap) = &mut pipeline.heap {
                    heap.heaps.mark(monotonic_ns());
                }
            }
            Ok(())
        }));
        let end = session.run()?;
        let lost = session.reader.counters()?.lost;
        let audits = std::mem::take(&mut session.audits);
        drop(session);
        if lost > 0 {
            say(format_args!("{lost} calls that change mappings were lost: frames may have no module"));
        }
        self.tell_probed();
        let mut pipeline = pipeline.borrow_mut();
        let counters = self.heap.counters();
        if let Some(heap) = &mut pipeline.heap {
            heap.note_losses(counters);
            heap.look();
        }
        let troubles =
            pipeline.heap.as_ref().and_then(|heap| heap.combined.as_ref()).map_or(0, |c| c.troubles);
        if troubles > 0 {
            say(format_args!(
                "the tables of --combined were full or could not be read {troubles} times: counts may be old"
            ));
        }
        match self.print(&mut pipeline, &mut symbolizer, Some(audits))? {
            Some(why) => Err(AppError::NothingSeen { why }),
            None => Ok(end),
        }
    }

    /// With the mappings beside, where they were looked at: at the end. Returns why nothing was seen, where
    /// there was something to see.
    fn print(
        &self,
        pipeline: &mut Pipeline,
        symbolizer: &mut Symbolizer,
        audits: Option<Audits>,
    ) -> Result<Option<String>, AppError> {
        let counters = self.heap.counters();
        if self.args.verbose {
            let own = pipeline.heap.as_ref().map_or(0, |heap| heap.own_frees);
            say(format_args!("{counters:?}, {own} frees inside of an allocator"));
        }
        if let Some(heap) = &mut pipeline.heap {
            name_contexts(heap, self.layout);
        }
        let mut report = tell::report(&self.asked, (pipeline, symbolizer), (counters, 0));
        let at_the_end = audits.is_some();
        if let Some(audits) = audits {
            put_beside(&mut report, self.asked.main, audits, pipeline);
        }
        let test = || self.test_call();
        let test = (at_the_end && counters.skipped == 0).then_some(&test as &dyn Fn() -> TestCall);
        let failure = pipeline
            .heap
            .as_ref()
            .and_then(|heap| tell::tell_silence(&mut report, heap, (self.heap.attached, test)));
        for note in symbolizer.take_notes() {
            say(note);
        }
        super::write(self.args, &self.to, &report)?;
        Ok(failure)
    }

    /// Whether these probes see anything on this kernel.
    fn test_call(&self) -> TestCall {
        match bpf_of(self.tracer).map(|tracer| self.heap.sees_a_call(tracer)) {
            Ok(Ok(true)) => TestCall::Seen,
            Ok(Ok(false)) => TestCall::Unseen,
            Ok(Err(error)) => {
                if self.args.verbose {
                    say(format_args!("no test call could be made: {error}"));
                }
                TestCall::NotMade
            }
            Err(_) => TestCall::NotMade,
        }
    }
}

fn bpf_of(tracer: &Tracer) -> Result<&BpfTracer, AppError> {
    match tracer {
        Tracer::Bpf(tracer) => Ok(tracer),
        _ => Err(AppError::Usage("heap needs the backend bpf".to_owned())),
    }
}

fn attach((args, to): (&HeapArgs, Output), descriptions: Vec<Description>) -> Result<u8, AppError> {
    let attached = Attached::new(attach::targets(&args.pids)?)?;
    let tracer = choose::for_running(&options(args, true))?;
    let threads = attach::mark(&attached, &tracer)?;
    // With children, and of several processes: probes are in every process that maps the file.
    let only = match attached.processes() {
        [one] if args.no_follow_forks => Some(one.pid()),
        _ => None,
    };
    let mut watcher = Watcher::new((args, to), &tracer, (descriptions, only))?;
    let pipeline = RefCell::new(watcher.pipeline()?);
    watcher.asked.main = attach::begin(&attached, &threads, &mut pipeline.borrow_mut())?;
    watcher.tell_probed();
    if watcher.probes.functions().is_empty() {
        say(
            "no function of these allocators is in what is mapped now; files that are mapped later are looked at",
        );
    }
    {
        let mut reader = tracer.reader(|raw| pipeline.borrow_mut().record(raw))?;
        say("Ctrl-C ends watching and reports; the target goes on");
        watcher.watch((attached, &mut *reader), &pipeline)?;
    }
    drop(watcher);
    tracer.detach_in_background();
    Ok(0)
}

fn start((args, to): (&HeapArgs, Output), descriptions: Vec<Description>) -> Result<u8, AppError> {
    let mut prepared = Launch::prepare(LaunchConfig {
        argv: args.command.clone(),
        as_root: args.as_root,
        hold_exits: true,
        aslr_off: args.aslr == Aslr::Off,
        calls: HELD_CALLS,
        ..LaunchConfig::default()
    })?;
    let pid = prepared.pid();
    let tracer = choose::for_command(&options(args, false), &mut prepared)?;
    let mut watcher = Watcher::new((args, to), &tracer, (descriptions, args.no_follow_forks.then_some(pid)))?;
    watcher.asked.main = pid;
    hold_code(&mut prepared, &watcher);
    let pipeline = RefCell::new(watcher.pipeline()?);
    let end = {
        let mut reader = tracer.reader(|raw| pipeline.borrow_mut().record(raw))?;
        let mut running = prepared.go()?;
        if let Some(calls) = running.take_calls() {
            hold::serve(calls, Arc::clone(&watcher.probes))
                .map_err(|source| AppError::System { operation: "starting a thread", source })?;
        }
        for note in running.notes() {
            say(format_args!("{note}"));
        }
        watcher.watch(
            (Launched::new(running, "start it by itself, and attach (vmaudit heap -p PID)"), &mut *reader),
            &pipeline,
        )?
    };
    drop(watcher);
    tracer.detach_in_background();
    Ok(match end {
        End::Exited(status) => status.exit_code(),
        End::LoadEnded(code) => code,
        End::NoneLeft | End::LeftRunning => 0,
    })
}

/// The command's own file is probed now, what it maps when it maps it.
fn hold_code(prepared: &mut Prepared, watcher: &Watcher<'_>) {
    if let Err(error) = prepared.watch_calls() {
        say(format_args!(
            "{error}\nlibraries are probed while they are used already: their first allocations are missed"
        ));
    }
    if let Some(path) = prepared.file() {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        watcher.probes.cover_path(&path, &name);
    }
}
