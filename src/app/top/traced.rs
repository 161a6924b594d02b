//! With a trace: the newest reservations and who made them, and regions with the stacks of the calls
//! that mapped them.

use super::front::{Front, Source, Traced, Woken};
use super::inside;
use super::newest::Newest;
use super::screen::{self, Heard};
use crate::app::attach::{begin, entering, keep, mark, readable, targets};
use crate::app::audits::Audits;
use crate::app::choose;
use crate::app::contained::{self, Contained, add_roots, members};
use crate::app::container_view::ContainerView;
use crate::app::error::AppError;
use crate::app::pipeline::Pipeline;
use crate::app::session::{End, NEVER, Schedule, Session};
use crate::app::tracer::TracerOptions;
use crate::app::watched::Watched;
use crate::cli::TopArgs;
use crate::containers::Container;
use crate::launch::Attached;
use crate::model::{Pid, StackId, SymbolizedStacks};
use crate::report::calls::call;
use crate::report::model::Stack;
use crate::report::{Report, named_stack};
use crate::symbolize::{Config, Symbolizer};
use crate::sys::clock::monotonic_ns;
use crate::top::{Call, ProcessId, Tracing};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Instant;

/// Room between kernel and vmaudit, as `attach` has it.
const RING: u32 = 32 << 20;
const SPILL: u32 = 4 << 20;
/// Stacks whose names are kept, beyond those that a look needs.
const MAX_NAMED: usize = 8192;

/// Traces what the command line names, and shows it.
pub fn run(args: &TopArgs, container: Option<&Container>, front: Front) -> Result<u8, AppError> {
    let processes = match container {
        Some(container) => keep(members(container)?, readable)?,
        None => targets(&args.of.pids)?,
    };
    let mut attached = Attached::new(processes)?;
    let tracer = choose::for_running(&TracerOptions {
        backend: args.backend,
        stack_bytes: args.stacks.stack_bytes,
        ring_bytes: RING,
        spill_bytes: SPILL,
        follow_forks: true,
        running_targets: true,
        touch: None,
        verbose: false,
        entering: container.map(|container| entering(container, false)).transpose()?,
    })?;
    let threads = match container {
        Some(container) => contained::mark(container, &mut attached, &tracer)?,
        None => mark(&attached, &tracer)?,
    };
    let mut pipeline = Pipeline::new(tracer.name(), None);
    pipeline.newest = Some(Newest::default());
    if let Some(container) = container {
        add_roots(container, &mut pipeline);
    }
    begin(&attached, &threads, &mut pipeline)?;
    let pipeline = RefCell::new(pipeline);
    let began_ns = monotonic_ns().saturating_sub(front.now_ns());
    let outcome = {
        let mut reader = tracer.reader(|raw| pipeline.borrow_mut().record(raw))?;
        // What is open is looked at when it is drawn.
        let schedule =
            Schedule { duration: None, first_look: NEVER, interval: NEVER, timeline: false, verbose: false };
        match container {
            Some(container) => {
                let watched = Contained::new(attached, container, &tracer);
                let mut session = Session::new(watched, &mut *reader, &pipeline, schedule);
                session.audits.containers = ContainerView::of(container.clone());
                front.run(&mut Trace::new(session, &pipeline, began_ns))
            }
            None => {
                let session = Session::new(attached, &mut *reader, &pipeline, schedule);
                front.run(&mut Trace::new(session, &pipeline, began_ns))
            }
        }
    };
    tracer.detach_in_background();
    outcome
}

struct Trace<'a, 'r, W> {
    session: Session<'a, 'r, W>,
    pipeline: &'a RefCell<Pipeline>,
    symbolizer: Symbolizer,
    names: SymbolizedStacks,
    /// Stacks of calls as they are shown.
    shown: HashMap<StackId, Rc<Stack>>,
    /// Time zero of what is shown: CLOCK_MONOTONIC.
    began_ns: u64,
}

impl<'a, 'r, W: Watched> Trace<'a, 'r, W> {
    fn new(session: Session<'a, 'r, W>, pipeline: &'a RefCell<Pipeline>, began_ns: u64) -> Trace<'a, 'r, W> {
        Trace {
            session,
            pipeline,
            symbolizer: Symbolizer::new(Config::default()),
            names: SymbolizedStacks::default(),
            shown: HashMap::new(),
            began_ns,
        }
    }

