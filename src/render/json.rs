//! Reports, comparisons and whatever else is said, as JSON (docs/report.md, docs/diff.md …).

use crate::heap::HeapReport;
use crate::report::Report;
use serde::Serialize;

/// A report of a run whose allocations were counted, too.
#[derive(Serialize)]
pub struct ReportWithHeap<'a> {
    #[serde(flatten)]
    pub report: &'a Report,
    pub heap: &'a HeapReport,
}

/// Pretty-printed JSON, with a final newline.
///
/// # Errors
/// None in practice: no model holds anything that JSON cannot say.
pub fn to_json(of: &impl Serialize) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string_pretty(of)? + "\n")
}
