//! HotSpot: Java heap, class space and metaspace, code cache, the collectors' tables.
//!
//! By stack: what libjvm's frames say the reservation is for. What is committed later (mmap over a part of
//! it) belongs to the reservation; where that was not seen, and without any stack, the layout of the whole
//! process decides (`jvm_layout`).

mod advice;
mod code;
mod generated;
mod layout;
mod native;
mod spans;
mod tables;

use super::pthread::{GUARD, THREAD_STACK};
use super::{Advice, Claim, Group, Placed, Rule, Subject, World};
use crate::attribution::call::{MAP_FIXED, MmapCall};
use crate::attribution::callpath::{CallPath, Line};
use crate::attribution::category::{Category, CategoryInfo, Evidence, Instance, Merge};
use crate::attribution::code::{Code, Role};
use crate::attribution::world::Surveyed;
use crate::ledger::Region;
use crate::model::heap::runtime::BudgetQuery;
use crate::model::stack::{FindCodeTables, GeneratedFunction};
use crate::model::{Addr, EventId, Sign, StackId};

pub const HEAP: Category = Category(&CategoryInfo {
    id: "jvm-heap",
    color: 0x14a181,
    name: "Java heap",
    one: "Java heap",
    many: "Java heaps",
});
pub const CLASSES: Category = Category(&CategoryInfo {
    id: "jvm-class-space",
    color: 0x8a89e4,
    name: "JVM class space",
    one: "JVM compressed class space",
    many: "JVM compressed class spaces",
});
pub const META: Category = Category(&CategoryInfo {
    id: "jvm-metaspace",
    color: 0x1ca752,
    name: "JVM metaspace",
    one: "JVM metaspace node",
    many: "JVM metaspace nodes",
});
pub const SHARED: Category = Category(&CategoryInfo {
    id: "jvm-shared-classes",
    color: 0xa874b2,
    name: "JVM shared classes (CDS)",
    one: "archive of shared classes (CDS)",
    many: "archives of shared classes (CDS)",
});
pub const CODE: Category = Category(&CategoryInfo {
    id: "jvm-code-cache",
    color: 0x929811,
    name: "JVM code cache",
    one: "JVM code cache",
    many: "JVM code heaps",
});
pub const GC: Category = Category(&CategoryInfo {
    id: "jvm-gc",
    color: 0xcc6d71,
    name: "JVM collector tables",
    one: "table of the garbage collector",
    many: "tables of the garbage collector",
});
pub const OTHER: Category = Category(&CategoryInfo {
    id: "jvm-other",
    color: 0x486d70,
    name: "JVM, other",
    one: "JVM memory",
    many: "mappings of the JVM",
});

/// One kind of the JVM's memory, and what its parts are called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MemoryKind {
    pub category: Category,
    pub committed: &'static str,
    pub reserved: &'static str,
}

macro_rules! what {
    ($category:expr, $name:literal) => {
        MemoryKind {
            category: $category,
            committed: concat!($name, ", committed"),
            reserved: concat!($name, ", reserved"),
        }
    };
}

pub(super) const JAVA_HEAP: MemoryKind = what!(HEAP, "heap");
pub(super) const CLASS_SPACE: MemoryKind = what!(CLASSES, "class space");
pub(super) const NODE: MemoryKind = what!(META, "metaspace");
pub(super) const ARCHIVE: MemoryKind = MemoryKind {
    category: SHARED,
    committed: "archive of shared classes",
    reserved: "room beside the archive",
};
pub(super) const CODE_CACHE: MemoryKind = what!(CODE, "code cache");
pub(super) const CODE_MAP: MemoryKind = what!(CODE, "map of a code heap's segments");
pub(super) const BITMAP: MemoryKind = what!(GC, "mark bitmap");
pub(super) const CARDS: MemoryKind = what!(GC, "card or offset table");
pub(super) const MARK_STACK: MemoryKind = what!(GC, "marking stack");
pub(super) const Z_MARK_STACK: MemoryKind = what!(GC, "ZGC's marking stacks");
pub(super) const Z_TABLES: MemoryKind = what!(GC, "ZGC's table of pages or forwardings");
const G1_TABLES: MemoryKind = what!(GC, "G1's bitmaps and card tables");
const TABLES: MemoryKind = what!(GC, "collector tables");
pub(super) const POLLING: MemoryKind =
    MemoryKind { category: OTHER, committed: "safepoint polling page", reserved: "safepoint polling page" };
