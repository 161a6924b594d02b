//! Counted calls as text and as JSON (docs/symbols.md).

use super::frames::frames;
use super::style::{Tone, clean, truncated, wrapped};
use super::text::{TextOptions, WIDTH, closing_notes};
use crate::model::path::base_name;
use crate::model::{ProbeSummary, Skip};
use crate::report::model::Stack;
use crate::report::units::{counted, thousands};
use serde::Serialize;
use std::collections::BTreeMap;

/// What was counted.
#[derive(Clone, Debug, Serialize)]
pub struct CallCounts {
    pub schema: u32,
    /// The file whose functions were probed.
    pub file: String,
    pub build_id: Option<String>,
    /// The pattern.
    #[serde(rename = "match")]
    pub pattern: String,
    /// Whose calls: of a command, of a process, of all.
    pub of: String,
    pub seconds: f64,
    pub placed: PlacedCounts,
    /// Every function that was probed, called most first.
    pub functions: Vec<FunctionCalls>,
    /// The sum over `functions`.
    pub calls: u64,
    /// With --stacks.
    pub stacks: Option<StackCounts>,
    /// Why functions that match were not probed: reason, how many.
    pub skipped: BTreeMap<&'static str, u64>,
    pub refused: Vec<RefusedFunction>,
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct PlacedCounts {
    /// `uprobe multi` or `single uprobes`.
    pub how: &'static str,
    /// Function symbols that match.
    pub matching: u64,
    pub probed: u64,
    pub milliseconds: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct FunctionCalls {
    pub name: String,
    pub linkage: String,
    pub address: String,
    pub offset: String,
    pub calls: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct StackCounts {
    /// Calls whose stack is known; with `lost` all of them.
    pub calls: u64,
    /// Calls whose stack found no space in the ring.
    pub lost: u64,
    pub distinct: Vec<StackCalls>,
}

#[derive(Clone, Debug, Serialize)]
pub struct StackCalls {
    /// Place in `functions`.
    pub function: usize,
    pub calls: u64,
    pub stack: Stack,
}

/// A function that the kernel does not probe.
#[derive(Clone, Debug, Serialize)]
pub struct RefusedFunction {
    pub name: String,
    pub address: String,
    pub errno: i32,
    pub error: String,
}

/// At most [`WIDTH`] columns; `options.top` functions and stacks, the others in one row.
pub fn calls_to_text(counts: &CallCounts, summary: &ProbeSummary, options: TextOptions) -> String {
    let mut out = String::new();
    let color = options.color;
    let title = format!("calls of {} by {}, {:.1} s", base_name(&counts.file), counts.of, counts.seconds);
    out += &format!("{}\n", color.paint(Tone::Heading, &truncated(&clean(&title), WIDTH)));
    let placed = &counts.placed;
    let how = format!(
        "{} of {} function symbols that match {} are probed ({}, {:.0} ms)",
        thousands(placed.probed),
        thousands(placed.matching),
        counts.pattern,
        placed.how,
        placed.milliseconds
    );
    for line in wrapped(&clean(&how), WIDTH - 2) {
        out += &format!("  {}\n", color.paint(Tone::Dim, &line));
    }
    out += &format!("\n{}\n", color.paint(Tone::Dim, "          calls       %  function"));
    table(counts, options, &mut out);
    if let Some(stacks) = &counts.stacks {
        stack_list(counts, stacks, options, &mut out);
    }
    not_probed(counts, summary, options, &mut out);
    out
}

/// `1 call`, `2,003 calls`.
fn share(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.1}", part as f64 * 100.0 / whole as f64) }
}

fn table(counts: &CallCounts, options: TextOptions, out: &mut String) {
    let line = |calls: u64, name: &str| {
        let name = truncated(name, WIDTH - 25);
        format!("{:>15}  {:>6}  {name}\n", thousands(calls), share(calls, counts.calls))
    };
    let called: Vec<&FunctionCalls> = counts.functions.iter().filter(|f| f.calls > 0).collect();
    for function in called.iter().take(options.top) {
        *out += &line(function.calls, &clean(&function.name));
    }
    let rest = called.get(options.top..).unwrap_or_default();
    if !rest.is_empty() {
        let calls = rest.iter().map(|f| f.calls).sum();
        *out += &line(calls, &format!("({} other functions: --top)", thousands(rest.len() as u64)));
    }
    let never = (counts.functions.len() - called.len()) as u64;
    if never > 0 {
        let words = if never == 1 { "1 function was" } else { "functions were" };
        let words = if never == 1 { words.to_owned() } else { format!("{} {words}", thousands(never)) };
        *out += &line(0, &format!("({words} never called)"));
    }
    let total = format!("all calls of {}", counted(counts.functions.len() as u64, "probed function"));
    *out += &options.color.paint(Tone::Key, line(counts.calls, &total).trim_end());
    out.push('\n');
}

fn stack_list(counts: &CallCounts, stacks: &StackCounts, options: TextOptions, out: &mut String) {
    let distinct = stacks.distinct.len() as u64;
    let head = format!("{} of {}", counted(distinct, "distinct stack"), counted(stacks.calls, "call"));
    *out += &format!("\n  {}", options.color.paint(Tone::Heading, &head));
    if stacks.lost > 0 {
        let lost = format!(
            "{} calls are counted above, but their stacks found no space in the ring (--ring-bytes)",
            thousands(stacks.lost)
        );
        *out += &format!("\n  {}", options.color.paint(Tone::Warning, &lost));
    }
    out.push('\n');
    for each in stacks.distinct.iter().take(options.top) {
        let name = counts.functions.get(each.function).map_or("?", |f| f.name.as_str());
        let title = format!("{} of {}", counted(each.calls, "call"), clean(name));
        *out += &format!("\n     {}\n", options.color.paint(Tone::Key, &truncated(&title, WIDTH - 5)));
        frames(&each.stack, options, out);
    }
    let rest = stacks.distinct.get(options.top..).unwrap_or_default();
    if !rest.is_empty() {
        let calls: u64 = rest.iter().map(|each| each.calls).sum();
        let words =
            format!("{} other stacks: {} calls (--top)", thousands(rest.len() as u64), thousands(calls));
        *out += &format!("\n     {words}\n");
    }
}

fn not_probed(counts: &CallCounts, summary: &ProbeSummary, options: TextOptions, out: &mut String) {
    let skipped: u64 = summary.skipped.values().sum();
    let refused = counts.refused.len() as u64;
    if skipped + refused > 0 {
        *out += &format!("\n  {} that match are not probed\n", thousands(skipped + refused));
    }
    let mut rows: Vec<(&Skip, &u64)> = summary.skipped.iter().collect();
    rows.sort_by_key(|&(_, count)| std::cmp::Reverse(*count));
    for (skip, count) in rows {
        *out += &format!("  {:>9}  {:<14}  {}\n", thousands(*count), skip.id(), skip.reason());
    }
    if refused > 0 {
        *out += &format!(
            "  {:>9}  {:<14}  the kernel refuses to probe their first instruction\n",
            thousands(refused),
            "refused"
        );
        let names: Vec<String> =
            counts.refused.iter().map(|each| format!("{} ({})", clean(&each.name), each.error)).collect();
        for line in wrapped(&names.join(", "), WIDTH - 29) {
            *out += &format!("{:29}{line}\n", "");
        }
    }
    closing_notes(&counts.notes, options.color, out);
}
