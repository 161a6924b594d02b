//! musl's mallocng: metadata in brk behind a guard page, slot groups by mmap. Its stacks are
//! guesses at best: Debian's musl has no unwind tables.

use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::call::{MAP_NORESERVE, MAP_STACK, MmapCall};
use crate::attribution::callpath::Line;
use crate::attribution::category::{Category, CategoryInfo, Evidence, Instance, Merge};
use crate::attribution::code::{Code, Role};
use crate::ledger::{Origin, Region, RegionKind};
use crate::model::headers::{GroupHeaders, GroupTable, Headers};
use crate::model::observation::BlockKind;
use crate::model::{Addr, AddrRange, Mapping, PAGE, Prot, Sign};

pub const MUSL: Category = Category(&CategoryInfo {
    id: "musl-malloc",
    color: 0xa8742c,
    name: "musl malloc",
    one: "musl malloc memory",
    many: "musl malloc mappings",
});

const META: &str = "metadata (brk)";
const LITE: &str = "blocks (brk)";
const SLOTS: &str = "slots and large blocks";

const FUNCTIONS: &[&str] =
    &["alloc_slot", "alloc_group", "alloc_meta", "__libc_malloc_impl", "get_meta", "__simple_malloc"];

/// The shared object. A static program has nothing that shows it.
const MARK: &str = "musl";

pub struct MuslRule;

pub fn is_musl(module: &str) -> bool {
    module.starts_with("ld-musl") || module.starts_with("libc.musl") || module == "libc.so"
}

/// The loader's stages before the program (ldso/dynlink.c).
fn is_start_up(line: &Line) -> bool {
    line.function.as_deref().is_some_and(|name| name.starts_with("__dls"))
}

