//! Findings: figures, place, story, stack, why, fix.

use super::tables::UNKNOWN;
use super::touch::used_by;
use super::{TextOptions, WIDTH, labelled};
use crate::model::heap::own::CATEGORY;
use crate::render::frames::frames;
use crate::render::style::{Tone, clean, truncated, wrapped};
use crate::report::RANGES_SHOWN;
use crate::report::model::{Finding, Fix, Process, Range, Report, Stack, Thread};
use crate::report::units::{size, thousands};

/// Findings shown of a process other than the main one.
const COMPACT: usize = 5;

/// The first `options.top` findings in full, and what the rest adds up to.
pub(super) fn findings(report: &Report, p: &Process, options: TextOptions, out: &mut String) {
    let shown = shown(p, options);
    for (i, finding) in p.findings.iter().take(shown).enumerate() {
        out.push('\n');
        head(i + 1, finding, word_of(finding, p), options, out);
        if let Some(story) = &finding.story {
            let story = match finding.regions {
                0 | 1 => clean(story),
                n => format!("{} (the largest of {} such)", clean(story), thousands(n)),
            };
            for line in wrapped(&story, WIDTH - 5) {
                *out += &format!("     {line}\n");
            }
        }
        let stack = finding.stack.and_then(|k| report.stacks.get(usize::try_from(k).ok()?));
        if let Some(stack) = stack {
            frames(stack, options, out);
        }
        if p.attached && finding.preexisting > 0 {
            before(finding, options, out);
        }
        used_by(report, finding, options, out);
        advice(finding, options, out);
    }
    rest(p, shown, options, out);
}

/// Why there is no stack, or only one of a part.
fn before(f: &Finding, options: TextOptions, out: &mut String) {
    let text = if f.preexisting >= f.virt {
        "mapped before vmaudit attached: no stack".to_owned()
    } else {
        format!("{} of it were mapped before vmaudit attached: no stack", size(f.preexisting))
    };
    *out += &format!("{}\n", options.color.paint(Tone::Dim, &format!("     {text}")));
}

/// How many findings are worth showing: at most `top`; of those that hold less than a
/// thousandth of what is unused, none beyond the third.
fn shown(p: &Process, options: TextOptions) -> usize {
    let selected = selected(p);
    let own: u64 = p.findings.iter().skip(selected.len()).map(|f| f.unused).sum();
    let small = p.totals.unused.saturating_sub(own) / 1000;
    let worth = selected.iter().take_while(|f| f.unused >= small).count().max(3);
    worth.min(options.top).min(selected.len())
}

/// Without what is there because of vmaudit, which comes last and has a note.
fn selected(p: &Process) -> &[Finding] {
    let own = p.findings.iter().rev().take_while(|f| f.category == CATEGORY).count();
    p.findings.get(..p.findings.len() - own).unwrap_or(&[])
}

fn rest(p: &Process, shown: usize, options: TextOptions, out: &mut String) {
    let hidden = selected(p).get(shown..).unwrap_or(&[]);
    if hidden.is_empty() {
        return;
    }
    let unused: u64 = hidden.iter().map(|f| f.unused).sum();
    let line =
        format!("  … and {} smaller, {} {} together", thousands(hidden.len() as u64), size(unused), word(p));
    *out += &format!("\n{}\n", options.color.paint(Tone::Dim, &line));
}

/// What the figure of a finding is.
fn word_of(f: &Finding, p: &Process) -> &'static str {
    if f.residency_unknown > 0 { "unused or not known" } else { word(p) }
}

/// What the figures of findings are.
fn word(p: &Process) -> &'static str {
    if p.residency == UNKNOWN { "mapped" } else { "unused" }
}

/// `1  63.9 MiB unused · glibc malloc arena · thread 34 "worker" · 0x7f…-0x7f…`
fn head(number: usize, f: &Finding, word: &str, options: TextOptions, out: &mut String) {
    let unused = format!("{} {word}", size(f.unused));
    let mut parts = vec![clean(&f.title)];
    if !f.threads.is_empty() {
        parts.push(threads(&f.threads));
    }
    let range = |r: &Range| format!("{}-{}", clean(&r.start), clean(&r.end));
    let used = 5 + unused.chars().count() + 3;
    let mut rest = parts.join(" · ");
    let mut below = f.ranges.as_slice();
    if let [one] = below
        && let range = range(one)
        && used + rest.chars().count() + 3 + range.chars().count() <= WIDTH
    {
        rest += &format!(" · {range}");
        below = &[];
    }
    let lines = wrapped(&rest, WIDTH.saturating_sub(used));
    let number = options.color.paint(Tone::Dim, &format!("{number:>3}"));
    let unused = options.color.paint(Tone::Key, &unused);
    for (i, line) in lines.iter().enumerate() {
        if i == 0 {
            *out += &format!("{number}  {unused} · {}\n", options.color.paint(Tone::Heading, line));
        } else {
            *out += &format!("     {line}\n");
        }
    }
    if !below.is_empty() {
        let shown = below.iter().take(RANGES_SHOWN).map(range).collect::<Vec<_>>().join(", ");
        let more = match below.len().saturating_sub(RANGES_SHOWN) as u64 + f.more_ranges {
            0 => String::new(),
            n => format!(" and {} more", thousands(n)),
        };
        for line in wrapped(&format!("at {shown}{more}"), WIDTH - 5) {
            *out += &format!("     {line}\n");
        }
    }
}

