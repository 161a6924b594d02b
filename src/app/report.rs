//! `vmaudit report`: the report of a recording.

use super::error::AppError;
use super::output::{self, Destination};
use super::replay::Replay;
use super::say::say;
use crate::cli::ReportArgs;
use crate::report::Report;
use crate::store::{Recording, StoreError};
use std::ops::ControlFlow;
use std::time::Instant;

/// Writes the report; returns vmaudit's exit code.
pub fn report(args: &ReportArgs) -> Result<u8, AppError> {
    let begun = Instant::now();
    let recording = Recording::open(&args.recording)?;
    let report = report_of(recording, args.replay)?;
    let destination = Destination { format: args.format, file: args.report.as_deref(), top: args.top };
    output::write(&report, &destination)?;
    if args.verbose {
        say(format_args!("report made in {:.1?}", begun.elapsed()));
    }
    Ok(0)
}

/// The report that the run printed; with `replay`, or where the run did not come to its end, the
/// one that its steps give.
///
/// # Errors
/// When the recording is damaged.
pub fn report_of(recording: Recording, replay: bool) -> Result<Report, AppError> {
    if !replay && let Some(json) = recording.report()? {
        return serde_json::from_str(&json).map_err(|error| {
            let path = recording.path().to_owned();
            AppError::Store(StoreError::Damaged { path, what: format!("the report in it: {error}") })
        });
    }
    if recording.facts().is_none() {
        say(format_args!(
            "{}: the vmaudit that made it was killed or could not go on writing: this is what was \
             recorded by then, with the newest look at each process, and names from the files as \
             they are now",
            recording.path().display()
        ));
    }
    let mut replay = Replay::of(recording)?;
    replay.run(&mut |_, _| ControlFlow::Continue(()))?;
    let (report, notes) = replay.report();
    for note in notes {
        say(format_args!("{note}"));
    }
    Ok(report)
}
