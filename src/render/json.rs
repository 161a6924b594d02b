//! The report as JSON (docs/report.md).

use crate::diff::Diff;
use crate::report::Report;

/// Pretty-printed JSON, with a final newline.
///
/// # Errors
/// None in practice: the model holds nothing that JSON cannot say.
pub fn to_json(report: &Report) -> Result<String, serde_json::Error> {
    let mut out = serde_json::to_string_pretty(report)?;
    out.push('\n');
    Ok(out)
}

/// A comparison as JSON (docs/diff.md), with a final newline.
///
/// # Errors
/// None in practice, as with a report.
pub fn diff_to_json(diff: &Diff) -> Result<String, serde_json::Error> {
    let mut out = serde_json::to_string_pretty(diff)?;
    out.push('\n');
    Ok(out)
}
