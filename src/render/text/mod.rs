//! The report as text, at most 100 columns wide.

mod container;
pub(super) mod findings;
mod peak;
mod snapshot;
mod tables;
mod touch;
mod verdict;

use super::style::{Color, Tone, clean, truncated, wrapped};
use super::timeline::timeline;
use crate::model::heap::own::CATEGORY;
use crate::report::WORTH_FINDINGS;
use crate::report::model::{Process, Report};
use crate::report::units::{size, thousands};
use container::containers;
use findings::{compact_findings, findings};
use peak::peak;
use snapshot::{SNAPSHOT, from_file, snapshot_note};
use std::cmp::Reverse;
use tables::{UNKNOWN, category_table, process_table, totals_table};
use touch::who_touched;
use verdict::verdict;

/// Columns.
pub const WIDTH: usize = 100;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TextOptions {
    pub color: Color,
    /// How many findings to show of each process.
    pub top: usize,
}

impl Default for TextOptions {
    fn default() -> TextOptions {
        TextOptions { color: Color::Never, top: 10 }
    }
}

/// The whole report; ends with a newline.
pub fn to_text(report: &Report, options: TextOptions) -> String {
    let mut out = String::new();
    let Some(main) = report.processes.first() else {
        out.push_str("no process was observed\n");
        notes(report, None, options, &mut out);
        return out;
    };
    containers(report, options, &mut out);
    let mut others: Vec<&Process> = report.processes.iter().skip(1).collect();
    others.sort_by_key(|p| (Reverse(p.totals.unused), p.pid));
    // a shell that starts the program in question
    let is_larger = |p: &&Process| match p.residency.as_str() {
        UNKNOWN => p.totals.virt / 2 > main.totals.virt,
        _ => p.totals.unused / 2 > main.totals.unused,
    };
    let larger = others.first().copied().filter(is_larger);
    head(report, main, true, options, &mut out);
    if let Some(larger) = larger {
        let text = format!(
            "  a larger process follows below: {} (pid {}), {} of VIRT",
            truncated(&clean(&larger.comm), 32),
            larger.pid,
            size(larger.totals.virt)
        );
        out += &format!("{}\n", options.color.paint(Tone::Key, &text));
    }
    tables(report, main, options, &mut out);
    notes(report, Some(main), options, &mut out);
    let top = if larger.is_some() { options.top.min(OF_A_WRAPPER) } else { options.top };
    findings(report, main, TextOptions { top, ..options }, &mut out);
    who_touched(report, main, TextOptions { top, ..options }, &mut out);
    if let Some(larger) = larger {
        out.push('\n');
        head(report, larger, false, options, &mut out);
        tables(report, larger, options, &mut out);
        process_notes(larger, options, &mut out);
        findings(report, larger, options, &mut out);
        who_touched(report, larger, options, &mut out);
    }
    if !others.is_empty() {
        out.push('\n');
        process_table(main, &others, options, &mut out);
        let all: u64 = report.processes.iter().map(|p| p.totals.unused).sum();
        let matters = |p: &&&Process| p.totals.unused >= all / WORTH_FINDINGS;
        for process in others.iter().skip(usize::from(larger.is_some())).take(options.top).filter(matters) {
            compact_findings(report, process, options, &mut out);
            process_notes(process, options, &mut out);
        }
    }
    out
}

/// Findings shown of a main process that is small compared with another one.
const OF_A_WRAPPER: usize = 3;

fn tables(report: &Report, p: &Process, options: TextOptions, out: &mut String) {
    verdict(p, options, out);
    out.push('\n');
    totals_table(p, options, out);
    out.push('\n');
    category_table(p, options, out);
    timeline(p, options, out);
    peak(report, p, options, out);
}