impl Rule for MuslRule {
    fn id(&self) -> &'static str {
        "musl"
    }

    fn categories(&self) -> &'static [Category] {
        &[MUSL]
    }

    fn code(&self) -> Code {
        Code { role: Role::Libc, modules: &["ld-musl", "libc.musl", "libc.so"], ..Code::NONE }
    }

    fn signs(&self) -> &'static [Sign] {
        // ldso/dynlink.c, for `ldd`
        const { &[Sign { is_libc: true, ..Sign::new(MARK, &["musl libc ("]) }] }
    }

    fn headers(&self) -> &'static [Headers] {
        &[Headers::Groups(GroupHeaders { tables: meta_pages, decode: meta_area })]
    }

    fn heap_description(&self) -> Option<&'static str> {
        Some("musl")
    }

    fn knows(&self, line: &Line) -> bool {
        line.is(FUNCTIONS) || is_musl(&line.module)
    }

    fn by_stack(&self, subject: &Subject<'_>, world: &World<'_>, at: usize) -> Option<Claim> {
        let path = subject.path?;
        let named = path.lines.get(at)?.is(FUNCTIONS);
        // its mmap is everybody's; and where it is the loader, that calls malloc, too
        let by_malloc = path.caller_line().is_some_and(|line| is_musl(&line.module) || line.is(FUNCTIONS));
        if !by_malloc || path.any(is_start_up) {
            return None;
        }
        if subject.region.kind == RegionKind::Brk {
            return Some(
                Claim::new(MUSL, Evidence::Stack, META)
                    .instance(Instance::Named(b"[heap]".into()))
                    .merge(Merge::ByCategory),
            );
        }
        let call = subject.call?;
        // one frame is all there is: a stack is known by its thread, and starts as PROT_NONE
        let started = world.threads.started_since(subject.span, subject.record);
        let stack = started.is_some() || world.threads.live_in(subject.span).is_some();
        (subject.is_private_anonymous() && (named || (call.prot == Prot::RW && !stack)))
            .then(|| Claim::new(MUSL, Evidence::Stack, SLOTS).merge(Merge::ByCaller(at)))
    }

    fn by_header(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        let heap = || subject.region.kind == RegionKind::Brk || subject.name() == b"[heap]";
        let guarded = || world.below(subject.region.vma).is_some_and(|m| m.prot.is_none() && is_page(m));
        let guard = || {
            let above = world.above(subject.region.vma);
            subject.mapping.is_some_and(is_guard) && above.is_some_and(|m| m.is_special("[heap]"))
        };
        let group = || world.block_at(subject.range.start, BlockKind::Group);
        if subject.record.is_none() && group().is_some_and(|group| group.contains_range(subject.range)) {
            return Some(Claim::new(MUSL, Evidence::Header, SLOTS).merge(Merge::ByCategory));
        }
        (heap() && guarded() || guard()).then(|| {
            Claim::new(MUSL, Evidence::Header, META)
                .instance(Instance::Named(b"[heap]".into()))
                .merge(Merge::ByCategory)
        })
    }

    fn by_shape(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        if subject.region.kind == RegionKind::Brk || subject.name() == b"[heap]" {
            // A static program that never frees gets another malloc (src/malloc/lite_malloc.c), all in brk.
            let lite =
                subject.shape_may_decide() && world.lacks_mark(super::glibc::MARK) && has_stacks(world);
            return lite.then(|| {
                Claim::new(MUSL, Evidence::Shape, LITE)
                    .instance(Instance::Named(b"[heap]".into()))
                    .merge(Merge::ByCategory)
            });
        }
        let writable = subject.is_private_anonymous() && subject.region.prot == Prot::RW;
        if !writable || subject.region.origin == Origin::Kernel || !uses_musl(world) {
            return None;
        }
        // Where its own descriptions were read, what they do not describe is not its own.
        if subject.record.is_none() && world.fact("groups of musl's are known", || has_tables(world)) {
            return None;
        }
        // Only its own names for calls prove that it was the program (`shape_may_decide`); stacks and data of
        // files are checked before and excluded here.
        let vma = subject.region.vma;
        let data = world.below(vma).is_some_and(|m| world.is_image(m) && m.prot == Prot::RW);
        let lowest = subject.mapping.is_some_and(|m| m.range.start == subject.range.start);
        let stack = lowest && world.below(vma).is_some_and(is_stack_guard);
        let foreign = subject.call.is_some_and(|call| !is_block_call(call));
        (subject.shape_may_decide() && !data && !stack && !foreign)
            .then(|| Claim::new(MUSL, Evidence::Shape, SLOTS).merge(Merge::ByCategory))
    }

    fn cuts(&self, region: &Region, world: &World<'_>) -> Vec<Addr> {
        // a stack and the blocks right above it are one VMA: both are plain writable memory
        let above_guard = matches!(region.origin, Origin::Preexisting | Origin::Unknown)
            && region.prot == Prot::RW
            && world.below(region.vma).is_some_and(is_stack_guard);
        let groups =
            world.blocks_in(region.range, BlockKind::Group).flat_map(|group| [group.start, group.end]);
        let groups: Vec<Addr> = groups.collect();
        if world.record(region).is_none() && !groups.is_empty() {
            return groups;
        }
        let cut = above_guard && region.range.len() > DEFAULT_STACK && uses_musl(world);
        if cut { vec![region.range.start.saturating_add(DEFAULT_STACK)] } else { Vec::new() }
    }

    fn advise(&self, _group: &Group<'_>, _world: &World<'_>) -> Advice {
        Advice::why(
            "musl's malloc keeps nearly nothing in reserve: what is mapped is in use, or was until just now",
        )
        .wont("MALLOC_ARENA_MAX, malloc_trim", "they are glibc's; musl's malloc has no settings")
    }
}

/// `mmap(0, n, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS)`, and nothing else, for groups and large blocks
/// (src/malloc/mallocng/malloc.c); it never takes a part of what was reserved.
fn is_block_call(call: MmapCall) -> bool {
    call.addr == Addr(0) && call.prot == Prot::RW && !call.has(MAP_NORESERVE) && !call.has(MAP_STACK)
}

/// `[heap]` begins with a PROT_NONE page: mallocng (src/malloc/mallocng/malloc.c, `alloc_meta`) maps it over
/// what it got by brk. No other allocator was seen to.
fn is_guard(mapping: &Mapping) -> bool {
    mapping.is_special("[heap]") && mapping.prot.is_none() && is_page(mapping)
}

