//! The report of a recording.

use super::error::AppError;
use super::rule_files::rules;
use crate::report::{Parts, Report};
use crate::session::replay::Replay;
use crate::session::say::say;
use crate::store::Recording;
use std::ops::ControlFlow;

/// The report that the run printed; with `replay`, or where the run did not come to its end, the
/// one that its steps give.
///
/// # Errors
/// When the recording is damaged.
pub fn report_of(recording: Recording, replay: bool) -> Result<Report, AppError> {
    let mut parts = Parts::default();
    if !replay && recording.report(&mut |json| parts.add(json).map_err(|error| error.to_string()))? {
        return Ok(parts.into_report());
    }
    if recording.facts().is_none() {
        say(format_args!(
            "{}: the vmaudit that made it was killed or could not go on writing: this is what was \
             recorded by then, with the newest snapshot of each process, and names from the files as \
             they are now",
            recording.path().display()
        ));
    }
    if recording.meta().touch {
        say("the page faults of --touch are in the report of the run only, this one is made without them");
    }
    let mut replay = Replay::of(recording)?;
    replay.pipeline.rules = rules();
    replay.run(&mut |_, _| ControlFlow::Continue(()))?;
    let (report, notes) = replay.report();
    for note in notes {
        say(format_args!("{note}"));
    }
    Ok(report)
}
