//! The heap report as text and JSON.

mod arenas;
mod budget;
pub(super) mod by;
pub(super) mod diff_stacks;
mod extents;
pub(super) mod folded;
pub(super) mod heaptrack;
mod parts;
mod segments;
mod tables;
mod tree;
pub(super) mod whole;

use super::chain::chain;
use super::frames::frames;
use super::style::{Tone, clean, signed_size, truncated};
use super::text::{TextOptions, WIDTH, duration, end, labelled, note};
use crate::heap::HeapBy;
use crate::heap::report::{FROM_MEMORY, FROM_RUNTIME, HeapProcess, HeapReport, HeapRow};
use crate::report::model::{Frame, Process, Role, Stack};
use crate::report::units::{counted, exact_size, size, thousands};
use arenas::arenas;
pub use by::rows_by;
use by::{by_group, by_site, by_size};
use std::sync::Arc;
use tables::{by_context, by_stack, comparison, in_blocks, totals};
use tree::tree;

/// What is shown of a heap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeapView {
    pub by: HeapBy,
    /// A tree from the allocator's callers to theirs, in place of the stacks.
    pub reverse: bool,
}

/// At most 100 columns; `options.top` stacks of each process and as many processes.
pub fn heap_to_text(report: &HeapReport, view: HeapView, options: TextOptions) -> String {
    let mut out = String::new();
    let Some(first) = report.processes.first() else {
        out += "no process was observed\n";
        return out;
    };
    let mut others: Vec<&HeapProcess> = report.processes.iter().skip(1).collect();
    others.sort_by_key(|p| (std::cmp::Reverse(p.shown.bytes), p.pid));
    let shown = options.top.min(others.len());
    let (named, rest) = others.split_at(shown);
    for (at, process) in std::iter::once(first).chain(named.iter().copied()).enumerate() {
        if at > 0 {
            out.push('\n');
        }
        of_process(report, process, at == 0, &mut out, (view, options));
    }
    if !rest.is_empty() {
        let bytes = rest.iter().map(|p| p.shown.bytes).sum();
        let text = format!(
            "  … and {} other processes, {} together (--top)",
            thousands(rest.len() as u64),
            size(bytes)
        );
        out += &format!("\n{}\n", options.color.paint(Tone::Dim, &text));
    }
    out
}

fn of_process(
    report: &HeapReport,
    p: &HeapProcess,
    first: bool,
    out: &mut String,
    (view, options): (HeapView, TextOptions),
) {
    head(report, p, first, options, out);
    if report.backend == FROM_MEMORY {
        p.gaps.iter().for_each(|gap| note(&clean(gap), options, out));
        out.push('\n');
        arenas(report, p, options, out);
        return;
    }
    out.push('\n');
    if report.backend == FROM_RUNTIME && !has_record(p, options, out) {
        return;
    }
    totals(report, p, options, out);
    notes(report, p, first).iter().for_each(|text| note(text, options, out));
    // Whose the mappings are is not known, either.
    if let Some(nothing) = &p.nothing_seen {
        *out += "\n  no allocation was seen\n";
        labelled("why", Tone::Dim, &clean(&nothing.why), options, out);
        if p.fragmentation.is_some() {
            out.push('\n');
            arenas(report, p, options, out);
        }
        return;
    }
    if let Some(found) = &p.beside {
        out.push('\n');
        comparison(found, options, out);
    }
    if p.fragmentation.is_some() {
        out.push('\n');
        arenas(report, p, options, out);
    }
    let HeapView { by, reverse } = view;
    match by {
        HeapBy::Outstanding => {}
        HeapBy::Peak if reverse => {
            let rows = rows_by(p, by);
            out.push('\n');
            tree(report, &HeapProcess { rows, ..p.clone() }, "at the peak", options, out);
            return;
        }
        _ => {
            out.push('\n');
            match by {
                HeapBy::Module | HeapBy::Thread => by_group(report, p, by, options, out),
                HeapBy::Size => by_size(p, options, out),
                _ => by_site(report, p, by, options, out),
            }
            return;
        }
    }
    if p.rows.is_empty() {
        let what = match (p.left_out.blocks, report.sampling_bytes) {
            (1.., _) => "nothing of it is outstanding",
            (0, Some(_)) => "nothing that is outstanding is in the sample",
            (0, None) => "nothing is outstanding",
        };
        *out += &format!("\n  {what}\n");
        return;
    }
    if !reverse {
        out.push('\n');
        by_stack(report, p, options, out);
    }
    if !p.contexts.is_empty() {
        out.push('\n');
        by_context(p, options, out);
    }
    if reverse {
        out.push('\n');
        tree(report, p, "outstanding", options, out);
        return;
    }
    for (at, row) in p.rows.iter().take(options.top).enumerate() {
        out.push('\n');
        of_stack(report, p, (at + 1, row), options, out);
    }
    let hidden = p.rows.get(options.top..).unwrap_or(&[]);
    if !hidden.is_empty() {
        let bytes = hidden.iter().map(|row| row.amount.bytes).sum();
        let what = if hidden.len() == 1 { "other stack" } else { "other stacks" };
        let text =
            format!("  … and {} {what}, {} together (--top)", thousands(hidden.len() as u64), size(bytes));
        *out += &format!("\n{}\n", options.color.paint(Tone::Dim, &text));
    }
}

