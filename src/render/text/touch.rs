//! With --touch: which stacks made resident what others reserved.

use super::{TextOptions, WIDTH};
use crate::render::chain::{chain, chain_of_caller};
use crate::render::style::{Tone, clean, truncated};
use crate::report::model::{Finding, Process, Report, Stack, TouchRow};
use crate::report::units::{size, thousands};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Where the text of a row begins.
const INDENT: usize = 26;
/// Rows of what was given back again; each with one part in `CHURN_WORTH` of all faults.
const CHURN_ROWS: usize = 3;
const CHURN_WORTH: u64 = 20;
const CHURN_LEAST: u64 = 256;
/// Rows below one part in this many of what is resident are not shown, beyond the third.
const WORTH: u64 = 200;
/// The category of which everybody touches a bit.
const PROGRAM: &str = "loader";

/// `     used  1.2 MiB (62 %) by memset < zmalloc`
pub(super) fn used_by(report: &Report, f: &Finding, options: TextOptions, out: &mut String) {
    if f.rss < WORTH_SAYING || [PROGRAM, "kernel"].contains(&f.category.as_str()) {
        return;
    }
    let matters = |bytes: u64| bytes >= f.rss / SHARE_WORTH_SAYING;
    let shares = f.touched_by.iter().filter(|share| matters(share.bytes_estimate));
    for (index, share) in shares.enumerate() {
        let label = if index == 0 { options.color.paint(Tone::Dim, "used ") } else { " ".repeat(5) };
        let figures =
            format!("{:>9} ({} %)", size(share.bytes_estimate), percent(share.bytes_estimate, f.rss));
        let who = match stack(report, share.stack) {
            Some(stack) => format!("by {}", chain(stack, WIDTH - 15 - figures.chars().count())),
            None if share.seen => "by various".to_string(),
            None => UNSEEN.to_string(),
        };
        *out += &format!("     {label} {figures} {who}\n");
    }
}

/// Findings with less than this in memory do not say which code uses it.
const WORTH_SAYING: u64 = 16 << 10;
/// Nor is a part smaller than one in this many worth a line.
const SHARE_WORTH_SAYING: u64 = 10;

const UNSEEN: &str = "without a page fault that was seen";

/// The block after the findings.
pub(super) fn who_touched(report: &Report, p: &Process, options: TextOptions, out: &mut String) {
    let Some(touch) = &p.touch else { return };
    let title = options.color.paint(Tone::Heading, "who made it resident");
    let how = if touch.exact { String::new() } else { format!(", {} recorded", thousands(touch.sampled)) };
    let aside = format!("the latest first use of each page; {} page faults{how}", thousands(touch.faults));
    *out += &format!("\n  {title} · {aside}\n");
    let head = format!("{:>11}  {:<11}used first by, and in what", "RSS", "share");
    *out += &format!("{}\n", options.color.paint(Tone::Dim, &head));

    let is_program = |row: &&TouchRow| row.category.as_deref() == Some(PROGRAM);
    let lines = lines(report, p, touch.rows.iter().filter(|row| !is_program(row)));
    let resident = lines.iter().take_while(|line| line.bytes > 0).count();
    let worth = lines.iter().take_while(|line| line.bytes >= p.totals.rss / WORTH).count().max(3);
    let shown = worth.min(options.top).min(resident);
    for line in lines.iter().take(shown) {
        figures(p, (line.bytes, line.error), &line.who, out);
        *out += &format!("{:INDENT$}{}\n", "", line.place);
    }
    let rest = lines.get(shown..resident).unwrap_or(&[]);
    let count = rest.len() as u64 + touch.others.rows;
    if count > 0 {
        let bytes = rest.iter().map(|line| line.bytes).sum::<u64>() + touch.others.bytes_estimate;
        figures(p, (bytes, 0), &format!("{} smaller together", thousands(count)), out);
    }
    let bytes: u64 = touch.rows.iter().filter(is_program).map(|row| row.bytes_estimate).sum();
    if bytes > 0 {
        let text = format!("{}, by the code that ran there first", category(p, PROGRAM));
        figures(p, (bytes, 0), &text, out);
    }

    let churns = |line: &&Line| {
        let often = line.faults >= touch.faults / CHURN_WORTH && line.faults > CHURN_LEAST;
        often && line.faults > 4 * (line.bytes / 4096)
    };
    let mut churning: Vec<&Line> = lines.iter().filter(churns).collect();
    churning.sort_by_key(|line| Reverse(line.faults));
    for line in churning.into_iter().take(CHURN_ROWS) {
        let share = percent(line.faults, touch.faults);
        *out += &format!("{:>11}  {:<11}  {}\n", "gone", "", line.who);
        let what = format!("{share} % of all page faults, for pages given back or copied since");
        *out += &format!("{:INDENT$}{what}\n{:INDENT$}{}\n", "", "", line.place);
    }
}

