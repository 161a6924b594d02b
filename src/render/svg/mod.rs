//! `-f svg`: a flame graph.

mod colors;
pub(super) mod diff;
pub(super) mod heap;
pub(super) mod heap_diff;
mod paint;
mod tree;

use super::folded::report::{Bytes, FlameOptions, Kind, Stacks, stacks};
use super::style::clean;
use crate::model::path::base_name;
use crate::report::model::{Process, Report};
use crate::report::units::{size, thousands};
use colors::Rgb;
use paint::{Frame, FrameStyle, paint};
use std::collections::{BTreeMap, HashMap};
use tree::{Box, Row, boxes};

/// Why there is no flame graph.
#[derive(thiserror::Error, Debug)]
pub enum FlameError {
    #[error("nothing to draw: no stack has a byte of {0}")]
    Nothing(&'static str),
    #[error("drawing the flame graph: {0}")]
    Drawing(#[from] std::io::Error),
}

/// The report as a flame graph, an SVG document.
///
/// # Errors
/// When the selected figure is 0 everywhere.
pub fn to_svg(report: &Report, options: FlameOptions) -> Result<String, FlameError> {
    let Stacks { folded, kinds } = stacks(report, options);
    let sorted = folded.sorted();
    let rows: Vec<Row<'_, Bytes>> = sorted
        .into_iter()
        .map(|(frames, bytes)| Row { frames, width: bytes.get(options.width), value: *bytes })
        .collect();
    let boxes = boxes(&rows, &kinds);
    let total = width_of(&boxes, options.width.name())?;
    let program = report.processes.first().map(program).unwrap_or_default();
    let style = |found: &Box<'_, Bytes>| {
        let color = match kinds.get(found.name).filter(|_| found.level > 0) {
            Some(kind) => colors::of(kind, found.within, program),
            None => colors::of(&Kind::Process, None, program),
        };
        FrameStyle { color, title: format!("{} ({})", found.name, figures(found, total, options)) }
    };
    let (title, subtitle) = (title(report, options), subtitle(report, options));
    let legend = legend(report, options, &kinds);
    let frame = Frame { title: &title, subtitle: &subtitle, inverted: options.inverted, legend };
    Ok(paint(&boxes, &style, &frame))
}

/// Of all of them together; an error where there is nothing to draw.
fn width_of<V>(boxes: &[Box<'_, V>], what: &'static str) -> Result<u64, FlameError> {
    let total = boxes.first().map_or(0, |all| all.width);
    if total > 0 { Ok(total) } else { Err(FlameError::Nothing(what)) }
}

/// `63.9 MiB unused, 58.23 % · VIRT 64.0 MiB · RSS 96.0 KiB`
fn figures(found: &Box<'_, Bytes>, total: u64, options: FlameOptions) -> String {
    let part = percent(found.width, total);
    let bytes = found.value;
    format!(
        "{} {}, {part} · VIRT {} · writable {} · RSS {}",
        size(found.width),
        options.width.name(),
        size(bytes.virt),
        size(bytes.writable),
        size(bytes.rss)
    )
}

pub(super) fn percent(part: u64, of: u64) -> String {
    format!("{:.2} %", 100.0 * part as f64 / of.max(1) as f64)
}

/// `silly (pid 4123): unused address space by call stack`
fn title(report: &Report, options: FlameOptions) -> String {
    let name = |p: &Process| match &p.source {
        Some(file) => clean(file),
        None => format!("{} (pid {})", clean(&p.comm), p.pid),
    };
    let who = match report.processes.as_slice() {
        [] => "no process".to_owned(),
        [one] => name(one),
        [first, others @ ..] => format!("{} and {} more", name(first), thousands(others.len() as u64)),
    };
    let by = match (options.reverse, has_stacks(report)) {
        (_, false) => "by category",
        (false, true) => "by call stack",
        (true, true) => "by category, from the inside out",
    };
    format!("{who}: {} {by}", options.width.title())
}

fn has_stacks(report: &Report) -> bool {
    report.processes.iter().flat_map(|p| &p.regions).any(|r| r.origin.is_some())
}

/// The totals of all processes, and what one should know of them.
fn subtitle(report: &Report, options: FlameOptions) -> String {
    let sum = |of: fn(&Process) -> u64| report.processes.iter().map(of).fold(0, u64::saturating_add);
    let (virt, rss, unused) = (sum(|p| p.totals.virt), sum(|p| p.totals.rss), sum(|p| p.totals.unused));
    let mut parts = vec![format!("VIRT {}", size(virt))];
    let unknown =
        report.processes.iter().filter(|p| p.residency == super::folded::report::NO_RESIDENCY).count();
    if unknown < report.processes.len() {
        // whole percents, as in the tables
        let share = (u128::from(unused) * 100).checked_div(u128::from(virt)).unwrap_or(0);
        parts.push(format!("RSS {}", size(rss)));
        parts.push(format!("unused {} = {} %", size(unused), share));
    }
    if unknown > 0 && options.width.needs_residency() {
        parts.push(format!("{unknown} processes of unknown RSS left out"));
    }
    if let Some(at) = report.at_ns {
        parts.push(format!("as it was at {:.3} s", at as f64 / 1e9));
    }
    parts.push(match report.backend.as_str() {
        "snapshot" => "not traced".to_owned(),
        backend => {
            let events = report.events;
            format!("{backend}: {} events, {} lost", thousands(events.seen), thousands(events.lost))
        }
    });
    parts.join(" · ")
}

/// The module that is the program itself.
fn program(process: &Process) -> &str {
    base_name(&process.exe)
}

/// Categories by width, and what the pale colours mean.
fn legend(report: &Report, options: FlameOptions, kinds: &HashMap<String, Kind>) -> Vec<(Rgb, String)> {
    let mut widths: BTreeMap<&str, (u64, &str)> = BTreeMap::new();
    for process in &report.processes {
        let names: HashMap<&str, &str> =
            process.categories.iter().map(|row| (row.id.as_str(), row.name.as_str())).collect();
        for region in &process.regions {
            let name = names.get(region.category.as_str()).copied().unwrap_or(&region.category);
            let sum = &mut widths.entry(&region.category).or_insert((0, name)).0;
            *sum = sum.saturating_add(Bytes::of(region).get(options.width));
        }
    }
    let mut largest: Vec<(&str, (u64, &str))> = widths.into_iter().filter(|(_, (sum, _))| *sum > 0).collect();
    largest.sort_by_key(|(_, (sum, _))| std::cmp::Reverse(*sum));
    let chip = |(id, (sum, name)): (&str, (u64, &str))| {
        (colors::category(id), format!("{} {}", clean(name), size(sum)))
    };
    let mut chips: Vec<_> = largest.into_iter().map(chip).collect();
    if kinds.values().any(|kind| matches!(kind, Kind::Function(_))) {
        chips.push((colors::PROGRAM, "functions of the program".to_owned()));
        chips.push((colors::C_LIBRARY, "of the C library and loader (of others: by module)".to_owned()));
    }
    chips
}