/// `thread 34 "worker"`, `threads 34, 35, 36 "worker" and 2 more`.
fn threads(threads: &[Thread]) -> String {
    let name = |t: &Thread| format!("\"{}\"", truncated(&clean(&t.comm), 20));
    match threads {
        [one] if one.comm.is_empty() => format!("thread {}", one.tid),
        [one] => format!("thread {} {}", one.tid, name(one)),
        many => {
            let ids: Vec<String> = many.iter().take(4).map(|t| t.tid.to_string()).collect();
            let more = match many.len().saturating_sub(4) {
                0 => String::new(),
                n => format!(" and {} more", thousands(n as u64)),
            };
            let first = many.first().map(|t| t.comm.as_str()).unwrap_or_default();
            let same = !first.is_empty() && many.iter().all(|t| t.comm == first);
            let name = if same { many.first().map(|t| format!(" {}", name(t))) } else { None };
            format!("threads {}{more}{}", ids.join(", "), name.unwrap_or_default())
        }
    }
}

fn advice(f: &Finding, options: TextOptions, out: &mut String) {
    if !f.why.is_empty() {
        labelled("why", Tone::Dim, &clean(&f.why), options, out);
    }
    for fix in &f.fix {
        labelled("fix", Tone::Advice, &fix_text(fix), options, out);
    }
    for no in &f.no_help {
        labelled("not", Tone::Dim, &clean(&format!("{}: {}", no.knob, no.why)), options, out);
    }
    if f.doubtful {
        labelled(
            "doubt",
            Tone::Warning,
            "events were lost: the origin of some of it may be wrong",
            options,
            out,
        );
    }
}

/// `KNOB: saves up to 63.9 MiB of VIRT, no RSS; note`
pub(in crate::render) fn fix_text(fix: &Fix) -> String {
    let note = if fix.note.is_empty() { String::new() } else { format!("; {}", fix.note) };
    format!("{}{}", knob_text(fix), clean(&note))
}

fn knob_text(fix: &Fix) -> String {
    let saves = match (fix.saves_virt, fix.saves_rss) {
        (0, 0) => String::new(),
        (virt, 0) => format!(": saves up to {} of VIRT, no RSS", size(virt)),
        (0, rss) => format!(": saves up to {} of RSS, no VIRT", size(rss)),
        (virt, rss) => format!(": saves up to {} of VIRT, {} of RSS", size(virt), size(rss)),
    };
    clean(&format!("{}{saves}", fix.knob))
}

/// One line a finding, for processes other than the main one.
pub(super) fn compact_findings(report: &Report, p: &Process, options: TextOptions, out: &mut String) {
    if p.findings.is_empty() {
        return;
    }
    *out += &format!("\n  {} (pid {})\n", options.color.paint(Tone::Heading, &clean(&p.comm)), p.pid);
    let shown = shown(p, options).min(COMPACT);
    for f in p.findings.iter().take(shown) {
        let stack = f.stack.and_then(|k| report.stacks.get(usize::try_from(k).ok()?));
        let via = stack.map(outline).unwrap_or_default();
        let text = format!("{:>11} {} · {}{via}", size(f.unused), word_of(f, p), clean(&f.title));
        *out += &format!("  {}\n", truncated(&text, WIDTH - 2));
        if let Some(fix) = f.fix.first() {
            let label = options.color.paint(Tone::Advice, "fix");
            *out += &format!("         {label}  {}\n", truncated(&knob_text(fix), WIDTH - 14));
        }
    }
    rest(p, shown, options, out);
}

/// ` · main < run < malloc`: named functions from the outside in, the C library's left out.
pub(super) fn outline(stack: &Stack) -> String {
    let names = stack.frames.iter().filter(|f| !f.in_system_library());
    let names: Vec<String> =
        names.filter_map(|f| f.symbol.as_deref()).take(3).map(|s| truncated(&clean(s), 24)).collect();
    if names.is_empty() { String::new() } else { format!(" · {}", names.join(" < ")) }
}