    /// Names the stacks that have no name yet.
    fn name(&mut self, wanted: Vec<StackId>) {
        if self.names.stacks.len() > MAX_NAMED {
            self.names.stacks.retain(|id, _| wanted.contains(id));
            self.shown.clear();
        }
        let new: Vec<StackId> = wanted.into_iter().filter(|id| !self.names.stacks.contains_key(id)).collect();
        if !new.is_empty() {
            let pipeline = &mut *self.pipeline.borrow_mut();
            let files = pipeline.unwinder.files_mut();
            self.names.stacks.extend(self.symbolizer.symbolize(&pipeline.stacks, new, files).stacks);
            self.symbolizer.take_notes().iter().for_each(crate::app::say);
        }
    }

    fn calls(&mut self) -> Vec<Call> {
        let stacks = {
            let pipeline = self.pipeline.borrow();
            let kept = pipeline.newest.iter().flat_map(Newest::kept);
            kept.filter_map(|kept| kept.event.stack.ok()).collect()
        };
        self.name(stacks);
        let (pipeline, names) = (self.pipeline.borrow(), &self.names);
        let kept = pipeline.newest.iter().flat_map(Newest::kept);
        let mut calls = Vec::new();
        for kept in kept {
            let event = &kept.event;
            let named = |id| Rc::new(named_stack(id, &pipeline.stacks, names));
            let stack = event.stack.ok().map(|id| self.shown.entry(id).or_insert_with(|| named(id)).clone());
            calls.push(Call {
                number: kept.number,
                time_ns: event.time_ns.saturating_sub(self.began_ns),
                pid: event.task.pid,
                tid: event.task.tid,
                comm: String::from_utf8_lossy(&event.task.comm).into_owned(),
                op: event.op.name(),
                bytes: kept.bytes,
                text: call(event),
                stack,
            });
        }
        calls
    }

    fn report(&mut self, pid: Pid, since_ns: u64) -> Option<Report> {
        let audits: &Audits = &self.session.audits;
        let wanted = audits.stacks_of(pid, since_ns)?;
        self.name(wanted);
        self.session.audits.report_of(pid, &self.names, &self.pipeline.borrow())
    }
}

impl<W: Watched> Source for Trace<'_, '_, W> {
    fn wait(&mut self, until: Instant, keys: bool) -> Result<Woken, AppError> {
        loop {
            // Also when the time is over already: events come all the time.
            match self.session.turn()? {
                Some(End::LeftRunning) => return Ok(Woken::Stop),
                // Their last state stays on the screen.
                Some(End::NoneLeft | End::Exited(_) | End::LoadEnded(_)) | None => {}
            }
            if keys {
                match screen::heard() {
                    Heard::Keys => return Ok(Woken::Keys),
                    Heard::Gone => return Ok(Woken::Stop),
                    Heard::Nothing => {}
                }
            }
            if Instant::now() >= until {
                return Ok(Woken::Time);
            }
        }
    }

    fn look(&mut self, id: ProcessId) -> Result<Report, String> {
        if self.pipeline.borrow().spaces.process(id.pid).is_none() {
            // It came in a moment ago, or may not be traced.
            return inside::look(id);
        }
        let begun = monotonic_ns();
        self.session.look_at(vec![id.pid]);
        self.report(id.pid, begun).ok_or_else(|| {
            format!("process {} ended, or executed another program, while it was looked at", id.pid)
        })
    }

    fn newest(&mut self) -> Option<Traced> {
        let calls = self.calls();
        let counters = self.session.reader.counters().unwrap_or_default();
        let pipeline = self.pipeline.borrow();
        let backend = pipeline.backend.clone();
        let (events, lost) = (counters.seen, counters.lost + pipeline.undecodable());
        Some((calls, Tracing { backend, events, lost }))
    }
}

impl<W> Drop for Trace<'_, '_, W> {
    fn drop(&mut self) {
        self.session.reader.stop();
    }
}
