//! glibc's malloc (ptmalloc, malloc/malloc.c and malloc/arena.c of 2.36): the main arena in
//! brk, secondary arenas in 64 MiB heaps, blocks with a mapping of their own.
//!
//! Stripped, the internal functions have no names: the exported entry (`malloc`, `free` …)
//! further out in the stack and the call's shape decide.

mod advice;
mod arenas;
mod headers;
mod shape;

use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::call::{MAP_NORESERVE, MAP_STACK, MmapCall};
use crate::attribution::callpath::{CallPath, Line};
use crate::attribution::category::{Category, CategoryInfo, Evidence, Instance, Merge};
use crate::attribution::code::{Code, Role};
use crate::attribution::world::About;
use crate::ledger::{Origin, Region, RegionKind};
use crate::model::arenas::ReadArenas;
use crate::model::headers::Headers;
use crate::model::observation::{BlockKind, HeapInfo};
use crate::model::{Addr, FrameKind, Prot, Sign, VmOp};
use headers::plausible;
use shape::{MORECORE_BY_MMAP, heap_of, is_morecore, libc_is_loaded_twice};

pub const ARENA: Category = Category(&CategoryInfo {
    id: "glibc-arena",
    color: 0x2b6ba5,
    name: "glibc malloc arenas",
    one: "glibc malloc arena",
    many: "glibc malloc arenas",
});
pub const MAIN_HEAP: Category = Category(&CategoryInfo {
    id: "glibc-main-heap",
    color: 0x5a99d2,
    name: "glibc main heap",
    one: "glibc main heap",
    many: "glibc main heaps",
});
pub const MMAPPED: Category = Category(&CategoryInfo {
    id: "glibc-mmapped",
    color: 0x5551eb,
    name: "glibc large blocks (mmap)",
    one: "large malloc block",
    many: "large malloc blocks",
});

pub const USED: &str = "arena used part";
pub const RESERVED: &str = "arena reserved part";
pub const BRK: &str = "main heap (brk)";
pub const BRK_MMAP: &str = "main heap by mmap (brk refused)";
pub const BLOCK: &str = "block with a mapping of its own";
const OWN: &str = "the C library's own data";

/// HEAP_MAX_SIZE: 2 × DEFAULT_MMAP_THRESHOLD_MAX, 64 MiB on 64-bit systems.
pub const HEAP_MAX: u64 = 64 << 20;

pub const ENTRIES: &[&str] = &[
    "malloc",
    "__libc_malloc",
    "__malloc",
    "calloc",
    "__libc_calloc",
    "__calloc",
    "realloc",
    "__libc_realloc",
    "__realloc",
    "free",
    "__libc_free",
    "__free",
    "cfree",
    "memalign",
    "__libc_memalign",
    "aligned_alloc",
    "__aligned_alloc",
    "posix_memalign",
    "__posix_memalign",
    "valloc",
    "__libc_valloc",
    "pvalloc",
    "__libc_pvalloc",
    "malloc_trim",
    "reallocarray",
    "__libc_reallocarray",
];
/// Internal functions that no other allocator shares.
const INTERNAL: &[&str] = &[
    "alloc_new_heap",
    "new_heap",
    "_int_new_arena",
    "arena_get2",
    "arena_get_retry",
    "reused_arena",
    "grow_heap",
    "shrink_heap",
    "heap_trim",
    "sysmalloc",
    "sysmalloc_mmap",
    "sysmalloc_mmap_fallback",
    "_int_malloc",
    "_int_memalign",
    "_mid_memalign",
    "_int_realloc",
    "_int_free",
    "__glibc_morecore",
    "__default_morecore",
    "mremap_chunk",
    "munmap_chunk",
    "ptmalloc_init",
];
const HEAP_MAKERS: &[&str] = &["alloc_new_heap", "new_heap"];

/// libc.so.6, or its malloc linked statically.
pub const MARK: &str = "glibc";

/// Those of malloc/malloc.c (`do_set_mallopt_check`, `ptmalloc_init`), and the one for all since 2.26.
const VARIABLES: [&str; 7] = [
    "MALLOC_ARENA_MAX",
    "MALLOC_ARENA_TEST",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_MMAP_MAX_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
    "GLIBC_TUNABLES",
];

