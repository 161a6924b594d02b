//! What is different in the text report when nothing was traced.

use super::style::{clean, truncated};
use super::text::{TextOptions, note};
use crate::report::model::Report;
use crate::report::units::size;

/// `Report::backend` of a look without tracing.
pub(super) const SNAPSHOT: &str = "snapshot";

/// `(read from redis.smaps)`.
pub(super) fn from_file(source: &str) -> String {
    let source = clean(source);
    let long = source.chars().count() > 60;
    let name = if long { source.rsplit('/').next().unwrap_or_default() } else { &source };
    format!("(read from {})", truncated(name, 60))
}

/// What a look without tracing cannot tell, what that costs, and how to get it.
pub(super) fn snapshot_note(report: &Report, options: TextOptions, out: &mut String) {
    let unknown: u64 = report
        .processes
        .iter()
        .flat_map(|p| &p.categories)
        .filter(|row| row.id == "unknown")
        .map(|row| row.virt)
        .sum();
    let cost = match unknown {
        0 => String::new(),
        bytes => format!(", and {} could not be told what they are", size(bytes)),
    };
    let how = match report.processes.iter().find(|p| p.source.is_none()) {
        Some(p) => {
            format!("vmaudit attach -p {} (calls from now on), vmaudit run -- CMD (all of them)", p.pid)
        }
        None => "vmaudit run -- CMD".to_string(),
    };
    let text =
        format!("a snapshot has no call stacks: who asked for memory is not known{cost}; to see them: {how}");
    note(&text, options, out);
}
