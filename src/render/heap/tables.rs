//! What is outstanding as tables: totals, by stack, by context.

use super::who;
use crate::heap::mappings::Comparison;
use crate::heap::report::model::{Amount, Context};
use crate::heap::report::{HeapProcess, HeapReport, HeapRow};
use crate::render::style::{Tone, clean, signed_size, truncated, wrapped};
use crate::render::text::{TextOptions, WIDTH, duration, moment};
use crate::report::units::{exact_size, size, thousands};

/// `in 18 blocks`.
pub(super) fn in_blocks(amount: &Amount) -> String {
    let about = if amount.standard_error > 0 { "about " } else { "" };
    let plural = if amount.blocks == 1 { "" } else { "s" };
    format!("in {about}{} block{plural}", thousands(amount.blocks))
}

pub(super) fn totals(report: &HeapReport, p: &HeapProcess, options: TextOptions, out: &mut String) {
    let t = &p.totals;
    let mut line = |what: &str, bytes: u64, text: String, tone: Option<Tone>| {
        let row = format!("  {what:<12}{:>11}", size(bytes));
        let row = tone.map_or(row.clone(), |tone| options.color.paint(tone, &row));
        *out += format!("{row}  {text}").trim_end();
        out.push('\n');
    };
    let all = Amount {
        blocks: t.outstanding_blocks,
        standard_error: p.shown.standard_error + p.left_out.standard_error,
        ..Amount::default()
    };
    let error = match (p.shown.standard_error, p.left_out.bytes) {
        (0, _) | (_, 1..) => String::new(),
        (error, 0) => format!(", ± {}", size(error)),
    };
    line("outstanding", t.outstanding_bytes, in_blocks(&all) + &error, Some(Tone::Heading));
    if p.left_out.blocks > 0 || is_filtered(report) {
        let error = match p.shown.standard_error {
            0 => String::new(),
            error => format!(", ± {}", size(error)),
        };
        let text = format!("{}{error}: {}", in_blocks(&p.shown), filter(report));
        line("  of these", p.shown.bytes, text, Some(Tone::Key));
        line("  left out", p.left_out.bytes, in_blocks(&p.left_out), None);
    }
    let about = if report.sampling_bytes.is_some() { "about " } else { "" };
    let calls = |n: u64| format!("by {about}{} call{}", thousands(n), if n == 1 { "" } else { "s" });
    line("allocated", t.allocated_bytes, calls(t.allocations), None);
    if t.inherited_blocks > 0 {
        let inherited = Amount { blocks: t.inherited_blocks, ..Amount::default() };
        line("inherited", t.inherited_bytes, format!("{}, copied by fork", in_blocks(&inherited)), None);
    }
    let freed = Amount { blocks: t.frees, standard_error: all.standard_error, ..Amount::default() };
    line("freed", t.freed_bytes, in_blocks(&freed), None);
    if let (Some(bytes), Some(at)) = (t.peak_bytes, t.peak_ns) {
        line(
            "peak",
            bytes,
            format!("at {}", moment(at)) + if is_gone(p) { " (--by peak: whose)" } else { "" },
            None,
        );
    }
    let rounding: u64 = p.sizes.iter().map(|class| class.rounding).sum();
    if rounding > 0 {
        let given = t.outstanding_bytes + rounding;
        let text = format!("at least, {} more than requested (--by size)", share(rounding, given));
        line("rounding", rounding, text, None);
    }
    if let Some(calls @ 1..) = t.temporary {
        *out += &format!(
            "  {:<12}{:>11}  calls, {}: freed before the thread's next one (--by temporary)\n",
            "temporary",
            thousands(calls),
            share(calls, t.allocations)
        );
    }
}

/// A quarter of the peak or more is freed since.
fn is_gone(p: &HeapProcess) -> bool {
    p.totals.peak_bytes.is_some_and(|peak| p.totals.outstanding_bytes < peak - peak / 4)
}

