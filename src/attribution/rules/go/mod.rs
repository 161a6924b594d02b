//! The Go runtime: heap arenas, the page allocator's summaries, its other tables.
//!
//! Names come first: from 1.25 on it sets one for each mapping (runtime/set_vma_name_linux.go), which a
//! tracer gets even where the kernel refuses it. Without names and stacks, its reservations for the whole
//! address space are unique (`go_layout`).

mod goroutines;
mod layout;
mod profile;
pub mod wrappers;

use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::callpath::{CallPath, Line};
use crate::attribution::category::{Category, CategoryInfo, Evidence, Instance, Merge};
use crate::attribution::code::{Code, Role};
use crate::attribution::units::size;
use crate::attribution::world::Surveyed;
use crate::ledger::Region;
use crate::model::heap::runtime::ReadOwnHeap;
use crate::model::stack::FindLeftStacks;
use crate::model::{Addr, AddrRange, Sign};
use layout::{ARENA, ARENA_HINT};

pub const GO_HEAP: Category = Category(&CategoryInfo {
    id: "go-heap",
    color: 0x0f6f93,
    name: "Go runtime",
    one: "Go runtime memory",
    many: "mappings of the Go runtime",
});

pub(super) const ID: &str = "go";
pub(super) const HEAP: &str = "heap arena";
pub(super) const HEAP_RESERVED: &str = "heap arena, reserved";
pub(super) const SUMMARIES: &str = "page summaries and scavenger's index";
pub(super) const TABLES: &str = "runtime tables";
const STACKS: &str = "goroutine stacks (system)";

/// Made by the Go toolchain.
pub const MARK: &str = "go";

pub struct GoRule;

/// These change from a goroutine's stack to the thread's own.
const SWITCHES: &[&str] =
    &["runtime.systemstack", "runtime.mcall", "runtime.morestack", "runtime.asmcgocall"];

fn is_go(line: &Line) -> bool {
    line.function.as_deref().is_some_and(|f| f.starts_with("runtime."))
}

/// cgo's own function that calls the C library's mmap for the runtime.
fn calls_for_go(line: &Line) -> bool {
    line.function.as_deref().is_some_and(|f| f.starts_with("x_cgo_"))
}

/// The line of the function for which the runtime worked on the thread's own stack; None: for itself, or that is not
/// known.
fn caller(path: &CallPath) -> Option<usize> {
    let switches = |line: &Line| {
        line.function.as_deref().is_some_and(|f| SWITCHES.iter().any(|switch| f.starts_with(switch)))
    };
    let switched = path.lines.iter().position(switches)?;
    let own = |line: &Line| line.function.is_some() && !is_go(line);
    path.lines.iter().skip(switched).position(own).map(|beyond| switched + beyond)
}

