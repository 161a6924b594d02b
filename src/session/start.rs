//! The sequence that all traced commands share: prepare the targets, choose a backend, mark, take the first
//! snapshots, read events until the end.

use super::audits::Audits;
use super::engine::{Schedule, Session};
use super::error::SessionError;
use super::known::Known;
use super::load::Load;
use super::managed::{Managed, expect};
use super::pipeline::Pipeline;
use super::say::say;
use super::targets::contained::{self, Contained, add_roots, members};
use super::targets::container_view::ContainerView;
use super::targets::entering::view_of;
use super::targets::{begin, entering, keep, mark, readable, targets};
use super::tracer::choose;
use super::tracer::{Tracer, TracerOptions};
use super::watched::{Launched, Watched};
use crate::capture::bpf::MarkedThread;
use crate::capture::{CaptureConfig, Counters};
use crate::containers::Container;
use crate::launch::{Attached, Launch, LaunchConfig, Prepared, Process, Running};
use crate::model::Pid;
use std::cell::RefCell;
use std::time::Instant;

enum Targets {
    Command(Box<Prepared>),
    Running(Box<Attached>, Vec<MarkedThread>),
}

/// What is read of the command once it runs.
type OnStart<'a> = dyn FnOnce(&mut Running) -> Result<Option<Load>, SessionError> + 'a;

/// A running backend and its targets: none of their calls is lost from here on.
pub struct Start<'a> {
    pub tracer: Tracer,
    targets: Targets,
    container: Option<&'a Container>,
    /// A process that enters the container later is a target, too.
    followed: bool,
    /// What to do about a command that does not work under a seccomp filter.
    without_filter: &'static str,
    on_start: Option<Box<OnStart<'a>>>,
}

/// What a session leaves behind.
pub struct Traced<T> {
    pub outcome: T,
    /// The process that comes first in the report.
    pub main: Pid,
    pub audits: Audits,
    pub counters: Counters,
    pub pipeline: Pipeline,
    /// What to do about a command that does not work under a seccomp filter.
    pub without_filter: &'static str,
    pub tracer: Tracer,
}

impl<'a> Start<'a> {
    /// A command, suspended before its first instruction; with `container`, also what is executed in it from
    /// outside meanwhile. `without_filter` and, where calls are seen through it, `without_listener` say what
    /// to do about a command that does not work under a seccomp filter.
    ///
    /// # Errors
    /// When it cannot be started, or no backend works.
    pub fn command(
        config: LaunchConfig,
        options: TracerOptions,
        (container, without_filter, without_listener): (Option<&'a Container>, &'static str, &'static str),
    ) -> Result<Start<'a>, SessionError> {
        let begun = Instant::now();
        let mut prepared = Launch::prepare(config)?;
        let entering = container.map(|container| entering(container, true)).transpose()?;
        let capture = CaptureConfig { entering, running_targets: false, ..options.capture };
        let options = TracerOptions { capture, ..options };
        let tracer = choose::for_command(&options, &mut prepared)?;
        if options.verbose {
            say(format_args!(
                "backend {}, {} attached after {:.1?}",
                tracer.name(),
                tracer.attached(),
                begun.elapsed()
            ));
        }
        let without_filter = if tracer.watches_calls() { without_listener } else { without_filter };
        let targets = Targets::Command(Box::new(prepared));
        Ok(Start { tracer, targets, container, followed: false, without_filter, on_start: None })
    }

