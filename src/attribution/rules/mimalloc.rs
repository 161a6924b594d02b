//! mimalloc: arenas of 1 GiB (2.2 and 3), segments of 32 MiB (2.0).

use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::callpath::Line;
use crate::attribution::category::{Category, Evidence, Merge};
use crate::attribution::findings::Fix;

pub const MIMALLOC: Category =
    Category { id: "mimalloc", name: "mimalloc", one: "mimalloc arena", many: "mimalloc mappings" };

/// 2.x asks for addresses far below where the kernel places mappings (src/os.c, aligned hints).
const HINTS: std::ops::Range<u64> = 0x200_0000_0000..0x1e00_0000_0000;

pub struct MimallocRule;

fn is_mimalloc(line: &Line) -> bool {
    let own = |f: &str| f.starts_with("mi_") || f.starts_with("_mi_") || f.starts_with("unix_mmap_prim");
    line.module.starts_with("libmimalloc") || line.function.as_deref().is_some_and(own)
}

impl Rule for MimallocRule {
    fn id(&self) -> &'static str {
        "mimalloc"
    }

    fn categories(&self) -> &'static [Category] {
        &[MIMALLOC]
    }

    fn by_name(&self, subject: &Subject<'_>, _world: &World<'_>) -> Option<Claim> {
        (subject.anon_name()? == b"mimalloc").then(|| Claim::new(MIMALLOC, Evidence::Name, part(subject)))
    }

    fn knows(&self, line: &Line) -> bool {
        is_mimalloc(line)
    }

    fn by_stack(&self, subject: &Subject<'_>, _world: &World<'_>, at: usize) -> Option<Claim> {
        let entry = at + subject.path?.run(at, is_mimalloc).len().saturating_sub(1);
        subject
            .is_private_anonymous()
            .then(|| Claim::new(MIMALLOC, Evidence::Stack, part(subject)).merge(Merge::ByCaller(entry)))
    }

    fn by_shape(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        let own_addresses = HINTS.contains(&subject.range.start.0);
        let fits = subject.is_private_anonymous() && subject.shape_may_decide() && own_addresses;
        (fits && world.has_file(|f| f.starts_with("libmimalloc")))
            .then(|| Claim::new(MIMALLOC, Evidence::Shape, part(subject)))
    }

    fn allocator_in(&self, world: &World<'_>) -> Option<&'static str> {
        (world.has_file(|f| f.starts_with("libmimalloc")) || world.paths().any(|p| p.any(is_mimalloc)))
            .then_some("mimalloc")
    }

    fn advise(&self, group: &Group<'_>, _world: &World<'_>) -> Advice {
        Advice::why(
            "mimalloc reserves an arena of 1 GiB at the first allocation (segments of 32 MiB before 2.1)",
        )
        .fix(
            Fix::new("MIMALLOC_ARENA_RESERVE=64MiB (or 0)", group.unused().saturating_sub(64 << 20), 0)
                .note("figure for 64 MiB; no effect before 2.1"),
        )
    }
}

fn part(subject: &Subject<'_>) -> &'static str {
    if subject.is_reserved() { "arena, not used yet" } else { "arena" }
}
