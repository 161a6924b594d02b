//! The other views of a heap: at the peak, by calls, by temporary allocations, by module, thread or size.

use super::whole::row_of;
use super::{function, own_frames, stack, who, without_frames};
use crate::heap::HeapBy;
use crate::heap::report::model::{Amount, SizeClass};
use crate::heap::report::{HeapProcess, HeapReport, HeapRow, HeapSite};
use crate::render::frames::frames;
use crate::render::style::{Tone, clean, truncated};
use crate::render::text::{TextOptions, WIDTH};
use crate::report::model::Frame;
use crate::report::units::{size, thousands};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The rows of a view: with its bytes and blocks in place of what is outstanding. Of calls, the bytes are
/// calls, too.
pub fn rows_by(process: &HeapProcess, by: HeapBy) -> Vec<HeapRow> {
    let amount = |site: &HeapSite| match by {
        HeapBy::Peak => (site.peak_bytes.unwrap_or(0), site.peak_blocks.unwrap_or(0)),
        HeapBy::Allocations => (site.allocations, site.allocations),
        HeapBy::Temporary => (site.temporary.unwrap_or(0), site.temporary.unwrap_or(0)),
        _ => (0, 0),
    };
    let row = |site: &HeapSite| {
        let (bytes, blocks) = amount(site);
        HeapRow { amount: Amount { bytes, blocks, ..Amount::default() }, ..row_of(site) }
    };
    let mut rows: Vec<HeapRow> = match by {
        HeapBy::Peak | HeapBy::Allocations | HeapBy::Temporary => process.sites.iter().map(row).collect(),
        _ => return process.rows.clone(),
    };
    rows.retain(|row| row.amount.bytes > 0);
    rows.sort_by_key(|row| (Reverse(row.amount.bytes), Reverse(row.allocated_bytes)));
    rows
}

/// One line of a table of stacks: three figures, and the stack.
fn line(number: &str, [a, b, c]: [&str; 3]) -> String {
    format!("{number:>3}{a:>13}{b:>13}{c:>13}  ")
}

/// The first `options.top` stacks as a table and then one by one.
pub(super) fn by_site(
    report: &HeapReport,
    p: &HeapProcess,
    by: HeapBy,
    options: TextOptions,
    out: &mut String,
) {
    let rows = rows_by(p, by);
    if rows.is_empty() {
        *out += match by {
            HeapBy::Peak if p.totals.peak_bytes.is_none() => {
                "  the peak is not known: --sample and exact counting know it, --combined does not\n"
            }
            HeapBy::Temporary if p.totals.temporary.is_none() => {
                "  which are temporary is known only where each allocation is seen, in its order\n"
            }
            HeapBy::Temporary => "  no allocation was freed before its thread's next one\n",
            _ => "  nothing was allocated\n",
        };
        return;
    }
    let (heads, what) = match by {
        HeapBy::Peak => (["at the peak", "blocks", "outstanding"], "by stack, when the most was outstanding"),
        HeapBy::Allocations => (["calls", "allocated", "bytes each"], "by stack, whatever was freed since"),
        _ => (["temporary", "of calls", "bytes each"], "by stack: freed before the thread's next allocation"),
    };
    let head = line("", heads) + what;
    *out += &format!("{}\n", options.color.paint(Tone::Dim, &head));
    let cells = |rows: &[HeapRow]| -> [String; 3] {
        let sum = |of: fn(&HeapRow) -> u64| rows.iter().map(of).sum::<u64>();
        let (amount, blocks) = (sum(|row| row.amount.bytes), sum(|row| row.amount.blocks));
        let (bytes, calls) = (sum(|row| row.allocated_bytes), sum(|row| row.allocations));
        let each = size(bytes.checked_div(calls).unwrap_or(0));
        match by {
            HeapBy::Peak => {
                let outstanding = sum(|row| row.allocated_bytes.saturating_sub(row.freed_bytes));
                [size(amount), thousands(blocks), size(outstanding)]
            }
            HeapBy::Allocations => [thousands(amount), size(bytes), each],
            _ => [thousands(amount), percent(amount, calls), each],
        }
    };
    let (shown, rest) = rows.split_at(options.top.min(rows.len()));
    for (at, row) in shown.iter().enumerate() {
        let [a, b, c] = cells(std::slice::from_ref(row));
        let text = line(&(at + 1).to_string(), [&a, &b, &c]);
        let who = who(report, row, WIDTH.saturating_sub(text.chars().count()));
        *out += &format!("{text}{who}\n");
    }
    let mut last = |rows: &[HeapRow], what: &str, tone: Tone| {
        let [a, b, c] = cells(rows);
        *out += &format!("{}\n", options.color.paint(tone, &(line("", [&a, &b, &c]) + what)));
    };
    match rest.len() {
        0 => {}
        1 => last(rest, "1 other stack", Tone::Dim),
        n => last(rest, &format!("{} other stacks", thousands(n as u64)), Tone::Dim),
    }
    last(&rows, "total", Tone::Heading);
    for (at, row) in shown.iter().enumerate() {
        let [a, b, _] = cells(std::slice::from_ref(row));
        let key = match by {
            HeapBy::Peak => format!("{a} at the peak in {b} blocks"),
            HeapBy::Allocations => format!("{a} calls, {b}"),
            _ => format!("{a} temporary, {b} of the calls"),
        };
        let text = format!(
            " · {} · {} allocated, {} freed",
            truncated(&function(report, row), 40),
            thousands(row.allocations),
            thousands(row.frees)
        );
        *out += &format!("\n{:>3}  {}{text}\n", at + 1, options.color.paint(Tone::Key, &key));
        match stack(report, row) {
            Some(stack) => frames(stack, options, out),
            None => without_frames(row, options, out),
        }
    }
}

