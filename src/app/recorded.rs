//! The report of a recording.

use super::error::AppError;
use crate::report::Report;
use crate::session::replay::Replay;
use crate::session::say::say;
use crate::store::{Recording, StoreError};
use std::ops::ControlFlow;

/// The report that the run printed; with `replay`, or where the run did not come to its end, the
/// one that its steps give.
///
/// # Errors
/// When the recording is damaged.
pub fn report_of(recording: Recording, replay: bool) -> Result<Report, AppError> {
    if !replay && let Some(json) = recording.report()? {
        return Report::from_json(json.as_bytes()).map_err(|error| {
            let path = recording.path().to_owned();
            StoreError::Damaged { path, what: format!("the report in it: {error}") }.into()
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
    if recording.meta().touch {
        say("the page faults of --touch are in the report of the run only, this one is made without them");
    }
    let mut replay = Replay::of(recording)?;
    replay.run(&mut |_, _| ControlFlow::Continue(()))?;
    let (report, notes) = replay.report();
    for note in notes {
        say(format_args!("{note}"));
    }
    Ok(report)
}