pub struct GlibcRule;

/// True for glibc's shared object: `libc.so.6`, and `libc-2.31.so` before 2.34.
pub fn is_libc(module: &str) -> bool {
    module == "libc.so.6" || (module.starts_with("libc-2.") && module.ends_with(".so"))
}

impl Rule for GlibcRule {
    fn id(&self) -> &'static str {
        "glibc"
    }

    fn categories(&self) -> &'static [Category] {
        &[ARENA, MAIN_HEAP, MMAPPED]
    }

    fn code(&self) -> Code {
        Code {
            role: Role::Libc,
            modules: &["libc.so.6", "libc-2.", "libpthread"],
            prefixes: &["__libc_", "__GI_"],
            ..Code::NONE
        }
    }

    fn signs(&self) -> &'static [Sign] {
        // malloc/malloc.c, malloc_printerr
        const {
            &[Sign {
                versioned: Some(("gnu_get_libc_version", "GLIBC_")),
                variables: &VARIABLES,
                ..Sign::new(MARK, &["malloc(): "])
            }]
        }
    }

    /// The variables, and what else malloc/arena.c and malloc/malloc.c decide by.
    fn surroundings(&self) -> &'static [(&'static str, &'static [&'static str])] {
        const ALL: &[&str] = &[ARENA.0.id, MAIN_HEAP.0.id, MMAPPED.0.id];
        const {
            &[
                ("MALLOC_ARENA_MAX", &[ARENA.0.id]),
                ("MALLOC_ARENA_TEST", &[ARENA.0.id]),
                ("MALLOC_MMAP_THRESHOLD_", ALL),
                ("MALLOC_MMAP_MAX_", ALL),
                ("MALLOC_TOP_PAD_", ALL),
                ("MALLOC_TRIM_THRESHOLD_", ALL),
                ("GLIBC_TUNABLES", &[ARENA.0.id, MAIN_HEAP.0.id, MMAPPED.0.id, "thread-stack"]),
                ("threads", &[ARENA.0.id]),
                ("processors", &[ARENA.0.id]),
            ]
        }
    }

    fn headers(&self) -> &'static [Headers] {
        &[Headers::Malloc(headers::MALLOC)]
    }

    fn arenas(&self) -> Option<ReadArenas> {
        Some(arenas::read)
    }

    fn heap_description(&self) -> Option<&'static str> {
        Some("libc")
    }

    fn option_lists(&self) -> &'static [(&'static str, char)] {
        &[("GLIBC_TUNABLES", ':')]
    }

    fn by_name(&self, subject: &Subject<'_>, _world: &World<'_>) -> Option<Claim> {
        // With glibc.mem.decorate_maps=1, as of 2.39 (sysdeps/unix/sysv/linux/setvmaname.c). Of an arena
        // only the first writable part has the name. Stacks are `pthread`'s, the loader's are its own.
        let name = subject.anon_name()?.trim_ascii_start().strip_prefix(b"glibc: ")?;
        match name {
            b"malloc arena" => Some(arena_claim(subject, Evidence::Name, 0)),
            b"malloc" => Some(Claim::new(MMAPPED, Evidence::Name, BLOCK)),
            name if name == b"loader malloc" || name.windows(5).any(|part| part == b"stack") => None,
            // "fatal", "assert", "getrandom states"
            _ => Some(Claim::new(MMAPPED, Evidence::Name, OWN).merge(Merge::ByCategory)),
        }
    }

    fn knows(&self, line: &Line) -> bool {
        line.is(INTERNAL) || line.is(ENTRIES) || (line.function.is_none() && is_libc(&line.module))
    }

    fn by_stack(&self, subject: &Subject<'_>, world: &World<'_>, at: usize) -> Option<Claim> {
        let path = subject.path?;
        let entry = entry(path, at, world)?;
        let record = subject.record?;
        let found = match (&record.op, subject.call) {
            (VmOp::Brk { .. }, _) => Some(brk_claim(Evidence::Stack)),
            (VmOp::Mremap { .. }, _) if subject.is_private_anonymous() => {
                Some(Claim::new(MMAPPED, Evidence::Stack, BLOCK).merge(Merge::ByCaller(entry)))
            }
            (_, Some(call)) if subject.is_private_anonymous() => {
                by_call(subject, world, call, Entry { at, line: entry })
            }
            _ => None,
        }?;
        // what realloc added by mremap is part of the same block
        let block = world.block_at(subject.range.start, BlockKind::Large).filter(|_| found.part == BLOCK);
        Some(match block {
            Some(block) => found.instance(Instance::At(block.start)),
            None => found,
        })
    }

    fn by_header(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        if !subject.is_private_anonymous() {
            return None;
        }
        if let Some(block) = world.block_at(subject.range.start, BlockKind::Large) {
            let claim = Claim::new(MMAPPED, Evidence::Header, BLOCK).instance(Instance::At(block.start));
            return Some(claim);
        }
        let heap = heap_holding(world, subject.range.start)?;
        Some(arena_claim(subject, Evidence::Header, 0).instance(Instance::At(heap.at)))
    }

    fn by_shape(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        if subject.path.is_some_and(called_from_elsewhere) {
            return None;
        }
        if subject.region.kind == RegionKind::Brk || subject.name() == b"[heap]" {
            // a program that calls sbrk itself is named in the stack
            if !subject.shape_may_decide() || world.lacks_mark(MARK) {
                return None;
            }
            return Some(brk_claim(Evidence::Shape));
        }
        if !subject.is_private_anonymous() || !subject.shape_may_decide() {
            return None;
        }
        if let Some(call) = subject.call {
            // JVM metaspace makes the same call, but is not aligned to 64 MiB
            let aligned = subject.span.start.is_aligned(HEAP_MAX) && subject.span.len() <= HEAP_MAX;
            let plain = call.has(MAP_NORESERVE) || shape::reserves_plainly(world);
            let heap = is_heap_sized(call) && plain && aligned;
            return heap.then(|| arena_claim(subject, Evidence::Shape, 0));
        }
        if let Some(heap) = heap_of(subject, world) {
            return Some(arena_claim(subject, Evidence::Shape, 0).instance(Instance::At(heap)));
        }
        is_morecore(subject, world)
            .then(|| Claim::new(MAIN_HEAP, Evidence::Shape, BRK_MMAP).merge(Merge::ByCategory))
    }

    fn cuts(&self, region: &Region, world: &World<'_>) -> Vec<Addr> {
        if matches!(region.origin, Origin::Event(_)) {
            return Vec::new();
        }
        let infos = world.heaps();
        let from = infos.partition_point(|h| h.at.saturating_add(HEAP_MAX) < region.range.start);
        let inside = infos.iter().skip(from).take_while(|h| h.at < region.range.end);
        let mut at: Vec<Addr> =
            inside.filter(|h| plausible(h)).flat_map(|h| [h.at, h.at.saturating_add(HEAP_MAX)]).collect();
        at.extend(shape::cuts(region, world));
        at.extend(world.blocks_in(region.range, BlockKind::Large).flat_map(|block| [block.start, block.end]));
        at
    }

    fn advise(&self, group: &Group<'_>, world: &World<'_>) -> Advice {
        advice::advise(group, world)
    }
}

