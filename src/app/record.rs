//! `-o FILE`: hands every step to the recording. A recording that fails stops, is told on
//! standard error, and leaves the target and the report alone; the exit code says it in the end.

use super::error::AppError;
use super::pipeline::{Pipeline, Tally};
use super::say::say;
use crate::capture::Counters;
use crate::launch::behind_sudo;
use crate::model::{MmKey, Observations, Pid, SizePoint, StackTable, Step, SymbolizedStacks, VmEvent};
use crate::report::Report;
use crate::store::{Facts, Owner, Recorder, RunMeta, StoreError};
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
    /// The looks make a timeline.
    pub timeline: bool,
    /// Page faults are told apart.
    pub touch: bool,
    /// Say how far it is safe.
    pub verbose: bool,
}

pub struct Record {
    recorder: Recorder,
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
    ) -> Result<Option<Record>, AppError> {
        let RecordOptions { path: Some(path), verbose, timeline, .. } = options else { return Ok(None) };
        let meta = RunMeta {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            backend: options.backend.to_owned(),
            command: command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            main,
            timeline,
            touch: options.touch,
            started_ns: clock::monotonic_ns(),
            started_unix_ns: clock::realtime_ns(),
        };
        let owner = behind_sudo()?.map(|(uid, gid)| Owner { uid, gid });
        let recorder = Recorder::create(path, &meta, owner)?;
        Ok(Some(Record { recorder, failed: false, said: verbose.then_some(0) }))
    }

    pub fn event(&mut self, event: &VmEvent, stacks: &StackTable) {
        self.recorder.event(event, stacks);
    }

    pub fn found(&mut self, mm: MmKey, seen: &Observations, stacks: &StackTable) {
        self.recorder.step(&Step::Found { mm, seen: Box::new(seen.clone()) }, stacks);
    }

    /// Events were lost before this time.
    pub fn lost(&mut self, time_ns: u64, stacks: &StackTable) {
        self.recorder.step(&Step::Lost { time_ns }, stacks);
    }

    /// What the ledger takes over after a loss.
    pub fn resync(&mut self, seen: &Observations, stacks: &StackTable) {
        self.recorder.step(&Step::Resync(Box::new(seen.clone())), stacks);
    }

    pub fn look(&mut self, seen: &Observations, stacks: &StackTable) {
        self.recorder.look(seen, stacks);
        self.tick();
    }

    pub fn point(&mut self, point: &SizePoint) {
        self.recorder.point(point);
    }

    /// Also the point that came of it.
    pub fn discard_look(&mut self, pid: Pid) {
        self.recorder.discard_look(pid);
    }

    /// Names that the report uses: these are kept, whatever is looked up later.
    pub fn names(&mut self, names: &SymbolizedStacks, stacks: &StackTable) {
        self.recorder.names(names, stacks);
    }

    /// Nothing was started: the file goes, and an older recording is back where it was.
    pub fn abandon(self) {
        self.recorder.abandon();
    }

    /// To be called now and then: hands over what waits, and says when the recording has failed.
    pub fn tick(&mut self) {
        self.recorder.tick();
        if let Some(said) = &mut self.said
            && *said != self.recorder.safe_event()
        {
            *said = self.recorder.safe_event();
            say(format_args!("recorded up to event {said}"));
        }
        if let Some(error) = self.recorder.failure() {
            self.say_failure(&error);
        }
    }

    fn say_failure(&mut self, error: &StoreError) {
        self.failed = true;
        say(format_args!("the recording stops here, all else goes on: {error}"));
    }
}

/// The end of a recording, if one is made: the report, the names of all other frames, the facts.
///
/// Every frame gets a name, also of stacks that no longer own a byte: the files may be gone when
/// the recording is read. Each is looked up as a stack of its own: all stacks with their names
/// would be many times as much.
///
/// # Errors
/// When it could not be written to its end.
pub fn finish(
    pipeline: &mut Pipeline,
    (report, counters): (&Report, Counters),
    exit_code: Option<u8>,
) -> Result<(), AppError> {
    let Some(mut record) = pipeline.record.take() else { return Ok(()) };
    let path = record.recorder.path().to_owned();
    record.tick();
    if record.failed {
        return Err(AppError::Recording { path });
    }
    let (frames, ids) = pipeline.stacks.frame_by_frame();
    let names = Symbolizer::new(Config::default()).symbolize(&frames, ids, pipeline.unwinder.files_mut());
    record.recorder.names(&SymbolizedStacks::default(), &pipeline.stacks);
    record.recorder.frame_names(&names, &frames);
    record.recorder.report(serde_json::to_string(report)?);
    let facts = facts(&pipeline.tally, pipeline.undecodable(), counters, exit_code);
    record.recorder.finish(&facts).map_err(|error| {
        say(format_args!("{error}"));
        AppError::Recording { path }
    })
}

fn facts(tally: &Tally, undecodable: u64, counters: Counters, exit_code: Option<u8>) -> Facts {
    Facts {
        events: tally.events,
        dropped: counters.lost + undecodable,
        without_stack: counters.without_stack,
        truncated: tally.truncated,
        incomplete: tally.incomplete,
        ended_ns: clock::monotonic_ns(),
        exit_code,
    }
}
