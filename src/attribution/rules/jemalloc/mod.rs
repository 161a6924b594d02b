//! jemalloc 5: base blocks (its metadata) and extents, both plain RW|NORESERVE mappings that
//! the kernel merges; purged extents stay mapped ("retained", opt.retain).
//!
//! Symbol prefixes seen: none, `je_` (static functions keep plain names), `_rjem_je_` (Rust's
//! tikv-jemallocator).

mod advice;
mod base;
mod extents;

use super::mimalloc::{is_hinted, may_be_arena};
use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::call::{MAP_NORESERVE, MmapCall};
use crate::attribution::callpath::Line;
use crate::attribution::category::{Category, CategoryInfo, Evidence, Instance, Merge};
use crate::attribution::code::{Code, Role};
use crate::attribution::world::About;
use crate::ledger::Region;
use crate::model::arenas::ReadArenas;
use crate::model::headers::Headers;
use crate::model::observation::BlockKind;
use crate::model::{Addr, Mapping, Prot, Sign};
use regex::Regex;
use std::sync::LazyLock;

pub const JEMALLOC: Category = Category(&CategoryInfo {
    id: "jemalloc",
    color: 0xdb7b11,
    name: "jemalloc",
    one: "jemalloc extent",
    many: "jemalloc extents",
});

pub const BASE: &str = "jemalloc base (metadata)";
const EXTENT: &str = "jemalloc extent";
const LEFT: &str = "jemalloc extent, by elimination";
pub const RETAINED: &str = "retained";

/// Functions of jemalloc without a prefix in static builds, that no other library has.
const PLAIN: &[&str] = &[
    "base_block_alloc",
    "base_alloc_impl",
    "base_alloc",
    "base_new",
    "base_boot",
    "base_map",
    "os_pages_map",
    "pages_map",
    "pages_boot",
    "extent_alloc_mmap",
    "extent_grow_retained",
    "ehooks_default_alloc_impl",
    "ecache_alloc_grow",
    "pac_alloc_real",
    "pac_alloc_impl",
    "pac_alloc_new_guarded",
    "pa_alloc",
    "arena_slab_alloc",
    "arena_extent_alloc_large",
    "arena_new",
    "large_palloc",
    "large_malloc",
    "extent_alloc_wrapper",
    "extent_recycle",
    "malloc_init_hard",
    "malloc_init_hard_a0_locked",
    "chunk_alloc_mmap",
    "chunk_alloc_wrapper",
    "chunk_alloc_base",
    "arena_chunk_alloc",
];
const BASE_MAKERS: &[&str] =
    &["base_block_alloc", "base_new", "base_boot", "base_alloc_impl", "base_map", "chunk_alloc_base"];

/// Every extent is a multiple of this (2 MiB huge pages, grown in size classes of a quarter).
const STEP: u64 = 512 << 10;
/// A larger PROT_NONE range is no guard of a stack.
const MAX_GUARD: u64 = 64 << 10;
/// The first base block and the first extent.
const FIRST: u64 = 2 << 20;

const MARK: &str = "jemalloc";

pub struct JemallocRule;

/// jemalloc's own functions under whatever namespace it was configured with (`--with-private-namespace`,
/// `--with-jemalloc-prefix`): names that no other library has.
static NAMESPACED: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(
        "^[A-Za-z0-9_]+_(base_block_alloc|extent_alloc_mmap|ecache_alloc_grow|pac_alloc_real|os_pages_map\
         |arena_slab_alloc|arena_extent_alloc_large|ehooks_default_alloc_impl|extent_grow_retained)$",
    )
    .ok()
});

fn namespaced(name: &str) -> Option<&str> {
    let found = NAMESPACED.as_ref()?.captures(name)?;
    found.get(1).map(|plain| plain.as_str())
}

pub fn plain_name(line: &Line) -> Option<&str> {
    let name = line.function.as_deref()?;
    if let Some(plain) = namespaced(name) {
        return Some(plain);
    }
    let name = name.strip_prefix("_rjem_").unwrap_or(name);
    Some(name.strip_prefix("je_").unwrap_or(name))
}

fn is_jemalloc(line: &Line) -> bool {
    let prefixed = |f: &str| f.starts_with("_rjem_") || f.starts_with("je_") || namespaced(f).is_some();
    line.module.starts_with("libjemalloc") || line.function.as_deref().is_some_and(prefixed) || line.is(PLAIN)
}

