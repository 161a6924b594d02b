//! HotSpot in plain words: why each kind of its memory is there, and which flag changes it.

use super::layout::Flags;
use super::{BITMAP, CLASSES, CODE, GC, HEAP, JAVA_HEAP, META, MODULES, SHARED, Z_MARK_STACK};
use crate::attribution::findings::Fix;
use crate::attribution::rules::{Advice, Group, Placed, World};
use crate::attribution::units::{exact_size, size};

const MIB: u64 = 1 << 20;
/// Space for compiled code and for classes that is enough for small programs; it was in the field guide's
/// runs.
const SMALL: u64 = 32 * MIB;
/// Address space for a byte of ZGC's heap (zGlobals.hpp, ZVirtualToPhysicalRatio).
const Z_RATIO: u64 = 16;

pub(super) fn advise(group: &Group<'_>, world: &World<'_>) -> Advice {
    let mut advice = match group.category {
        HEAP => heap(group, world),
        CODE => code(group),
        CLASSES => class_space(group),
        META => metaspace(group),
        SHARED => archive(),
        GC => tables(group),
        _ => other(group),
    };
    advice.title = title(group);
    advice
}

/// Reserved or committed: which of the two is the unused part.
fn title(group: &Group<'_>) -> Option<String> {
    let one = match group.category {
        HEAP if group.instances > 1 => format!("Java heap at {} addresses (ZGC)", group.instances),
        GC if group.part(Z_MARK_STACK.reserved).virt > 0 => "ZGC's marking stacks".to_string(),
        HEAP | CLASSES | CODE | META if group.instances == 1 => group.category.one.to_string(),
        META => format!("{} {}", group.instances, group.category.many),
        CODE => "JVM code cache".to_string(),
        GC => "tables of the garbage collector".to_string(),
        _ if group.part(MODULES).virt > 0 && group.part(MODULES).virt == group.footprint.virt => {
            return Some("the JDK's class library (lib/modules), a mapped file".to_string());
        }
        _ => return None,
    };
    let how = match (group.footprint.reserved, group.unused()) {
        (reserved, unused) if reserved * 2 > unused => "reserved but not committed",
        _ => "committed but not touched",
    };
    Some(format!("{one}, {how}"))
}

fn heap(group: &Group<'_>, world: &World<'_>) -> Advice {
    let (all, reserved) = (group.footprint.virt, group.footprint.reserved);
    let committed = all - reserved;
    let views = group.instances.max(1);
    let set = Flags::of(world).heap;
    let why = match views {
        1 => {
            let why = format!(
                "the JVM reserves its largest allowed heap at start-up and commits it as it grows: of {} it has \
                 committed {}, and {} are in memory",
                size(all),
                size(committed),
                size(group.footprint.rss)
            );
            why + &whence(all, set, world)
        }
        _ => {
            let why = format!(
                "this collector (ZGC) reserves many times its largest allowed heap, so that it finds room in one \
                 piece, and maps the heap at {views} addresses: {} each, of which {} are committed and {} in \
                 memory; each address counts, in VIRT and in RSS",
                size(all / views),
                size(committed / views),
                size(group.footprint.rss / views)
            );
            why + &whence(all / views / Z_RATIO, set, world)
        }
    };
    let keep = committed.div_ceil(MIB).max(8) * MIB;
    let mut advice = Advice::why(why);
    if reserved > 0 && views == 1 && all > keep {
        let note = "that is what is committed now; a program that needs more ends with OutOfMemoryError. The \
                    collector's tables get smaller with it";
        advice = advice.fix(Fix::new(&format!("-Xmx{}m", keep / MIB), all - keep, 0).note(note));
    } else if reserved > 0 {
        let note = "the reservations follow it; a program that needs more ends with OutOfMemoryError";
        advice = advice.fix(Fix::new("a smaller -Xmx", 0, 0).note(note));
    }
    let untouched = group.part(JAVA_HEAP.committed).unused();
    if untouched >= MIB && reserved == 0 {
        let note = "all of it is committed, which -Xms may have set: how much the program needs only a run with a \
                    smaller -Xms shows, as what is committed then";
        advice = advice.fix(Fix::new("a smaller -Xmx", 0, 0).note(note));
    }
    advice
        .wont("-Xms", "says how much is committed from the start; what is reserved follows -Xmx")
        .wont("MALLOC_ARENA_MAX", "is about glibc's malloc; the Java heap is the JVM's own mmap")
        .wont("System.gc()", "gives pages back, never the reservation")
}