impl Rule for GoRule {
    fn id(&self) -> &'static str {
        ID
    }

    fn categories(&self) -> &'static [Category] {
        &[GO_HEAP]
    }

    fn code(&self) -> Code {
        Code {
            role: Role::Runtime,
            // those of cgo's own C code, too
            functions: &["runtime.", "x_cgo_", "_cgo_sys_thread_start", "_cgo_try_pthread_create"],
            switches: SWITCHES,
            on_behalf_of: "goroutine",
            ..Code::NONE
        }
    }

    fn signs(&self) -> &'static [Sign] {
        const { &[Sign { section: Some(".gopclntab"), ..Sign::new(MARK, &[]) }] }
    }

    fn own_heap(&self) -> Option<ReadOwnHeap> {
        Some(profile::read)
    }

    fn left_stacks(&self) -> Option<FindLeftStacks> {
        Some(goroutines::find)
    }

    fn survey(&self, world: &World<'_>) -> Vec<Surveyed> {
        layout::survey(world)
    }

    fn by_name(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        let name = subject.anon_name()?;
        let name = std::str::from_utf8(name.strip_prefix(b" Go: ")?).ok()?;
        let part = match name {
            "heap" | "heap reservation" => HEAP,
            "page summary" | "scavenge index" => SUMMARIES,
            "goroutine stack (system)" | "OS thread stack" => STACKS,
            // the latest name of a heap arena's pages (runtime.sysUsed, sysUnused)
            "used" | "unused" => HEAP,
            _ => TABLES,
        };
        Some(claim(subject, world, Evidence::Name, part))
    }

    fn knows(&self, line: &Line) -> bool {
        is_go(line)
    }

    fn by_stack(&self, subject: &Subject<'_>, world: &World<'_>, at: usize) -> Option<Claim> {
        let path = subject.path.filter(|_| subject.is_private_anonymous())?;
        // each goroutine began in the runtime: what a program maps itself, in Go or in C, is not the runtime's
        if !path.is_direct(at, calls_for_go) {
            return None;
        }
        let laid_out = world.surveyed(ID, subject.range.start).map(|found| found.claim.part);
        let part = if let Some(part) = laid_out {
            part
        } else if path.any(|line| line.is(&["runtime.sysAlloc", "runtime.persistentalloc"])) {
            TABLES
        } else if path.any(|line| line.is(&["runtime.(*mheap).sysAlloc"])) {
            HEAP
        } else if path.any(|line| line.mentions("pageAlloc") || line.mentions("scavengeIndex")) {
            SUMMARIES
        } else {
            TABLES
        };
        Some(claim(subject, world, Evidence::Stack, part))
    }

    // an address that is the runtime's alone
    fn by_header(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        let laid_out = world.surveyed(ID, subject.range.start).filter(|_| subject.shape_may_decide())?;
        let heap = matches!(laid_out.claim.part, HEAP | HEAP_RESERVED) && subject.is_private_anonymous();
        heap.then(|| claim(subject, world, Evidence::Shape, HEAP))
    }

    fn by_shape(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        if !subject.is_private_anonymous() || !subject.shape_may_decide() || !layout::is_go(world) {
            return None;
        }
        // stripped: unnamed code of the program in a process that has a Go heap
        let by_program = subject.path.is_some_and(|p| {
            p.caller_line().is_some_and(|l| l.function.is_none() && !l.module.contains(".so"))
        });
        // without a stack: in a pure Go program no other code calls mmap; its bss is the loader's
        let bss = world.below(subject.region.vma).is_some_and(|m| m.file.is_some());
        let nobody_else = subject.path.is_none_or(|p| p.lines.is_empty())
            && !(bss && subject.record.is_none())
            && !world.fact("has libraries", || world.has_file(|f| f.contains(".so")));
        if let Some(found) = world.surveyed(ID, subject.range.start)
            && (by_program || subject.record.is_none())
        {
            return Some(found.claim.clone());
        }
        (by_program || nobody_else).then(|| claim(subject, world, Evidence::Shape, TABLES))
    }

    fn cuts(&self, region: &Region, world: &World<'_>) -> Vec<Addr> {
        world.survey_cuts(ID, region.range)
    }

    fn advise(&self, group: &Group<'_>, _world: &World<'_>) -> Advice {
        let heap = group.part(HEAP).virt + group.part(HEAP_RESERVED).virt;
        let tables = group.footprint.virt - heap;
        let grown = group.pieces.iter().any(|piece| matches!(piece.merge, Merge::ByCaller(_)));
        let grown = grown.then(|| {
            Advice::why(format!(
                "Go's heap grew here ({}, {} of it in memory): all goroutines allocate from that \
                 afterwards, and where the collector finds pages that nobody uses it gives them back, but not the range",
                size(heap),
                size(group.part(HEAP).rss)
            ))
        });
        // where it has grown, that is another finding
        let at_start = || match heap {
            0 => Advice::why(format!(
                "at start-up Go reserves tables over the whole address space ({} here); reserved ranges cost nothing until \
                 they are used, and every Go program has them, the smallest, too",
                size(tables)
            )),
            _ => Advice::why(format!(
                "at start-up Go reserves tables over the whole address space ({} here) and its heap in steps of \
             64 MiB ({}, {} of it in memory); reserved ranges cost nothing until they are used, and every Go \
             program has them, the smallest, too",
                size(tables),
                size(heap),
                size(group.part(HEAP).rss)
            )),
        };
        let mut advice = grown.unwrap_or_else(at_start);
        let how = if group.footprint.reserved * 2 > group.unused() {
            "Go runtime, reserved but not used"
        } else {
            "Go runtime, mapped but not touched"
        };
        advice.title = Some(how.to_string());
        advice
            .wont("GOMEMLIMIT", "makes the collector give pages back: RSS, not what is reserved")
            .wont("GOGC", "sets how far the heap grows between collections; the reservations stay")
            .wont("GOMAXPROCS", "changes the number of running threads, which have no part in this")
            .wont("MALLOC_ARENA_MAX", "is about glibc's malloc, which only C code (cgo) uses")
    }
}

/// The heap is recognised by its addresses, whichever code committed it.
fn claim(subject: &Subject<'_>, world: &World<'_>, evidence: Evidence, part: &'static str) -> Claim {
    let range = AddrRange { start: ARENA_HINT, end: Addr(ARENA_HINT.0 + (1 << 36)) };
    let laid_out = world.surveyed(ID, subject.range.start);
    let in_heap = laid_out.is_some_and(|s| matches!(s.claim.part, HEAP | HEAP_RESERVED));
    if in_heap || part == HEAP || range.contains(subject.range.start) && world.starts_at(ARENA_HINT) {
        let part = if subject.is_reserved() { HEAP_RESERVED } else { HEAP };
        let arena = Instance::At(subject.range.start.align_down(ARENA));
        let merge = subject.path.and_then(caller).map_or(Merge::ByCategory, Merge::ByCaller);
        return Claim::new(GO_HEAP, evidence, part).instance(arena).merge(merge);
    }
    Claim::new(GO_HEAP, evidence, part).merge(Merge::ByCategory)
}
