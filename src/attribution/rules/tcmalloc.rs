//! tcmalloc: gperftools' (everything in brk) and Google's (regions of 1 GiB).

use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::callpath::Line;
use crate::attribution::category::{Category, Evidence, Instance, Merge};
use crate::attribution::findings::Fix;
use crate::ledger::RegionKind;

pub const TCMALLOC: Category =
    Category { id: "tcmalloc", name: "tcmalloc", one: "tcmalloc memory", many: "tcmalloc mappings" };

pub struct TcmallocRule;

fn is_tcmalloc(line: &Line) -> bool {
    line.module.starts_with("libtcmalloc")
        || ["tcmalloc::", "TCMalloc_", "SbrkSysAllocator", "MmapSysAllocator", "DefaultSysAllocator"]
            .iter()
            .any(|word| line.mentions(word))
}

impl Rule for TcmallocRule {
    fn id(&self) -> &'static str {
        "tcmalloc"
    }

    fn categories(&self) -> &'static [Category] {
        &[TCMALLOC]
    }

    fn by_name(&self, subject: &Subject<'_>, _world: &World<'_>) -> Option<Claim> {
        let name = subject.anon_name()?;
        (name.starts_with(b"tcmalloc_region") || name == b"absl")
            .then(|| Claim::new(TCMALLOC, Evidence::Name, part(subject)))
    }

    fn knows(&self, line: &Line) -> bool {
        is_tcmalloc(line)
    }

    fn by_stack(&self, subject: &Subject<'_>, _world: &World<'_>, at: usize) -> Option<Claim> {
        let brk = subject.region.kind == RegionKind::Brk;
        let merge = if brk { Merge::ByCategory } else { Merge::ByCaller(at) };
        let claim = Claim::new(TCMALLOC, Evidence::Stack, part(subject)).merge(merge);
        if brk {
            return Some(claim.instance(Instance::Named(b"[heap]".into())));
        }
        subject.is_private_anonymous().then_some(claim)
    }

    fn by_shape(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        let heap = subject.region.kind == RegionKind::Brk || subject.name() == b"[heap]";
        (heap && subject.path.is_none() && world.has_file(|f| f.starts_with("libtcmalloc")))
            .then(|| Claim::new(TCMALLOC, Evidence::Shape, "page heap (brk)").merge(Merge::ByCategory))
    }

    fn allocator_in(&self, world: &World<'_>) -> Option<&'static str> {
        (world.has_file(|f| f.starts_with("libtcmalloc")) || world.paths().any(|p| p.any(is_tcmalloc)))
            .then_some("tcmalloc")
    }

    fn advise(&self, _group: &Group<'_>, _world: &World<'_>) -> Advice {
        Advice::why("tcmalloc keeps what was freed for later and never lowers its address space")
            .fix(Fix::new("none found for VIRT", 0, 0))
            .fix(
                Fix::new("TCMALLOC_AGGRESSIVE_DECOMMIT=1 (gperftools)", 0, 0)
                    .note("lowers RSS by what was freed and not reused, which only a run with it can tell"),
            )
    }
}

fn part(subject: &Subject<'_>) -> &'static str {
    match subject.region.kind {
        RegionKind::Brk => "page heap (brk)",
        _ if subject.is_reserved() => "region, not used yet",
        _ => "region",
    }
}
