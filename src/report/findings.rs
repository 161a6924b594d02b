//! Findings as they are written.

use super::model;
use super::stacks::StackNumbers;
use super::text::{hex, lossy};
use crate::attribution::{AuditInput, Finding, Fix, Footprint, NoHelp};
use crate::ledger::Origin;
use crate::model::hash::IntMap;
use crate::model::{AddrRange, Tid};

/// What the threads of findings are called.
pub(super) struct ThreadNames<'a>(IntMap<Tid, &'a [u8]>);

impl<'a> ThreadNames<'a> {
    /// As they were traced, else as they are now, else as when they mapped something.
    pub(super) fn of(input: &AuditInput<'a>, findings: &[Finding]) -> ThreadNames<'a> {
        let mut names = IntMap::default();
        if findings.iter().any(|finding| !finding.threads.is_empty()) {
            let traced = input.reconciled.threads.iter().map(|t| (t.tid, t.comm.as_slice()));
            let live = input.observations.threads.iter().map(|t| (t.tid, t.comm.as_slice()));
            let makers = input.reconciled.origins.iter().map(|r| (r.task.tid, r.task.comm.as_slice()));
            for (tid, name) in traced.chain(live).chain(makers) {
                names.entry(tid).or_insert(name);
            }
        }
        ThreadNames(names)
    }

    fn name(&self, tid: Tid) -> String {
        self.0.get(&tid).copied().map(lossy).unwrap_or_default()
    }
}

pub(super) fn finding(
    input: &AuditInput<'_>,
    f: &Finding,
    (names, ranges): (&ThreadNames<'_>, usize),
    stacks: &mut StackNumbers,
) -> model::Finding {
    let shown = f.ranges.split_at(f.ranges.len().min(ranges)).0;
    let part = |(name, footprint): &(&'static str, Footprint)| model::Part {
        name: (*name).to_string(),
        virt: footprint.virt,
        rss: footprint.rss,
        unused: footprint.unused(),
    };
    let fix = |fix: &Fix| model::Fix {
        knob: fix.knob.clone(),
        saves_virt: fix.saves_virt,
        saves_rss: fix.saves_rss,
        note: fix.note.clone(),
    };
    let no_help = |n: &NoHelp| model::NoHelp { knob: n.knob.clone(), why: n.why.clone() };
    model::Finding {
        category: f.category.id.to_string(),
        virt: f.footprint.virt,
        rss: f.footprint.rss,
        unused: f.footprint.unused(),
        residency_unknown: f.footprint.unseen,
        regions: f.instances,
        stack: f.stack.map(|id| stacks.number(id)),
        caller: f.stack.and(f.caller).map(|line| line as u64),
        title: f.title.clone(),
        why: f.why.clone(),
        fix: f.fix.iter().map(fix).collect(),
        no_help: f.no_help.iter().map(no_help).collect(),
        ranges: shown.iter().map(range).collect(),
        more_ranges: (f.ranges.len() - shown.len()) as u64,
        threads: f.threads.iter().map(|&tid| model::Thread { tid, comm: names.name(tid) }).collect(),
        preexisting: preexisting(input, &f.ranges),
        parts: f.by_part.iter().map(part).collect(),
        story: f.story.clone(),
        inherited_from: f.inherited_from,
        doubtful: f.doubtful,
        touched_by: Vec::new(),
        rule: f.rule.clone(),
    }
}

/// Bytes of `ranges` that were mapped before tracing began.
fn preexisting(input: &AuditInput<'_>, ranges: &[AddrRange]) -> u64 {
    let Some(first) = ranges.first() else { return 0 };
    let regions = &input.reconciled.regions;
    let mut at = regions.partition_point(|region| region.range.end <= first.start);
    let mut sum = 0;
    for range in ranges {
        while let Some(region) = regions.get(at).filter(|region| region.range.start < range.end) {
            if region.origin == Origin::Preexisting && region.range.overlaps(*range) {
                sum += region.range.intersect(*range).len();
            }
            if region.range.end > range.end {
                break;
            }
            at += 1;
        }
    }
    sum
}

fn range(range: &AddrRange) -> model::Range {
    model::Range { start: hex(range.start.0), end: hex(range.end.0) }
}