/// Why there is no record to show; whether there is one.
fn has_record(p: &HeapProcess, options: TextOptions, out: &mut String) -> bool {
    for budget in p.runtimes.iter().filter_map(|runtime| runtime.budget.as_ref()) {
        budget::table(budget, out);
    }
    if p.runtimes.iter().any(|runtime| runtime.what.is_some() && runtime.budget.is_none()) {
        return true;
    }
    notes_of_runtimes(p)
        .chain(p.gaps.iter().map(|gap| clean(gap)))
        .for_each(|text| note(&text, options, out));
    if p.runtimes.is_empty() {
        let why = "no runtime was found in it that keeps a record of its own of who allocated, or whose record can be \
                   read";
        labelled("why", Tone::Dim, why, options, out);
    }
    false
}

/// What the records are, or why there is none.
fn notes_of_runtimes(p: &HeapProcess) -> impl Iterator<Item = String> {
    p.runtimes.iter().map(|record| {
        let text = record.what.as_deref().or(record.why.as_deref()).unwrap_or_default();
        format!("{}: {}", clean(&record.runtime), clean(text))
    })
}

/// `cxxleak (pid 4123) still running, watched for 10.0 s · backend bpf · 31 events, 0 lost`.
fn head(report: &HeapReport, p: &HeapProcess, first: bool, options: TextOptions, out: &mut String) {
    let known = Process { exit_code: p.exit_code, signal: p.signal, ..Process::default() };
    let running = p.exit_code.is_none() && p.signal.is_none();
    let state = match (running, p.attached) {
        (true, true) => format!("still {}", end(&known)),
        _ => end(&known),
    };
    let watched = p.watched_ns.map(|ns| format!(", watched for {}", duration(ns))).unwrap_or_default();
    let mut text = format!(" (pid {}) {state}{watched}", p.pid);
    if let Some(container) = &p.container {
        text += &format!(" · container {}", truncated(&clean(container), 24));
    }
    if first && ![FROM_MEMORY, FROM_RUNTIME].contains(&report.backend.as_str()) {
        let (seen, lost) = (report.events.seen, report.events.lost);
        let plural = if seen == 1 { "" } else { "s" };
        text += &format!(" · {} event{plural}, {} lost", thousands(seen), thousands(lost));
    }
    let name = truncated(&clean(&p.comm), 32);
    let columns = WIDTH.saturating_sub(name.chars().count());
    *out += &format!("{}{}\n", options.color.paint(Tone::Heading, &name), truncated(&text, columns));
}