fn percent(part: u64, all: u64) -> String {
    let percent = (u128::from(part) * 100 + u128::from(all) / 2).checked_div(u128::from(all));
    format!("{} %", percent.unwrap_or(0))
}

/// Sums of a group of stacks.
#[derive(Clone, Copy, Default)]
struct Sum {
    outstanding: u64,
    peak: u64,
    calls: u64,
    allocated: u64,
}

/// What each module, or each thread's first function, allocated.
pub(super) fn by_group(
    report: &HeapReport,
    p: &HeapProcess,
    by: HeapBy,
    options: TextOptions,
    out: &mut String,
) {
    let mut groups: BTreeMap<String, Sum> = BTreeMap::new();
    for site in &p.sites {
        let row = row_of(site);
        let name = match by {
            HeapBy::Module => module(report, &row),
            _ => thread(report, &row),
        };
        let sum = groups.entry(name).or_default();
        sum.outstanding += (site.allocated_bytes).saturating_sub(site.freed_bytes);
        sum.peak += site.peak_bytes.unwrap_or(0);
        sum.calls += site.allocations;
        sum.allocated += site.allocated_bytes;
    }
    let mut groups: Vec<(String, Sum)> = groups.into_iter().collect();
    groups.sort_by_key(|(name, sum)| (Reverse(sum.outstanding), Reverse(sum.allocated), name.clone()));
    let text = |[a, b, c, d]: [&str; 4]| format!("   {a:>13}{b:>13}{c:>13}{d:>13}  ");
    let what = if by == HeapBy::Module {
        "by module that called the allocator"
    } else {
        "by where the thread began"
    };
    let head = text(["outstanding", "at the peak", "calls", "allocated"]) + what;
    *out += &format!("{}\n", options.color.paint(Tone::Dim, &head));
    let cells = |sum: &Sum| {
        let peak = p.totals.peak_bytes.map_or_else(|| "?".to_owned(), |_| size(sum.peak));
        [size(sum.outstanding), peak, thousands(sum.calls), size(sum.allocated)]
    };
    let (shown, rest) = groups.split_at(options.top.min(groups.len()));
    for (name, sum) in shown {
        let cells = cells(sum);
        let start = text(cells.each_ref().map(String::as_str));
        let columns = WIDTH.saturating_sub(start.chars().count());
        *out += &format!("{start}{}\n", truncated(&clean(name), columns));
    }
    let add = |groups: &[(String, Sum)]| {
        groups.iter().fold(Sum::default(), |all, (_, sum)| Sum {
            outstanding: all.outstanding + sum.outstanding,
            peak: all.peak + sum.peak,
            calls: all.calls + sum.calls,
            allocated: all.allocated + sum.allocated,
        })
    };
    let mut last = |groups: &[(String, Sum)], what: &str, tone: Tone| {
        let cells = cells(&add(groups));
        let line = text(cells.each_ref().map(String::as_str)) + what;
        *out += &format!("{}\n", options.color.paint(tone, &line));
    };
    if !rest.is_empty() {
        last(rest, &format!("{} others", thousands(rest.len() as u64)), Tone::Dim);
    }
    last(&groups, "total", Tone::Heading);
}

