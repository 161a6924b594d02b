//! Regions → cut pieces → claims, in order of trust.

use super::Piece;
use super::category::{Claim, Evidence, Instance, UNKNOWN};
use super::footprint::{Footprint, covered, difference, overlapping, resident_and_swapped};
use super::rules::{RULES, Rule};
use super::world::{Subject, World};
use crate::ledger::{Reconciled, Region, RegionKind};
use crate::model::{Addr, AddrRange, EventId, Observations, PAGE, StackId};
use std::collections::HashMap;

/// Nothing explains it, or nobody knows whose it is.
/// Purged and untouched ranges shorter than this stay part of what surrounds them: one touched
/// page in two would otherwise give a piece each.
const MIN_PURGED_PIECE: u64 = 16 * PAGE;

/// Which rules recognise which lines of a stack: (line, rule), innermost first.
type Marks = HashMap<StackId, Vec<(usize, usize)>>;

pub fn classify(world: &World<'_>) -> Vec<Piece> {
    let marks = mark_stacks(world);
    let mut pieces = Vec::new();
    for (index, region) in world.input.reconciled.regions.iter().enumerate() {
        for range in cut(world, region) {
            let subject = world.subject(region, range);
            let (rule, claim) = claim(world, &subject, &marks);
            push_pieces(world, &subject, &mut pieces, Draft { region: index, rule, claim });
        }
    }
    pieces
}

struct Draft {
    region: usize,
    rule: Option<usize>,
    claim: Claim,
}

fn mark_stacks(world: &World<'_>) -> Marks {
    let mut marks = Marks::new();
    for path in world.paths() {
        let mut found = Vec::new();
        for (at, line) in path.lines.iter().enumerate() {
            found.extend((0..RULES.len()).filter(|&i| RULES[i].knows(line)).map(|i| (at, i)));
        }
        marks.insert(path.id, found);
    }
    marks
}

/// The region's range, cut wherever a rule knows of a boundary inside.
fn cut(world: &World<'_>, region: &Region) -> Vec<AddrRange> {
    let mut cuts: Vec<Addr> = RULES.iter().flat_map(|rule| rule.cuts(region, world)).collect();
    cuts.retain(|&at| region.range.start < at && at < region.range.end);
    cuts.sort_unstable();
    cuts.dedup();
    let mut out = Vec::with_capacity(cuts.len() + 1);
    let mut start = region.range.start;
    for end in cuts.into_iter().chain([region.range.end]) {
        out.push(AddrRange { start, end });
        start = end;
    }
    out
}

fn claim(world: &World<'_>, subject: &Subject<'_>, marks: &Marks) -> (Option<usize>, Claim) {
    type Level = fn(&dyn Rule, &Subject<'_>, &World<'_>) -> Option<Claim>;
    let first = |level: Level| {
        RULES.iter().enumerate().find_map(|(i, rule)| Some((Some(i), level(*rule, subject, world)?)))
    };
    if let Some(found) = first(|rule, s, w| rule.by_name(s, w)) {
        return found;
    }
    if let Some(path) = subject.path {
        for &(at, i) in marks.get(&path.id).map_or(&[][..], Vec::as_slice) {
            if let Some(claim) = RULES[i].by_stack(subject, world, at) {
                return (Some(i), claim);
            }
        }
    }
    first(|rule, s, w| rule.by_header(s, w))
        .or_else(|| first(|rule, s, w| rule.by_thread(s, w)))
        .or_else(|| first(|rule, s, w| rule.by_shape(s, w)))
        .or_else(|| first(|rule, s, w| rule.as_last(s, w)))
        .unwrap_or_else(|| (None, Claim::new(UNKNOWN, Evidence::Shape, "unknown")))
}

/// Gives the piece its figures; cuts out what was purged where the rule wants that apart.
fn push_pieces(world: &World<'_>, subject: &Subject<'_>, out: &mut Vec<Piece>, draft: Draft) {
    let event = subject.record.map(|r| r.event);
    let instance = |range: AddrRange| match (&draft.claim.instance, event) {
        (Some(instance), _) => instance.clone(),
        (None, Some(EventId(id))) => Instance::Call(EventId(id)),
        (None, None) => Instance::At(range.start),
    };
    let instance = instance(subject.range);
    let mut push = |range: AddrRange, part: &'static str| {
        if range.is_empty() {
            return;
        }
        out.push(Piece {
            range,
            region: draft.region,
            category: draft.claim.category,
            part,
            evidence: draft.claim.evidence,
            instance: instance.clone(),
            thread: draft.claim.thread.or(subject.record.map(|r| r.task.tid)),
            merge: draft.claim.merge,
            footprint: footprint(world, subject, range),
            rule: draft.rule,
        });
    };
    let mut start = subject.range.start;
    if let Some(purged_part) = draft.claim.purged_part {
        let (resident, purged) =
            (&world.input.observations.residency.resident, &world.input.reconciled.purged);
        for hole in difference(purged, resident, subject.range) {
            if hole.len() >= MIN_PURGED_PIECE {
                push(AddrRange { start, end: hole.start }, draft.claim.part);
                push(hole, purged_part);
                start = hole.end;
            }
        }
    }
    push(AddrRange { start, end: subject.range.end }, draft.claim.part);
}

fn footprint(world: &World<'_>, subject: &Subject<'_>, range: AddrRange) -> Footprint {
    let input = world.input;
    let prot = subject.region.prot;
    let (rss, swap) = if counts_in_rss(subject.region, subject.name()) {
        resident_and_swapped(&input.observations.residency, range)
    } else {
        (0, 0)
    };
    let (resident, swapped) = (&input.observations.residency.resident, &input.observations.residency.swapped);
    let purged: u64 = overlapping(&input.reconciled.purged, range)
        .iter()
        .map(|p| {
            let p = p.intersect(range);
            p.len().saturating_sub(covered(resident, p)).saturating_sub(covered(swapped, p))
        })
        .sum();
    Footprint {
        virt: range.len(),
        writable: if prot.write { range.len() } else { 0 },
        reserved: if prot.is_none() { range.len() } else { 0 },
        rss,
        swap,
        // an estimate of residency knows no ranges: then the purge cannot be told from its reuse
        purged: purged.min(range.len().saturating_sub(rss).saturating_sub(swap)),
    }
}

/// What smaps does not count as Rss although pagemap calls it present (see `footprint`).
fn counts_in_rss(region: &Region, name: &[u8]) -> bool {
    region.kind != RegionKind::HugeTlb && !name.starts_with(b"[vvar")
}

/// The unused bytes of all regions, without saying what they are: as the pieces of [`classify`] add up.
pub fn unused(reconciled: &Reconciled, observations: &Observations) -> u64 {
    let of_region = |region: &Region| {
        let mapping = observations.mappings.get(region.vma);
        let name = mapping.map_or(&[][..], |mapping| mapping.name.as_slice());
        let (rss, swap) = match counts_in_rss(region, name) {
            true => resident_and_swapped(&observations.residency, region.range),
            false => (0, 0),
        };
        region.range.len().saturating_sub(rss).saturating_sub(swap)
    };
    reconciled.regions.iter().map(of_region).fold(0, u64::saturating_add)
}
