//! A comparison as text, at most 100 columns wide.

use super::tables::{categories, processes, totals, word};
use crate::diff::Diff;
use crate::diff::model::{By, Change, Kind, SideFacts, Widths};
use crate::render::frames::frames;
use crate::render::style::{Tone, clean, signed_size, truncated, wrapped};
use crate::render::text::findings::fix_text;
use crate::render::text::{TextOptions, WIDTH, labelled, note};
use crate::report::model::{Frame, Range, Stack};
use crate::report::units::{size, thousands};
use std::sync::Arc;

/// The whole comparison; ends with a newline.
pub fn diff_to_text(diff: &Diff, options: TextOptions) -> String {
    let mut out = String::new();
    side("A", &diff.a, options, &mut out);
    side("B", &diff.b, options, &mut out);
    out.push('\n');
    totals(diff, options, &mut out);
    out.push('\n');
    processes(diff, options, &mut out);
    categories(diff, options, &mut out);
    reasons(diff, options, &mut out);
    for text in &diff.notes {
        note(&clean(text), options, &mut out);
    }
    if diff.equal {
        out += "  no difference\n";
    }
    let shown = shown(&diff.changes, options.top);
    for (i, change) in diff.changes.iter().take(shown).enumerate() {
        out.push('\n');
        head(i + 1, change, diff.by, options, &mut out);
        let stack = change.stack.and_then(|k| diff.stacks.get(usize::try_from(k).ok()?));
        if let Some(stack) = stack {
            frames(&folded(stack), options, &mut out);
        }
        // the same words once; what each fix saves is in the report of that side
        let said = diff.changes[..i]
            .iter()
            .any(|c| is_advised(c) && c.category == change.category && c.why == change.why);
        if is_advised(change) && !said {
            advice(change, options, &mut out);
        }
    }
    rest(&diff.changes[shown..], options, &mut out);
    out
}

/// `A  silly.json · silly (pid 4123) · ASLR off · report, traced`
fn side(name: &str, side: &SideFacts, options: TextOptions, out: &mut String) {
    let who = match (side.compared, side.of.pid) {
        (0 | 1, 0) => clean(&side.of.comm),
        (0 | 1, pid) => format!("{} (pid {pid})", truncated(&clean(&side.of.comm), 24)),
        (n, _) => format!("{} processes", thousands(n)),
    };
    let kind = match (side.of.kind.as_str(), side.of.backend.as_str()) {
        ("report", "snapshot") => "snapshot",
        (kind, _) => kind,
    };
    let rest = format!(" · {who} · ASLR {} · {kind}", if side.aslr { "on" } else { "off" });
    source_line(name, &side.of.source, &rest, options, out);
}

/// A side: its name, its file as far as it fits, and what else there is to say.
pub(super) fn source_line(name: &str, source: &str, rest: &str, options: TextOptions, out: &mut String) {
    let columns = WIDTH.saturating_sub(name.len() + 2 + rest.chars().count());
    let source = clean(source);
    let cut = source.chars().count().saturating_sub(columns);
    // the end of a path says more than its beginning
    let source = match cut {
        0 => source,
        _ => format!("…{}", source.chars().skip(cut + 1).collect::<String>()),
    };
    *out += &format!("{}  {source}{rest}\n", options.color.paint(Tone::Heading, name));
}

/// `MALLOC_ARENA_MAX: not set in A, 1 in B: -512.0 MiB in glibc malloc arenas`
fn reasons(diff: &Diff, options: TextOptions, out: &mut String) {
    let name = |id: &String| {
        let row = diff.categories.iter().find(|row| row.id == *id);
        row.map_or_else(|| clean(id), |row| clean(&row.name))
    };
    for reason in &diff.reasons {
        let says = |value: &Option<String>| match value {
            Some(value) => truncated(&clean(value), 40),
            None => "not set".to_owned(),
        };
        let head = format!("{}: {} in A, {} in B", clean(&reason.what), says(&reason.a), says(&reason.b));
        let names = reason.categories.iter().map(name).collect::<Vec<_>>().join(", ");
        let bears = match (reason.explains, reason.shared_with.as_slice()) {
            (None, _) => "; it explains nothing of what changed".to_owned(),
            (Some(bytes), []) => format!("; it bears on {names}: {}", signed_size(bytes)),
            (Some(bytes), others) => {
                format!("; with {} it bears on {names}: {}", clean(&others.join(", ")), signed_size(bytes))
            }
        };
        labelled("differs", Tone::Dim, &(head + &bears), options, out);
    }
}

/// Runs of frames without names in one module (an allocator without debug files) say nothing one by one, and
/// push those of the program out of sight.
pub(super) fn folded(stack: &Stack) -> Stack {
    let mut frames: Vec<Arc<Frame>> = Vec::new();
    for run in stack.frames.chunk_by(|x, y| x.symbol.is_none() && y.symbol.is_none() && x.module == y.module)
    {
        match run {
            [first, middle @ .., last] if middle.len() > 1 => {
                let count = format!("… {} frames without names …", thousands(middle.len() as u64));
                let note = Frame { module: first.module.clone(), symbol: Some(count), ..Frame::default() };
                frames.extend([first.clone(), Arc::new(note), last.clone()]);
            }
            _ => frames.extend(run.iter().cloned()),
        }
    }
    Stack { frames, ..stack.clone() }
}