    /// Processes that run already, by the numbers that the user gave.
    ///
    /// # Errors
    /// When none is left that could be traced, or BPF does not work.
    pub fn running(pids: &[Pid], options: TracerOptions) -> Result<Start<'a>, SessionError> {
        Start::attach(targets(pids)?, options, (None, false))
    }

    /// The processes of a container; `followed`, also those that enter it later.
    ///
    /// # Errors
    /// As [`Start::running`].
    pub fn container(
        container: &'a Container,
        followed: bool,
        options: TracerOptions,
    ) -> Result<Start<'a>, SessionError> {
        let processes = keep(members(container)?, readable)?;
        Start::attach(processes, options, (Some(container), followed))
    }

    fn attach(
        processes: Vec<Process>,
        options: TracerOptions,
        (container, followed): (Option<&'a Container>, bool),
    ) -> Result<Start<'a>, SessionError> {
        let begun = Instant::now();
        let mut attached = Attached::new(processes)?;
        let entered = container.filter(|_| followed);
        let entering = entered.map(|container| entering(container, false)).transpose()?;
        let capture = CaptureConfig { entering, running_targets: true, ..options.capture };
        let options = TracerOptions { capture, ..options };
        let tracer = choose::for_running(&options)?;
        let loaded = begun.elapsed();
        let threads = match entered {
            Some(container) => contained::mark(container, &mut attached, &tracer)?,
            None => mark(&attached, &tracer)?,
        };
        if options.verbose {
            say(format_args!(
                "backend {}, {} attached after {loaded:.1?}; {} threads marked after {:.1?}",
                tracer.name(),
                tracer.attached(),
                threads.len(),
                begun.elapsed()
            ));
        }
        Ok(Start {
            tracer,
            targets: Targets::Running(Box::new(attached), threads),
            container,
            followed,
            without_filter: "",
            on_start: None,
        })
    }

    /// The command, as long as it is suspended.
    pub fn prepared(&mut self) -> Option<&mut Prepared> {
        match &mut self.targets {
            Targets::Command(prepared) => Some(prepared),
            Targets::Running(..) => None,
        }
    }

    /// What a process has mapped is known without a snapshot, from its first instruction on.
    pub fn knows_all_mappings(&self) -> bool {
        matches!(self.tracer, Tracer::Bpf(_))
    }

    /// The processes that ran already.
    pub fn processes(&self) -> &[Process] {
        match &self.targets {
            Targets::Command(..) => &[],
            Targets::Running(attached, _) => attached.processes(),
        }
    }

    /// The command, or the first process.
    pub fn main(&self) -> Pid {
        match &self.targets {
            Targets::Command(prepared) => prepared.pid(),
            Targets::Running(attached, _) => attached.processes().first().map_or(0, Process::pid),
        }
    }

    /// Called just after the command was started: it may return the load that drives the command.
    pub fn on_start(&mut self, act: impl FnOnce(&mut Running) -> Result<Option<Load>, SessionError> + 'a) {
        self.on_start = Some(Box::new(act));
    }

    /// What records go through, without sinks yet.
    pub fn pipeline(&self) -> Pipeline {
        let mut pipeline = Pipeline::new(self.tracer.name());
        if let Some(known) = self.tracer.known_stacks() {
            pipeline.known = Known::of(known);
        }
        if let Some(interpreters) = self.tracer.interpreters() {
            pipeline.managed = Managed::of(interpreters);
            if let Targets::Command(prepared) = &self.targets {
                expect(&mut pipeline.managed, prepared.file());
            }
        }
        if let Some(container) = self.container {
            add_roots(container, &mut pipeline);
        }
        pipeline
    }

    /// Lets the targets go on, and `during` have the session.
    ///
    /// # Errors
    /// When nothing is left to trace, the command cannot be executed, or `during` fails.
    pub fn run<T, E: From<SessionError>>(
        self,
        mut pipeline: Pipeline,
        schedule: Schedule,
        during: impl FnOnce(&mut Session<'_>) -> Result<T, E>,
    ) -> Result<Traced<T>, E> {
        let mut main = self.main();
        let Start { tracer, targets, container, followed, without_filter, on_start } = self;
        if let Targets::Running(attached, threads) = &targets {
            let begun = begin(attached, threads, &mut pipeline);
            main = begun.inspect_err(|_| pipeline.abandon())?;
        }
        let pipeline = RefCell::new(pipeline);
        let (outcome, audits, counters) = {
            let mut reader = tracer.reader(|raw| pipeline.borrow_mut().record(raw))?;
            let mut load = None;
            let (watched, view): (Box<dyn Watched + '_>, ContainerView) = match targets {
                Targets::Command(prepared) => {
                    let started = prepared.go().inspect_err(|_| pipeline.borrow_mut().abandon());
                    let mut running = started.map_err(SessionError::from)?;
                    tracer.started(&mut running)?;
                    if let Some(act) = on_start {
                        load = act(&mut running)?;
                    }
                    running.notes().iter().for_each(say);
                    (Box::new(Launched::new(running, without_filter)), view_of(container, main))
                }
                Targets::Running(attached, _) => {
                    let view = container.cloned().map(ContainerView::of).unwrap_or_default();
                    match container.filter(|_| followed) {
                        Some(container) => (Box::new(Contained::new(*attached, container, &tracer)), view),
                        None => (attached, view),
                    }
                }
            };
            let mut session = Session::new(watched, &mut *reader, &pipeline, schedule);
            session.load = load;
            session.main = main;
            session.audits.containers = view;
            session.audits.main = main;
            let outcome = during(&mut session)?;
            let audits = std::mem::take(&mut session.audits);
            drop(session);
            (outcome, audits, reader.counters().map_err(SessionError::from)?)
        };
        let pipeline = pipeline.into_inner();
        Ok(Traced { outcome, main, audits, counters, pipeline, without_filter, tracer })
    }
}

impl<T> Traced<T> {
    /// Processes what has arrived since.
    ///
    /// # Errors
    /// When the ring cannot be read.
    pub fn settle(&mut self) -> Result<(), SessionError> {
        let pipeline = &mut self.pipeline;
        let mut reader = self.tracer.reader(|raw| pipeline.record(raw))?;
        reader.settle()?;
        self.counters = reader.counters()?;
        Ok(())
    }

    /// To be called just before vmaudit exits.
    pub fn detach_in_background(self) -> T {
        let Traced { outcome, pipeline, tracer, .. } = self;
        // Closes what sinks have open: the child that detaches would keep it open.
        drop(pipeline);
        tracer.detach_in_background();
        outcome
    }
}
