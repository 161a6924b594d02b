//! mimalloc: arenas of 1 GiB (2.2 and 3), segments of 32 MiB (2.0).

mod layout;
mod segments;

use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::callpath::Line;
use crate::attribution::category::{Category, CategoryInfo, Evidence, Merge};
use crate::attribution::code::{Code, Role};
use crate::attribution::findings::Fix;
use crate::model::arenas::{ArenasRead, ReadArenas, ReadMemory, Surroundings};
use crate::model::{Addr, AddrRange, Prot, Sign};

pub const MIMALLOC: Category = Category(&CategoryInfo {
    id: "mimalloc",
    color: 0xb5840f,
    name: "mimalloc",
    one: "mimalloc arena",
    many: "mimalloc mappings",
});

/// 2.x requests addresses far below where the kernel places mappings (src/os.c, aligned hints).
const HINTS: std::ops::Range<u64> = 0x200_0000_0000..0x1e00_0000_0000;
/// An arena, as of 2.1 (`mi_option_arena_reserve`).
const ARENA: u64 = 1 << 30;
/// 3.x maps arenas wherever the kernel places them, at this alignment, and they merge with neighbours.
const ALIGNMENT: u64 = 64 << 10;
/// Of 3.x, where it did not merge with the arena.
const PAGE_MAP: u64 = 2304 << 10;
/// Smaller ones cannot be distinguished from other mappings.
const LEAST: u64 = 32 << 20;
/// What the advice leaves of an arena.
const SMALLER: u64 = 64 << 20;

const MARK: &str = "mimalloc";

const UNREAD: &str = "its heaps are not read: no segment was found that has the layout of 2.0.3 to 2.4.1 (3, and builds with \
                      MI_SECURE or MI_DEBUG, have another one). With MIMALLOC_SHOW_STATS=1 in its environment the \
                      program prints mimalloc's own figures when it ends";

const BLIND: &str = "its heaps are not read: which pages are in memory is not known, and reading others would touch them. \
                     With MIMALLOC_SHOW_STATS=1 in its environment the program prints mimalloc's own figures when it ends";

/// By the segments' own headers, wherever mimalloc is: a library, or in the program.
fn arenas(process: &Surroundings<'_>, memory: &mut ReadMemory<'_>) -> ArenasRead {
    let unread = |why| ArenasRead::unread(process, "libmimalloc", "mimalloc", why);
    if !process.residency.is_page_exact() {
        return unread(BLIND);
    }
    match segments::read(process, memory) {
        found if found.is_empty() => unread(UNREAD),
        segments => ArenasRead { segments, knows_pages: true, ..ArenasRead::default() },
    }
}

pub struct MimallocRule;

fn is_mimalloc(line: &Line) -> bool {
    let own = |f: &str| f.starts_with("mi_") || f.starts_with("_mi_") || f.starts_with("unix_mmap_prim");
    line.module.starts_with("libmimalloc") || line.function.as_deref().is_some_and(own)
}

/// mimalloc's alone. Others begin so, too: MyISAM's functions in MariaDB (`mi_open`, `mi_create`).
fn is_certain(line: &Line) -> bool {
    const CALLS: [&str; 8] = [
        "unix_mmap_prim",
        "_mi_prim_alloc",
        "_mi_os_alloc",
        "mi_os_prim_alloc",
        "mi_os_mem_alloc",
        "mi_unix_mmap",
        "_mi_malloc_generic",
        "mi_process_init",
    ];
    line.module.starts_with("libmimalloc")
        || line.function.as_deref().is_some_and(|f| CALLS.iter().any(|call| f.starts_with(call)))
}

/// Debian's library of 2.0, the last one with segments of a fixed size and no arenas.
fn has_segments(world: &World<'_>) -> bool {
    world.fact("has mimalloc's segments", || world.has_file(|f| f.starts_with("libmimalloc.so.2.0")))
}

/// At an address that it requested, where the kernel places nothing by itself: no other allocator's.
pub fn is_hinted(at: Addr, world: &World<'_>) -> bool {
    HINTS.contains(&at.0) && loaded(world)
}

/// True if it can be one of its arenas at an address chosen by the kernel.
pub fn may_be_arena(range: AddrRange, world: &World<'_>) -> bool {
    loaded(world) && range.len() >= LEAST
}

pub fn loaded(world: &World<'_>) -> bool {
    world.fact("has mimalloc", || world.has_file(|f| f.starts_with("libmimalloc")) || world.has_mark(MARK))
}