pub(super) const MODULES: &str = "the JDK's classes (lib/modules)";
const REST: MemoryKind = MemoryKind { category: OTHER, committed: "other", reserved: "other" };

/// What libjvm's functions reserve, the innermost first.
const PURPOSES: &[(&[&str], MemoryKind)] = &[
    (&["SafepointMechanism", "initialize_assert_poison"], POLLING),
    (&["CodeHeap::"], CODE_MAP),
    (&["ReservedCodeSpace", "CodeMemoryReserver", "CodeCache::"], CODE_CACHE),
    (&["VirtualSpaceNode", "metaspace::"], NODE),
    (&["reserve_address_space_for_compressed_classes", "Metaspace::global_initialize"], CLASS_SPACE),
    (&["G1CMMarkStack", "MarkStack::", "TaskQueue"], MARK_STACK),
    (&["ZMarkStack"], Z_MARK_STACK),
    (&["create_aux_memory_mapper"], G1_TABLES),
    (&["MarkBitMap", "CMBitMap", "MarkingBitMap"], BITMAP),
    (&["CardTable", "BlockOffset", "ObjectStartArray", "CardCounts"], CARDS),
    (&["ZPageTable", "ZForwarding", "XPageTable", "XForwarding"], Z_TABLES),
    (&["ParallelCompactData", "RemSet", "FromCardCache", "ZLiveMap"], TABLES),
    (
        &[
            "ReservedHeapSpace",
            "HeapReserver",
            "reserve_heap",
            "ZVirtualMemory",
            "ZPhysicalMemory",
            "ZMemoryManager",
            "PSOldGen",
            "PSYoungGen",
            "DefNewGeneration",
            "TenuredGeneration",
        ],
        JAVA_HEAP,
    ),
    // what is part of the heap's object and not built by a function of its own
    (&["ZHeap::ZHeap", "XHeap::XHeap"], Z_TABLES),
];

const ID: &str = "jvm";

pub struct JvmRule;

fn is_jvm(line: &Line) -> bool {
    line.module == "libjvm.so"
}