/// At most `top`; of changes of less than a thousandth of the largest, none beyond the third.
fn shown(changes: &[Change], top: usize) -> usize {
    let small = changes.first().map_or(0, |c| c.widths.weight() / 1000);
    let worth = changes.iter().take_while(|c| c.widths.weight() >= small).count().max(3);
    worth.min(top).min(changes.len())
}

/// `1  +64.0 MiB VIRT, +12 KiB RSS · new · glibc malloc arenas · thread "reader"`, and both sides.
fn head(number: usize, change: &Change, by: By, options: TextOptions, out: &mut String) {
    let figures = figures(&change.widths);
    let mut what = clean(&change.name);
    if let Some(label) = &change.label {
        what += &format!(" · {}", truncated(&clean(label), 70));
    }
    if let [first, more @ ..] = change.threads.as_slice()
        && change.category != "loader"
    {
        let others = match more.len() {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        let plural = if more.is_empty() { "" } else { "s" };
        what += &format!(" · thread{plural} \"{}\"{others}", truncated(&clean(first), 20));
    }
    let used = 5 + figures.chars().count() + 3 + word(change.kind).len() + 3;
    let number = options.color.paint(Tone::Dim, &format!("{number:>3}"));
    let key = options.color.paint(Tone::Key, &figures);
    let fits = used + what.chars().count() <= WIDTH;
    let (first, below) = if fits { (what, None) } else { (String::new(), Some(what)) };
    let first =
        if first.is_empty() { first } else { format!(" · {}", options.color.paint(Tone::Heading, &first)) };
    *out += &format!("{number}  {key} · {}{first}\n", word(change.kind));
    for line in below.iter().flat_map(|text| wrapped(text, WIDTH - 5)) {
        *out += &format!("     {}\n", options.color.paint(Tone::Heading, &line));
    }
    let w = &change.widths;
    let sides = [
        ("A", w.virt.a, w.writable.a, w.rss.map(|r| r.a), change.regions.a, &change.ranges_a),
        ("B", w.virt.b, w.writable.b, w.rss.map(|r| r.b), change.regions.b, &change.ranges_b),
    ];
    for (name, virt, writable, rss, things, ranges) in sides {
        let mut text = match virt {
            0 => "nothing".to_string(),
            _ => format!("{} VIRT, {} writable", size(virt), size(writable)),
        };
        if let Some(rss) = rss.filter(|_| virt > 0) {
            text += &format!(", {} RSS", size(rss));
        }
        if virt > 0 {
            text += &place(things, ranges, by);
        }
        for (i, line) in wrapped(&text, WIDTH - 8).iter().enumerate() {
            let name = if i == 0 { name } else { " " };
            *out += &format!("     {}  {line}\n", options.color.paint(Tone::Dim, name));
        }
    }
}

/// The changes in VIRT and in RSS, where there are any.
fn figures(widths: &Widths) -> String {
    let mut parts = Vec::new();
    if widths.virt.change != 0 {
        parts.push(format!("{} VIRT", signed_size(widths.virt.change)));
    }
    if let Some(rss) = widths.rss.filter(|rss| rss.change != 0) {
        parts.push(format!("{} RSS", signed_size(rss.change)));
    }
    if parts.is_empty() {
        let swap = widths.swap.map_or(0, |swap| swap.change);
        parts.push(match (widths.writable.change, swap) {
            (0, 0) => format!("{} reserved", signed_size(widths.reserved.change)),
            (0, swap) => format!("{} swap", signed_size(swap)),
            (writable, _) => format!("{} writable", signed_size(writable)),
        });
    }
    parts.join(", ")
}

/// `, 3 regions at 0x…-0x… and 2 more`
fn place(things: u64, ranges: &[Range], by: By) -> String {
    let count = match things {
        1 => String::new(),
        n => format!(", {} regions", thousands(n)),
    };
    let shown = if by == By::Address { 3 } else { 1 };
    let first: Vec<String> =
        ranges.iter().take(shown).map(|r| format!("{}-{}", clean(&r.start), clean(&r.end))).collect();
    let more = match ranges.len().saturating_sub(shown) {
        0 => String::new(),
        n => format!(" and {} more", thousands(n as u64)),
    };
    if first.is_empty() { count } else { format!("{count}, at {}{more}", first.join(", ")) }
}

/// Only of what B has more of it matters why it is there.
fn is_advised(change: &Change) -> bool {
    matches!(change.kind, Kind::New | Kind::Grown)
}

/// Why it is there, and what to do.
fn advice(change: &Change, options: TextOptions, out: &mut String) {
    if let Some(why) = &change.why {
        labelled("why", Tone::Dim, &clean(why), options, out);
    }
    for fix in &change.fix {
        labelled("fix", Tone::Advice, &fix_text(fix), options, out);
    }
}

fn rest(hidden: &[Change], options: TextOptions, out: &mut String) {
    if hidden.is_empty() {
        return;
    }
    let virt: i64 = hidden.iter().map(|c| c.widths.virt.change).fold(0, i64::saturating_add);
    let rss: i64 = hidden.iter().filter_map(|c| c.widths.rss).map(|w| w.change).fold(0, i64::saturating_add);
    let line = format!(
        "  … and {} smaller change{}, {} VIRT and {} RSS together (--top shows more)",
        thousands(hidden.len() as u64),
        if hidden.len() == 1 { "" } else { "s" },
        signed_size(virt),
        signed_size(rss)
    );
    *out += &format!("\n{}\n", options.color.paint(Tone::Dim, &line));
}
