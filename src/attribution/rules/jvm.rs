//! HotSpot: Java heap, code cache, metaspace and class space, the collectors' tables.

use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::callpath::Line;
use crate::attribution::category::{Category, Evidence, Merge};
use crate::attribution::findings::Fix;

pub const HEAP: Category =
    Category { id: "jvm-heap", name: "Java heap", one: "Java heap", many: "parts of the Java heap" };
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

    fn knows(&self, line: &Line) -> bool {
        is_jvm(line)
    }

    fn by_stack(&self, subject: &Subject<'_>, _world: &World<'_>, at: usize) -> Option<Claim> {
        if !subject.is_private_anonymous() {
            return None;
        }
        let own = subject.path?.run(at, is_jvm);
        let any = |words: &[&str]| own.iter().any(|l| words.iter().any(|w| l.mentions(w)));
        // the innermost telling frames first: every reservation has Universe or Threads outside
        let (category, part) = if any(&["ReservedCodeSpace", "CodeHeap", "CodeCache::"]) {
            (CODE, "code cache")
        } else if any(&["Metaspace", "metaspace::", "VirtualSpaceNode"]) {
            (META, "metaspace")
        } else if any(&["create_aux_memory_mapper", "G1CMBitMap", "CardTable", "MarkBitMap"]) {
            (OTHER, "collector tables")
        } else if any(&[
            "ReservedHeapSpace",
            "reserve_heap",
            "HeapRegionManager",
            "PSOldGen",
            "DefNewGeneration",
        ]) {
            (HEAP, "heap")
        } else {
            (OTHER, "other")
        };
        Some(Claim::new(category, Evidence::Stack, part).merge(Merge::ByCaller(at)))
    }

    fn advise(&self, group: &Group<'_>, _world: &World<'_>) -> Advice {
        let unused = group.unused();
        if group.category == HEAP {
            Advice::why(
                "the JVM reserves its largest allowed heap at start-up (a quarter of the machine's memory \
                         unless told otherwise) and commits it as it grows",
            )
            .fix(Fix::new("-Xmx (for example -Xmx64m)", unused, 0))
        } else if group.category == CODE {
            Advice::why("room for compiled code is reserved at start-up, 240 MiB by default").fix(Fix::new(
                "-XX:ReservedCodeCacheSize=32m",
                unused,
                0,
            ))
        } else if group.category == META {
            Advice::why(
                "room for classes is reserved at start-up, 1 GiB by default for compressed class pointers",
            )
            .fix(Fix::new("-XX:CompressedClassSpaceSize=32m", unused, 0))
        } else {
            Advice::why(
                "tables of the garbage collector and the compiler, sized after the largest allowed heap",
            )
            .fix(Fix::new("-Xmx, or -XX:+UseSerialGC", unused, 0))
        }
    }
}
