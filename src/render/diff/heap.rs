//! A comparison of two heaps as text, at most 100 columns wide.

use super::tables::word;
use super::text::{folded, source_line};
use crate::diff::HeapDiff;
use crate::diff::heap::model::{HeapChange, HeapSideFacts, HeapWidths};
use crate::diff::model::Width;
use crate::render::frames::frames;
use crate::render::style::{Tone, clean, signed, signed_size, truncated};
use crate::render::text::{TextOptions, WIDTH, note};
use crate::report::units::{counted, size, thousands};

/// The whole comparison; ends with a newline.
pub fn heap_diff_to_text(diff: &HeapDiff, options: TextOptions) -> String {
    let mut out = String::new();
    side("A", &diff.a, options, &mut out);
    side("B", &diff.b, options, &mut out);
    out.push('\n');
    totals(&diff.totals, options, &mut out);
    if diff.equal || !diff.notes.is_empty() {
        out.push('\n');
    }
    for text in &diff.notes {
        note(&clean(text), options, &mut out);
    }
    if diff.equal {
        out += "  no difference\n";
    }
    let shown = options.top.min(diff.changes.len());
    for (i, change) in diff.changes.iter().take(shown).enumerate() {
        out.push('\n');
        head(i + 1, change, options, &mut out);
        let stack = change.stack.and_then(|k| diff.stacks.get(usize::try_from(k).ok()?));
        if let Some(stack) = stack {
            frames(&folded(stack), options, &mut out);
        }
    }
    rest(&diff.changes[shown..], options, &mut out);
    out
}

/// `A  before.json · server (pid 4123) · report, preload`
fn side(name: &str, side: &HeapSideFacts, options: TextOptions, out: &mut String) {
    let who = match side.compared {
        0 | 1 => format!("{} (pid {})", truncated(&clean(&side.of.comm), 24), side.of.pid),
        n => format!("{} processes", thousands(n)),
    };
    let rest = format!(" · {who} · heap, by {} · {}", clean(&side.of.backend), clean(&side.of.kind));
    source_line(name, &side.of.source, &rest, options, out);
}

fn totals(totals: &HeapWidths, options: TextOptions, out: &mut String) {
    let head = format!("{:13}{:>12}{:>12}{:>13}", "", "A", "B", "change");
    *out += &format!("{}\n", options.color.paint(Tone::Dim, &head));
    let bytes = |w: Width| [size(w.a), size(w.b), signed_size(w.change)];
    let count = |w: Width| [thousands(w.a), thousands(w.b), signed(w.change, thousands)];
    let peak = totals.peak.map_or(["not known".to_owned(), "not known".to_owned(), "-".to_owned()], bytes);
    let rows = [
        ("outstanding", bytes(totals.outstanding)),
        ("blocks", count(totals.blocks)),
        ("at the peak", peak),
        ("allocated", bytes(totals.allocated)),
        ("calls", count(totals.allocations)),
    ];
    for (at, (name, [a, b, change])) in rows.into_iter().enumerate() {
        let change = options.color.paint(Tone::Key, &format!("{change:>13}"));
        let error = totals.standard_error.filter(|_| at == 0).map(|error| format!(" ± {}", size(error)));
        *out += &format!("  {name:<11}{a:>12}{b:>12}{change}{}\n", error.unwrap_or_default());
    }
}

/// `1  +64.0 MiB outstanding · grown · malloc`, and both sides.
fn head(number: usize, change: &HeapChange, options: TextOptions, out: &mut String) {
    let mut figures = figures(&change.widths);
    if let Some(error) = change.widths.standard_error.filter(|_| change.widths.outstanding.change != 0) {
        figures += &format!(" ± {}", size(error));
    }
    let mut what = word(change.kind).to_owned();
    if change.within_error {
        what += ", within the error";
    }
    let why = change.no_stack.as_ref().map(|why| format!(", no stack ({})", clean(why)));
    let used = 5 + figures.chars().count() + 3 + what.len() + 3;
    let name = clean(&change.function) + &why.unwrap_or_default();
    let name = truncated(&name, WIDTH.saturating_sub(used).max(20));
    let number = options.color.paint(Tone::Dim, &format!("{number:>3}"));
    let key = options.color.paint(Tone::Key, &figures);
    *out += &format!("{number}  {key} · {what} · {}\n", options.color.paint(Tone::Heading, &name));
    let w = &change.widths;
    let of =
        |of: fn(&Width) -> u64| [of(&w.outstanding), of(&w.blocks), of(&w.allocations), of(&w.allocated)];
    for (name, [outstanding, blocks, calls, allocated], peak) in
        [("A", of(|w| w.a), w.peak.map(|w| w.a)), ("B", of(|w| w.b), w.peak.map(|w| w.b))]
    {
        let mut text = match (calls, outstanding) {
            (0, 0) => "nothing".to_owned(),
            _ => format!(
                "{} in {} of {}, {} allocated",
                size(outstanding),
                counted(blocks, "block"),
                counted(calls, "call"),
                size(allocated)
            ),
        };
        if let Some(peak) = peak.filter(|_| calls > 0 || outstanding > 0) {
            text += &format!(", {} at the peak", size(peak));
        }
        *out += &format!("     {}  {text}\n", options.color.paint(Tone::Dim, name));
    }
}

/// The change in the first figure that changed.
fn figures(w: &HeapWidths) -> String {
    let peak = w.peak.map_or(0, |peak| peak.change);
    if w.outstanding.change != 0 {
        format!("{} outstanding", signed_size(w.outstanding.change))
    } else if peak != 0 {
        format!("{} at the peak", signed_size(peak))
    } else if w.allocated.change != 0 {
        format!("{} allocated", signed_size(w.allocated.change))
    } else if w.allocations.change != 0 {
        format!("{} calls", signed(w.allocations.change, thousands))
    } else {
        format!("{} blocks", signed(w.blocks.change, thousands))
    }
}

fn rest(hidden: &[HeapChange], options: TextOptions, out: &mut String) {
    if hidden.is_empty() {
        return;
    }
    let sum = |of: fn(&HeapChange) -> i64| hidden.iter().map(of).fold(0, i64::saturating_add);
    let line = format!(
        "  … and {} smaller change{}, {} outstanding and {} allocated together (--top shows more)",
        thousands(hidden.len() as u64),
        if hidden.len() == 1 { "" } else { "s" },
        signed_size(sum(|change| change.widths.outstanding.change)),
        signed_size(sum(|change| change.widths.allocated.change))
    );
    *out += &format!("\n{}\n", options.color.paint(Tone::Dim, &line));
}