/// `  1  18.0 MiB in 18 blocks · operator new(unsigned long) · …`, and the stack.
fn of_stack(
    report: &HeapReport,
    p: &HeapProcess,
    (number, row): (usize, &HeapRow),
    options: TextOptions,
    out: &mut String,
) {
    let key = options.color.paint(Tone::Key, &size(row.amount.bytes));
    let mut parts = vec![in_blocks(&row.amount)];
    if row.amount.standard_error > 0 {
        parts.push(format!("± {}", size(row.amount.standard_error)));
    }
    parts.push(truncated(&function(report, row), 40));
    parts.push(match (row.allocations, row.frees) {
        (made, 0) => format!("{} allocated, none freed", thousands(made)),
        (made, freed) => format!("{} allocated, {} freed", thousands(made), thousands(freed)),
    });
    if row.leak {
        parts.push("grows".to_owned());
    } else if p.growth_ns.is_some() && row.growth != 0 {
        parts.push(signed_size(row.growth));
    }
    let used = size(row.amount.bytes).chars().count() + 6;
    let text = truncated(&parts.join(" · "), WIDTH.saturating_sub(used + 1));
    *out += &format!("{number:>3}  {key} {text}\n");
    match stack(report, row) {
        Some(stack) => frames(stack, options, out),
        None => without_frames(row, options, out),
    }
}

/// In place of the frames.
fn without_frames(row: &HeapRow, options: TextOptions, out: &mut String) {
    *out += &format!("{}\n", options.color.paint(Tone::Dim, &format!("       ({})", no_stack(row))));
}

pub(super) fn stack<'a>(report: &'a HeapReport, row: &HeapRow) -> Option<&'a Stack> {
    row.stack.and_then(|k| report.stacks.get(usize::try_from(k).ok()?))
}

/// The probed function's name, clean.
pub(super) fn function(report: &HeapReport, row: &HeapRow) -> String {
    let known = usize::try_from(row.function).ok().and_then(|at| report.functions.get(at));
    known.map_or_else(|| "?".to_owned(), |f| clean(&f.name))
}

/// The file that the probed function is in; empty where that is not known.
pub(super) fn function_module<'r>(report: &'r HeapReport, row: &HeapRow) -> &'r str {
    let known = usize::try_from(row.function).ok().and_then(|at| report.functions.get(at));
    known.map_or("", |f| &f.module)
}

pub(super) fn no_stack(row: &HeapRow) -> String {
    match row.no_stack.as_deref() {
        Some("lost") => "no stack: the buffer was full".to_owned(),
        Some("unreadable") => "no stack: it could not be read".to_owned(),
        _ => "no stack was taken".to_owned(),
    }
}

/// `malloc < readline < main`: the requesting stack, in one line.
pub(super) fn who(report: &HeapReport, row: &HeapRow, width: usize) -> String {
    let name = function(report, row);
    // operator new[](unsigned long): the arguments say nothing here
    let short = name.split_once('(').filter(|_| name.starts_with("operator ")).map(|(short, _)| short);
    let function = truncated(short.unwrap_or(&name), 30);
    match stack(report, row) {
        Some(stack) => {
            let rest = width.saturating_sub(function.chars().count() + 3);
            let of = |frames: &[Arc<Frame>]| Stack { frames: frames.to_vec(), ..Stack::default() };
            let own = of_user(own_frames(stack));
            let all = chain(&of(own), rest);
            // not even the outermost fits: the innermost in full is better than a part of each
            let cut = all.ends_with('…') && own.len() > 1;
            let text = if cut { chain(&of(own.get(..1).unwrap_or(own)), rest) } else { all };
            format!("{function} < {text}")
        }
        None => truncated(&format!("{function} ({})", no_stack(row)), width),
    }
}

/// From the innermost function on that the user wrote in a managed language: what the interpreter does for it is in
/// the stack.
fn of_user(frames: &[Arc<Frame>]) -> &[Arc<Frame>] {
    let first = frames.iter().position(|f| f.managed && f.role == Role::Program);
    first.and_then(|at| frames.get(at..)).unwrap_or(frames)
}