/// `7 %`, `0.3 %`.
fn share(part: u64, all: u64) -> String {
    let percent = part as f64 * 100.0 / all.max(1) as f64;
    if percent < 9.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

fn is_filtered(report: &HeapReport) -> bool {
    let f = &report.filter;
    f.older_ns.is_some() || f.min_size.is_some() || f.max_size.is_some() || f.leaks_only
}

/// `older than 10.0 s, of 4 KiB or more, by stacks that never free and grow`.
fn filter(report: &HeapReport) -> String {
    let f = &report.filter;
    let mut parts = Vec::new();
    if let Some(ns) = f.older_ns {
        parts.push(format!("{} old or older", duration(ns)));
    }
    match (f.min_size, f.max_size) {
        (Some(least), Some(most)) => parts.push(format!("of {} to {}", exact_size(least), exact_size(most))),
        (Some(least), None) => parts.push(format!("of {} or more", exact_size(least))),
        (None, Some(most)) => parts.push(format!("of {} or less", exact_size(most))),
        (None, None) => {}
    }
    if f.leaks_only {
        parts.push("by stacks that never free and keep growing".to_owned());
    }
    parts.join(", ")
}

/// One line of a table; the last cell takes the remaining columns.
struct Columns {
    growth: bool,
    error: bool,
    oldest: bool,
}

impl Columns {
    fn of(p: &HeapProcess) -> Columns {
        Columns {
            growth: p.growth_ns.is_some(),
            error: p.shown.standard_error > 0,
            oldest: p.shown.oldest_ns.is_some(),
        }
    }

    fn line(&self, number: &str, cells: [&str; 5]) -> String {
        let [bytes, error, blocks, growth, oldest] = cells;
        let mut text = format!("{number:>3}{bytes:>13}");
        if self.error {
            text += &format!("{error:>13}");
        }
        text += &format!("{blocks:>12}");
        if self.growth {
            text += &format!("{growth:>13}");
        }
        if self.oldest {
            text += &format!("{oldest:>11}");
        }
        text + "  "
    }
}

/// The first `options.top` stacks and the sum of the others: they add up to what is shown.
pub(super) fn by_stack(report: &HeapReport, p: &HeapProcess, options: TextOptions, out: &mut String) {
    let columns = Columns::of(p);
    let growth = p.growth_ns.map(|ns| format!("+ in {}", duration(ns))).unwrap_or_default();
    let head = columns.line("", ["outstanding", "± error", "blocks", &growth, "oldest"]) + "by stack";
    *out += &format!("{}\n", options.color.paint(Tone::Dim, &head));
    let age = |amount: &Amount| amount.oldest_ns.map(duration).unwrap_or_default();
    let error = |bytes: u64| format!("± {}", size(bytes));
    let (shown, rest) = p.rows.split_at(options.top.min(p.rows.len()));
    for (at, row) in shown.iter().enumerate() {
        let a = &row.amount;
        let cells = [
            &size(a.bytes),
            &error(a.standard_error),
            &thousands(a.blocks),
            &signed_size(row.growth),
            &age(a),
        ];
        let line = columns.line(&(at + 1).to_string(), cells.map(String::as_str));
        let who = who(report, row, WIDTH.saturating_sub(line.chars().count()));
        *out += &format!("{line}{who}\n");
    }
    let sum = |rows: &[HeapRow], of: fn(&HeapRow) -> u64| rows.iter().map(of).sum::<u64>();
    let grown = |rows: &[HeapRow]| rows.iter().fold(0i64, |sum, row| sum.saturating_add(row.growth));
    let mut last = |rows: &[HeapRow], what: &str, (bytes, deviation): (u64, u64), tone: Tone| {
        let oldest = rows.iter().filter_map(|row| row.amount.oldest_ns).max();
        let cells = [
            &size(bytes),
            &error(deviation),
            &thousands(sum(rows, |row| row.amount.blocks)),
            &signed_size(grown(rows)),
            &oldest.map(duration).unwrap_or_default(),
        ];
        let line = columns.line("", cells.map(String::as_str)) + what;
        *out += &format!("{}\n", options.color.paint(tone, &line));
    };
    if !rest.is_empty() {
        let what = match rest.len() {
            1 => "1 other stack".to_owned(),
            n => format!("{} other stacks", thousands(n as u64)),
        };
        let squares: f64 = rest.iter().map(|row| (row.amount.standard_error as f64).powi(2)).sum();
        let bytes = sum(rest, |row| row.amount.bytes);
        last(rest, &what, (bytes, squares.sqrt().round() as u64), Tone::Dim);
    }
    last(&p.rows, "total", (p.shown.bytes, p.shown.standard_error), Tone::Heading);
}

/// The same by the names of contexts.
pub(super) fn by_context(p: &HeapProcess, options: TextOptions, out: &mut String) {
    let line = |[bytes, blocks, contexts]: [&str; 3]| format!("   {bytes:>13}{blocks:>11}{contexts:>10}  ");
    let head = line(["outstanding", "blocks", "contexts"]) + "by memory context";
    *out += &format!("{}\n", options.color.paint(Tone::Dim, &head));
    let (shown, rest) = p.contexts.split_at(options.top.min(p.contexts.len()));
    let count = |row: &Context| match row.path.is_empty() {
        true => String::new(),
        false => thousands(row.contexts),
    };
    for row in shown {
        let text = line([&size(row.amount.bytes), &thousands(row.amount.blocks), &count(row)]);
        let columns = WIDTH.saturating_sub(text.chars().count());
        *out += &format!("{text}{}\n", path(row, columns));
    }
    let mut last = |rows: &[Context], what: &str, tone: Tone| {
        let sum = |of: fn(&Context) -> u64| rows.iter().map(of).sum::<u64>();
        let (bytes, blocks) = (sum(|row| row.amount.bytes), sum(|row| row.amount.blocks));
        let text = line([&size(bytes), &thousands(blocks), &thousands(sum(|row| row.contexts))]) + what;
        *out += &format!("{}\n", options.color.paint(tone, &text));
    };
    if !rest.is_empty() {
        let what = format!("{} other name{}", rest.len(), if rest.len() == 1 { "" } else { "s" });
        last(rest, &what, Tone::Dim);
    }
    last(&p.contexts, "total", Tone::Heading);
}

/// From the requested bytes to what the allocators mapped, each difference named.
pub(super) fn comparison(found: &Comparison, options: TextOptions, out: &mut String) {
    let parts: Vec<&str> = found.parts.iter().map(|part| part.name.as_str()).collect();
    let mut line = |figure: &str, name: &str, why: &str, tone: Option<Tone>| {
        let head = format!("  {figure:>13}  {name:<24}  ");
        let margin = " ".repeat(head.chars().count());
        for (at, text) in wrapped(&clean(why), WIDTH - margin.len()).iter().enumerate() {
            let start = if at == 0 { &head } else { &margin };
            let start =
                tone.filter(|_| at == 0).map_or(start.clone(), |tone| options.color.paint(tone, start));
            *out += &format!("{start}{text}\n");
        }
    };
    let note = match found.asked_incomplete {
        true => "outstanding, of what was allocated since vmaudit attached",
        false => "outstanding: what the program requested and has not freed",
    };
    line(&size(found.asked), "requested", note, Some(Tone::Heading));
    let is_below = |id: &str| matches!(id, "asked-absent" | "kept");
    for difference in found.differences.iter().filter(|d| is_below(&d.id)) {
        line(&signed_size(difference.bytes), &difference.name, &difference.why, None);
    }
    line(&size(found.resident), "resident", "of the allocator's mappings (RSS)", Some(Tone::Heading));
    for difference in found.differences.iter().filter(|d| !is_below(&d.id)) {
        line(&signed_size(difference.bytes), &difference.name, &difference.why, None);
    }
    line(&size(found.mapped), "mapped", &parts.join(", "), Some(Tone::Heading));
}

/// `TopMemoryContext / CacheMemoryContext`; of a long one the inner end.
fn path(row: &Context, width: usize) -> String {
    if row.path.is_empty() {
        return "in no context".to_owned();
    }
    let name = |name: &Option<String>| match name {
        Some(name) => clean(name),
        None => "(unnamed)".to_owned(),
    };
    let names: Vec<String> = row.path.iter().map(name).collect();
    let all = names.join(" / ");
    if all.chars().count() <= width {
        return all;
    }
    let mut kept = String::new();
    for name in names.iter().rev() {
        let longer = if kept.is_empty() { name.clone() } else { format!("{name} / {kept}") };
        if longer.chars().count() + 4 > width && !kept.is_empty() {
            break;
        }
        kept = longer;
    }
    truncated(&format!("… / {kept}"), width)
}

/// A figure with its name and what it means. One without `tone` is left out where it is 0.
pub(super) fn amount(
    (bytes, name, why): (u64, &str, &str),
    tone: Option<Tone>,
    options: TextOptions,
    out: &mut String,
) {
    if bytes == 0 && tone.is_none() {
        return;
    }
    let head = format!("  {:>13}  {name:<24}  ", size(bytes));
    let margin = " ".repeat(head.chars().count());
    for (at, text) in wrapped(why, WIDTH - margin.len()).iter().enumerate() {
        let start = if at == 0 { &head } else { &margin };
        let start = tone.filter(|_| at == 0).map_or(start.clone(), |tone| options.color.paint(tone, start));
        *out += &format!("{start}{text}\n");
    }
}