/// `silly (pid 4123) exited 0 after 12.4 s · 6 threads · backend bpf · 1,284 events, 0 lost`; what
/// is true of the whole `run` only with the first process.
fn head(report: &Report, p: &Process, run: bool, options: TextOptions, out: &mut String) {
    let name = truncated(&clean(&p.comm), 32);
    let mut parts = vec![match &p.source {
        Some(file) => from_file(file),
        None => match report.at_ns {
            Some(at) => format!("(pid {}) as it was at {}", p.pid, moment(at)),
            None => match p.container_pid {
                Some(inside) => format!("(pid {}, {inside} inside) {}", p.pid, state(p)),
                None => format!("(pid {}) {}", p.pid, state(p)),
            },
        },
    }];
    let threads = |n: u64| if n == 1 { "1 thread".to_string() } else { format!("{} threads", thousands(n)) };
    match (p.threads_seen, p.threads_alive) {
        // they could not be counted
        (0, _) => {}
        (seen, Some(alive)) => parts.push(format!("{}, {} seen", threads(alive), thousands(seen))),
        (seen, None) => parts.push(threads(seen)),
    }
    if let Some(container) = &p.container {
        parts.push(format!("container {}", truncated(&clean(container), 24)));
    }
    parts.push(format!("ASLR {}", if p.aslr { "on" } else { "off" }));
    if run {
        parts.push(match report.backend.as_str() {
            SNAPSHOT => "not traced".to_string(),
            backend => format!("backend {}", clean(backend)),
        });
    }
    if run && report.backend != SNAPSHOT {
        let events = &report.events;
        let plural = if events.seen == 1 { "" } else { "s" };
        parts.push(format!("{} event{plural}, {} lost", thousands(events.seen), thousands(events.lost)));
    }
    let mut line = options.color.paint(Tone::Heading, &name);
    let mut used = name.chars().count() + 1;
    line.push(' ');
    for (i, part) in parts.iter().enumerate() {
        let len = part.chars().count();
        let separator = match i {
            0 => "",
            _ if used + 3 + len <= WIDTH => " · ",
            _ => {
                used = 0;
                "\n  · "
            }
        };
        line += separator;
        line += part;
        used += separator.len().min(3) + len;
    }
    *out += &line;
    out.push('\n');
}

/// `exited 0 after 12.4 s`, `killed by signal 9 (SIGKILL) after 3.0 s`, `running, seen for 60.0 s`;
/// of a process that ran before vmaudit attached `still running, watched for 60.0 s`.
fn state(p: &Process) -> String {
    let end = end(p);
    let Some(ns) = p.wall_ns else { return end };
    let ended = p.signal.is_some() || p.exit_code.is_some();
    if p.attached {
        let end = if ended { end } else { format!("still {end}") };
        return format!("{end}, watched for {}", duration(ns));
    }
    format!("{end}{} {}", if ended { " after" } else { ", seen for" }, duration(ns))
}

/// `exited 0`, `killed by signal 9 (SIGKILL)`, `running`.
pub(super) fn end(p: &Process) -> String {
    match (p.signal, p.exit_code) {
        (Some(signal), _) => match signal_name(signal) {
            Some(name) => format!("killed by signal {signal} ({name})"),
            None => format!("killed by signal {signal}"),
        },
        (None, Some(code)) => format!("exited {code}"),
        (None, None) => "running".to_string(),
    }
}

pub(super) fn duration(ns: u64) -> String {
    let (ms, tenths) = (ns.saturating_add(500_000) / 1_000_000, ns.saturating_add(50_000_000) / 100_000_000);
    match tenths {
        _ if ms < 1_000 => format!("{ms} ms"),
        0..6_000 => format!("{}.{} s", tenths / 10, tenths % 10),
        _ => format!("{} min {} s", tenths / 600, tenths % 600 / 10),
    }
}

/// A time since the start, as `--at` takes it: `0.971 s`.
pub(super) fn moment(ns: u64) -> String {
    let ms = ns.saturating_add(500_000) / 1_000_000;
    format!("{}.{:03} s", ms / 1000, ms % 1000)
}

fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        _ => return None,
    })
}

/// What the reader has to know before trusting the figures.
fn notes(report: &Report, main: Option<&Process>, options: TextOptions, out: &mut String) {
    if report.backend == SNAPSHOT {
        snapshot_note(report, options, out);
    }
    let events = &report.events;
    let mut counted = |count: u64, (one, many): (&str, &str), what: &str| {
        if count > 0 {
            let subject = if count == 1 { one } else { many };
            note(&format!("{} {subject} {what}", thousands(count)), options, out);
        }
    };
    // The backend notify makes its target wait rather than lose a call, but cannot always see what one has done.
    let (lost, what) = match report.backend.as_str() {
        "notify" => (("call did", "calls did"), "what could not be determined"),
        _ => (("event was", "events were"), "lost because the buffer was full"),
    };
    counted(events.lost, lost, &format!("{what}; regions whose origin became doubtful say so"));
    let bare = ("event is known without its stack,", "events are known without their stacks,");
    counted(events.without_stack, bare, "for which the buffer had no space (--ring-bytes)");
    let early = ("stack ends", "stacks end");
    counted(events.truncated_stacks, early, "early: not enough of the stack was copied (--stack-bytes)");
    let what = "early: no unwind information for a frame, or it was called on another stack";
    counted(events.unwind_incomplete, early, what);
    let faults = ("page fault is", "page faults are");
    let lost = report.touch.map_or(0, |touch| touch.lost);
    counted(lost, faults, "in no row: the buffer of their records was full");
    if let Some(process) = main {
        process_notes(process, options, out);
    }
}

