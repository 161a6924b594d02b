//! tcmalloc: gperftools' (everything in brk) and Google's (regions of 1 GiB).

use super::{Advice, Claim, Group, Rule, Subject, Surveyed, World};
use crate::attribution::callpath::Line;
use crate::attribution::category::{Category, CategoryInfo, Evidence, Instance, Merge};
use crate::attribution::code::{Code, Role};
use crate::attribution::findings::Fix;
use crate::ledger::RegionKind;
use crate::model::arenas::{ArenasRead, ReadArenas};
use crate::model::{Addr, AddrRange, Mapping, Prot, Sharing, Sign};

pub const TCMALLOC: Category = Category(&CategoryInfo {
    id: "tcmalloc",
    color: 0xc85f1a,
    name: "tcmalloc",
    one: "tcmalloc memory",
    many: "tcmalloc mappings",
});

const BRK: &str = "page heap (brk)";
const BY_MMAP: &str = "page heap (mmap)";
const REGION: &str = "region";
const RESERVED: &str = "region, not used yet";
const SAMPLED: &str = "guarded samples";

/// google/tcmalloc reserves regions of this size and alignment (kMinMmapAlloc) and opens them from
/// their end downwards.
const REGION_SIZE: u64 = 1 << 30;
/// Pages that are not used are no part of the pair's writable end for long: it starts with 2 MiB.
const HUGE_PAGE: u64 = 2 << 20;
/// Pages between guards, for some allocations picked at random (guarded_page_allocator.cc).
const GUARDED: u64 = 2056 << 10;
/// gperftools' step.
const STEP: u64 = 1 << 20;

const GPERFTOOLS: &str = "gperftools";
const GOOGLE: &str = "tcmalloc";

const ID: &str = "tcmalloc";

/// Spans and free lists of the library's own, in variables that distributions strip.
const UNREAD: &str = "its spans are not read: which layout they have cannot be proven from outside. With MALLOCSTATS=1 in \
                      its environment the program prints gperftools' own figures when it ends";

pub struct TcmallocRule;

fn is_tcmalloc(line: &Line) -> bool {
    line.module.starts_with("libtcmalloc")
        || ["tcmalloc::", "TCMalloc_", "SbrkSysAllocator", "MmapSysAllocator", "DefaultSysAllocator"]
            .iter()
            .any(|word| line.mentions(word))
}

/// gperftools is loaded, and what calls malloc gets its function.
fn is_gperftools(world: &World<'_>) -> bool {
    let loaded = || world.has_file(|f| f.starts_with("libtcmalloc")) || world.has_mark(GPERFTOOLS);
    let glibc_uses_its_own = || {
        let called = world.libc_malloc_in();
        called.is_some() && world.marked(super::glibc::MARK).any(|found| Some(found.file) == called)
    };
    world.fact("has gperftools", || loaded() && !glibc_uses_its_own())
}

impl Rule for TcmallocRule {
    fn id(&self) -> &'static str {
        ID
    }

    fn categories(&self) -> &'static [Category] {
        &[TCMALLOC]
    }

    fn arenas(&self) -> Option<ReadArenas> {
        Some(|process, _| ArenasRead::unread(process, "libtcmalloc", "tcmalloc", UNREAD))
    }

    fn code(&self) -> Code {
        Code { role: Role::Allocator, modules: &["libtcmalloc"], prefixes: &["tc_"], ..Code::NONE }
    }

    fn signs(&self) -> &'static [Sign] {
        const SIGNS: [Sign; 2] = [
            // src/system-alloc.cc, page_heap.cc
            Sign::new(GPERFTOOLS, &["TCMALLOC_SKIP_SBRK", "TCMALLOC_RELEASE_RATE"]),
            // tcmalloc/system-alloc.cc: its names for PR_SET_VMA
            Sign::new(GOOGLE, &["tcmalloc_region_"]),
        ];
        &SIGNS
    }

    fn heap_description(&self) -> Option<&'static str> {
        Some("tcmalloc")
    }

    fn survey(&self, world: &World<'_>) -> Vec<Surveyed> {
        regions_of(world)
    }

    /// Abseil's own small allocator names its memory in any program that has it (absl/base/internal/low_level_alloc.cc);
    /// only where tcmalloc is, it is what that keeps of itself.
    fn by_name(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        let name = subject.anon_name()?;
        (name.starts_with(b"tcmalloc_region") || (name == b"absl" && world.has_mark(GOOGLE)))
            .then(|| Claim::new(TCMALLOC, Evidence::Name, part(subject)))
    }

    fn knows(&self, line: &Line) -> bool {
        is_tcmalloc(line)
    }

    // gperftools exports mmap and sbrk, too, to call its hooks: whoever calls them gets memory from the kernel
    fn by_stack(&self, subject: &Subject<'_>, _world: &World<'_>, at: usize) -> Option<Claim> {
        let path = subject.path?;
        if path.lines.get(at)?.is_wrapper() || !path.is_direct(at, is_tcmalloc) {
            return None;
        }
        let brk = subject.region.kind == RegionKind::Brk;
        let merge = if brk { Merge::ByCategory } else { Merge::ByCaller(at) };
        let claim = Claim::new(TCMALLOC, Evidence::Stack, part(subject)).merge(merge);
        if brk {
            return Some(claim.instance(Instance::Named(b"[heap]".into())));
        }
        subject.is_private_anonymous().then_some(claim)
    }

    fn by_shape(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        if subject.path.is_some() {
            return None;
        }
        if subject.region.kind == RegionKind::Brk || subject.name() == b"[heap]" {
            return is_gperftools(world)
                .then(|| Claim::new(TCMALLOC, Evidence::Shape, BRK).merge(Merge::ByCategory));
        }
        if !subject.is_private_anonymous() {
            return None;
        }
        if let Some(region) = world.surveyed(ID, subject.range.start) {
            let claim = Claim::new(TCMALLOC, Evidence::Shape, part(subject)).merge(Merge::ByCategory);
            return Some(claim.instance(Instance::At(region.range.start)));
        }
        let sampled = subject.is_reserved() && subject.range.len() == GUARDED && world.has_mark(GOOGLE);
        if sampled {
            return Some(Claim::new(TCMALLOC, Evidence::Shape, SAMPLED).merge(Merge::ByCategory));
        }
        // TCMALLOC_SKIP_SBRK: steps of 1 MiB by mmap, which the kernel merges. It takes them where it gets nothing by
        // brk, and what a program maps itself may be as long.
        let no_brk = || world.fact("has no brk", || !world.mappings().iter().any(|m| m.is_special("[heap]")));
        let steps = subject.region.prot == Prot::RW
            && subject.range.len() >= STEP
            && subject.range.len().is_multiple_of(STEP);
        (steps && is_gperftools(world) && no_brk())
            .then(|| Claim::new(TCMALLOC, Evidence::Shape, BY_MMAP).merge(Merge::ByCategory))
    }

    fn allocator_in(&self, world: &World<'_>) -> Option<&'static str> {
        let marked = || world.has_mark(GPERFTOOLS) || world.has_mark(GOOGLE);
        let loaded = || world.has_file(|f| f.starts_with("libtcmalloc"));
        (loaded() || marked() || world.paths().any(|p| p.any(is_tcmalloc))).then_some("tcmalloc")
    }

    fn advise(&self, group: &Group<'_>, world: &World<'_>) -> Advice {
        let of_regions = group.part(REGION).virt + group.part(RESERVED).virt;
        let advice = match group.pieces.iter().map(|p| p.footprint.virt).max() {
            Some(largest) if of_regions > 0 && largest >= REGION_SIZE / 2 => regions(),
            _ if world.has_mark(GOOGLE) && !is_gperftools(world) => own(),
            _ => page_heap(),
        };
        advice.wont("MALLOC_ARENA_MAX, malloc_trim", "they are glibc's, and this memory is tcmalloc's")
    }
}

