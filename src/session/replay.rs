//! A recording replayed into the ledger, by the code that a live run uses.

use super::audits::{Audits, EventTotals};
use super::error::SessionError;
use super::from_ledger::AsOf;
use super::pipeline::Pipeline;
use crate::model::{Addr, NoStack, Pid, Step};
use crate::report::Report;
use crate::store::{Recording, RunMeta};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;

/// A recording, and the ledger's state after the steps that were replayed so far.
///
/// ```text
/// let mut replay = Replay::open(path)?;
/// replay.run(&mut |step, pipeline| {
///     // `pipeline.spaces` is as it was just before `step`; stop here, or go on.
///     ControlFlow::Continue(())
/// })?;
/// let (report, notes) = replay.report();
/// ```
pub struct Replay {
    recording: Recording,
    /// Address spaces, stacks, names and counts; nothing is read from a ring.
    pub pipeline: Pipeline,
    /// The newest snapshot of each process, joined with the ledger.
    pub audits: Audits,
    without_stack: u64,
    /// Where mappings began in processes that ran already.
    found: HashMap<Pid, Vec<Addr>>,
}

impl Replay {
    /// Opens a recording, with its stacks and names; no step has been replayed yet.
    ///
    /// # Errors
    /// When it is no recording, or damaged.
    pub fn open(path: &Path) -> Result<Replay, SessionError> {
        Replay::of(Recording::open(path)?)
    }

    /// As [`Replay::open`].
    ///
    /// # Errors
    /// When it is damaged.
    pub fn of(recording: Recording) -> Result<Replay, SessionError> {
        recording.has_steps()?;
        let mut pipeline = Pipeline::new(&recording.meta().backend);
        // Snapshots come without a warning.
        pipeline.spaces.snapshot_begins();
        pipeline.stacks = recording.stacks()?;
        let names = recording.names(&pipeline.stacks)?;
        // A truncated recording has none: then the files are read, if they are still the same.
        pipeline.recorded_names = recording.facts().is_some().then_some(names);
        let mut audits = Audits::new(recording.meta().timeline);
        audits.main = recording.meta().main;
        audits.keeps_all = recording.meta().touch;
        Ok(Replay { recording, pipeline, audits, without_stack: 0, found: HashMap::new() })
    }

    pub fn meta(&self) -> &RunMeta {
        self.recording.meta()
    }

    /// Replays all steps, in order. `before` gets each step and the state before it; the step at which it
    /// breaks is not applied.
    ///
    /// # Errors
    /// When the recording is damaged.
    pub fn run(
        &mut self,
        before: &mut dyn FnMut(&Step, &Pipeline) -> ControlFlow<()>,
    ) -> Result<(), SessionError> {
        let Replay { recording, pipeline, audits, without_stack, found } = self;
        let mut each = |step: &Step| {
            before(step, pipeline)?;
            if let Step::Event(event) = step {
                *without_stack += u64::from(event.stack == Err(NoStack::Lost));
            }
            if let Step::Found { seen, .. } = step {
                found.insert(seen.pid, seen.mappings.iter().map(|mapping| mapping.range.start).collect());
            }
            apply(step, pipeline, audits);
            ControlFlow::Continue(())
        };
        Ok(recording.steps(&mut each)?)
    }

    /// The report is to show the moment `time_ns` (CLOCK_MONOTONIC), until which steps were replayed.
    ///
    /// # Errors
    /// When the recording is damaged.
    pub fn as_of(&mut self, time_ns: u64) -> Result<(), SessionError> {
        let snapshots = self.recording.newest_snapshots()?;
        let later = snapshots.into_iter().map(|seen| (seen.pid, seen)).collect();
        let found = std::mem::take(&mut self.found);
        self.audits.as_of(AsOf { time_ns, later, found }, &mut self.pipeline);
        Ok(())
    }

    /// When vmaudit had done with the target (CLOCK_MONOTONIC, ns); None where it was killed before.
    pub fn ended_ns(&self) -> Option<u64> {
        self.recording.facts().map(|facts| facts.ended_ns)
    }

    /// As [`Audits::all_ended_ns`], of what was replayed so far.
    pub fn all_ended_ns(&self) -> Option<u64> {
        self.audits.all_ended_ns(&self.pipeline)
    }

    /// The report of what was replayed so far, and the symbolizer's warnings.
    pub fn report(mut self) -> (Report, Vec<String>) {
        let facts = self.recording.facts();
        let totals = EventTotals {
            dropped: facts.map_or(0, |facts| facts.dropped),
            without_stack: facts.map_or(self.without_stack, |facts| facts.without_stack),
        };
        let main: Pid = self.recording.meta().main;
        self.audits.report(main, totals, &mut self.pipeline)
    }
}

/// Ends whose ledgers may wait.
const MANY_ENDS: usize = 4096;

/// When a step happened, CLOCK_MONOTONIC, ns.
pub fn time_of(step: &Step) -> u64 {
    match step {
        Step::Event(event) => event.time_ns,
        Step::Lost { time_ns } => *time_ns,
        Step::Found { seen, .. } | Step::Resync(seen) | Step::Snapshot(seen) => seen.ended_ns,
        Step::Point(point) => point.time_ns,
    }
}

fn apply(step: &Step, pipeline: &mut Pipeline, audits: &mut Audits) {
    match step {
        Step::Event(event) => {
            pipeline.replay(event);
            // A loss that follows may be of before their end.
            if pipeline.spaces.unreported_ends() >= MANY_ENDS {
                audits.note_ended(pipeline);
                audits.reduce_small(pipeline);
            }
        }
        Step::Found { mm, seen } => pipeline.spaces.start_observed(*mm, seen),
        Step::Lost { time_ns } => pipeline.spaces.note_loss(*time_ns),
        Step::Resync(seen) => {
            pipeline.spaces.resync(seen.pid, seen);
        }
        Step::Snapshot(seen) => audits.replay((**seen).clone(), pipeline),
        Step::Point(point) => audits.replay_point((**point).clone()),
    }
}
