//! glibc malloc in plain words: why each kind of its memory is there, and which knob helps.

use super::{ARENA, BLOCK, BRK_MMAP, ENTRIES, HEAP_MAX, MMAPPED, RESERVED};
use crate::attribution::callpath::{CallPath, Line};
use crate::attribution::findings::Fix;
use crate::attribution::footprint::difference;
use crate::attribution::rules::{Advice, Group, World};
use crate::attribution::units::count_word;
use crate::model::observation::ResidencySource;
use crate::model::{Addr, AddrRange, Limits};

/// M_TOP_PAD and rounding leave up to this much unused in any heap; no knob changes that.
const WORTH_A_KNOB: u64 = 1 << 20;

/// DEFAULT_MMAP_THRESHOLD_MIN.
const MMAP_THRESHOLD: u64 = 128 << 10;

pub fn advise(group: &Group<'_>, world: &World<'_>) -> Advice {
    if group.category == ARENA {
        arena(group, world)
    } else if group.category == MMAPPED {
        blocks(group)
    } else {
        main_heap(group, world)
    }
}

fn arena(group: &Group<'_>, world: &World<'_>) -> Advice {
    let entry = group.path.and_then(|p| p.lines.iter().find(|l| l.is(ENTRIES)));
    let by_free = entry.is_some_and(|l| l.is(&["free", "__libc_free", "__free", "cfree"]));
    let via = group.path.and_then(library_caller);
    let mut why = if by_free {
        "this thread never had to call malloc: the first free() of a thread is enough. glibc sets up the \
         thread's cache of freed blocks, that needs an arena, and an arena reserves a whole 64 MiB heap"
            .to_string()
    } else {
        "the first malloc of a thread reserves a whole 64 MiB heap; pages count only when touched".to_string()
    };
    if let Some(name) = via {
        why +=
            &format!("; nobody asked for memory here: {name} of the C library calls malloc for its own use");
    }
    if group.instances > 1 {
        why += "; threads get one each until there are 8 per processor, and arenas outlive their threads";
        why += &too_many_processors(&world.input.observations.limits);
    }
    let other = other_allocator(world);
    if let Some(other) = other {
        why += &format!("; it is glibc's own malloc, in use beside {other} in the same process");
        if own_calls_stay_inside(world) {
            why += &format!(" (the C library calls its own malloc: {other} is not exported under that name)");
        }
    }
    if group.part(RESERVED).virt == 0 && group.footprint.virt >= HEAP_MAX {
        why += "; this heap is full";
    }
    let note = "later threads share the main heap; heavy malloc use by many threads may get slower";
    let advice = Advice::why(why)
        .fix(Fix::new("MALLOC_ARENA_MAX=1 (or mallopt(M_ARENA_MAX, 1))", group.unused(), 0).note(note));
    match other {
        Some(other) => {
            advice.wont(&format!("settings of {other}"), "the arenas are glibc's, which does not read them")
        }
        None => advice.wont("malloc_trim(0), freeing more", "lowers RSS; of VIRT only heaps that are empty"),
    }
}

/// The loader bound malloc inside the C library to the library's own.
fn own_calls_stay_inside(world: &World<'_>) -> bool {
    let called = world.libc_malloc_in();
    called.is_some() && world.marked(super::MARK).any(|found| Some(found.file) == called)
}

/// glibc counts the processors that a thread may run on, not the time that a cgroup gives it
/// (malloc/arena.c, `arena_get2`; sysdeps/unix/sysv/linux/getsysstats.c).
fn too_many_processors(limits: &Limits) -> String {
    let (Some(cpus), Some(quota)) = (limits.cpus, limits.cpu_quota) else { return String::new() };
    if quota >= cpus.saturating_mul(1000) {
        return String::new();
    }
    let tenths = quota.div_ceil(100);
    format!(
        "; glibc sees {cpus} processors here, so up to {} arenas, though the CPU quota is worth {}.{}",
        cpus.saturating_mul(8),
        tenths / 10,
        tenths % 10
    )
}

