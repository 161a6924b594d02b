//! Sizes over time: two curves, and a table of the moments between which most happened.

use super::style::{Tone, clean, truncated, wrapped};
use super::text::{TextOptions, duration, moment};
use super::turning_points::turning_points;
use crate::report::category_name;
use crate::report::model::{Process, TimelinePoint};
use crate::report::units::{size, thousands};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Rows of the table at most, and columns of categories.
const ROWS: usize = 12;
const CATEGORIES: usize = 4;
const COLUMN: usize = 15;
/// Characters of a curve at most.
const CURVE: usize = 60;
const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Nothing where there is no timeline.
pub(super) fn timeline(p: &Process, options: TextOptions, out: &mut String) {
    let (Some(first), Some(last)) = (p.timeline.first(), p.timeline.last()) else { return };
    let span = duration(last.t_ns.saturating_sub(first.t_ns));
    let kept = match p.timeline_every {
        0 | 1 => String::new(),
        n => format!(" (one in {} is kept)", thousands(n)),
    };
    let snapshots = match p.timeline.len() {
        1 => "one snapshot, that of this report".to_string(),
        n => format!("{} snapshots in {span}", thousands(n as u64)),
    };
    let head = options.color.paint(Tone::Heading, "timeline");
    *out += &format!("\n  {head}  {snapshots}{kept}\n");
    let rss: Vec<u64> = p.timeline.iter().map(|point| point.rss.unwrap_or(0)).collect();
    let virt: Vec<u64> = p.timeline.iter().map(|point| point.virt).collect();
    if p.timeline.len() > 1 {
        curve("VIRT", &virt, options, out);
        if p.timeline.iter().any(|point| point.rss.is_some()) {
            curve("RSS", &rss, options, out);
        }
    }
    let rows = rows(p);
    if rows.len() > 1 {
        table(&rows, options, out);
    }
}

/// `  VIRT  4.3 MiB to 502.9 MiB  ▁▂▇█▃`: each bar is the largest of its part, on a scale from 0.
fn curve(name: &str, values: &[u64], options: TextOptions, out: &mut String) {
    let (low, high) = (values.iter().copied().min().unwrap_or(0), values.iter().copied().max().unwrap_or(0));
    let width = values.len().min(CURVE);
    let bar = |at: usize| {
        let part = values.get(at * values.len() / width..(at + 1) * values.len() / width);
        let value = part.unwrap_or(&[]).iter().copied().max().unwrap_or(0);
        let step = (u128::from(value) * 8).div_ceil(u128::from(high.max(1)));
        BARS[(step as usize).min(8)]
    };
    let bars: String = (0..width).map(bar).collect();
    let range = format!("{} to {}", size(low), size(high));
    *out += &format!("  {name:<5} {range:<24} {}\n", options.color.paint(Tone::Key, &bars));
}

/// What a row shows.
struct Row<'a> {
    t_ns: u64,
    virt: u64,
    rss: Option<u64>,
    by_category: &'a BTreeMap<String, u64>,
    remark: &'static str,
}

impl<'a> Row<'a> {
    fn of(point: &'a TimelinePoint) -> Row<'a> {
        let TimelinePoint { t_ns, virt, rss, by_category, .. } = point;
        Row { t_ns: *t_ns, virt: *virt, rss: *rss, by_category, remark: "" }
    }
}

/// The rows to show: the snapshots between which most changed, the largest one, and the peak if no snapshot
/// shows it.
fn rows(p: &Process) -> Vec<Row<'_>> {
    let largest = p.timeline.iter().map(|point| point.virt).max();
    let peak = p.peak.as_ref().filter(|peak| largest.is_some_and(|virt| virt < peak.virt));
    let rows = ROWS - usize::from(peak.is_some());
    let all = p.timeline.len() <= rows;
    let chosen = if all { (0..p.timeline.len()).collect() } else { turning_points(&p.timeline, rows) };
    let mut rows: Vec<Row<'_>> = chosen.iter().filter_map(|&at| p.timeline.get(at)).map(Row::of).collect();
    if let Some(peak) = peak {
        let (t_ns, virt) = (peak.t_ns, peak.virt);
        rows.push(Row { t_ns, virt, rss: None, by_category: &peak.by_category, remark: "peak" });
        rows.sort_by_key(|row| row.t_ns);
    }
    rows
}

/// The categories whose size changed most, largest change first.
fn changing(rows: &[Row<'_>]) -> Vec<String> {
    let ids: BTreeSet<&String> = rows.iter().flat_map(|row| row.by_category.keys()).collect();
    let change = |id: &str| {
        let of = |row: &Row<'_>| row.by_category.get(id).copied().unwrap_or(0);
        let (low, high) = (rows.iter().map(of).min(), rows.iter().map(of).max());
        high.unwrap_or(0) - low.unwrap_or(0)
    };
    let mut changes: Vec<(u64, &String)> = ids.into_iter().map(|id| (change(id), id)).collect();
    changes.retain(|(bytes, _)| *bytes > 0);
    changes.sort_by_key(|(bytes, id)| (Reverse(*bytes), *id));
    changes.into_iter().take(CATEGORIES).map(|(_, id)| id.clone()).collect()
}

fn table(rows: &[Row<'_>], options: TextOptions, out: &mut String) {
    let ids = changing(rows);
    let names: Vec<Vec<String>> = ids
        .iter()
        .map(|id| category_name(id).unwrap_or(id).to_string())
        .chain((!ids.is_empty()).then(|| "others".to_string()))
        .map(|name| wrapped(&clean(&name), COLUMN - 2))
        .collect();
    let height = names.iter().map(Vec::len).max().unwrap_or(0).clamp(1, 3);
    for at in 0..height {
        let fixed = if at + 1 == height {
            format!("  {:>10}{:>11}{:>11}", "time", "VIRT", "RSS")
        } else {
            " ".repeat(34)
        };
        let cell = |name: &Vec<String>| {
            let skipped = height.saturating_sub(name.len());
            let word = at.checked_sub(skipped).and_then(|i| name.get(i)).map_or("", String::as_str);
            format!("{:>COLUMN$}", truncated(word, COLUMN - 1))
        };
        let head = fixed + &names.iter().map(cell).collect::<String>();
        *out += &format!("{}\n", options.color.paint(Tone::Dim, head.trim_end()));
    }
    for row in rows {
        let rss = match (row.rss, row.remark) {
            (Some(bytes), _) => size(bytes),
            (None, "") => "not known".to_string(),
            (None, remark) => remark.to_string(),
        };
        let mut line = format!("  {:>10}{:>11}{rss:>11}", moment(row.t_ns), size(row.virt));
        let mut others = row.virt;
        for id in &ids {
            let bytes = row.by_category.get(id).copied().unwrap_or(0);
            others = others.saturating_sub(bytes);
            line += &format!("{:>COLUMN$}", size(bytes));
        }
        if !ids.is_empty() {
            line += &format!("{:>COLUMN$}", size(others));
        }
        let peak = !row.remark.is_empty();
        *out += &if peak { options.color.paint(Tone::Key, &line) } else { line };
        out.push('\n');
    }
}
