//! What `run` and `attach` do alike with what both are asked for.

use super::contained::add_roots;
use super::dump::Dump;
use super::error::AppError;
use super::output::{self, Destination, Other, Output, OutputSpec};
use super::pipeline::Pipeline;
use super::record::{Record, RecordOptions};
use super::session::Schedule;
use super::touch;
use super::tracer::{Tracer, TracerOptions};
use crate::capture::bpf::Entering;
use crate::cli::{AttachArgs, AuditArgs, DetailArgs, FlameArgs, InsideArgs, RunArgs};
use crate::containers::Container;
use crate::model::Pid;
use std::ffi::OsString;
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

impl<'a> From<&'a RunArgs> for RunOptions<'a> {
    fn from(args: &'a RunArgs) -> RunOptions<'a> {
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
}

impl<'a> From<&'a AttachArgs> for RunOptions<'a> {
    fn from(args: &'a AttachArgs) -> RunOptions<'a> {
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
}

/// Of whom the report will be.
pub struct Subject<'a> {
    /// Comes first.
    pub main: Pid,
    pub command: &'a [OsString],
    pub container: Option<&'a Container>,
}

impl<'a> RunOptions<'a> {
    /// # Errors
    /// When the file cannot be created.
    pub fn dump(&self) -> Result<Option<Dump>, AppError> {
        let Some(path) = &self.inside.dump_events else { return Ok(None) };
        Ok(Some(Dump::new(Output::open(Some(path), &[])?.stream())))
    }

    /// # Errors
    /// The write of the dump that failed.
    pub fn finish_dump(&self, pipeline: &mut Pipeline) -> Result<(), AppError> {
        match (pipeline.finish_dump(), &self.inside.dump_events) {
            (Err(source), Some(path)) => Err(AppError::Write { path: path.clone(), source }),
            _ => Ok(()),
        }
    }

    /// For targets that are started; those that run already need one setting more.
    pub fn tracer_options(&self, entering: Option<Entering>) -> TracerOptions {
        TracerOptions {
            backend: self.audit.backend,
            stack_bytes: self.stack_bytes,
            ring_bytes: self.inside.rings.ring_bytes,
            spill_bytes: self.inside.rings.spill_bytes,
            follow_forks: self.follow_forks,
            running_targets: false,
            touch: touch::config(&self.detail.touch),
            entering,
            verbose: self.inside.verbose,
        }
    }

    /// What the tracer's records go through; begins the recording, if one is asked for.
    ///
    /// # Errors
    /// When the recording cannot be begun.
    pub fn pipeline(
        &self,
        tracer: &Tracer,
        subject: &Subject<'_>,
        dump: Option<Dump>,
    ) -> Result<Pipeline, AppError> {
        let mut pipeline = Pipeline::new(tracer.name(), dump);
        if let Some(container) = subject.container {
            add_roots(container, &mut pipeline);
        }
        pipeline.touches = touch::begin(&self.detail.touch);
        let options = RecordOptions {
            backend: tracer.name(),
            path: self.audit.output.as_deref(),
            timeline: self.interval.is_some(),
            touch: self.detail.touch.touch,
            verbose: self.inside.verbose,
        };
        pipeline.record = Record::begin(options, subject.main, subject.command)?;
        Ok(pipeline)
    }

    /// Looks first after `first_look`, and then each `pause` where no interval is asked for.
    pub fn schedule(&self, first_look: Duration, pause: Duration) -> Schedule {
        Schedule {
            duration: self.duration,
            first_look,
            interval: self.interval.unwrap_or(pause),
            timeline: self.interval.is_some(),
            verbose: self.inside.verbose,
        }
    }

    /// To be asked before anything is started: opens what the report is written to.
    ///
    /// # Errors
    /// When switches and format do not go together, when the report cannot be written, or would be written
    /// over another of the command line's files.
    pub fn wanted(&self, command: &[OsString]) -> Result<OutputSpec, AppError> {
        let report = self.audit.report.as_deref();
        if let Some(recording) = &self.audit.output {
            output::check_recording(report, recording)?;
        }
        let mut others = output::program(command);
        let dump = self.inside.dump_events.as_deref();
        others.extend(dump.map(|path| Other { path, what: "the file of --dump-events" }));
        let output = Output::open(report, &others)?;
        OutputSpec::new(self.audit.format, self.flame, Destination { output, top: self.detail.top })
    }
}