/// Of the function that a reader would name.
pub(in crate::render) fn module(report: &HeapReport, row: &HeapRow) -> String {
    let Some(stack) = stack(report, row) else { return "(no stack)".to_owned() };
    let caller = stack.caller.and_then(|at| stack.frames.get(usize::try_from(at).ok()?));
    let frame = caller.or_else(|| own_frames(stack).first()).or_else(|| stack.frames.first());
    frame.map_or_else(|| "(no stack)".to_owned(), |frame| frame.module.clone())
}

/// `worker (prog)`: the outermost function that is neither the system's nor the C++ library's.
pub(in crate::render) fn thread(report: &HeapReport, row: &HeapRow) -> String {
    let Some(stack) = stack(report, row) else { return "(no stack)".to_owned() };
    if stack.completeness != "complete" {
        return "(the stack ends early)".to_owned();
    }
    let own = own_frames(stack);
    let starts = |frame: &Frame| frame.in_system_library() || frame.module.starts_with("libstdc++");
    let frame = own.iter().rfind(|frame| !starts(frame)).or_else(|| own.last());
    match frame.map(Arc::as_ref) {
        Some(Frame { symbol: Some(symbol), module, .. }) => format!("{symbol} ({module})"),
        Some(frame) => format!("{}+{}", frame.module, frame.offset),
        None => "(before main)".to_owned(),
    }
}

/// Classes of sizes, most bytes first, with what rounding takes.
pub(super) fn by_size(p: &HeapProcess, options: TextOptions, out: &mut String) {
    if p.sizes.is_empty() {
        *out += match p.own.is_some() {
            true => "  what the allocator gives is not known: it has no malloc_usable_size of its own\n",
            false => {
                "  what the allocator gives is known where the preloaded library counts (--method preload)\n"
            }
        };
        return;
    }
    let text = |[a, b, c, d]: [&str; 4]| format!("   {a:>13}{b:>13}{c:>13}{d:>9}  ");
    let head =
        text(["outstanding", "blocks", "rounding", "of it"]) + "by what the allocator gives for a block";
    *out += &format!("{}\n", options.color.paint(Tone::Dim, &head));
    let cells = |classes: &[&SizeClass]| {
        let sum = |of: fn(&SizeClass) -> u64| classes.iter().map(|class| of(class)).sum::<u64>();
        let (bytes, rounding) = (sum(|class| class.bytes), sum(|class| class.rounding));
        [
            size(bytes),
            thousands(sum(|class| class.blocks)),
            size(rounding),
            percent(rounding, bytes + rounding),
        ]
    };
    let mut classes: Vec<&SizeClass> = p.sizes.iter().collect();
    classes.sort_by_key(|class| (Reverse(class.bytes + class.rounding), class.from));
    let (shown, rest) = classes.split_at(options.top.min(classes.len()));
    for class in shown {
        let cells = cells(&[class]);
        let name = match class.from == class.to {
            true if class.to == 0 => "not reported by the allocator".to_owned(),
            true => format!("{} bytes", thousands(class.from)),
            false => format!("{} to {}", size(class.from), size(class.to + 1)),
        };
        *out += &format!("{}{name}\n", text(cells.each_ref().map(String::as_str)));
    }
    let mut last = |classes: &[&SizeClass], what: &str, tone: Tone| {
        let cells = cells(classes);
        let line = text(cells.each_ref().map(String::as_str)) + what;
        *out += &format!("{}\n", options.color.paint(tone, &line));
    };
    if !rest.is_empty() {
        last(rest, &format!("{} other sizes", thousands(rest.len() as u64)), Tone::Dim);
    }
    last(&classes, "total", Tone::Heading);
}