impl Rule for MimallocRule {
    fn id(&self) -> &'static str {
        "mimalloc"
    }

    fn categories(&self) -> &'static [Category] {
        &[MIMALLOC]
    }

    fn arenas(&self) -> Option<ReadArenas> {
        Some(arenas)
    }

    fn code(&self) -> Code {
        Code { role: Role::Allocator, modules: &["libmimalloc"], prefixes: &["mi_"], ..Code::NONE }
    }

    fn signs(&self) -> &'static [Sign] {
        const { &[Sign::new(MARK, &["mimalloc: "])] }
    }

    fn heap_description(&self) -> Option<&'static str> {
        Some("mimalloc")
    }

    fn by_name(&self, subject: &Subject<'_>, _world: &World<'_>) -> Option<Claim> {
        (subject.anon_name()? == b"mimalloc").then(|| Claim::new(MIMALLOC, Evidence::Name, part(subject)))
    }

    fn knows(&self, line: &Line) -> bool {
        is_mimalloc(line)
    }

    fn by_stack(&self, subject: &Subject<'_>, _world: &World<'_>, at: usize) -> Option<Claim> {
        let path = subject.path?;
        let own = path.run(at, is_mimalloc);
        if !path.is_direct(at, is_mimalloc) || !own.iter().any(is_certain) {
            return None;
        }
        let entry = (at + own.len()).saturating_sub(1);
        subject
            .is_private_anonymous()
            .then(|| Claim::new(MIMALLOC, Evidence::Stack, part(subject)).merge(Merge::ByCaller(entry)))
    }

    fn by_shape(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        if !subject.is_private_anonymous() || !subject.shape_may_decide() || !loaded(world) {
            return None;
        }
        let own_addresses = is_hinted(subject.range.start, world);
        let like_an_arena = || {
            // two that map alike cannot be distinguished
            !super::jemalloc::loaded(world)
                && subject.region.prot == Prot::RW
                // it never advises against huge pages: others do, for mappings of the same shape
                && !subject.has_flag("nh")
                && (subject.record.is_some() || world.may_be_noreserve(subject.range.start))
                && subject.range.len() >= LEAST
                && subject.range.len().is_multiple_of(ALIGNMENT)
                && subject.range.start.is_aligned(ALIGNMENT)
        };
        let page_map = || subject.region.prot == Prot::RW && subject.range.len() == PAGE_MAP;
        (own_addresses || like_an_arena() || page_map())
            .then(|| Claim::new(MIMALLOC, Evidence::Shape, part(subject)))
    }

    fn allocator_in(&self, world: &World<'_>) -> Option<&'static str> {
        (loaded(world) || world.paths().any(|p| p.any(is_certain))).then_some("mimalloc")
    }

    fn advise(&self, group: &Group<'_>, world: &World<'_>) -> Advice {
        let recorded = group.record.map_or(0, |record| record.mapped.0);
        let largest = group.pieces.iter().map(|p| p.footprint.virt).max().unwrap_or(0).max(recorded);
        let advice = if largest >= ARENA {
            arena_advice(group)
        } else if has_segments(world) {
            segments()
        } else {
            other()
        };
        advice.wont("MALLOC_ARENA_MAX, malloc_trim", "they are glibc's, and this memory is mimalloc's")
    }
}

fn arena_advice(group: &Group<'_>) -> Advice {
    // as many smaller arenas as hold what is touched now
    let touched = group.footprint.virt.saturating_sub(group.unused());
    let needed = touched.max(1).div_ceil(SMALLER).saturating_mul(SMALLER);
    let saves = group.footprint.virt.saturating_sub(needed).min(group.unused());
    Advice::why("mimalloc reserves an arena of 1 GiB at the first allocation and hands out pieces of it")
        .fix(Fix::new("MIMALLOC_ARENA_RESERVE=64MiB (or 0)", saves, 0).note(
            "at most: what is touched now, in full arenas of 64 MiB; scattered blocks need more of them",
        ))
        .wont("MIMALLOC_ARENA_EAGER_COMMIT=0", "less of it is writable then (VmData), VIRT stays the same")
}

const GIVES_BACK: &str = "gives freed pages back at once: lowers RSS by what was freed, which only a run with it \
    can tell (vmaudit compare); VIRT stays as it is";

fn segments() -> Advice {
    Advice::why(
        "mimalloc before 2.1 takes segments of 32 MiB, at least one for each thread that allocates, and a \
         block above 16 MiB gets one of its own",
    )
    .fix(Fix::new("MIMALLOC_RESET_DELAY=0", 0, 0).note(GIVES_BACK))
    .wont("MIMALLOC_ARENA_RESERVE, MIMALLOC_EAGER_COMMIT", "the segments of this version keep their size")
}

/// Neither arenas of 1 GiB nor a version that is known.
fn other() -> Advice {
    Advice::why(
        "what mimalloc has from the kernel beside or instead of arenas of 1 GiB: its page map, blocks that do not \
         fit into an arena, smaller arenas; segments of 32 MiB before 2.1",
    )
    .fix(Fix::new("MIMALLOC_PURGE_DELAY=0 (MIMALLOC_RESET_DELAY=0 before 2.1)", 0, 0).note(GIVES_BACK))
}

fn part(subject: &Subject<'_>) -> &'static str {
    if subject.is_reserved() { "arena, not used yet" } else { "arena" }
}