impl Rule for JvmRule {
    fn id(&self) -> &'static str {
        ID
    }

    fn categories(&self) -> &'static [Category] {
        &[HEAP, CLASSES, META, SHARED, CODE, GC, OTHER]
    }

    fn code(&self) -> Code {
        Code {
            role: Role::Runtime,
            modules: &["libjvm.so"],
            functions: generated::OWN,
            own_managed: generated::OWN_CLASSES,
            ..Code::NONE
        }
    }

    fn own_budget(&self) -> Option<BudgetQuery> {
        Some(native::QUERY)
    }

    fn code_tables(&self) -> Option<(&'static str, FindCodeTables)> {
        Some(("gHotSpotVMStructs", code::find))
    }

    fn generated_function(&self, entry: &str) -> Option<GeneratedFunction> {
        generated::method(entry)
    }

    fn signs(&self) -> &'static [Sign] {
        const VARIABLES: &[&str] = &["JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS"];
        const { &[Sign { variables: VARIABLES, ..Sign::new(ID, &[]) }] }
    }

    /// Of memory, -XX:MaxRAMPercentage takes a quarter.
    fn surroundings(&self) -> &'static [(&'static str, &'static [&'static str])] {
        const ALL: &[&str] =
            &[HEAP.0.id, CLASSES.0.id, META.0.id, SHARED.0.id, CODE.0.id, GC.0.id, OTHER.0.id];
        const {
            &[
                ("JAVA_TOOL_OPTIONS", ALL),
                ("_JAVA_OPTIONS", ALL),
                ("memory", &[HEAP.0.id, GC.0.id]),
                ("processors", &[HEAP.0.id, GC.0.id, CODE.0.id]),
            ]
        }
    }

    fn option_lists(&self) -> &'static [(&'static str, char)] {
        &[("JAVA_TOOL_OPTIONS", ' '), ("JDK_JAVA_OPTIONS", ' '), ("_JAVA_OPTIONS", ' ')]
    }

    fn place(&self, option: &str, started: &[String]) -> Option<Placed> {
        advice::place(option, started)
    }

    fn survey(&self, world: &World<'_>) -> Vec<Surveyed> {
        layout::survey(world)
    }

    fn by_name(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        let name = subject.name();
        let known = [b".jsa".as_slice(), b"/lib/modules"].iter().any(|end| name.ends_with(end));
        let heap = name.starts_with(b"/memfd:java_heap");
        if !(known || heap || name.starts_with(b"/tmp/hsperfdata_")) || !layout::is_jvm(world) {
            return None;
        }
        if let Some(found) = world.surveyed(ID, subject.range.start) {
            return Some(Claim { evidence: Evidence::Name, ..found.claim.clone() });
        }
        let (category, part) = match name {
            _ if heap => (HEAP, JAVA_HEAP.committed),
            _ if name.ends_with(b".jsa") => (SHARED, ARCHIVE.committed),
            _ if name.ends_with(b"/lib/modules") => (OTHER, MODULES),
            _ => (OTHER, "performance counters (hsperfdata)"),
        };
        let claim = Claim::new(category, Evidence::Name, part).instance(Instance::Named(name.to_vec()));
        // the library has a finding of its own
        Some(if category == OTHER && part != MODULES { claim } else { claim.merge(Merge::ByCategory) })
    }

    fn knows(&self, line: &Line) -> bool {
        is_jvm(line)
    }

    fn by_stack(&self, subject: &Subject<'_>, world: &World<'_>, at: usize) -> Option<Claim> {
        if !subject.is_private_anonymous() {
            return None;
        }
        let path = subject.path?;
        // Java runs inside of the JVM's functions: what a native method maps is its own
        if !path.is_direct(at, is_jvm) {
            return None;
        }
        if let Some(guard) = stack_guard(subject, world, path) {
            return Some(guard);
        }
        // what is committed later belongs to what it was reserved for
        let reservation = containing_reservation(subject, world);
        let event = reservation.as_ref().map(|r| r.0).or(subject.record.map(|r| r.event));
        let of = reservation.as_ref().and_then(|(_, stack)| world.path(*stack));
        let what = of.and_then(|path| purpose(path, 0)).or_else(|| purpose(path, at));
        let laid_out = world.surveyed(ID, subject.range.start).map(|found| &found.claim);
        // the archive and the class space are one reservation; G1's tables come from one function
        let split = [CLASSES, SHARED, GC];
        let same = |claim: &&Claim| {
            what.is_none_or(|what| {
                what.category == claim.category
                    || (split.contains(&what.category) && split.contains(&claim.category))
            })
        };
        if let Some(claim) = laid_out.filter(same) {
            let evidence = if what.is_some() { Evidence::Stack } else { Evidence::Shape };
            return Some(Claim { evidence, ..claim.clone() });
        }
        let what = what.or_else(|| g1_table(path, world)).unwrap_or(REST);
        let part = if subject.is_reserved() { what.reserved } else { what.committed };
        let merge = if what.category == OTHER { Merge::ByCaller(at) } else { Merge::ByCategory };
        let claim = Claim::new(what.category, Evidence::Stack, part).merge(merge);
        Some(match event {
            Some(EventId(event)) => claim.instance(Instance::Call(EventId(event))),
            None => claim,
        })
    }

    fn by_shape(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        let unseen = subject.path.is_none_or(|path| path.lines.is_empty());
        if !unseen || !subject.is_private_anonymous() {
            return None;
        }
        world.surveyed(ID, subject.range.start).map(|found| found.claim.clone())
    }

    fn cuts(&self, region: &Region, world: &World<'_>) -> Vec<Addr> {
        world.survey_cuts(ID, region.range)
    }

    fn stack_size_knob(&self, world: &World<'_>) -> Option<(String, String)> {
        let note = "the stacks of Java threads only; too small a one ends in StackOverflowError";
        layout::is_jvm(world).then(|| ("-Xss256k".to_owned(), note.to_owned()))
    }

    fn advise(&self, group: &Group<'_>, world: &World<'_>) -> Advice {
        advice::advise(group, world)
    }
}