fn regions() -> Advice {
    of_google(Advice::why(
        "google/tcmalloc reserves regions of 1 GiB, one for each kind of memory, and hands out pieces from \
         their ends; the rest of a region is address space and nothing else",
    ))
}

fn own() -> Advice {
    of_google(Advice::why(
        "what google/tcmalloc maps beside its regions is its own: its tables, and pages between guards for some \
         allocations picked at random",
    ))
}

fn of_google(advice: Advice) -> Advice {
    advice.wont(
        "TCMALLOC_AGGRESSIVE_DECOMMIT, TCMALLOC_RELEASE_RATE",
        "they are gperftools' settings; none is known that makes the memory of google/tcmalloc smaller",
    )
}

fn page_heap() -> Advice {
    Advice::why("tcmalloc keeps what was freed for later and never lowers its address space")
        .fix(Fix::new("TCMALLOC_AGGRESSIVE_DECOMMIT=1", 0, 0).note(
            "lowers RSS by what was freed and not reused, which only a run with it can tell (vmaudit \
                 compare); VIRT stays as it is",
        ))
        .wont(
            "TCMALLOC_RELEASE_RATE, TCMALLOC_SKIP_SBRK, TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES",
            "VIRT stayed the same with each of them (gperftools 2.10)",
        )
}

/// Regions of google/tcmalloc: 1 GiB at a multiple of that, reserved from its start on, and used
/// from its end.
fn regions_of(world: &World<'_>) -> Vec<Surveyed> {
    let mappings = world.mappings();
    let begins = |m: &Mapping| m.range.start.is_aligned(REGION_SIZE) && m.prot.is_none() && is_plain(m);
    let starts = mappings.iter().enumerate().filter(|(_, m)| begins(m));
    let regions = starts.filter_map(|(at, _)| region_at(&mappings[at..]));
    let claim = |range| Surveyed { range, claim: Claim::new(TCMALLOC, Evidence::Shape, REGION) };
    regions.map(claim).collect()
}

fn is_plain(m: &Mapping) -> bool {
    m.file.is_none() && m.name.is_empty() && m.sharing == Sharing::Private
}

/// The region that begins with the first of these mappings.
fn region_at(mappings: &[Mapping]) -> Option<AddrRange> {
    let (reserved, rest) = mappings.split_first()?;
    let start = reserved.range.start;
    let whole = AddrRange { start, end: Addr(start.0.checked_add(REGION_SIZE)?) };
    // what follows is writable without a gap, in one VMA or in several
    let mut end = reserved.range.end;
    let mut rest = rest.iter();
    while end < whole.end {
        let opened = rest.next()?;
        let fits = opened.range.start == end && opened.prot == Prot::RW && is_plain(opened);
        if !fits {
            return None;
        }
        end = opened.range.end;
    }
    let opened = end.0.saturating_sub(reserved.range.end.0);
    (end == whole.end && opened > 0 && opened.is_multiple_of(HUGE_PAGE)).then_some(whole)
}

fn part(subject: &Subject<'_>) -> &'static str {
    match subject.region.kind {
        RegionKind::Brk => BRK,
        _ if subject.is_reserved() => RESERVED,
        _ => REGION,
    }
}