struct Entry {
    at: usize,
    line: usize,
}

/// The line of the exported entry through which the program came in (malloc, free …), at or
/// outside of line `at`. None if these frames are not malloc's.
fn entry(path: &CallPath, at: usize, world: &World<'_>) -> Option<usize> {
    let line = path.lines.get(at)?;
    if line.is(ENTRIES) {
        // Another allocator's malloc under this name? Only if a libc exists that it is not.
        let foreign = !is_libc(&line.module) && world.fact("has glibc", || world.has_file(is_libc));
        return (!foreign).then_some(at);
    }
    let same_module = path.run(at, |l| l.module == line.module);
    let found = same_module.iter().position(|l| l.is(ENTRIES)).map(|i| at + i);
    if line.is(INTERNAL) {
        return found.or(Some(at));
    }
    // unnamed code of libc: malloc's only if malloc follows
    found
}

/// True where code outside of libc called its sbrk or mmap: that is not its malloc, whatever the shape, and with or
/// without a name.
fn called_from_elsewhere(path: &CallPath) -> bool {
    let caller = path.caller();
    let by_libc = caller.checked_sub(1).and_then(|at| path.lines.get(at)).is_some_and(|l| is_libc(&l.module));
    let proven = |line: &&Line| line.frame.kind != FrameKind::Guess;
    by_libc && path.lines.get(caller).filter(proven).is_some_and(|line| !is_libc(&line.module))
}

