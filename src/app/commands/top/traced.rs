//! With a trace: the newest reservations with their stacks, and regions with the stacks of the calls that
//! mapped them.

use super::front::{Front, Source, Traced as Shown, Woken};
use super::inside;
use super::newest::Newest;
use super::screen::{self, TerminalState};
use crate::app::error::AppError;
use crate::app::rule_files::rules;
use crate::capture::CaptureConfig;
use crate::cli::TopArgs;
use crate::containers::Container;
use crate::model::{Pid, StackId};
use crate::report::calls::call;
use crate::report::model::Stack;
use crate::report::{Report, named_stack};
use crate::session::SessionError;
use crate::session::audits::Audits;
use crate::session::engine::{End, NEVER, Schedule, Session};
use crate::session::start::Start;
use crate::session::symbol_names::SymbolNames;
use crate::session::tracer::TracerOptions;
use crate::symbolize::Config;
use crate::sys::clock::monotonic_ns;
use crate::top::{Call, ProcessId, Tracing};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Instant;

/// Traces what the command line names, and shows it.
pub fn run(args: &TopArgs, container: Option<&Container>, front: Front) -> Result<u8, AppError> {
    let capture = CaptureConfig { stack_bytes: args.stacks.stack_bytes, ..CaptureConfig::default() };
    let options = TracerOptions { only: args.backend.only(), capture, verbose: false, is_optional: false };
    let start = match container {
        Some(container) => Start::container(container, true, options)?,
        None => Start::running(&args.of.pids, options)?,
    };
    let newest = Rc::new(RefCell::new(Newest::default()));
    let mut pipeline = start.pipeline();
    pipeline.rules = rules();
    pipeline.add_sink(newest.clone());
    let began_ns = monotonic_ns().saturating_sub(front.now_ns());
    // What is open is examined when it is drawn.
    let schedule = Schedule::each(NEVER);
    // What went wrong on the screen is no reason to wait for the programs to go.
    let traced = start.run(pipeline, schedule, |session| {
        Ok::<_, SessionError>(front.run(&mut Trace::new(session, newest, began_ns)))
    })?;
    traced.detach_in_background()
}

struct Trace<'s, 'a> {
    session: &'s mut Session<'a>,
    newest: Rc<RefCell<Newest>>,
    names: SymbolNames,
    /// Stacks of calls as they are shown.
    shown: HashMap<StackId, Rc<Stack>>,
    /// Time zero of what is shown: CLOCK_MONOTONIC.
    began_ns: u64,
}

impl<'s, 'a> Trace<'s, 'a> {
    fn new(session: &'s mut Session<'a>, newest: Rc<RefCell<Newest>>, began_ns: u64) -> Trace<'s, 'a> {
        Trace { session, newest, names: SymbolNames::new(Config::default()), shown: HashMap::new(), began_ns }
    }

    /// Names the stacks that have no name yet.
    fn name(&mut self, stacks: Vec<StackId>) {
        if self.names.are_many() {
            self.shown.clear();
        }
        self.names.of(stacks.into_iter(), &mut self.session.pipeline.borrow_mut());
        self.names.take_notes().iter().for_each(crate::session::say::say);
    }

    fn calls(&mut self) -> Vec<Call> {
        let stacks = self.newest.borrow().kept().filter_map(|kept| kept.event.stack.ok()).collect();
        self.name(stacks);
        let (pipeline, names) = (self.session.pipeline.borrow(), self.names.known());
        let mut calls = Vec::new();
        for kept in self.newest.borrow().kept() {
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
        let stacks = audits.stacks_of(pid, since_ns)?;
        self.name(stacks);
        self.session.audits.report_of(pid, self.names.known(), &self.session.pipeline.borrow())
    }
}

impl Source for Trace<'_, '_> {
    fn wait(&mut self, until: Instant, keys: bool) -> Result<Woken, AppError> {
        loop {
            // Also when the time is over already: events come all the time.
            match self.session.turn()? {
                Some(End::LeftRunning) => return Ok(Woken::Stop),
                // Their last state stays on the screen.
                Some(End::NoneLeft | End::Exited(_) | End::LoadEnded(_)) | None => {}
            }
            if keys {
                match screen::state_of_terminal() {
                    TerminalState::Keys => return Ok(Woken::Keys),
                    TerminalState::Gone => return Ok(Woken::Stop),
                    TerminalState::Nothing => {}
                }
            }
            if Instant::now() >= until {
                return Ok(Woken::Time);
            }
        }
    }

    fn snapshot(&mut self, id: ProcessId) -> Result<Report, String> {
        if self.session.pipeline.borrow().spaces.process(id.pid).is_none() {
            // It came in a moment ago, or may not be traced.
            return inside::snapshot(id);
        }
        let begun = monotonic_ns();
        self.session.snapshot_processes(vec![id.pid]);
        self.report(id.pid, begun).ok_or_else(|| {
            format!("process {} ended, or executed another program, while it was examined", id.pid)
        })
    }

    fn newest(&mut self) -> Option<Shown> {
        let calls = self.calls();
        let counters = self.session.reader.counters().unwrap_or_default();
        let pipeline = self.session.pipeline.borrow();
        let backend = pipeline.backend.clone();
        let (events, lost) = (counters.seen, counters.lost + pipeline.undecodable());
        Some((calls, Tracing { backend, events, lost }))
    }
}

impl Drop for Trace<'_, '_> {
    fn drop(&mut self) {
        self.session.reader.stop();
    }
}