/// Java threads protect the lowest pages of their stacks, which are mapped anew for it
/// (os_linux.cpp, `os::pd_create_stack_guard_pages`).
fn stack_guard(subject: &Subject<'_>, world: &World<'_>, path: &CallPath) -> Option<Claim> {
    path.any(|line| is_jvm(line) && line.mentions("stack_guard_pages")).then_some(())?;
    let claim = Claim::new(THREAD_STACK, Evidence::Stack, GUARD).merge(Merge::ByCategory);
    let regions = &world.input.reconciled.regions;
    let above = regions.get(regions.partition_point(|r| r.range.start < subject.range.end));
    let stack = above.filter(|r| r.range.start == subject.range.end).and_then(|r| world.record(r));
    Some(match stack {
        Some(record) => claim.instance(Instance::Call(record.event)).thread(Some(record.task.tid)),
        None => claim,
    })
}

/// The first purpose that libjvm's frames name, from line `from` on.
fn purpose(path: &CallPath, from: usize) -> Option<MemoryKind> {
    let own = path.lines.get(from..)?.iter().filter(|line| is_jvm(line));
    own.take(16).find_map(|line| {
        PURPOSES.iter().find(|(words, _)| words.iter().any(|w| line.mentions(w))).map(|(_, what)| *what)
    })
}

/// G1 commits its heap's regions and the tables over them by the same functions (g1RegionToSpaceMapper.cpp). What is
/// committed whole has replaced its reservation, with the call that said what it is for: where the heap is known to lie
/// elsewhere, it is a table.
fn g1_table(path: &CallPath, world: &World<'_>) -> Option<MemoryKind> {
    let heap_is_known = || world.survey_has(ID, |claim| claim.category == HEAP);
    let by_g1 = path.any(|line| is_jvm(line) && line.mentions("G1PageBasedVirtualSpace::commit"));
    (by_g1 && world.fact("a Java heap is laid out", heap_is_known)).then_some(G1_TABLES)
}

/// The reservation (PROT_NONE) that this MAP_FIXED call lies in, the smallest one.
fn containing_reservation(subject: &Subject<'_>, world: &World<'_>) -> Option<(EventId, StackId)> {
    subject.call.filter(|c| c.has(MAP_FIXED))?;
    let own = subject.record?.event;
    let candidates = world.reservations_containing(subject.range).filter_map(|(at, r)| {
        let call = MmapCall::of(&r.op).filter(|_| r.event != own)?;
        let stack = r.stack.ok()?;
        // trimmed to be aligned: others may have got what was cut off
        let (rest, left) = (world.span(r.event)?, (r.mapped - r.unmapped).0);
        let near = rest.end.0 <= subject.range.start.0.saturating_add(left)
            && subject.range.end.0 <= rest.start.0.saturating_add(left);
        if !near {
            return None;
        }
        world.path(stack).is_some_and(|path| path.any(is_jvm)).then_some((call.len, at, (r.event, stack)))
    });
    candidates.min_by_key(|(len, at, _)| (*len, *at)).map(|(.., found)| found)
}
