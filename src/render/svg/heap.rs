//! `heap -f svg`: a flame graph of what is outstanding, of the peak, or of calls.

use super::colors::{self, Rgb};
use super::paint::{Frame, FrameStyle, paint};
use super::tree::{Box, Row, boxes};
use super::{FlameError, percent, width_of};
use crate::heap::HeapBy;
use crate::heap::report::HeapReport;
use crate::model::path::base_name;
use crate::render::folded::report::{Kind, Stacks};
use crate::render::heap::HeapView;
use crate::render::heap::folded::{Held, counts_calls, stacks};
use crate::render::style::clean;
use crate::report::units::{exact_size, size, thousands};
use std::collections::HashMap;

/// The stacks of a heap as a flame graph, an SVG document: boxes are as wide as what the view is about.
///
/// # Errors
/// When there is nothing of it.
pub fn heap_to_svg(report: &HeapReport, view: HeapView) -> Result<String, FlameError> {
    let Stacks { folded, kinds } = stacks(report, view);
    let row = |(frames, held): (_, &Held)| Row { frames, width: held.amount, value: *held };
    let rows: Vec<Row<'_, Held>> = folded.sorted().into_iter().map(row).collect();
    let boxes = boxes(&rows, &kinds);
    let total = width_of(&boxes, what(view.by))?;
    let program = report.processes.first().map(|process| base_name(&process.exe)).unwrap_or_default();
    let style = |found: &Box<'_, Held>| {
        let color = match kinds.get(found.name).filter(|_| found.level > 0) {
            Some(kind) => colors::of(kind, None, program),
            None => colors::of(&Kind::Process, None, program),
        };
        FrameStyle { color, title: format!("{} ({})", found.name, figures(found, total, view)) }
    };
    let (title, subtitle) = (title(report, view), subtitle(report));
    let frame = Frame { title: &title, subtitle: &subtitle, inverted: view.reverse, legend: legend(&kinds) };
    Ok(paint(&boxes, &style, &frame))
}

/// In a sentence: "no stack has a byte of …".
fn what(by: HeapBy) -> &'static str {
    match by {
        HeapBy::Peak => "what was outstanding at the peak",
        HeapBy::Allocations => "what was allocated",
        HeapBy::Temporary => "temporary allocations",
        _ => "what is outstanding",
    }
}

/// `1.6 MiB in 71,713 blocks, 29.46 %`, `404,169 calls, 49.50 %`.
fn figures(found: &Box<'_, Held>, total: u64, view: HeapView) -> String {
    let Held { amount, blocks } = found.value;
    let part = percent(found.width, total);
    match counts_calls(view.by) {
        true => format!("{} call{}, {part}", thousands(amount), plural(amount)),
        false => format!("{} in {} block{}, {part}", size(amount), thousands(blocks), plural(blocks)),
    }
}

fn plural(n: u64) -> &'static str {
    if n == 1 { "" } else { "s" }
}

/// `redis-server (pid 4123): heap at its peak, by call stack`
fn title(report: &HeapReport, view: HeapView) -> String {
    let who = match report.processes.as_slice() {
        [] => "no process".to_owned(),
        [one] => format!("{} (pid {})", clean(&one.comm), one.pid),
        [first, others @ ..] => {
            format!("{} (pid {}) and {} more", clean(&first.comm), first.pid, thousands(others.len() as u64))
        }
    };
    let what = match view.by {
        HeapBy::Peak => "heap at its peak",
        HeapBy::Allocations => "allocations",
        HeapBy::Temporary => "temporary allocations",
        _ => "outstanding heap",
    };
    let how = if view.reverse { ", from the allocator outwards" } else { " by call stack" };
    format!("{who}: {what}{how}")
}

/// The totals of all processes, and what one should know of them.
fn subtitle(report: &HeapReport) -> String {
    let sum = |of: fn(&crate::heap::report::model::Totals) -> u64| {
        report.processes.iter().map(|process| of(&process.totals)).fold(0, u64::saturating_add)
    };
    let mut parts = vec![
        format!(
            "outstanding {} in {} blocks",
            size(sum(|t| t.outstanding_bytes)),
            thousands(sum(|t| t.outstanding_blocks))
        ),
        format!(
            "allocated {} by {} calls",
            size(sum(|t| t.allocated_bytes)),
            thousands(sum(|t| t.allocations))
        ),
    ];
    if let [one] = report.processes.as_slice()
        && let Some(peak) = one.totals.peak_bytes
    {
        parts.push(format!("peak {}", size(peak)));
    }
    if let Some(mean) = report.sampling_bytes {
        parts.push(format!("estimated, one mark every {}", exact_size(mean)));
    }
    if report.processes.iter().any(|process| process.left_out.blocks > 0) {
        parts.push("some blocks are left out by a filter".to_owned());
    }
    parts.push(format!("{} lost", thousands(report.events.lost)));
    parts.join(" · ")
}

fn legend(kinds: &HashMap<String, Kind>) -> Vec<(Rgb, String)> {
    match kinds.values().any(|kind| matches!(kind, Kind::Function(_))) {
        false => Vec::new(),
        true => vec![
            (colors::PROGRAM, "functions of the program".to_owned()),
            (colors::C_LIBRARY, "of the C library and loader (of others: by module)".to_owned()),
        ],
    }
}
