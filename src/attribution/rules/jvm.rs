//! HotSpot: Java heap, code cache, metaspace and class space, the collectors' tables.

use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::call::{MAP_FIXED, MmapCall};
use crate::attribution::callpath::{CallPath, Line};
use crate::attribution::category::{Category, Evidence, Merge};
use crate::attribution::findings::Fix;
use crate::model::{Addr, AddrRange};

pub const HEAP: Category =
    Category { id: "jvm-heap", name: "Java heap", one: "Java heap", many: "pieces of the Java heap" };
pub const CODE: Category =
    Category { id: "jvm-code-cache", name: "JVM code cache", one: "JVM code cache", many: "JVM code caches" };
pub const META: Category = Category {
    id: "jvm-metaspace",
    name: "JVM metaspace",
    one: "JVM metaspace",
    many: "JVM metaspace nodes",
};
pub const OTHER: Category =
    Category { id: "jvm-other", name: "JVM, other", one: "JVM memory", many: "mappings of the JVM" };

pub struct JvmRule;

fn is_jvm(line: &Line) -> bool {
    line.module == "libjvm.so"
}

impl Rule for JvmRule {
    fn id(&self) -> &'static str {
        "jvm"
    }

    fn categories(&self) -> &'static [Category] {
        &[HEAP, CODE, META, OTHER]
    }

    fn knows(&self, line: &Line) -> bool {
        is_jvm(line)
    }

    fn by_stack(&self, subject: &Subject<'_>, world: &World<'_>, at: usize) -> Option<Claim> {
        if !subject.is_private_anonymous() {
            return None;
        }
        // what is committed later belongs to what it was reserved for
        let reservation = reservation_around(subject, world);
        let (path, at) = match reservation {
            Some(path) => (path, path.lines.iter().position(is_jvm).unwrap_or(0)),
            None => (subject.path?, at),
        };
        let own = path.run(at, is_jvm);
        let (category, part) = purpose(own);
        let merge = if category == OTHER { Merge::ByCaller(at) } else { Merge::ByCategory };
        Some(Claim::new(category, Evidence::Stack, part).merge(merge))
    }

    fn by_shape(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        super::jvm_shape::by_shape(subject, world)
    }

    fn advise(&self, group: &Group<'_>, _world: &World<'_>) -> Advice {
        let unused = group.unused();
        if group.category == HEAP {
            Advice::why(
                "the JVM reserves its largest allowed heap at start-up (a quarter of the machine's memory \
                         unless told otherwise) and commits it as it grows",
            )
            .fix(
                Fix::new("-Xmx64m (for example)", unused.saturating_sub(64 << 20), 0)
                    .note("figure for 64 MiB; a program that needs more ends with OutOfMemoryError"),
            )
        } else if group.category == CODE {
            Advice::why("room for compiled code is reserved at start-up, 240 MiB by default").fix(Fix::new(
                "-XX:ReservedCodeCacheSize=32m",
                unused.saturating_sub(32 << 20),
                0,
            ))
        } else if group.category == META {
            Advice::why(
                "room for classes is reserved at start-up, 1 GiB by default for compressed class pointers",
            )
            .fix(Fix::new(
                "-XX:CompressedClassSpaceSize=32m",
                unused.min(1 << 30).saturating_sub(32 << 20),
                0,
            ))
        } else {
            Advice::why(
                "tables of the garbage collector and the compiler, sized after the largest allowed heap",
            )
            .fix(Fix::new("-XX:+UseSerialGC (or a smaller -Xmx)", unused, 0))
        }
    }
}

/// The innermost telling frames first: every reservation has Universe or Threads outside.
fn purpose(own: &[Line]) -> (Category, &'static str) {
    let any = |words: &[&str]| own.iter().any(|l| words.iter().any(|w| l.mentions(w)));
    if any(&["ReservedCodeSpace", "CodeHeap", "CodeCache::"]) {
        (CODE, "code cache")
    } else if any(&["Metaspace", "metaspace::", "VirtualSpaceNode"]) {
        (META, "metaspace")
    } else if any(&["create_aux_memory_mapper", "G1CMBitMap", "CardTable", "MarkBitMap"]) {
        (OTHER, "collector tables")
    } else if any(&["ReservedHeapSpace", "reserve_heap", "HeapRegionManager", "PSOldGen", "DefNewGeneration"])
    {
        (HEAP, "heap")
    } else {
        (OTHER, "other")
    }
}

/// The stack of the reservation (PROT_NONE) that this MAP_FIXED call lies in, the smallest one.
fn reservation_around<'w>(subject: &Subject<'_>, world: &'w World<'_>) -> Option<&'w CallPath> {
    subject.call.filter(|c| c.has(MAP_FIXED))?;
    let own = subject.record?.event;
    let around = world.origins().iter().filter_map(|r| {
        let call = MmapCall::of(&r.op).filter(|c| c.prot.is_none() && r.event != own)?;
        let start = u64::try_from(r.ret).ok()?;
        let range = AddrRange::from_len(Addr(start), call.len);
        let path = world.path(r.stack.ok()?)?;
        (range.contains_range(subject.range) && path.any(is_jvm)).then_some((call.len, path))
    });
    around.min_by_key(|(len, _)| *len).map(|(_, path)| path)
}
