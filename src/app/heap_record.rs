//! `heap -o REC`: the reports of a heap in a recording, and out of it again.

use super::error::{AppError, MomentError};
use crate::cli::{HeapArgs, HeapFormat, HeapViewArgs, name};
use crate::heap::HeapBy;
use crate::heap::report::{HeapJson, HeapParts, HeapReport};
use crate::launch::behind_sudo;
use crate::model::Pid;
use crate::session::SessionError;
use crate::session::engine::End;
use crate::session::say::say;
use crate::store::{Facts, HeapMoment, HeapPlace, Owner, Recorder, Recording, RunMeta};
use crate::sys::clock;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::path::Path;

/// What is printed with milliseconds may be typed.
const PRECISION_NS: u64 = 500_000;

/// How the run printed its report.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Shown {
    by: String,
    reverse: bool,
    pub top: usize,
}

impl Shown {
    /// Of a run with default options.
    pub fn plain(top: usize) -> Shown {
        Shown { by: name(HeapBy::default()), reverse: false, top }
    }

    pub fn view(&self, format: HeapFormat) -> HeapViewArgs {
        let by = ValueEnum::from_str(&self.by, false).unwrap_or_default();
        HeapViewArgs { by, format, reverse: self.reverse }
    }
}

/// A recording that is being made. A failure is reported on standard error, and by the exit code.
pub struct HeapRecord {
    recorder: RefCell<Option<Recorder>>,
}

impl HeapRecord {
    /// Where `-o` requests one: to be made before the command runs.
    ///
    /// # Errors
    /// When the file cannot be created, or something else than a recording is there.
    pub fn begin(args: &HeapArgs, (backend, main): (&str, Pid)) -> Result<Option<HeapRecord>, AppError> {
        let Some(path) = &args.output else { return Ok(None) };
        let shown = Shown { by: name(args.by), reverse: args.reverse, top: args.top };
        let command: Vec<_> = match args.command.as_slice() {
            [] => std::env::args_os().skip(1).collect(),
            command => command.to_vec(),
        };
        let meta = RunMeta {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            backend: backend.to_owned(),
            command: command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            main,
            timeline: false,
            touch: false,
            heap: Some(serde_json::to_string(&shown)?),
            started_ns: clock::monotonic_ns(),
            started_unix_ns: clock::realtime_ns(),
        };
        let owner = behind_sudo()?.map(|(uid, gid)| Owner { uid, gid });
        let recorder = Recorder::create(path, &meta, owner)?;
        Ok(Some(HeapRecord { recorder: RefCell::new(Some(recorder)) }))
    }

    /// The report of an interval.
    ///
    /// # Errors
    /// None in practice, as [`HeapReport::to_parts`].
    pub fn moment(&self, report: &HeapReport) -> Result<(), AppError> {
        let mut recorder = self.recorder.borrow_mut();
        let Some(recorder) = recorder.as_mut() else { return Ok(()) };
        recorder.heap(heap_moment(report)?);
        Ok(())
    }

    /// The last report, and the end.
    ///
    /// # Errors
    /// When it could not be written to its end.
    pub fn finish(&self, report: &HeapReport, end: Option<&End>) -> Result<(), AppError> {
        self.moment(report)?;
        let Some(recorder) = self.recorder.borrow_mut().take() else { return Ok(()) };
        let path = recorder.path().to_owned();
        let facts = Facts {
            events: report.events.seen,
            dropped: report.events.lost,
            without_stack: report.without_stack,
            truncated: report.events.truncated_stacks,
            incomplete: report.events.unwind_incomplete,
            ended_ns: clock::monotonic_ns(),
            exit_code: match end {
                Some(End::Exited(status)) => Some(status.exit_code()),
                _ => None,
            },
        };
        recorder.finish(&facts).map_err(|error| {
            say(format_args!("{error}"));
            SessionError::Recording { path }.into()
        })
    }

    /// The command never ran: the file goes, and an older recording is back where it was.
    pub fn abandon(&self) {
        if let Some(recorder) = self.recorder.borrow_mut().take() {
            recorder.abandon();
        }
    }
}

