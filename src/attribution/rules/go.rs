//! The Go runtime: heap arenas at 0xc000000000, the page allocator's summary levels.

use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::callpath::Line;
use crate::attribution::category::{Category, Evidence, Instance, Merge};
use crate::model::Addr;

pub const GO_HEAP: Category = Category {
    id: "go-heap",
    name: "Go runtime",
    one: "Go runtime memory",
    many: "mappings of the Go runtime",
};

/// arenaBaseOffset aside, the first hint of runtime.mallocinit on 64-bit systems.
const ARENA_HINT: Addr = Addr(0xc0_0000_0000);
const ARENA: u64 = 64 << 20;

const HEAP: &str = "heap arena";
const TABLES: &str = "runtime tables (page summaries …)";

pub struct GoRule;

fn is_go(line: &Line) -> bool {
    line.function.as_deref().is_some_and(|f| f.starts_with("runtime."))
}

fn in_heap(subject: &Subject<'_>, world: &World<'_>) -> bool {
    subject.range.start >= ARENA_HINT
        && subject.range.start.0 < ARENA_HINT.0 + (1 << 36)
        && world.starts_at(ARENA_HINT)
}

impl Rule for GoRule {
    fn id(&self) -> &'static str {
        "go"
    }

    fn categories(&self) -> &'static [Category] {
        &[GO_HEAP]
    }

    fn knows(&self, line: &Line) -> bool {
        is_go(line)
    }

    fn by_stack(&self, subject: &Subject<'_>, world: &World<'_>, _at: usize) -> Option<Claim> {
        subject.is_private_anonymous().then(|| claim(subject, world, Evidence::Stack))
    }

    // an address that is the runtime's alone
    fn by_header(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        (subject.is_private_anonymous() && in_heap(subject, world) && subject.shape_may_decide())
            .then(|| claim(subject, world, Evidence::Shape))
    }

    fn by_shape(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        // stripped: unnamed code of the program in a process that has a Go heap
        let by_program = subject.path.is_some_and(|p| {
            p.caller_line().is_some_and(|l| l.function.is_none() && !l.module.contains(".so"))
        });
        // without a stack: in a pure Go program nobody else calls mmap; its bss is the loader's
        let bss = world.below(subject.region.vma).is_some_and(|m| m.file.is_some());
        let nobody_else = subject.path.is_none_or(|p| p.lines.is_empty())
            && !(bss && subject.record.is_none())
            && !world.has_file(|f| f.contains(".so"));
        (subject.is_private_anonymous() && (by_program || nobody_else) && world.starts_at(ARENA_HINT))
            .then(|| claim(subject, world, Evidence::Shape))
    }

    fn advise(&self, _group: &Group<'_>, _world: &World<'_>) -> Advice {
        Advice::why(
            "Go reserves tables for the whole address space and its heap in steps of 64 MiB at start-up; \
             reserved ranges cost nothing until they are used",
        )
        .wont("GOMEMLIMIT, GOGC", "they bound the heap in use, so RSS; what Go reserves stays the same")
    }
}

fn claim(subject: &Subject<'_>, world: &World<'_>, evidence: Evidence) -> Claim {
    if in_heap(subject, world) {
        let arena = Instance::At(subject.range.start.align_down(ARENA));
        return Claim::new(GO_HEAP, evidence, HEAP).instance(arena).merge(Merge::ByCategory);
    }
    Claim::new(GO_HEAP, evidence, TABLES).merge(Merge::ByCategory)
}