fn is_page(mapping: &Mapping) -> bool {
    mapping.file.is_none() && mapping.range.len() == PAGE
}

/// Two pages below a thread's stack (src/thread/pthread_create.c).
pub fn is_stack_guard(mapping: &Mapping) -> bool {
    mapping.prot.is_none() && mapping.file.is_none() && mapping.range.len() == 2 * PAGE
}

/// DEFAULT_STACK_SIZE and what musl adds for thread-local data, opened above the guard.
pub const DEFAULT_STACK: u64 = 132 << 10;

fn has_tables(world: &World<'_>) -> bool {
    world.input.observations.blocks.iter().any(|block| block.kind == BlockKind::GroupTable)
}

/// What lies above the guard page of brk: descriptions of groups, and nothing else.
fn meta_pages(mappings: &[Mapping]) -> Option<AddrRange> {
    let pairs = mappings.windows(2);
    let above = pairs.filter_map(|pair| match pair {
        [guard, heap] if is_guard(guard) && guard.range.end == heap.range.start => Some(heap),
        _ => None,
    });
    above.filter(|heap| heap.is_special("[heap]") && heap.prot == Prot::RW).map(|heap| heap.range).next()
}

/// `struct meta_area` and its `struct meta` (src/malloc/mallocng/meta.h): a page begins with a secret of the process;
/// each description says where its group is, and how many pages the group's own mapping has. A group begins with the
/// address of its description.
fn meta_area(at: Addr, page: &[u8; PAGE as usize]) -> Option<GroupTable> {
    const SLOT: usize = 40;
    const FIRST: usize = 24;
    let word = |at: usize| Some(u64::from_le_bytes(*page.get(at..)?.first_chunk()?));
    let slots = word(16)? & u64::from(u32::MAX);
    let check = word(0).filter(|check| *check != 0 && slots as usize == (page.len() - FIRST) / SLOT)?;
    let group = |slot: usize| {
        let (start, flags) = (word(slot + 16)?, word(slot + 32)?);
        // last_idx:5, freeable:1, sizeclass:6, maplen
        let len = (flags >> 12).checked_mul(PAGE).filter(|len| *len > 0)?;
        let end = start.checked_add(len).filter(|_| Addr(start).is_aligned(PAGE))?;
        Some((at.saturating_add(slot as u64), AddrRange::new(start, end)))
    };
    let groups = (0..slots as usize).filter_map(|number| group(FIRST + number * SLOT)).collect();
    Some(GroupTable { check, next: Addr(word(8)?), groups })
}

/// The process runs on musl: its shared object is there, or the metadata of its malloc.
pub fn uses_musl(world: &World<'_>) -> bool {
    world.fact("uses musl", || {
        let shared = || world.has_file(is_musl) && !world.has_file(super::glibc::is_libc);
        world.has_mark(MARK) || shared() || has_guarded_heap(world)
    })
}

/// Some thread has a stack as only musl makes them.
fn has_stacks(world: &World<'_>) -> bool {
    let pairs = world.mappings().windows(2);
    let stack = |pair: &[Mapping]| {
        let [guard, stack] = pair else { return false };
        is_stack_guard(guard) && guard.range.end == stack.range.start && stack.range.len() >= DEFAULT_STACK
    };
    world.fact("stacks of musl's", || pairs.into_iter().any(stack))
}

fn has_guarded_heap(world: &World<'_>) -> bool {
    // A process that ended unseen is known by its calls only: nothing is called [heap] then.
    let regions = world.input.reconciled.regions.windows(2);
    let guarded = |pair: &[Region]| {
        let [guard, heap] = pair else { return false };
        let page = guard.prot.is_none() && guard.range.len() == PAGE && guard.file.is_none();
        page && guard.range.end == heap.range.start && heap.kind == RegionKind::Brk
    };
    world.mappings().iter().any(is_guard) || regions.into_iter().any(guarded)
}
