//! `-o FILE`: hands every step to the recording. A recording that fails stops, with a message on standard
//! error, and does not affect the target and the report; the exit code says it in the end.

use super::error::SessionError;
use super::pipeline::{Pipeline, Tally};
use super::say::say;
use super::sink::{Context, Sink};
use crate::capture::Counters;
use crate::launch::behind_sudo;
use crate::model::{MmKey, Observations, Pid, SizePoint, StackTable, Step, SymbolizedStacks, VmEvent};
use crate::report::Report;
use crate::store::{Facts, HeapMoment, Owner, Recorder, RunMeta, StoreError};
use crate::symbolize::{Config, Symbolizer};
use crate::sys::clock;
use std::ffi::OsString;
use std::path::Path;

/// What is to be recorded.
#[derive(Clone, Copy, Debug)]
pub struct RecordOptions<'a> {
    /// What sees the calls.
    pub backend: &'a str,
    /// Where; None where nothing is recorded.
    pub path: Option<&'a Path>,
    /// The snapshots make a timeline.
    pub timeline: bool,
    /// Page faults are distinguished.
    pub touch: bool,
    /// Say how far it is safe.
    pub verbose: bool,
}

pub struct Record {
    /// Until its end, or until it is given up.
    recorder: Option<Recorder>,
    /// Something went wrong, and it was said.
    failed: bool,
    /// With `-v`: the last event that was said to be safe.
    said: Option<u64>,
}

impl Record {
    /// Begins a recording at `path`, if there is one to make: of `command`, whose process `main`
    /// comes first in the report. Under sudo it belongs to the invoking user.
    ///
    /// # Errors
    /// When the file cannot be created, or something else than a recording is there.
    pub fn begin(
        options: RecordOptions<'_>,
        main: Pid,
        command: &[OsString],
    ) -> Result<Option<Record>, SessionError> {
        let RecordOptions { path: Some(path), verbose, timeline, .. } = options else { return Ok(None) };
        let meta = RunMeta {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            backend: options.backend.to_owned(),
            command: command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            main,
            timeline,
            touch: options.touch,
            heap: None,
            started_ns: clock::monotonic_ns(),
            started_unix_ns: clock::realtime_ns(),
        };
        let owner = behind_sudo()?.map(|(uid, gid)| Owner { uid, gid });
        let recorder = Recorder::create(path, &meta, owner)?;
        Ok(Some(Record { recorder: Some(recorder), failed: false, said: verbose.then_some(0) }))
    }

    /// Hands over what waits, and says when the recording has failed.
    fn tick(&mut self) {
        let Some(recorder) = &mut self.recorder else { return };
        recorder.tick();
        if let Some(said) = &mut self.said
            && *said != recorder.safe_event()
        {
            *said = recorder.safe_event();
            say(format_args!("recorded up to event {said}"));
        }
        if let Some(error) = recorder.failure() {
            self.say_failure(&error);
        }
    }

    /// Nothing where it was given up.
    fn with(&mut self, write: impl FnOnce(&mut Recorder)) {
        self.recorder.as_mut().map(write);
    }

    fn step(&mut self, step: &Step, stacks: &StackTable) {
        self.with(|recorder| recorder.step(step, stacks));
    }

    fn say_failure(&mut self, error: &StoreError) {
        self.failed = true;
        say(format_args!("the recording stops here, all else goes on: {error}"));
    }

    /// The heap's report, of a run that counted allocations, too.
    pub fn heap(&mut self, moment: HeapMoment) {
        self.with(|recorder| recorder.heap(moment));
    }

    /// The end: the report, the names of all other frames, the facts.
    ///
    /// Every frame gets a name, also of stacks that no longer own a byte: the files may be gone when the
    /// recording is read. Each is symbolized as a stack of its own: all stacks with their names would be many
    /// times as much.
    ///
    /// # Errors
    /// When it could not be written to its end.
    pub fn finish(
        &mut self,
        pipeline: &mut Pipeline,
        (report, counters): (Report, Counters),
        exit_code: Option<u8>,
    ) -> Result<(), SessionError> {
        self.tick();
        let Some(mut recorder) = self.recorder.take() else { return Ok(()) };
        let path = recorder.path().to_owned();
        if self.failed {
            return Err(SessionError::Recording { path });
        }
        pipeline.name_all_generated();
        let (frames, ids) = pipeline.stacks.frame_by_frame();
        let names = Symbolizer::new(Config::default()).symbolize(&frames, ids, pipeline.unwinder.files_mut());
        recorder.names(&SymbolizedStacks::default(), &pipeline.stacks);
        recorder.frame_names(&names, &frames);
        if let Err(error) = report.into_parts(&mut |json| recorder.report_part(json)) {
            say(format_args!("{}: the report: {error}", path.display()));
            return Err(SessionError::Recording { path });
        }
        let facts = facts(&pipeline.tally, pipeline.undecodable(), counters, exit_code);
        recorder.finish(&facts).map_err(|error| {
            say(format_args!("{error}"));
            SessionError::Recording { path }
        })
    }
}

impl Sink for Record {
    fn found(&mut self, mm: MmKey, seen: &Observations, context: &mut Context<'_>) {
        self.step(&Step::Found { mm, seen: Box::new(seen.clone()) }, context.stacks);
    }

    fn event(&mut self, event: &VmEvent, context: &mut Context<'_>) {
        self.with(|recorder| recorder.event(event, context.stacks));
    }

    fn lost_before(&mut self, time_ns: u64, context: &mut Context<'_>) {
        self.step(&Step::Lost { time_ns }, context.stacks);
    }

    fn resynced(&mut self, seen: &Observations, context: &mut Context<'_>) {
        self.step(&Step::Resync(Box::new(seen.clone())), context.stacks);
    }

    fn snapshot(&mut self, seen: &Observations, context: &mut Context<'_>) {
        self.with(|recorder| recorder.snapshot(seen, context.stacks));
        self.tick();
    }

    fn point(&mut self, point: &SizePoint) {
        self.with(|recorder| recorder.point(point));
    }

    /// Also the point that came of it.
    fn snapshot_discarded(&mut self, pid: Pid) {
        self.with(|recorder| recorder.discard_snapshot(pid));
    }

    /// These are kept, whatever is symbolized later.
    fn named(&mut self, names: &SymbolizedStacks, context: &mut Context<'_>) {
        self.with(|recorder| recorder.names(names, context.stacks));
    }

    /// The file goes, and an older recording is back where it was.
    fn abandoned(&mut self) {
        if let Some(recorder) = self.recorder.take() {
            recorder.abandon();
        }
    }

    fn turn(&mut self, _: &mut Context<'_>) -> bool {
        self.tick();
        true
    }
}

fn facts(tally: &Tally, undecodable: u64, counters: Counters, exit_code: Option<u8>) -> Facts {
    Facts {
        events: tally.events,
        dropped: counters.lost + undecodable,
        without_stack: counters.without_stack + tally.outdated,
        truncated: tally.truncated,
        incomplete: tally.incomplete,
        ended_ns: clock::monotonic_ns(),
        exit_code,
    }
}