/// Without what is below every program's own functions: `_start`, `clone`, and the C library's functions
/// without a name next to them.
pub(super) fn own_frames(stack: &Stack) -> &[Arc<Frame>] {
    let below = |f: &Frame| f.role == Role::Start || (f.symbol.is_none() && f.in_system_library());
    let end = stack.frames.iter().rposition(|f| !below(f)).map_or(stack.frames.len(), |last| last + 1);
    stack.frames.get(..end).unwrap_or(&stack.frames)
}

/// What the reader has to know before trusting the figures.
pub(super) fn notes(report: &HeapReport, p: &HeapProcess, first: bool) -> Vec<String> {
    let mut all: Vec<String> = notes_of_runtimes(p).collect();
    let mut say = |text: &str| all.push(text.to_owned());
    let doubts = &p.doubts;
    if doubts.lost_events > 0 {
        say(&format!(
            "{} were lost because the buffer was full: blocks whose free was lost are shown as outstanding \
             until their address is used again",
            counted(doubts.lost_events, "event")
        ));
    }
    if first && report.without_stack > 0 {
        say(&format!(
            "{} without a stack, because the buffer was full: counted, in rows of their own (a larger one: \
             --ring-bytes; fewer events: --sample, --combined)",
            counted(report.without_stack, "allocation")
        ));
    }
    if doubts.lost_frees > 0 {
        say(&format!(
            "{} whose free was not seen, since their address was handed out again: freed by a function that is \
             not {}",
            counted(doubts.lost_frees, "block"),
            if p.own.is_some() { "called by its name" } else { "probed, or in a lost event" }
        ));
    }
    if doubts.unseen_frees > 0 && report.sampling_bytes.is_none() {
        let why = match p {
            HeapProcess { attached: true, .. } => {
                "allocated before vmaudit attached, or by a function that is not probed"
            }
            HeapProcess { forked: true, .. } => "inherited: allocated before the fork",
            // The library interposes all functions of these names.
            HeapProcess { own: Some(_), .. } => "allocated by other functions than malloc and its relatives",
            _ => "allocated by a function that is not probed",
        };
        say(&format!("{} of what was {why}: in no figure here", counted(doubts.unseen_frees, "free")));
    }
    if doubts.doubtful_frees > 0 && report.sampling_bytes.is_none() {
        say(&format!(
            "{} after the loss, of what was not seen allocated: perhaps that is among what was lost",
            counted(doubts.doubtful_frees, "free")
        ));
    }
    if doubts.refused > 0 {
        say(&format!(
            "{} refused, {}{} in all",
            counted(doubts.refused, "allocation"),
            if doubts.refused_bytes == u64::MAX { "at least " } else { "" },
            size(doubts.refused_bytes)
        ));
    }
    if first && report.events.truncated_stacks > 0 {
        say(&format!(
            "{} stacks end early: {}",
            thousands(report.events.truncated_stacks),
            match p.own.is_some() {
                true => "they have more than 512 frames",
                false => "not enough of the stack was copied (--stack-bytes)",
            }
        ));
    }
    if first && report.events.unwind_incomplete > 0 {
        say(&format!(
            "{} stacks end early: no unwind information for a frame, or it was called on another stack",
            thousands(report.events.unwind_incomplete)
        ));
    }
    if let Some(mean) = report.sampling_bytes {
        say(&format!(
            "estimated from {} blocks, one mark every {} on average; ± is one standard error: the truth is \
             within two of them 19 times in 20",
            thousands(p.shown.samples),
            exact_size(mean)
        ));
    }
    if report.filter.leaks_only && p.intervals < 2 {
        say("fewer than two intervals have ended: which stacks keep growing is not known yet (--interval)");
    }
    if p.forked {
        say("a child of fork: its copy of what its parent had allocated is in no figure here");
    }
    if let Some(own) = &p.own {
        say(&format!(
            "counting takes {} of memory in the process itself (in its RSS and its control group's), of {} \
             mapped (in its VIRT)",
            size(own.memory),
            size(own.mapped)
        ));
    }
    for gap in &p.gaps {
        say(&clean(gap));
    }
    all
}
