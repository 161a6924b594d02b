//! glibc's memory by its shape alone: where neither a call was seen nor memory could be read.

use super::{HEAP_MAX, is_libc};
use crate::attribution::footprint::resident_and_swapped;
use crate::attribution::rules::{RULES, Subject, World};
use crate::ledger::Region;
use crate::model::path::base_name_lossy;
use crate::model::{Addr, AddrRange, Mapping, PAGE, Prot, Sharing};

/// MMAP_AS_MORECORE_SIZE: the main arena's step where brk is refused.
pub const MORECORE_BY_MMAP: u64 = 1 << 20;
/// The writable part of a heap: one VMA; a named one and what it grew by (glibc.mem.decorate_maps
/// names the first 132 KiB only).
const MAX_USED: usize = 2;

/// Heaps that the kernel shows as one: writable, then reserved up to a 64 MiB boundary.
struct Run {
    used: AddrRange,
    reserved: AddrRange,
}

impl Run {
    /// Where the last heap begins, the one that the reserved part belongs to.
    fn last(&self) -> Option<Addr> {
        let end = self.reserved.end;
        let start = Addr(end.0.checked_sub(HEAP_MAX)?);
        (end.is_aligned(HEAP_MAX) && self.used.start <= start && start < self.used.end).then_some(start)
    }

    /// What lies below the last heap is heaps of the same arena.
    fn holds_full_heaps(&self, world: &World<'_>) -> bool {
        self.used.start.is_aligned(HEAP_MAX) && only_glibc(world) && is_all_touched(self.used, world)
    }
}

/// Where the heap begins that the subject is part of.
pub fn heap_of(subject: &Subject<'_>, world: &World<'_>) -> Option<Addr> {
    let vma = subject.region.vma;
    let Some(run) = run_containing(world, vma) else {
        return full_heap(subject, world);
    };
    let reserved = || world.may_be_noreserve(run.reserved.start) || reserves_plainly(world);
    let last = run.last().filter(|_| reserved())?;
    let own = subject.range.start;
    if run.used.start == last || own >= last {
        // Headers that were read settle it; those heaps have been claimed already.
        let settled = !world.heaps().is_empty();
        return (!settled).then_some(last);
    }
    // below the last heap: a full one of the same arena
    run.holds_full_heaps(world).then(|| own.align_down(HEAP_MAX))
}

/// As of 2.41 heaps are reserved without MAP_NORESERVE (malloc/arena.c, `alloc_new_heap`).
pub fn reserves_plainly(world: &World<'_>) -> bool {
    world.libc_version().is_some_and(|version| version >= (2, 41))
}

/// Addresses inside a VMA where a heap begins. An extent of another allocator that lies right below a
/// heap is one VMA with it: both are writable and not accounted.
pub fn cuts(region: &Region, world: &World<'_>) -> Vec<Addr> {
    if !world.heaps().is_empty() {
        return Vec::new();
    }
    let Some(run) = run_containing(world, region.vma) else { return Vec::new() };
    let Some(last) = run.last() else { return Vec::new() };
    if !run.holds_full_heaps(world) {
        return vec![last];
    }
    let count = (last.0 - run.used.start.0) / HEAP_MAX;
    (0..=count).map(|n| Addr(run.used.start.0 + n * HEAP_MAX)).collect()
}

/// A heap without a reserved rest, right next to one that has it.
fn full_heap(subject: &Subject<'_>, world: &World<'_>) -> Option<Addr> {
    let vma = subject.region.vma;
    let own = world.mappings().get(vma).filter(|m| is_used(m))?;
    let whole = own.range.start.is_aligned(HEAP_MAX) && own.range.len().is_multiple_of(HEAP_MAX);
    let below = vma.checked_sub(1).filter(|_| world.below(vma).is_some_and(|m| m.prot.is_none()));
    let neighbour = below.and_then(|below| run_containing(world, below)).and_then(|run| run.last());
    (whole && neighbour.is_some() && only_glibc(world) && is_all_touched(own.range, world))
        .then(|| subject.range.start.align_down(HEAP_MAX))
}

/// No other code in the process maps writable memory without accounting it.
fn only_glibc(world: &World<'_>) -> bool {
    world.heaps().is_empty() && !has_other_allocator(world)
}

fn has_other_allocator(world: &World<'_>) -> bool {
    let found = || RULES.iter().any(|rule| rule.allocator_in(world).is_some());
    world.fact("has another allocator", found)
}

/// A heap is used from its start to its end before the next one is made. Extents of an otherwise unknown
/// allocator have the same layout but for this.
fn is_all_touched(range: AddrRange, world: &World<'_>) -> bool {
    let (resident, swapped) = resident_and_swapped(&world.input.observations.residency, range);
    resident.saturating_add(swapped) >= range.len()
}

fn is_anonymous(m: &Mapping) -> bool {
    let named = m.name.is_empty() || m.name == b"[anon: glibc: malloc arena]";
    m.file.is_none() && named && m.sharing == Sharing::Private
}

fn is_used(m: &Mapping) -> bool {
    is_anonymous(m) && m.prot == Prot::RW
}

/// The writable VMAs and the reserved one above them that this VMA is among.
fn run_containing(world: &World<'_>, vma: usize) -> Option<Run> {
    let mut top = vma;
    let mut steps = 0;
    while is_used(world.mappings().get(top)?) {
        world.above(top)?;
        top += 1;
        steps += 1;
        if steps > MAX_USED {
            return None;
        }
    }
    let reserved = world.mappings().get(top).filter(|m| is_anonymous(m) && m.prot.is_none())?;
    let mut used: Option<AddrRange> = None;
    let mut bottom = top;
    for _ in 0..MAX_USED {
        let Some(below) = world.below(bottom).filter(|m| is_used(m)) else { break };
        used = Some(AddrRange { start: below.range.start, end: reserved.range.start });
        bottom -= 1;
    }
    Some(Run { used: used?, reserved: reserved.range })
}

/// The main arena's pieces of 1 MiB, where it cannot extend `[heap]`: the process has two C libraries
/// (dlmopen), or something is mapped right above `[heap]`.
pub fn is_morecore(subject: &Subject<'_>, world: &World<'_>) -> bool {
    let whole = subject.region.prot == Prot::RW
        && subject.range.len() >= MORECORE_BY_MMAP
        && subject.range.len().is_multiple_of(MORECORE_BY_MMAP)
        && subject.record.is_none();
    let has_python = || world.has_file(|f| f.starts_with("libpython") || f.starts_with("python"));
    whole
        && (libc_is_loaded_twice(world) || heap_is_blocked(world))
        && !world.fact("has Python", has_python)
        && !has_other_allocator(world)
}

fn heap_is_blocked(world: &World<'_>) -> bool {
    world.fact("the heap cannot grow", || {
        let at = world.mappings().iter().rposition(|m| m.is_special("[heap]"));
        let stands_in_the_way = |vma: usize| world.above(vma).is_some_and(|m| m.range.len() >= PAGE);
        at.is_some_and(stands_in_the_way) && world.has_mark(super::MARK)
    })
}

/// dlmopen: the second copy's main arena cannot use brk (malloc/arena.c, `__morecore`).
pub fn libc_is_loaded_twice(world: &World<'_>) -> bool {
    world.fact("libc is loaded twice", || {
        let starts = world.mappings().iter().filter(|m| m.file.is_some() && m.offset == 0);
        starts.filter(|m| is_libc(&base_name_lossy(&m.name))).count() > 1
    })
}
