//! musl's mallocng: metadata in brk behind a guard page, slot groups by mmap. Its stacks are
//! guesses at best: Debian's musl has no unwind tables.

use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::callpath::Line;
use crate::attribution::category::{Category, Evidence, Instance, Merge};
use crate::ledger::RegionKind;
use crate::model::{PAGE, Prot};

pub const MUSL: Category = Category {
    id: "musl-malloc",
    name: "musl malloc",
    one: "musl malloc memory",
    many: "musl malloc mappings",
};

const FUNCTIONS: &[&str] =
    &["alloc_slot", "alloc_group", "alloc_meta", "__libc_malloc_impl", "get_meta", "__simple_malloc"];

pub struct MuslRule;

fn is_musl(module: &str) -> bool {
    module.starts_with("ld-musl") || module.starts_with("libc.musl") || module == "libc.so"
}

impl Rule for MuslRule {
    fn id(&self) -> &'static str {
        "musl"
    }

    fn categories(&self) -> &'static [Category] {
        &[MUSL]
    }

    fn knows(&self, line: &Line) -> bool {
        line.is(FUNCTIONS) || is_musl(&line.module)
    }

    fn by_stack(&self, subject: &Subject<'_>, world: &World<'_>, at: usize) -> Option<Claim> {
        let named = subject.path?.lines.get(at)?.is(FUNCTIONS);
        if subject.region.kind == RegionKind::Brk {
            return Some(
                Claim::new(MUSL, Evidence::Stack, "metadata (brk)")
                    .instance(Instance::Named(b"[heap]".into()))
                    .merge(Merge::ByCategory),
            );
        }
        let call = subject.call?;
        // one frame is all there is: a stack is known by its thread, and starts as PROT_NONE
        let stack =
            world.started_thread_in(subject.span).is_some() || world.live_thread_in(subject.span).is_some();
        (subject.is_private_anonymous() && (named || (call.prot == Prot::RW && !stack)))
            .then(|| Claim::new(MUSL, Evidence::Stack, "slots and large blocks").merge(Merge::ByCaller(at)))
    }

    fn by_shape(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        let guarded =
            |m: &crate::model::Mapping| m.is_special("[heap]") && m.prot.is_none() && m.range.len() == PAGE;
        let own = subject.mapping?;
        let heap = own.is_special("[heap]")
            && (guarded(own) || world.below(subject.region.vma).is_some_and(guarded));
        heap.then(|| {
            Claim::new(MUSL, Evidence::Shape, "metadata (brk)")
                .instance(Instance::Named(b"[heap]".into()))
                .merge(Merge::ByCategory)
        })
    }

    fn advise(&self, _group: &Group<'_>, _world: &World<'_>) -> Advice {
        Advice::why(
            "musl's malloc keeps nearly nothing in reserve: what is mapped is in use, or was until just now",
        )
    }
}