/// Why the heap may be as large as it is, where that is known.
fn whence(largest: u64, set: Option<u64>, world: &World<'_>) -> String {
    let limits = &world.input.observations.limits;
    // rounded to the heap's alignment
    let quarter_of =
        |memory: u64| largest <= memory / 4 + 32 * MIB && largest + 32 * MIB >= memory / 4 && largest > 0;
    if let Some(set) = set.filter(|&set| set == largest) {
        return format!("; -Xmx (or MaxHeapSize) on the command line allows {}", exact_size(set));
    }
    if let Some(cgroup) = limits.cgroup.filter(|cgroup| quarter_of(cgroup.limit)) {
        return format!(
            "; without -Xmx that is a quarter of what the cgroup allows ({})",
            exact_size(cgroup.limit)
        );
    }
    match limits.memory {
        Some(memory) if quarter_of(memory) => {
            let mut text =
                format!("; without -Xmx that is a quarter of the memory that it sees ({})", size(memory));
            if let Some(cgroup) = limits.cgroup.filter(|cgroup| cgroup.limit < largest) {
                text += &format!(
                    ", more than the cgroup allows ({}): the kernel would kill it before the heap is full",
                    size(cgroup.limit)
                );
            }
            text
        }
        _ => String::new(),
    }
}

fn code(group: &Group<'_>) -> Advice {
    let committed = group.footprint.virt - group.footprint.reserved;
    let advice = Advice::why(format!(
        "room for compiled code is reserved at start-up, 240 MiB by default (48 MiB without tiered \
         compilation); {} of it are committed so far",
        size(committed)
    ));
    let fix = Fix::new("-XX:ReservedCodeCacheSize=32m", group.footprint.virt.saturating_sub(SMALL), 0)
        .note("when it is full, the compilers stop or throw code away: measure a long run first");
    let advice = if committed < SMALL && group.footprint.virt > SMALL { advice.fix(fix) } else { advice };
    advice
        .wont("-Xmx", "sets the Java heap; compiled code lies outside of it")
        .wont("-XX:InitialCodeCacheSize", "says what is committed from the start, not what is reserved")
}

fn class_space(group: &Group<'_>) -> Advice {
    let committed = group.footprint.virt - group.footprint.reserved;
    let advice = Advice::why(format!(
        "compressed class pointers reach one range, and the JVM reserves all of it at start-up, 1 GiB by \
         default; the classes loaded so far have {} of it committed",
        size(committed)
    ));
    let fix = Fix::new("-XX:CompressedClassSpaceSize=32m", group.footprint.virt.saturating_sub(SMALL), 0)
        .note(
            "a program that loads more classes than fit ends with OutOfMemoryError: Compressed class space",
        );
    let advice = if committed < SMALL && group.footprint.virt > SMALL { advice.fix(fix) } else { advice };
    advice
        .wont("-Xmx", "sets the Java heap; classes lie outside of it")
        .wont("-XX:MetaspaceSize", "says when classes are first collected, not what is reserved")
}

fn metaspace(group: &Group<'_>) -> Advice {
    let what = match group.instances {
        1 => "a node of 64 MiB".to_string(),
        n => format!("{n} nodes of 64 MiB"),
    };
    Advice::why(format!(
        "what describes classes and methods is kept in nodes that are reserved whole, 64 MiB each, and \
         committed in steps of 64 KiB: {what}, {} committed",
        size(group.footprint.virt - group.footprint.reserved)
    ))
    .wont("-XX:MaxMetaspaceSize", "limits what is committed; the first node is reserved whole all the same")
    .wont("-Xmx", "sets the Java heap; metaspace lies outside of it")
}