fn by_call(subject: &Subject<'_>, world: &World<'_>, call: MmapCall, entry: Entry) -> Option<Claim> {
    let path = subject.path?;
    if !call.is_anonymous() || call.has(MAP_STACK) {
        return None;
    }
    let made_heap = path.any(|l| l.is(HEAP_MAKERS));
    if made_heap || is_heap_sized(call) {
        return Some(arena_claim(subject, Evidence::Stack, entry.line));
    }
    if call.prot != Prot::RW || call.has(MAP_NORESERVE) {
        return None;
    }
    let caller = Merge::ByCaller(entry.line);
    if is_morecore_by_mmap(path, world, call, entry.at) {
        return Some(Claim::new(MAIN_HEAP, Evidence::Stack, BRK_MMAP).merge(Merge::ByCategory));
    }
    Some(Claim::new(MMAPPED, Evidence::Stack, BLOCK).merge(caller))
}

/// `alloc_new_heap`'s calls: 128 MiB to trim, or 64 MiB where the last one ended; with MAP_NORESERVE before 2.41.
fn is_heap_sized(call: MmapCall) -> bool {
    call.is_anonymous()
        && call.prot.is_none()
        && !call.has(MAP_STACK)
        && (call.len == 2 * HEAP_MAX || call.len == HEAP_MAX)
}

/// `sysmalloc_mmap_fallback` by name; stripped, by always requesting just 1 MiB at the same call site, which
/// blocks of chance sizes do not.
fn is_morecore_by_mmap(path: &CallPath, world: &World<'_>, call: MmapCall, at: usize) -> bool {
    if path.any(|l| l.is(&["sysmalloc_mmap_fallback"])) {
        return true;
    }
    if path.any(|l| l.is(&["sysmalloc_mmap"])) || call.len != MORECORE_BY_MMAP {
        return false;
    }
    let Some(site) = path.lines.get(at).filter(|l| l.function.is_none()).map(|l| l.frame) else {
        return false;
    };
    let brk_works = || world.mappings().iter().any(|m| m.is_special("[heap]"));
    world.fact_about("requests 1 MiB only", About::Line(site, at), || {
        let same_site = world.origins().iter().filter(|r| {
            let lines = r.stack.ok().and_then(|id| world.path(id)).map(|p| &p.lines);
            lines.and_then(|l| l.get(at)).is_some_and(|l| l.frame == site)
        });
        let lens: Vec<Option<MmapCall>> = same_site.map(|r| MmapCall::of(&r.op)).collect();
        let only_this_size = lens.iter().all(|c| c.is_some_and(|c| c.len == MORECORE_BY_MMAP));
        only_this_size && (lens.len() >= 2 || !brk_works() || libc_is_loaded_twice(world))
    })
}

/// All of brk is one heap, however many steps it grew by.
fn brk_claim(evidence: Evidence) -> Claim {
    Claim::new(MAIN_HEAP, evidence, BRK).instance(Instance::Named(b"[heap]".into())).merge(Merge::ByCategory)
}

fn arena_claim(subject: &Subject<'_>, evidence: Evidence, entry: usize) -> Claim {
    let part = if subject.is_reserved() { RESERVED } else { USED };
    Claim::new(ARENA, evidence, part).merge(Merge::ByCaller(entry))
}

fn heap_holding<'w>(world: &'w World<'_>, addr: Addr) -> Option<&'w HeapInfo> {
    let at = world.heaps().binary_search_by_key(&addr.align_down(HEAP_MAX), |h| h.at).ok()?;
    world.heaps().get(at).filter(|h| plausible(h))
}
