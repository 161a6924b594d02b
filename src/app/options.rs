//! What `run` and `attach` have in common, by their common options.

use super::conclude::conclude;
use super::dump::Dump;
use super::error::AppError;
use super::heap::preload::Counting;
use super::output::{self, Destination, Other, Output, OutputSpec};
use super::rule_files::rules;
use crate::capture::CaptureConfig;
use crate::capture::bpf::TouchConfig;
use crate::cli::{AttachArgs, AuditArgs, DetailArgs, FlameArgs, InsideArgs, RunArgs};
use crate::session::engine::Schedule;
use crate::session::pipeline::Pipeline;
use crate::session::record::{Record, RecordOptions};
use crate::session::start::{Start, Traced};
use crate::session::touch;
use crate::session::tracer::TracerOptions;
use crate::touch::Touches;
use std::cell::RefCell;
use std::ffi::OsString;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// The options that both have.
#[derive(Clone, Copy)]
pub struct RunOptions<'a> {
    audit: &'a AuditArgs,
    detail: &'a DetailArgs,
    inside: &'a InsideArgs,
    flame: FlameArgs,
    stack_bytes: u64,
    follow_forks: bool,
    duration: Option<Duration>,
    interval: Option<Duration>,
}

macro_rules! options_of {
    ($($args:ty),*) => {
        $(impl<'a> From<&'a $args> for RunOptions<'a> {
            fn from(args: &'a $args) -> RunOptions<'a> {
                RunOptions {
                    audit: &args.audit,
                    detail: &args.detail,
                    inside: &args.inside,
                    flame: args.flame,
                    stack_bytes: args.stacks.stack_bytes,
                    follow_forks: !args.no_follow_forks,
                    duration: args.duration.map(Duration::from_secs_f64),
                    interval: args.interval.map(Duration::from_secs_f64),
                }
            }
        })*
    };
}

options_of!(RunArgs, AttachArgs);

/// What listens to a run besides its report.
#[derive(Default)]
pub struct Sinks {
    dump: Option<(PathBuf, Rc<RefCell<Dump>>)>,
    touches: Option<Rc<RefCell<Touches>>>,
    record: Option<Rc<RefCell<Record>>>,
    /// Its processes count what they allocate.
    pub heap: Option<Counting>,
}

impl<'a> RunOptions<'a> {
    /// # Errors
    /// When the file cannot be created.
    pub fn dump(&self) -> Result<Sinks, AppError> {
        let Some(path) = &self.inside.dump_events else { return Ok(Sinks::default()) };
        let dump = Dump::new(Output::open(Some(path), &[])?.stream());
        Ok(Sinks { dump: Some((path.clone(), Rc::new(RefCell::new(dump)))), ..Sinks::default() })
    }

    /// The backend's side.
    pub fn tracer_options(&self) -> TracerOptions {
        let touch = &self.detail.touch;
        let budget = TouchConfig { budget: touch.touch_budget, ring_bytes: touch.touch_ring_bytes };
        let capture = CaptureConfig {
            stack_bytes: self.stack_bytes,
            ring_bytes: self.inside.rings.ring_bytes,
            spill_bytes: self.inside.rings.spill_bytes,
            queue_bytes: self.inside.rings.queue_bytes,
            follow_forks: self.follow_forks,
            touch: touch.touch.then_some(budget),
            ..CaptureConfig::default()
        };
        TracerOptions {
            only: self.audit.backend.only(),
            capture,
            verbose: self.inside.verbose,
            is_optional: false,
        }
    }

    /// What the tracer's records go through; begins the recording, if one is requested.
    ///
    /// # Errors
    /// When the recording cannot be begun.
    pub fn pipeline(
        &self,
        start: &Start<'_>,
        command: &[OsString],
        sinks: &mut Sinks,
    ) -> Result<Pipeline, AppError> {
        let mut pipeline = start.pipeline();
        pipeline.rules = rules();
        if let Some((_, dump)) = &sinks.dump {
            pipeline.add_sink(dump.clone());
        }
        let options = RecordOptions {
            backend: start.tracer.name(),
            path: self.audit.output.as_deref(),
            timeline: self.interval.is_some(),
            touch: self.detail.touch.touch,
            verbose: self.inside.verbose,
        };
        let record = Record::begin(options, start.main(), command)?;
        sinks.record = record.map(|record| Rc::new(RefCell::new(record)));
        if let Some(record) = &sinks.record {
            pipeline.add_sink(record.clone());
        }
        if self.detail.touch.touch {
            let touches = Rc::new(RefCell::new(Touches::default()));
            pipeline.add_sink(touches.clone());
            sinks.touches = Some(touches);
        }
        Ok(pipeline)
    }

    /// Writes the report and all other requested output, and on standard error what the user should know
    /// about its numbers.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn conclude<T>(
        &self,
        traced: &mut Traced<T>,
        (spec, sinks): (&OutputSpec, Sinks),
        exit_code: Option<u8>,
    ) -> Result<(), AppError> {
        if let Some((path, dump)) = sinks.dump {
            dump.borrow_mut().finish().map_err(|source| AppError::Write { path, source })?;
        }
        if let Some(touches) = &sinks.touches {
            touch::finish(&mut touches.borrow_mut(), &traced.tracer)?;
        }
        traced.audits.touches = sinks.touches;
        let listeners = (sinks.record.as_deref(), sinks.heap.as_ref());
        conclude(traced, spec, listeners, (exit_code, self.inside.verbose))
    }

    /// Page faults are reported by stack and owner, of each process.
    pub fn touch(&self) -> bool {
        self.detail.touch.touch
    }

    /// The first snapshot is taken after `first_snapshot`, and then each `pause` where no interval is
    /// requested.
    pub fn schedule(&self, first_snapshot: Duration, pause: Duration) -> Schedule {
        Schedule {
            duration: self.duration,
            first_snapshot,
            interval: self.interval.unwrap_or(pause),
            timeline: self.interval.is_some(),
            verbose: self.inside.verbose,
        }
    }

    /// To be called before anything is started: opens what the report is written to.
    ///
    /// # Errors
    /// When switches and format do not go together, when the report cannot be written, or would be written
    /// over another of the command line's files.
    pub fn output_spec(&self, command: &[OsString]) -> Result<OutputSpec, AppError> {
        let report = self.audit.to.report.as_deref();
        if let Some(recording) = &self.audit.output {
            output::check_recording(report, recording)?;
        }
        let mut others = output::program(command);
        let dump = self.inside.dump_events.as_deref();
        others.extend(dump.map(|path| Other { path, what: "the file of --dump-events" }));
        let output = Output::open(report, &others)?;
        OutputSpec::new(self.audit.to.format, self.flame, Destination { output, top: self.detail.top })
    }
}
