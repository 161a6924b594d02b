//! What is different in the text report when nothing was traced.

use super::{TextOptions, note};
use crate::render::style::{clean, truncated};
use crate::report::model::{Process, Report};
use crate::report::units::size;

/// `Report::backend` of a snapshot without tracing.
pub(super) const SNAPSHOT: &str = "snapshot";

/// Processes named in the advice.
const PIDS: usize = 8;

/// `(read from redis.smaps)`.
pub(super) fn from_file(source: &str) -> String {
    let source = clean(source);
    let long = source.chars().count() > 60;
    let name = if long { source.rsplit('/').next().unwrap_or_default() } else { &source };
    format!("(read from {})", truncated(name, 60))
}

/// What a snapshot without tracing cannot show, how much memory that concerns, and how to get it.
pub(super) fn snapshot_note(report: &Report, options: TextOptions, out: &mut String) {
    let unknown_of = |p: &Process| -> u64 {
        p.categories.iter().filter(|row| row.id == "unknown").map(|row| row.virt).sum()
    };
    let unknown: u64 = report.processes.iter().map(unknown_of).sum();
    let living: Vec<&Process> = report.processes.iter().filter(|p| p.source.is_none()).collect();
    // Those with unknown memory, if there are any.
    let unclear: Vec<&Process> = living.iter().copied().filter(|p| unknown_of(p) > 0).collect();
    let unclear = if unclear.is_empty() { living } else { unclear };
    let pids: Vec<String> = unclear.iter().take(PIDS).map(|p| p.pid.to_string()).collect();
    let of = match (report.processes.len(), unclear.as_slice()) {
        (1, _) => String::new(),
        (_, [one]) => format!(" of {} (pid {})", clean(&one.comm), one.pid),
        (_, several) => format!(" of {} processes", several.len()),
    };
    let cost = match unknown {
        0 => String::new(),
        bytes => format!(", and {}{of} could not be classified", size(bytes)),
    };
    let how = match pids.is_empty() {
        false => format!(
            "vmaudit attach -p {} (calls from now on), vmaudit run -- CMD (all of them)",
            pids.join(",")
        ),
        true => "vmaudit run -- CMD".to_string(),
    };
    let text = format!(
        "a snapshot has no call stacks: which code requested memory is not known{cost}; to see them: {how}"
    );
    note(&text, options, out);
}