/// As a library of its own, in the program or another library, or by its background thread.
pub fn loaded(world: &World<'_>) -> bool {
    world.fact("has jemalloc", || {
        world.has_file(|f| f.starts_with("libjemalloc"))
            || world.has_mark(MARK)
            || world.input.observations.threads.iter().any(|t| t.comm == b"jemalloc_bg_thd")
    })
}

/// The C library's own calls of malloc go to jemalloc, so everybody else's do.
fn is_all_of_malloc(world: &World<'_>) -> bool {
    world.fact("all of malloc is jemalloc's", || {
        let called = world.libc_malloc_in();
        called.is_some() && world.marked(MARK).any(|found| Some(found.file) == called)
    })
}

fn has_runtime(world: &World<'_>) -> bool {
    let runtimes = ["libjvm", "libpython", "python", "node", "libnode", "libv8", "libmono", "libcoreclr"];
    let of_runtime = |f: &str| runtimes.iter().any(|name| f.starts_with(name));
    world.fact("has a runtime", || world.has_mark(super::go::MARK) || world.has_file(of_runtime))
}

impl Rule for JemallocRule {
    fn id(&self) -> &'static str {
        "jemalloc"
    }

    fn headers(&self) -> &'static [Headers] {
        &[Headers::Bookkeeping(base::HEADERS)]
    }

    fn arenas(&self) -> Option<ReadArenas> {
        Some(extents::read)
    }

    fn categories(&self) -> &'static [Category] {
        &[JEMALLOC]
    }

    fn code(&self) -> Code {
        Code { role: Role::Allocator, modules: &["libjemalloc"], prefixes: &["_rjem_", "je_"], ..Code::NONE }
    }

    fn signs(&self) -> &'static [Sign] {
        // the end of the variable's name: `--with-jemalloc-prefix` puts something before it
        const {
            &[Sign {
                setting: Some("MALLOC_CONF"),
                variables: &["MALLOC_CONF"],
                ..Sign::new(MARK, &["<jemalloc>"])
            }]
        }
    }

    fn surroundings(&self) -> &'static [(&'static str, &'static [&'static str])] {
        const { &[("MALLOC_CONF", &[JEMALLOC.0.id]), ("processors", &[JEMALLOC.0.id])] }
    }

    fn heap_description(&self) -> Option<&'static str> {
        Some("jemalloc")
    }

    fn option_lists(&self) -> &'static [(&'static str, char)] {
        // also under other prefixes: _RJEM_MALLOC_CONF, JE_MALLOC_CONF
        &[("MALLOC_CONF", ',')]
    }

    fn by_name(&self, subject: &Subject<'_>, _world: &World<'_>) -> Option<Claim> {
        // src/pages.c, configured with --enable-pageid
        let named = matches!(subject.anon_name()?, b"jemalloc_pg" | b"jemalloc_pg_overcommit");
        named.then(|| claim(Evidence::Name, EXTENT, 0))
    }

    fn knows(&self, line: &Line) -> bool {
        is_jemalloc(line)
    }

    fn by_stack(&self, subject: &Subject<'_>, world: &World<'_>, at: usize) -> Option<Claim> {
        let path = subject.path?;
        let own = path.run(at, is_jemalloc);
        let entry = (at + own.len()).saturating_sub(1);
        if !subject.is_private_anonymous() {
            let dss = subject.region.kind == crate::ledger::RegionKind::Brk;
            return dss.then(|| Claim::new(JEMALLOC, Evidence::Stack, "dss (brk)"));
        }
        let base = own.iter().any(|l| plain_name(l).is_some_and(|n| BASE_MAKERS.contains(&n)));
        // of a stripped library only its name is known
        if let Some(by_header) = self.by_header(subject, world).filter(|_| !base) {
            return Some(by_header);
        }
        Some(claim(Evidence::Stack, if base { BASE } else { EXTENT }, entry))
    }

    /// Where functions have no names, or no call was seen.
    fn by_header(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        let block = world.block_at(subject.range.start, BlockKind::Bookkeeping)?;
        let own = subject.is_private_anonymous() && block.contains_range(subject.range);
        let own = own && subject.region.prot == Prot::RW;
        let claim = Claim::new(JEMALLOC, Evidence::Header, BASE).merge(Merge::ByKind(BASE));
        own.then(|| claim.instance(Instance::At(block.start)))
    }

    fn cuts(&self, region: &Region, world: &World<'_>) -> Vec<Addr> {
        let blocks = world.blocks_in(region.range, BlockKind::Bookkeeping);
        blocks.flat_map(|block| [block.start, block.end]).collect()
    }

    fn by_shape(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        if !subject.is_private_anonymous() || !subject.shape_may_decide() {
            return None;
        }
        if let Some(call) = subject.call {
            let known = loaded(world) || stripped_process_uses_it(subject, world);
            return (is_extent_call(call) && known).then(|| claim(Evidence::Shape, EXTENT, 0));
        }
        let vma = subject.range;
        // it requests no addresses, and two that map alike cannot be distinguished
        if is_hinted(vma.start, world) || may_be_arena(vma, world) {
            return None;
        }
        // what lies above a guard is a thread's stack
        let guarded = |m: &Mapping| m.prot.is_none() && m.range.len() <= MAX_GUARD;
        let fits = subject.record.is_none()
            && world.may_be_noreserve(vma.start)
            && !world.below(subject.region.vma).is_some_and(guarded)
            && subject.region.prot == Prot::RW
            && vma.len() >= FIRST
            // Its start need not be: only lengths of whole huge pages are mapped at one
            // (mm/huge_memory.c, __thp_get_unmapped_area), and 2.5 MiB are not.
            && vma.len().is_multiple_of(STEP);
        (fits && loaded(world)).then(|| claim(Evidence::Shape, EXTENT, 0))
    }

    /// With retain:false it unmaps pieces, and no length or alignment shows what it keeps. Where every malloc
    /// of the process is jemalloc's and no runtime maps memory of its own, what is left is jemalloc's.
    fn as_last(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        let writable = subject.is_private_anonymous() && subject.region.prot == Prot::RW;
        let plain = writable && subject.record.is_none() && subject.name().is_empty();
        let plain = plain && world.may_be_noreserve(subject.range.start);
        let plain = plain && !super::mimalloc::loaded(world);
        (plain && is_all_of_malloc(world) && !has_runtime(world)).then(|| claim(Evidence::Shape, LEFT, 0))
    }

    fn allocator_in(&self, world: &World<'_>) -> Option<&'static str> {
        (loaded(world) || world.paths().any(|p| p.any(is_jemalloc))).then_some("jemalloc")
    }

    fn advise(&self, group: &Group<'_>, world: &World<'_>) -> Advice {
        advice::advise(group, world)
    }
}

