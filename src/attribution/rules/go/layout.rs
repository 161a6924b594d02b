//! A Go process as maps shows it. Go 1.19 and 1.27, Linux x86-64:
//!
//! ```text
//! 0xc000000000  rw-p, ---p             heap arenas, to a multiple of 64 MiB; since 1.26 they begin
//!                                      anywhere, at a multiple of 64 MiB
//! 0x7fb9cf…     rw-p                   tables (32 MiB of them the arenas' index)
//!               ---p 261 MiB, rw-p 4 KiB, ---p 287 MiB, rw-p 4 KiB, ---p …
//!                                      the levels of the page allocator's summaries, one page of
//!                                      each in use (runtime/mpagealloc_64bit.go)
//!               ---p 512 KiB, rw-p 4 KiB, ---p 508 KiB      scavenger's index
//! ```
//!
//! None of it is NORESERVE, unlike everybody else's large reservations.

use super::{GO_HEAP, HEAP, HEAP_RESERVED, MARK, SUMMARIES, TABLES};
use crate::attribution::category::{Claim, Evidence, Instance, Merge};
use crate::attribution::rules::World;
use crate::attribution::rules::runs::{extent, runs};
use crate::attribution::world::Surveyed;
use crate::model::{Addr, AddrRange, Mapping, Prot, Sharing};

/// arenaBaseOffset aside, the first hint of runtime.mallocinit on 64-bit systems.
pub(super) const ARENA_HINT: Addr = Addr(0xc0_0000_0000);
pub(super) const ARENA: u64 = 64 << 20;

/// The levels of the summaries take 585 MiB (1.19) or 1.1 GiB (1.27).
const MIN_SUMMARIES: u64 = 512 << 20;
const MAX_SUMMARIES: u64 = 2 << 30;
/// Mappings of four levels at least: fewer are anybody's.
const MIN_RUNGS: usize = 7;
/// What is in use of a level of a small program; a large heap uses more.
const MAX_STEP: u64 = 1 << 20;
/// Guards of stacks, which may be adjacent, are smaller.
const MIN_RESERVED: u64 = 128 << 10;
const INDEX: u64 = 1 << 20;
/// The index of all arenas (`mheap.arenas`, 4 Mi pointers), below the summaries.
const ARENA_INDEX: u64 = 32 << 20;

/// Of the neighbours between two that are in use and long, from the first reserved mapping to the last.
fn ladder(neighbours: &[Mapping]) -> Option<AddrRange> {
    let reserved = |m: &Mapping| m.prot.is_none() && m.range.len() >= MIN_RESERVED;
    let first = neighbours.iter().position(reserved)?;
    let last = neighbours.iter().rposition(reserved)?;
    let rungs = neighbours.get(first..=last)?;
    let range = extent(rungs);
    (rungs.len() >= 3 && range.len() <= MAX_SUMMARIES).then_some(range)
}

/// Several where the kernel placed them next to each other, with tables between them.
fn ladders(run: &[Mapping]) -> impl Iterator<Item = AddrRange> {
    let long = |m: &Mapping| !m.prot.is_none() && m.range.len() > MAX_STEP;
    run.split(long).filter_map(ladder)
}

/// Neighbouring mappings that could be Go's.
fn candidates<'a>(world: &World<'a>) -> Vec<&'a [Mapping]> {
    runs(world.mappings(), |m: &Mapping| {
        let flagged = |flag| world.detail_of(m).is_some_and(|d| d.flags.has(flag));
        let plain = m.file.is_none() && m.name.is_empty() && m.sharing == Sharing::Private;
        plain && !flagged("nr") && (m.prot.is_none() || m.prot == Prot::RW)
    })
}

fn summaries(runs: &[&[Mapping]]) -> Option<(usize, AddrRange)> {
    let large = |(at, range): &(usize, AddrRange)| {
        let rungs = || runs.get(*at).map_or(0, |run| inside(run, *range).len());
        range.len() >= MIN_SUMMARIES && rungs() >= MIN_RUNGS
    };
    let mut all = runs.iter().enumerate().flat_map(|(i, run)| ladders(run).map(move |range| (i, range)));
    all.find(large)
}

/// True where the summaries or the heap's usual place give it away.
pub(super) fn is_go(world: &World<'_>) -> bool {
    world.fact("is Go", || world.starts_at(ARENA_HINT) || world.has_survey(super::ID))
}

pub(super) fn survey(world: &World<'_>) -> Vec<Surveyed> {
    let runs = candidates(world);
    // others open parts of what they have reserved, too: no file has Go's table of functions
    let summaries = summaries(&runs).filter(|_| !world.lacks_mark(MARK));
    if summaries.is_none() && !world.starts_at(ARENA_HINT) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (i, run) in runs.iter().enumerate() {
        let range = extent(run);
        let usual = range.start == ARENA_HINT;
        let arenas = range.start.is_aligned(ARENA) && range.len().is_multiple_of(ARENA);
        if usual || (summaries.is_some() && arenas && range.end.0 >> 40 != 0x7f) {
            found.extend(run.iter().map(heap));
            continue;
        }
        if let Some((_, rungs)) = summaries.filter(|(at, _)| *at == i) {
            found.extend(tables(run, rungs));
        }
        for index in ladders(run).filter(|range| range.len() == INDEX) {
            found.extend(inside(run, index).iter().map(summary));
        }
    }
    found
}

fn heap(mapping: &Mapping) -> Surveyed {
    let part = if mapping.prot.is_none() { HEAP_RESERVED } else { HEAP };
    let claim = Claim::new(GO_HEAP, Evidence::Shape, part).merge(Merge::ByCategory);
    let arena = Instance::At(mapping.range.start.align_down(ARENA));
    Surveyed { range: mapping.range, claim: claim.instance(arena) }
}

fn summary(mapping: &Mapping) -> Surveyed {
    let claim = Claim::new(GO_HEAP, Evidence::Shape, SUMMARIES).merge(Merge::ByCategory);
    Surveyed { range: mapping.range, claim }
}

/// The rungs, and the index of arenas that lies below them with what merged with it.
fn tables(run: &[Mapping], rungs: AddrRange) -> impl Iterator<Item = Surveyed> {
    let claim = Claim::new(GO_HEAP, Evidence::Shape, TABLES).merge(Merge::ByCategory);
    let below = run.split_at(run.partition_point(|m| m.range.end <= rungs.start)).0;
    let index = below.iter().rposition(|m| m.range.len() >= ARENA_INDEX);
    let of_index = index.map_or(&[][..], |index| &below[index..]);
    let of_index = of_index.iter().map(move |m| Surveyed { range: m.range, claim: claim.clone() });
    of_index.chain(inside(run, rungs).iter().map(summary))
}

/// The neighbours that lie in `range` as a whole.
fn inside(run: &[Mapping], range: AddrRange) -> &[Mapping] {
    let rest = &run[run.partition_point(|m| m.range.start < range.start)..];
    rest.split_at(rest.partition_point(|m| m.range.end <= range.end)).0
}