/// The exported function of the C library through which malloc was reached, if it was not the
/// program that called it.
fn library_caller(path: &CallPath) -> Option<&str> {
    let entry = path.lines.iter().position(|l| l.is(ENTRIES))?;
    let inside = path.run(entry + 1, |l: &Line| super::is_libc(&l.module));
    // start_thread and clone are the thread's root, not a library call
    let last = path.lines.get(entry + 1 + inside.len())?;
    let named = inside.iter().rev().find_map(|l| l.function.as_deref())?;
    (!last.module.is_empty() && !named.starts_with("clone") && !named.starts_with("__clone")).then_some(named)
}

/// Another allocator of the process.
fn other_allocator(world: &World<'_>) -> Option<&'static str> {
    crate::attribution::rules::RULES.iter().find_map(|rule| rule.allocator_in(world))
}

fn blocks(group: &Group<'_>) -> Advice {
    let n = group.instances_with(BLOCK);
    let blocks = if n == 1 { "one block".to_string() } else { format!("{} blocks", count_word(n)) };
    // without a stack the call is not known
    let (here, knob) = match (group.path.is_some_and(names_caller), n) {
        (true, _) => (" here", "allocate less, or later, at this call"),
        (false, 1) => ("", "allocate less, or later, at the call that asked for it"),
        (false, _) => ("", "allocate less, or later, at the calls that asked for them"),
    };
    let not_all = if n == 1 { "it" } else { "them" };
    Advice::why(format!(
        "malloc gives a block of 128 KiB or more a mapping of its own; the program asked for {blocks}{here} \
         and has not touched all of {not_all}"
    ))
    .fix(
        Fix::new(knob, group.unused(), 0)
            .note("no setting of malloc changes it: a larger threshold only moves it into the heap"),
    )
}

/// The stack reaches a caller outside of the C library; one that ends early, a caller with a name.
fn names_caller(path: &CallPath) -> bool {
    let outside =
        |l: &Line| !l.module.is_empty() && !super::is_libc(&l.module) && !l.is_wrapper() && !l.is(ENTRIES);
    path.any(|l| outside(l) && (path.complete || l.function.is_some()))
}

/// Below the heap's top, pages that are neither resident nor swapped, as many in a row as the smallest block with a
/// mapping of its own has. True where it is not known which pages are.
fn has_large_hole(range: AddrRange, top: Option<Addr>, world: &World<'_>) -> bool {
    let seen = &world.input.observations.residency;
    if !matches!(seen.source, ResidencySource::PagemapScan | ResidencySource::Pagemap) {
        return true;
    }
    let untouched = difference(&[range], &seen.resident, range);
    let untouched = untouched.iter().flat_map(|hole| difference(&[range], &seen.swapped, *hole));
    untouched.into_iter().any(|hole| hole.len() >= MMAP_THRESHOLD && Some(hole.end) != top)
}

fn main_heap(group: &Group<'_>, world: &World<'_>) -> Advice {
    let by_mmap = group.part(BRK_MMAP).virt > 0;
    let mut why = "small blocks of the main thread live in one heap that only shrinks from its end: freed \
                   memory below a block still in use stays mapped"
        .to_string();
    if by_mmap {
        why += "; the kernel refused to extend it in place (something is mapped right above, or this is a \
                second copy of the C library), so it grows in pieces of 1 MiB";
    }
    let advice = Advice::why(why);
    let knob = "MALLOC_MMAP_THRESHOLD_=131072";
    if group.unused() < WORTH_A_KNOB {
        return advice;
    }
    // a large block that was freed, or is in use and untouched, leaves a hole of its size
    let top = group.pieces.iter().map(|piece| piece.range.end).max();
    if !group.pieces.iter().any(|piece| has_large_hole(piece.range, top, world)) {
        return advice
            .wont(knob, "it is about blocks of 128 KiB or more, and nothing unused here is that long");
    }
    advice.fix(Fix::new(knob, 0, 0).note(
        "keeps large blocks out of the heap even after the first large free() raised the limit; how much of what \
         is unused were such blocks only a run with it can tell (vmaudit compare)",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_below_the_processors_is_reported() {
        let limits = |cpus, cpu_quota| Limits { cpus: Some(cpus), cpu_quota, ..Limits::default() };
        let text = too_many_processors(&limits(64, Some(2000)));
        assert_eq!(
            text,
            "; glibc sees 64 processors here, so up to 512 arenas, though the CPU quota is worth 2.0"
        );
        assert_eq!(too_many_processors(&limits(2, Some(2000))), "");
        assert_eq!(too_many_processors(&limits(64, None)), "");
    }
}