fn claim(evidence: Evidence, part: &'static str, entry: usize) -> Claim {
    let claim = Claim::new(JEMALLOC, evidence, part).merge(Merge::ByCaller(entry));
    if part == EXTENT { claim.purged_part(RETAINED) } else { claim }
}

/// `os_pages_map`: mmap(NULL, n × 512 KiB, RW, NORESERVE).
fn is_extent_call(call: MmapCall) -> bool {
    call.is_anonymous()
        && call.addr.0 == 0
        && call.prot == Prot::RW
        && call.has(MAP_NORESERVE)
        && call.len >= FIRST
        && call.len.is_multiple_of(STEP)
}

/// Static and stripped, only the calls show: the same unnamed code made at least two, among
/// them one of the first size.
fn stripped_process_uses_it(subject: &Subject<'_>, world: &World<'_>) -> bool {
    let caller = subject.path.and_then(|p| p.caller_line());
    let about = caller.map_or(About::Unknown, |line| About::Module(line.frame.module));
    let module = caller.map(|line| line.module.as_str());
    world.fact_about("calls mmap as jemalloc does", about, || calls_like_jemalloc(module, world))
}

fn calls_like_jemalloc(module: Option<&str>, world: &World<'_>) -> bool {
    let mut count = 0;
    let mut first = false;
    for record in world.origins() {
        let Some(call) = MmapCall::of(&record.op).filter(|c| is_extent_call(*c)) else { continue };
        let maker = record.stack.ok().and_then(|id| world.path(id)).and_then(|p| p.caller_line());
        if maker.map(|l| l.module.as_str()) == module {
            count += 1;
            first |= call.len == FIRST;
        }
    }
    count >= 2 && first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_namespace_is_recognised() {
        assert_eq!(namespaced("_rjem_je_base_block_alloc"), Some("base_block_alloc"));
        assert_eq!(namespaced("mydb_os_pages_map"), Some("os_pages_map"));
        assert_eq!(namespaced("base_block_alloc"), None, "plain names have a list of their own");
        assert_eq!(namespaced("database_block_allocator"), None);
    }
}