fn process_notes(p: &Process, options: TextOptions, out: &mut String) {
    if let Some(own) = p.categories.iter().find(|row| row.id == CATEGORY) {
        let text = format!(
            "{} of VIRT and {} of RSS are vmaudit's own: it counts what this process allocates",
            size(own.virt),
            size(own.rss)
        );
        note(&text, options, out);
    }
    if let Some(age) = p.snapshot_age_ns
        && p.residency != UNKNOWN
    {
        let end = p.signal.map_or("ended".to_owned(), |signal| format!("died by signal {signal}"));
        let unknown = match p.totals.residency_unknown {
            0 => String::new(),
            bytes => format!("; of {} that calls mapped or gave back since it is not known", size(bytes)),
        };
        let text = format!(
            "{} {end} without being held: VIRT is of its end, RSS of the last snapshot, {} before{unknown}",
            p.pid,
            duration(age)
        );
        note(&text, options, out);
    }
    if p.coverage.ledger_drift > 0 {
        let text = format!(
            "{} where the record of calls and the kernel's maps disagree; the kernel's maps are right",
            size(p.coverage.ledger_drift)
        );
        note(&text, options, out);
    }
    if p.coverage.doubtful > 0 {
        let text = format!(
            "{} have a doubtful origin (marked \"doubt\" in the JSON report)",
            size(p.coverage.doubtful)
        );
        note(&text, options, out);
    }
    if p.coverage.preexisting > 0 && p.coverage.traced > 0 {
        let text = format!(
            "{} were mapped before tracing began: classified by names, headers and shape, without a stack",
            size(p.coverage.preexisting)
        );
        note(&text, options, out);
    }
    match p.residency.as_str() {
        "smaps-estimate" => {
            let text = match p.source {
                Some(_) => "RSS is the file's for each mapping; within one, it is shared out by length",
                None => "RSS within one kernel mapping is an estimate: its total is shared out by length",
            };
            note(text, options, out);
        }
        UNKNOWN => note("findings are ranked by what is mapped", options, out),
        _ => {}
    }
    for gap in &p.gaps {
        note(&clean(gap), options, out);
    }
}

pub(super) fn note(text: &str, options: TextOptions, out: &mut String) {
    labelled("note", Tone::Warning, text, options, out);
}

/// `  note  text …`, what a reader has to know of all that was said.
pub(super) fn closing_notes(notes: &[String], color: Color, out: &mut String) {
    for note in notes {
        for (i, line) in wrapped(&clean(note), WIDTH - 8).iter().enumerate() {
            let label = if i == 0 { color.paint(Tone::Warning, "note") } else { "    ".to_owned() };
            *out += &format!("  {label}  {line}\n");
        }
    }
}

/// `     why   text …` wrapped under the text.
pub(super) fn labelled(label: &str, tone: Tone, text: &str, options: TextOptions, out: &mut String) {
    for (i, line) in wrapped(text, WIDTH - 11).iter().enumerate() {
        let label = if i == 0 { format!("{label:<5}") } else { " ".repeat(5) };
        *out += &format!("     {} {line}\n", options.color.paint(tone, &label));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_and_agree() {
        let both = |ns| (duration(ns), moment(ns));
        assert_eq!(both(97_628_011), ("98 ms".to_owned(), "0.098 s".to_owned()));
        assert_eq!(both(999_600_000), ("1.0 s".to_owned(), "1.000 s".to_owned()));
        assert_eq!(both(1_960_000_000), ("2.0 s".to_owned(), "1.960 s".to_owned()));
        assert_eq!(both(599_990_000_000), ("10 min 0 s".to_owned(), "599.990 s".to_owned()));
        assert_eq!(both(u64::MAX).0, "307445734 min 33 s");
    }
}
