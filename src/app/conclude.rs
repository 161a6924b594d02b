//! From what a session has gathered to the written report: the same for each way of tracing.

use super::error::AppError;
use super::output::OutputSpec;
use crate::capture::Counters;
use crate::session::audits::EventTotals;
use crate::session::pipeline::Pipeline;
use crate::session::record::Record;
use crate::session::say::say;
use crate::session::start::Traced;
use std::cell::RefCell;
use std::time::Instant;

/// Writes the report, and on standard error what the user should know about its numbers.
///
/// # Errors
/// When a file cannot be written.
pub fn conclude<T>(
    traced: &mut Traced<T>,
    wanted: &OutputSpec,
    (record, exit_code, verbose): (Option<&RefCell<Record>>, Option<u8>, bool),
) -> Result<(), AppError> {
    let Traced { main, audits, counters, pipeline, .. } = traced;
    warn(pipeline, *counters);
    let events = EventTotals {
        dropped: counters.lost + pipeline.undecodable(),
        without_stack: counters.without_stack + pipeline.tally.outdated,
    };
    if verbose {
        say_stacks((pipeline.tally.stacks, pipeline.tally.outdated), *counters, events);
    }
    let reporting = Instant::now();
    let (report, notes) = std::mem::take(audits).report(*main, events, pipeline);
    notes.iter().for_each(say);
    let written = wanted.write(&report);
    if verbose {
        say(format_args!("report made in {:.1?}", reporting.elapsed()));
    }
    let Some(record) = record else { return written };
    let json = serde_json::to_string(&report)?;
    let recorded = record.borrow_mut().finish(pipeline, (json, *counters), exit_code);
    written.and(recorded.map_err(AppError::from))
}

/// How much of each event there was room for.
fn say_stacks((stacks, outdated): (u64, u64), counters: Counters, events: EventTotals) {
    let whole = stacks.saturating_sub(counters.known_stacks);
    say(format_args!(
        "{whole} stacks were copied, {} were known already ({} of them no more); {} events are without stack, {} are lost",
        counters.known_stacks, outdated, events.without_stack, events.dropped
    ));
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
            "32-bit programs were started ({}): their calls are not traced, rows rest on the last snapshot",
            names.join(", ")
        ));
    }
}