fn archive() -> Advice {
    Advice::why(
        "the JDK's own classes come from a file that was prepared when it was built (class data sharing); it \
         makes start-up faster and its untouched pages cost nothing",
    )
    .wont("-Xshare:off", "saves these bytes, but then the same classes are loaded into metaspace, slower")
}

fn tables(group: &Group<'_>) -> Advice {
    if group.part(Z_MARK_STACK.reserved).virt > 0 {
        return Advice::why(
            "ZGC reserves the room of its marking stacks whole at start-up, 8 GiB unless told otherwise, \
             whatever the size of the heap",
        )
        .fix(
            Fix::new("-XX:ZMarkStackSpaceLimit=1g", group.footprint.virt.saturating_sub(1 << 30), 0)
                .note("figure for 1 GiB; too little, and marking ends the program with an error"),
        )
        .wont("-Xmx", "sets the Java heap; this room does not follow it");
    }
    let mut advice = Advice::why(
        "the garbage collector keeps tables over the whole heap that could be: a bit for each 64 bytes of it \
         (mark bitmaps), a byte for each 512 (card tables, block offsets); they are committed with the heap",
    )
    .fix(Fix::new("a smaller -Xmx", 0, 0).note("they shrink in proportion"));
    let bitmaps = group.part(BITMAP.committed).virt + group.part(BITMAP.reserved).virt;
    if bitmaps > 0 {
        let note =
            "it has no mark bitmaps; it stops the program for each collection, so for small heaps only";
        advice = advice.fix(Fix::new("-XX:+UseSerialGC", bitmaps, 0).note(note));
    }
    advice.wont("-XX:ParallelGCThreads", "changes the threads' stacks, not the tables")
}

fn other(group: &Group<'_>) -> Advice {
    if group.part(MODULES).virt * 2 > group.footprint.virt {
        return Advice::why(
            "the JDK's class library is one file, mapped whole and read where a class is looked up; its \
             pages are the page cache's, shared by all JVMs",
        )
        .fix(Fix::new("a run-time image made by jlink", 0, 0).note("with the modules that the program needs"))
        .wont("-Xmx", "sets the Java heap; this is a file");
    }
    Advice::why("memory of the JVM's own, outside of heap, metaspace, code cache and the collector's tables")
}

/// HotSpot reads JAVA_TOOL_OPTIONS, then the command line, then _JAVA_OPTIONS, and the last of equal options
/// counts (runtime/arguments.cpp, `Arguments::parse_vm_init_args`). Of two collectors none counts: it does not
/// start.
pub(super) fn place(option: &str, started: &[String]) -> Option<Placed> {
    let collector = |word: &&str| {
        word.strip_prefix("-XX:+Use").is_some_and(|name| name.ends_with("GC") && is_option(word))
    };
    let mut words: Vec<String> = Vec::new();
    if collector(&option) {
        let others = started.iter().flat_map(|words| words.split_whitespace()).filter(collector);
        for other in others.filter(|other| *other != option) {
            let off = other.replacen('+', "-", 1);
            if !words.contains(&off) {
                words.push(off);
            }
        }
    }
    words.push(option.to_owned());
    is_option(option).then(|| Placed::Variable { name: "_JAVA_OPTIONS", value: words.join(" ") })
}

/// `-Xmx64m`, `-XX:ReservedCodeCacheSize=32m`, `-XX:+UseSerialGC`.
fn is_option(word: &str) -> bool {
    let plain = |rest: &str| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'=');
    if let Some(rest) = word.strip_prefix("-XX:") {
        return plain(rest.strip_prefix(['+', '-']).unwrap_or(rest));
    }
    let number = |digits: &str| digits.bytes().all(|b| b.is_ascii_digit()) && digits.parse::<u64>().is_ok();
    ["-Xmx", "-Xms", "-Xss"].iter().any(|option| {
        word.strip_prefix(option).is_some_and(|size| number(size.trim_end_matches(['k', 'm', 'g'])))
    })
}
