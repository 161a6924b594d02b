//! Regions → cut pieces → claims, in order of trust.

use super::Piece;
use super::category::{Claim, Evidence, Instance, UNKNOWN};
use super::footprint::{Footprint, difference, resident_and_swapped};
use super::rules::{RULES, Rule};
use super::world::{Subject, World};
use crate::ledger::{Reconciled, Region, RegionKind};
use crate::model::hash::IntMap;
use crate::model::{Addr, AddrRange, EventId, Observations, PAGE, StackId};
use std::collections::HashMap;
use std::ops::Range;
use std::panic::resume_unwind;
use std::thread;

/// Purged and untouched ranges shorter than this stay part of what surrounds them: one touched
/// page in two would otherwise give a piece each.
const MIN_PURGED_PIECE: u64 = 16 * PAGE;

/// Which rules recognise which lines of a stack: (line, rule), innermost first.
type Marks = HashMap<StackId, Vec<(usize, usize)>>;

/// Regions that are worth a thread of their own: a thread's start and its caches cost what some hundred regions do.
const REGIONS_PER_THREAD: usize = 4096;

pub fn classify(world: &World<'_>) -> Vec<Piece> {
    let marks = mark_stacks(world);
    let regions = world.input.reconciled.regions.len();
    let threads = match regions / REGIONS_PER_THREAD {
        0 | 1 => 1,
        most => thread::available_parallelism().map_or(1, |cores| cores.get().min(most)),
    };
    let mut pieces = classify_by(threads, world, &marks, regions);
    let mut things = Things::for_pieces(&pieces);
    for piece in &mut pieces {
        piece.thing = things.number(&piece.instance);
    }
    pieces
}

/// Each thread takes as many regions as the others, in their order. A rule's answer goes by the piece and the process,
/// never by the pieces before it.
fn classify_by(threads: usize, world: &World<'_>, marks: &Marks, regions: usize) -> Vec<Piece> {
    let share = regions.div_ceil(threads);
    let part = |thread: usize| (thread * share).min(regions)..((thread + 1) * share).min(regions);
    thread::scope(|scope| {
        let spawn = |thread: usize| {
            let (fork, regions) = (world.fork(), part(thread));
            let work = move || {
                let mut pieces = Vec::with_capacity(regions.len());
                classify_part(&fork, marks, regions, &mut pieces);
                pieces
            };
            thread::Builder::new().spawn_scoped(scope, work).map_err(|_| thread)
        };
        let others: Vec<_> = (1..threads).map(spawn).collect();
        let mut pieces = Vec::with_capacity(regions);
        classify_part(world, marks, part(0), &mut pieces);
        for other in others {
            match other {
                Ok(thread) => pieces.append(&mut thread.join().unwrap_or_else(|panic| resume_unwind(panic))),
                // no more threads are allowed here
                Err(thread) => classify_part(world, marks, part(thread), &mut pieces),
            }
        }
        pieces
    })
}

fn classify_part(world: &World<'_>, marks: &Marks, regions: Range<usize>, pieces: &mut Vec<Piece>) {
    let mut levels = Levels::default();
    for index in regions {
        let region = &world.input.reconciled.regions[index];
        let mut start = region.range.start;
        for end in cuts(world, region, &mut levels.cuts).into_iter().chain([region.range.end]) {
            let subject = world.subject(region, AddrRange { start, end });
            let (rule, claim) = claim(world, &subject, marks, &mut levels);
            push_pieces(world, &subject, pieces, Draft { region: index, rule, claim });
            start = end;
        }
    }
}

/// The numbers of instances, in the order of their first pieces.
#[derive(Default)]
struct Things {
    calls: IntMap<EventId, usize>,
    places: IntMap<Addr, usize>,
    names: HashMap<Vec<u8>, usize>,
}

impl Things {
    /// Reserves for as many instances as there can be: growing step by step takes as long as the numbering.
    fn for_pieces(pieces: &[Piece]) -> Things {
        let calls = pieces.iter().filter(|piece| matches!(piece.instance, Instance::Call(_))).count();
        let mut things = Things::default();
        things.calls.reserve(calls);
        things.places.reserve(pieces.len() - calls);
        things
    }

