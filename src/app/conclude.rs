//! From what a session has gathered to the written report: the same for each way of tracing.

use super::audits::{Audits, EventTotals};
use super::error::AppError;
use super::output::OutputSpec;
use super::pipeline::Pipeline;
use super::record;
use super::say::say;
use crate::capture::Counters;
use crate::model::Pid;
use std::time::Instant;

/// What a session leaves behind.
pub struct Gathered {
    /// The process that comes first in the report.
    pub main: Pid,
    pub audits: Audits,
    pub counters: Counters,
    pub pipeline: Pipeline,
    /// What vmaudit exits with, where that is the command's.
    pub exit_code: Option<u8>,
}

/// Writes the report, and on standard error what the user should know about its numbers.
///
/// # Errors
/// When a file cannot be written.
pub fn conclude(gathered: Gathered, wanted: &OutputSpec, verbose: bool) -> Result<(), AppError> {
    let Gathered { main, audits, counters, mut pipeline, exit_code } = gathered;
    warn(&pipeline, counters);
    let events = EventTotals {
        dropped: counters.lost + pipeline.undecodable(),
        without_stack: counters.without_stack,
    };
    let reporting = Instant::now();
    let (report, notes) = audits.report(main, events, &mut pipeline);
    for note in notes {
        say(format_args!("{note}"));
    }
    let written = wanted.write(&report);
    if verbose {
        say(format_args!("report made in {:.1?}", reporting.elapsed()));
    }
    let recorded = record::finish(&mut pipeline, (&report, counters), exit_code);
    written.and(recorded)
}

pub fn say_lost_tasks(count: u64) {
    if count > 0 {
        say(format_args!("{count} new threads or processes could not be followed"));
    }
}

/// What the user should know about what was traced.
pub fn warn(pipeline: &Pipeline, counters: Counters) {
    say_lost_tasks(counters.lost_tasks);
    if !pipeline.compat.is_empty() {
        let mut names: Vec<&str> = pipeline.compat.iter().map(String::as_str).take(3).collect();
        names.extend((pipeline.compat.len() > names.len()).then_some("…"));
        say(format_args!(
            "32-bit programs were started ({}): their calls are not traced, rows rest on the last look",
            names.join(", ")
        ));
    }
}