/// Rows that read the same.
struct Line {
    who: String,
    place: String,
    bytes: u64,
    /// Of `bytes`.
    error: u64,
    faults: u64,
}

/// By bytes, then faults, largest first.
fn lines<'a>(report: &Report, p: &Process, rows: impl Iterator<Item = &'a TouchRow>) -> Vec<Line> {
    let mut merged: BTreeMap<(String, String), Line> = BTreeMap::new();
    for row in rows {
        let (who, place) = (who(report, row), place(report, p, row));
        let empty = || Line { who: who.clone(), place: place.clone(), bytes: 0, error: 0, faults: 0 };
        let line = merged.entry((who.clone(), place.clone())).or_insert_with(empty);
        let error = u128::from(row.error) * u128::from(row.bytes_estimate) / u128::from(row.faults.max(1));
        // independent samples: their variances add up
        line.error = line.error.saturating_pow(2).saturating_add((error as u64).saturating_pow(2)).isqrt();
        line.bytes += row.bytes_estimate;
        line.faults += row.faults;
    }
    let mut lines: Vec<Line> = merged.into_values().collect();
    lines.sort_by_key(|line| (Reverse(line.bytes), Reverse(line.faults)));
    lines
}

fn who(report: &Report, row: &TouchRow) -> String {
    match stack(report, row.touched_by) {
        Some(stack) => chain(stack, WIDTH - INDENT),
        None if row.seen => "stacks that are not known".to_string(),
        None if row.reserved == "preexisting" => {
            "resident before tracing began, as far as is known".to_string()
        }
        None => UNSEEN.to_string(),
    }
}

/// `in jemalloc, reserved by je_pages_map < … < main`
fn place(report: &Report, p: &Process, row: &TouchRow) -> String {
    let place =
        row.category.as_deref().map_or_else(|| "memory that is gone".to_string(), |id| category(p, id));
    let width = (WIDTH - INDENT - 17).saturating_sub(place.chars().count());
    let by = match (row.reserved.as_str(), stack(report, row.reserved_by)) {
        ("call", Some(stack)) => format!("reserved by {}", chain_of_caller(stack, width)),
        ("call", None) => "reserved by a call whose stack is not known".to_string(),
        ("kernel", _) => "mapped by the kernel".to_string(),
        ("preexisting", _) => "mapped before tracing began".to_string(),
        _ => "mapped by no call that was seen".to_string(),
    };
    truncated(&format!("in {place}, {by}"), WIDTH - INDENT)
}

/// `    1.2 MiB  62 ± 2 %   text`
fn figures(p: &Process, (bytes, error): (u64, u64), text: &str, out: &mut String) {
    let share = percent(bytes, p.totals.rss);
    let share = match (error, p.totals.rss) {
        (0, _) | (_, 0) => format!("{share} %"),
        (error, rss) => format!("{share} ± {} %", (100 * u128::from(error)).div_ceil(u128::from(rss))),
    };
    *out += &format!("{:>11}  {share:<11}  {text}\n", size(bytes));
}

fn percent(part: u64, whole: u64) -> u64 {
    ((u128::from(part) * 100 + u128::from(whole) / 2).checked_div(u128::from(whole)).unwrap_or(0)) as u64
}

fn stack(report: &Report, number: Option<u64>) -> Option<&Stack> {
    report.stacks.get(usize::try_from(number?).ok()?)
}

fn category(p: &Process, id: &str) -> String {
    let row = p.categories.iter().find(|row| row.id == id);
    truncated(&clean(row.map_or("unknown memory", |row| &row.name)), 34)
}