    fn number(&mut self, instance: &Instance) -> usize {
        let next = self.calls.len() + self.places.len() + self.names.len();
        match instance {
            Instance::Call(id) => *self.calls.entry(*id).or_insert(next),
            Instance::At(addr) => *self.places.entry(*addr).or_insert(next),
            Instance::Named(name) => match self.names.get(name) {
                Some(&known) => known,
                None => *self.names.entry(name.clone()).or_insert(next),
            },
        }
    }
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
            found.extend((0..RULES.len()).filter(|&i| RULES[i].knows_here(line, world)).map(|i| (at, i)));
        }
        marks.insert(path.id, found);
    }
    marks
}

/// The rules that are tried on one level of evidence, by their numbers.
struct RulesToTry(Vec<usize>);

impl Default for RulesToTry {
    fn default() -> RulesToTry {
        RulesToTry((0..RULES.len()).collect())
    }
}

impl RulesToTry {
    /// Tries one after the other, until one claims the piece. A rule that does not handle this level at all
    /// is not tried again: tens of thousands of pieces are classified on each level.
    fn first<T>(
        &mut self,
        world: &World<'_>,
        mut query: impl FnMut(&dyn Rule) -> Option<T>,
    ) -> Option<(usize, T)> {
        let mut next = 0;
        while let Some(&rule) = self.0.get(next) {
            let answer = query(RULES[rule]);
            if world.was_not_for_me() {
                self.0.remove(next);
                continue;
            }
            if let Some(answer) = answer {
                return Some((rule, answer));
            }
            next += 1;
        }
        None
    }
}

#[derive(Default)]
struct Levels {
    cuts: RulesToTry,
    name: RulesToTry,
    header: RulesToTry,
    thread: RulesToTry,
    shape: RulesToTry,
    last: RulesToTry,
}

/// Where rules know of a boundary inside of a region; ascending.
fn cuts(world: &World<'_>, region: &Region, rules: &mut RulesToTry) -> Vec<Addr> {
    let mut cuts: Vec<Addr> = Vec::new();
    rules.first::<()>(world, |rule| {
        cuts.extend(rule.cuts(region, world));
        None
    });
    if cuts.is_empty() {
        return cuts;
    }
    cuts.retain(|&at| region.range.start < at && at < region.range.end);
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}

fn claim(
    world: &World<'_>,
    subject: &Subject<'_>,
    marks: &Marks,
    levels: &mut Levels,
) -> (Option<usize>, Claim) {
    if let Some((rule, found)) = levels.name.first(world, |rule| rule.by_name(subject, world)) {
        return (Some(rule), found);
    }
    if let Some(path) = subject.path {
        for &(at, i) in marks.get(&path.id).map_or(&[][..], Vec::as_slice) {
            if let Some(claim) = RULES[i].by_stack(subject, world, at) {
                return (Some(i), claim);
            }
        }
    }
    let Levels { header, thread, shape, last, .. } = levels;
    let found = header
        .first(world, |rule| rule.by_header(subject, world))
        .or_else(|| thread.first(world, |rule| rule.by_thread(subject, world)))
        .or_else(|| shape.first(world, |rule| rule.by_shape(subject, world)))
        .or_else(|| last.first(world, |rule| rule.as_last(subject, world)));
    match found {
        Some((rule, claim)) => (Some(rule), claim),
        None => (None, Claim::new(UNKNOWN, Evidence::Shape, "unknown")),
    }
}

/// Gives the piece its figures; cuts out what was purged where the rule separates that.
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
            thing: 0,
            thread: draft.claim.thread.or(subject.record.map(|r| r.task.tid)),
            merge: draft.claim.merge,
            label: draft.claim.label,
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
    let prot = subject.region.prot;
    let ((rss, swap), unseen) = if counts_in_rss(subject.region, subject.name()) {
        (world.resident_and_swapped(range), world.unseen.covered(range))
    } else {
        ((0, 0), 0)
    };
    let purged: u64 = world
        .purged
        .overlapping(range)
        .iter()
        .map(|p| {
            let p = p.intersect(range);
            p.len().saturating_sub(world.resident.covered(p)).saturating_sub(world.swapped.covered(p))
        })
        .sum();
    Footprint {
        virt: range.len(),
        writable: if prot.write { range.len() } else { 0 },
        reserved: if prot.is_none() { range.len() } else { 0 },
        rss,
        swap,
        // an estimate of residency knows no ranges: then the purge cannot be distinguished from its reuse
        purged: purged.min(range.len().saturating_sub(rss).saturating_sub(swap)),
        unseen,
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