/// A report as a recording keeps it, of now.
///
/// # Errors
/// None in practice, as [`HeapReport::to_parts`].
pub fn heap_moment(report: &HeapReport) -> Result<HeapMoment, AppError> {
    let HeapJson { parts, stacks } = report.to_parts()?;
    Ok(HeapMoment { time_ns: clock::monotonic_ns(), parts, stacks })
}

/// The heap's report, in a recording of mappings whose run counted allocations, too (`run --heap -o`).
///
/// # Errors
/// When it is damaged.
pub fn heap_with(recording: &Recording) -> Result<Option<HeapReport>, AppError> {
    match (&recording.meta().heap, recording.heap_moments()?.last()) {
        (None, Some(&place)) => report_of(recording, place).map(Some),
        _ => Ok(None),
    }
}

/// The last report of a recording, or the newest at a moment, in seconds since its beginning; and how the run printed
/// it. None where the recording is not of a heap.
///
/// # Errors
/// When it is damaged, or has no such moment.
pub fn heap_of(recording: &Recording, at: Option<f64>) -> Result<Option<(HeapReport, Shown)>, AppError> {
    let Some(shown) = &recording.meta().heap else { return Ok(None) };
    let shown: Shown = serde_json::from_str(shown)?;
    let places = recording.heap_moments()?;
    let path = recording.path();
    if recording.facts().is_none() {
        say(format_args!(
            "{}: the vmaudit that made it was killed or could not go on writing: this is what it had recorded by then",
            path.display()
        ));
    }
    let place = match at {
        None => places.last().copied(),
        Some(at) => moment(path, &places, (at, recording.meta().started_ns))?,
    };
    let place = place.ok_or_else(|| MomentError::Empty { path: path.to_owned() })?;
    Ok(Some((report_of(recording, place)?, shown)))
}

/// The reports of two moments of a heap's recording, and when they were made. None for the beginning, when nothing was
/// outstanding of what is counted.
///
/// # Errors
/// When it is damaged, or has no such moment.
pub fn heaps_between(
    recording: &Recording,
    (from, to): (Option<f64>, Option<f64>),
) -> Result<[(HeapReport, f64); 2], AppError> {
    let (path, zero_ns) = (recording.path(), recording.meta().started_ns);
    let places = recording.heap_moments()?;
    let find = |at: f64| moment(path, &places, (at, zero_ns));
    let end = to.map_or_else(|| Ok(places.last().copied()), find)?;
    let end = end.ok_or_else(|| MomentError::Empty { path: path.to_owned() })?;
    let seconds = |place: HeapPlace| place.time_ns.saturating_sub(zero_ns) as f64 / 1e9;
    let after = report_of(recording, end)?;
    let before = match from.filter(|&at| at > 0.0).map(find).transpose()?.flatten() {
        Some(begin) => (report_of(recording, begin)?, seconds(begin)),
        None => (after.emptied(), 0.0),
    };
    Ok([before, (after, seconds(end))])
}

fn moment(
    path: &Path,
    places: &[HeapPlace],
    (requested, zero_ns): (f64, u64),
) -> Result<Option<HeapPlace>, AppError> {
    let seconds = |place: &HeapPlace| place.time_ns.saturating_sub(zero_ns) as f64 / 1e9;
    let precision = PRECISION_NS as f64 / 1e9;
    let path = path.to_owned();
    match (places.first(), places.last()) {
        (_, Some(last)) if requested > seconds(last) + precision => {
            Err(MomentError::TooLate { path, requested, end: seconds(last) }.into())
        }
        (Some(first), _) if requested + precision < seconds(first) => {
            Err(MomentError::TooEarly { path, requested, first: seconds(first) }.into())
        }
        _ => Ok(places.iter().rev().find(|place| seconds(place) <= requested + precision).copied()),
    }
}

fn report_of(recording: &Recording, place: HeapPlace) -> Result<HeapReport, AppError> {
    let parts = RefCell::new(HeapParts::default());
    let failure = |error: serde_json::Error| error.to_string();
    recording.heap_report(
        place,
        &mut |json| parts.borrow_mut().part(json).map_err(failure),
        &mut |json| parts.borrow_mut().stack(json).map_err(failure),
    )?;
    Ok(parts.into_inner().into_report())
}
