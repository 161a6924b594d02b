//! VmPeak, where it is well above what is left: by which calls.

use super::{TextOptions, WIDTH, moment};
use crate::render::chain::chain_of_caller;
use crate::render::style::{Tone, clean, truncated};
use crate::report::PREEXISTING;
use crate::report::category_name;
use crate::report::model::{Peak, PeakShare, Process, Report};
use crate::report::units::{size, thousands};
use std::cmp::Reverse;

/// Where the text of a row begins.
const INDENT: usize = 21;
/// Calls shown.
const SHOWN: usize = 3;
/// A peak is described from so much above the end, and one part in this many of the end.
const WORTH: u64 = 1 << 20;
const WORTH_PART: u64 = 20;

fn is_worth_it(peak: u64, now: u64) -> bool {
    peak.saturating_sub(now) >= WORTH.max(now / WORTH_PART)
}

/// `  peak  1.2 GiB at 3.4 s: 900.0 MiB more than at the end` with the largest of what is gone.
pub(super) fn peak(report: &Report, p: &Process, options: TextOptions, out: &mut String) {
    let label = options.color.paint(Tone::Heading, "peak");
    let virt = p.totals.virt;
    let known = p.peak.as_ref().filter(|peak| is_worth_it(peak.virt, virt));
    let Some(peak) = known else {
        let before = p.coverage.preexisting > 0 && p.peak.as_ref().is_none_or(|k| k.virt < p.totals.vm_peak);
        if before && report.backend != "snapshot" && is_worth_it(p.totals.vm_peak, virt) {
            let figure = size(p.totals.vm_peak);
            *out += &format!("\n  {label}  {figure} (VmPeak) before tracing began: by what is not known\n");
        }
        return;
    };
    let end = if p.exit_code.is_some() || p.signal.is_some() { "at the end" } else { "now" };
    let figure = options.color.paint(Tone::Key, &size(peak.virt));
    let more = size(peak.virt - virt);
    *out += &format!("\n  {label}  {figure} at {}: {more} more than {end}", moment(peak.t_ns));
    if p.totals.vm_peak > peak.virt {
        *out += &format!("; VmPeak is {}, {}", size(p.totals.vm_peak), why_more(p));
    }
    out.push('\n');
    shares(report, p, peak, out);
}

/// Why the kernel's figure can be larger than that of the calls.
fn why_more(p: &Process) -> &'static str {
    match (p.coverage.preexisting > 0, p.threads_seen > 1) {
        (true, _) => "before tracing began",
        (false, true) => "while calls of several threads overlapped",
        (false, false) => "for a moment between two calls",
    }
}

fn shares(report: &Report, p: &Process, peak: &Peak, out: &mut String) {
    let shrank = |share: &&PeakShare| share.bytes.saturating_sub(share.now_bytes);
    let mut gone: Vec<&PeakShare> = peak.by_stack.iter().filter(|share| shrank(share) > 0).collect();
    gone.sort_by_key(|share| Reverse(shrank(share)));
    let shown = gone.get(..SHOWN.min(gone.len())).unwrap_or(&[]);
    for share in shown {
        let stack = share.stack.and_then(|k| report.stacks.get(usize::try_from(k).ok()?));
        let name = clean(category_name(&share.category).unwrap_or(&share.category));
        let what = match share.op.as_str() {
            PREEXISTING => "mapped before tracing began: what it was is not known".to_owned(),
            op => format!("{name} · {}", clean(op)),
        };
        let line = format!("  {:>12} less  {what}", size(shrank(share)));
        *out += &format!("{}\n", truncated(&line, WIDTH));
        if let Some(stack) = stack {
            *out += &format!("{:INDENT$}{}\n", "", chain_of_caller(stack, WIDTH - INDENT));
        }
    }
    // What the rows above do not say: other calls, and what was mapped since.
    let hidden = (gone.len() - shown.len()) as u64 + peak.rest.stacks;
    let said: u64 = shown.iter().map(shrank).sum();
    let rest = (peak.virt - p.totals.virt) as i128 - i128::from(said);
    let amount = size(u64::try_from(rest.unsigned_abs()).unwrap_or(u64::MAX));
    match rest {
        0 => {}
        1.. => {
            let line = format!("  {amount:>12} less  by {} smaller ones, all in all", thousands(hidden));
            *out += &format!("{line}\n");
        }
        _ => *out += &format!("  {amount:>12} more  by other calls since, all in all\n"),
    }
}
