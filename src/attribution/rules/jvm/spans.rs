//! A process of the JVM as a row of mappings, and what has been recognised of it so far.

use super::MemoryKind;
use crate::attribution::category::{Category, Claim, Evidence, Instance, Merge};
use crate::attribution::rules::World;
use crate::attribution::rules::runs::{HasRange, run_length, runs};
use crate::attribution::world::Surveyed;
use crate::model::{Addr, AddrRange, Mapping, PAGE, Prot, Sharing};
use std::collections::BTreeMap;

/// What a mapping can be to a JVM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// rw-p, anonymous, not NORESERVE (where flags are known): committed.
    Open,
    /// ---p, anonymous, MAP_NORESERVE (where flags are known): reserved.
    Closed,
    /// rwxp, anonymous: compiled code.
    Code,
    /// classes.jsa, or what -XX:SharedArchiveFile names so.
    Classes,
    /// ZGC's heap, a memfd.
    HeapFile,
    Other,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span {
    pub range: AddrRange,
    pub kind: Kind,
}

impl HasRange for Span {
    fn range(&self) -> AddrRange {
        self.range
    }
}

/// All mappings, sorted, and the ranges that are taken.
pub(super) struct Spans {
    pub all: Vec<Span>,
    taken: BTreeMap<Addr, (AddrRange, Claim)>,
    /// VmFlags were read: what is `Open` is not NORESERVE, as glibc's arenas are.
    pub flags_known: bool,
}

impl Spans {
    pub fn new(world: &World<'_>) -> Spans {
        let kind = |mapping: &Mapping| {
            let anonymous = mapping.file.is_none() && mapping.name.is_empty();
            let detail = world.detail_of(mapping);
            let reserved = detail.is_none_or(|detail| detail.flags.has("nr"));
            // glibc's arenas are NORESERVE where they are used, too, and stacks have MAP_STACK
            let committed = detail.is_none_or(|d| !d.flags.has("nr") && !d.flags.has("nh"));
            match (mapping.prot, mapping.sharing) {
                _ if mapping.name.ends_with(b".jsa") => Kind::Classes,
                _ if mapping.name.starts_with(b"/memfd:java_heap") => Kind::HeapFile,
                (Prot::RW, Sharing::Private) if anonymous && committed => Kind::Open,
                (prot, Sharing::Private) if anonymous && prot.is_none() && reserved => Kind::Closed,
                (prot, Sharing::Private) if anonymous && prot.write && prot.exec => Kind::Code,
                _ => Kind::Other,
            }
        };
        let all = world.mappings().iter().map(|m| Span { range: m.range, kind: kind(m) }).collect();
        let flags_known = world.mappings().iter().any(|m| world.detail_of(m).is_some());
        Spans { all, taken: BTreeMap::new(), flags_known }
    }

    /// From `from` on, mappings without a gap between them that pass the test.
    pub fn run(&self, from: usize, test: impl Fn(Kind) -> bool) -> &[Span] {
        let rest = self.all.get(from..).unwrap_or(&[]);
        let len = run_length(rest, |span| test(span.kind));
        rest.get(..len).unwrap_or(&[])
    }

    /// The runs of mappings that pass the test, each as long as can be.
    pub fn runs(&self, test: impl Fn(Kind) -> bool + Copy) -> Vec<&[Span]> {
        runs(&self.all, |span| test(span.kind))
    }

    pub fn before(&self, at: usize) -> Option<&Span> {
        let own = self.all.get(at)?;
        self.all.get(at.checked_sub(1)?).filter(|below| below.range.end == own.range.start)
    }

    pub fn is_free(&self, range: AddrRange) -> bool {
        let below = self.taken.range(..range.end).next_back();
        below.is_none_or(|(_, (taken, _))| taken.end <= range.start)
    }

    /// True where something that was recognised begins or ends.
    pub fn is_edge(&self, addr: Addr) -> bool {
        self.taken.contains_key(&addr)
            || self.taken.range(..addr).next_back().is_some_and(|(_, (taken, _))| taken.end == addr)
    }

    /// True if all of `range` is mapped by spans that pass the test.
    pub fn covers(&self, range: AddrRange, test: impl Fn(Kind) -> bool) -> bool {
        let spans = self.overlapping(range);
        let joined = run_length(spans, |span| test(span.kind)) == spans.len();
        let first = spans.first().is_some_and(|span| span.range.start <= range.start);
        joined && first && spans.last().is_some_and(|span| range.end <= span.range.end)
    }

    /// The mappings of which a part lies in `range`.
    pub fn overlapping(&self, range: AddrRange) -> &[Span] {
        let from = self.all.partition_point(|span| span.range.end <= range.start);
        let rest = &self.all[from..];
        rest.split_at(rest.partition_point(|span| span.range.start < range.end)).0
    }

    /// The parts of the mappings that lie in `range`.
    pub fn within(&self, range: AddrRange) -> Vec<Span> {
        let inside = self.overlapping(range).iter();
        inside.map(|span| Span { range: span.range.intersect(range), kind: span.kind }).collect()
    }

    /// `range` is one `what`, as far as nothing of it is taken.
    pub fn take(&mut self, range: AddrRange, what: &MemoryKind) {
        let instance = Instance::At(range.start);
        for span in self.within(range).into_iter().filter(|span| span.kind != Kind::Other) {
            if !self.is_free(span.range) {
                continue;
            }
            let part = if span.kind == Kind::Closed { what.reserved } else { what.committed };
            let evidence = match span.kind {
                Kind::Classes | Kind::HeapFile => Evidence::Name,
                _ => Evidence::Shape,
            };
            let claim = Claim::new(what.category, evidence, part);
            let claim = claim.instance(instance.clone()).merge(Merge::ByCategory);
            self.taken.insert(span.range.start, (span.range, claim));
        }
    }

    /// Where what was recognised as this part begins.
    pub fn edges_of(&self, category: Category, part: &str) -> Vec<Addr> {
        let own = |claim: &Claim| claim.category == category && claim.part == part;
        self.taken.values().filter(|(_, claim)| own(claim)).map(|(range, _)| range.start).collect()
    }

    /// Where recognised ranges in `range` begin and end.
    pub fn edges_in(&self, range: AddrRange) -> Vec<Addr> {
        let inside = self.taken.range(range.start..range.end);
        inside.flat_map(|(_, (taken, _))| [taken.start, taken.end]).collect()
    }

    /// `range` is one `what`, whatever its layout.
    pub fn take_whole(&mut self, range: AddrRange, what: &MemoryKind) {
        if self.is_free(range) {
            let claim = Claim::new(what.category, Evidence::Shape, what.committed);
            self.taken.insert(range.start, (range, claim.instance(Instance::At(range.start))));
        }
    }

    pub fn into_surveyed(self) -> Vec<Surveyed> {
        self.taken.into_values().map(|(range, claim)| Surveyed { range, claim }).collect()
    }
}

pub(super) fn reservable(kind: Kind) -> bool {
    matches!(kind, Kind::Open | Kind::Closed)
}

pub(super) fn page_up(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE) * PAGE
}
