//! From what a session has gathered to the written report: the same for each way of tracing.

use super::error::AppError;
use super::heap::mappings::seen_last;
use super::heap::preload::Counting;
use super::heap_record::heap_moment;
use super::output::OutputSpec;
use crate::capture::Counters;
use crate::session::audits::EventTotals;
use crate::session::pipeline::Pipeline;
use crate::session::record::Record;
use crate::session::say::say;
use crate::session::start::Traced;
use crate::sys::file::{descriptor_limit, not_opened};
use std::cell::RefCell;
use std::time::Instant;

/// Writes the report, and on standard error what the user should know about its numbers.
///
/// # Errors
/// When a file cannot be written.
pub fn conclude<T>(
    traced: &mut Traced<T>,
    spec: &OutputSpec,
    (record, heap): (Option<&RefCell<Record>>, Option<&Counting>),
    (exit_code, verbose): (Option<u8>, bool),
) -> Result<(), AppError> {
    let Traced { main, audits, counters, pipeline, .. } = traced;
    warn(pipeline, *counters);
    let events = totals(pipeline, *counters);
    if verbose {
        say_stacks(pipeline, *counters);
    }
    let reporting = Instant::now();
    let seen = heap.map(|_| seen_last(audits, pipeline)).unwrap_or_default();
    let (report, notes) = std::mem::take(audits).report(*main, events, pipeline);
    notes.iter().for_each(say);
    let written = match heap {
        Some(counting) => {
            let heap = counting.conclude(&report, &seen);
            if let Some(record) = record {
                record.borrow_mut().heap(heap_moment(&heap)?);
            }
            spec.write_both(&report, &heap)
        }
        None => spec.write(&report),
    };
    if verbose {
        say(format_args!("report made in {:.1?}", reporting.elapsed()));
    }
    let Some(record) = record else { return written };
    let recorded = record.borrow_mut().finish(pipeline, (report, *counters), exit_code);
    written.and(recorded.map_err(AppError::from))
}

/// What is missing.
fn totals(pipeline: &Pipeline, counters: Counters) -> EventTotals {
    EventTotals {
        dropped: counters.lost + pipeline.undecodable(),
        without_stack: counters.without_stack + pipeline.tally.outdated,
    }
}

/// How much of each event there was space for.
pub fn say_stacks(pipeline: &Pipeline, counters: Counters) {
    let (known, tally) = (counters.known_stacks, &pipeline.tally);
    let copied = (tally.stacks + tally.outdated).saturating_sub(known);
    let EventTotals { dropped, without_stack } = totals(pipeline, counters);
    say(format_args!(
        "{copied} stacks were copied, {known} were known already; {without_stack} events are without stack, \
         {dropped} are lost"
    ));
}

pub fn say_lost_tasks(count: u64) {
    if count > 0 {
        say(format_args!("{count} new threads or processes could not be followed"));
    }
}

/// What a low limit on open files has cost.
fn say_not_opened() {
    let count = not_opened();
    if count > 0 {
        say(format_args!(
            "{count} files could not be opened, because vmaudit may have {} open (RLIMIT_NOFILE): what they would show is \
             missing (a higher limit: ulimit -n 1024)",
            descriptor_limit()
        ));
    }
}

/// What the user should know about what was traced.
pub fn warn(pipeline: &Pipeline, counters: Counters) {
    say_lost_tasks(counters.lost_tasks);
    say_not_opened();
    if !pipeline.compat.is_empty() {
        let mut names: Vec<&str> = pipeline.compat.iter().map(String::as_str).take(3).collect();
        names.extend((pipeline.compat.len() > names.len()).then_some("…"));
        say(format_args!(
            "32-bit programs were started ({}): their calls are not traced, rows rest on the last snapshot",
            names.join(", ")
        ));
    }
}
