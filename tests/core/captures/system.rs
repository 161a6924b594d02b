//! Snapshots alone of the field guide's programs whose memory is no allocator's: sanitizers, PostgreSQL,
//! OpenMP, stacks of all shapes. Total and category sums are those of the smaps files.

use crate::captures::recorded::{figures, snapshot_knowing, snapshot_only};
use vmaudit::attribution::{Attributed, Finding};

type Row = (&'static str, u64, u64);

const KERNEL: Row = ("kernel", 32, 3);
const MAIN_HEAP: Row = ("glibc-main-heap", 132, 1);
const MAIN_STACK: Row = ("main-stack", 132, 1);
/// The C library's: only the file shows how long a bss is.
const BSS: Row = ("unknown", 52, 1);

/// The snapshot, whose categories are these, and all of it.
#[track_caller]
fn check((name, phase): (&str, &str), vm_size: u64, rows: &[Row]) -> Attributed {
    let found = snapshot_only(name, phase, &[]);
    assert_eq!(figures(&found), rows, "{name}.{phase}");
    assert_eq!(found.totals.virt >> 10, vm_size, "VmSize of {name}.{phase}");
    found
}

#[track_caller]
fn finding<'a>(found: &'a Attributed, category: &str) -> &'a Finding {
    found.findings.iter().find(|f| f.category.id == category).expect("a finding")
}

/// Evidence of a category's pieces, each once.
fn evidence(found: &Attributed, category: &str) -> Vec<&'static str> {
    let mine = found.pieces.iter().filter(|p| p.category.id == category);
    let mut all: Vec<_> = mine.map(|p| p.evidence.as_str()).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[test]
fn sanitizers_by_their_fixed_places() {
    let rows = [
        KERNEL,
        ("loader", 4480, 8),
        MAIN_STACK,
        // its shadow, its allocator's space
        ("sanitizer-shadow", 21_474_836_492, 2),
        // what it mapped elsewhere, in no way marked, and two libraries' bss
        ("unknown", 22_888 + 5576, 12),
    ];
    let asan = check(("san-address", "start"), 21_474_869_600, &rows);
    assert_eq!(evidence(&asan, "sanitizer-shadow"), ["header"]);
    let shadow = &asan.findings[0];
    assert_eq!(shadow.title, "AddressSanitizer's shadow memory and allocator space");
    assert!(shadow.why.contains("harmless") && shadow.fix.is_empty());
    assert!(shadow.no_help.iter().any(|none| none.knob == "ulimit -v"));

    let rows = [
        KERNEL,
        ("loader", 4588, 9),
        MAIN_STACK,
        ("sanitizer-shadow", 133_680_857_088, 27),
        ("unknown", 26_628 + 48_536, 11),
    ];
    let tsan = check(("san-thread", "start"), 133_680_937_004, &rows);
    assert_eq!(evidence(&tsan, "sanitizer-shadow"), ["header", "name"], "read-only shadow is a named file");
    assert!(tsan.findings[0].title.starts_with("ThreadSanitizer"));
}

#[test]
fn a_postgresql_backend() {
    let rows = [
        // forked: two VMAs, one heap
        ("glibc-main-heap", 732 + 584, 1),
        KERNEL,
        ("loader", 69_864, 59),
        MAIN_STACK,
        ("shared-anon", 146_016 + 1024 + 28, 3),
        ("sysv-shm", 4, 1),
        ("unknown", 260 + 40, 4),
    ];
    let found = check(("pg", "backend"), 218_716, &rows);
    let shared = &found.findings[0];
    assert_eq!(shared.title, "PostgreSQL's shared memory");
    for words in ["inherited by each of its processes", "143.6 MiB in its VIRT", "(Pss)"] {
        assert!(shared.why.contains(words), "{}", shared.why);
    }
    assert!(shared.fix[0].knob.contains("shared_buffers"));
    assert_eq!(finding(&found, "sysv-shm").title, "PostgreSQL's interlock (System V)");
}

#[test]
fn stacks_by_guards_flags_and_size() {
    let rows = [MAIN_HEAP, KERNEL, ("loader", 2128, 5), MAIN_STACK, ("thread-stack", 16 * 2052, 16), BSS];
    let unlimited = check(("stacks16-ulimit-unlimited", "threads-up"), 35_308, &rows);
    assert_eq!(evidence(&unlimited, "thread-stack"), ["shape"]);
    assert_eq!(finding(&unlimited, "thread-stack").title, "16 thread stacks");

    // four of 8 MiB, which the kernel shows as one
    let rows = [MAIN_HEAP, KERNEL, ("loader", 2128, 5), MAIN_STACK, ("thread-stack", 32_768, 1), BSS];
    let merged = check(("stacks-noguard", "threads-up"), 35_244, &rows);
    let why = &finding(&merged, "thread-stack").why;
    assert!(why.contains("8 MiB each") && why.contains("only their threads tell"), "{why}");

    let rows = [
        ("glibc-arena", 4 * 65_536, 4),
        MAIN_HEAP,
        KERNEL,
        ("loader", 2668, 7),
        MAIN_STACK,
        ("thread-stack", 4 * 2052 + 5 * 12, 9),
    ];
    check(("fgrs-sys", "threads-up"), 273_376, &rows);
    let rust = snapshot_knowing("fgrs-sys", "threads-up", (&[], &["rust-std"]));
    let stacks = finding(&rust, "thread-stack");
    assert_eq!(stacks.title, "4 thread stacks, 5 signal stacks");
    assert!(stacks.fix[0].knob.contains("RUST_MIN_STACK"), "{:?}", stacks.fix);
    assert!(stacks.no_help.iter().any(|none| none.knob == "ulimit -s"));

    let rows = [
        ("glibc-arena", 7 * 65_536, 7),
        MAIN_HEAP,
        KERNEL,
        ("loader", 2468, 7),
        MAIN_STACK,
        ("thread-stack", 7 * 8196, 7),
    ];
    let openmp = check(("omp", "after-parallel"), 518_888, &rows);
    assert!(finding(&openmp, "thread-stack").why.contains("libgomp is loaded"));
}

/// One program's own mappings, merged and split, are its own; a guard inside a mapping makes a stack of it; a
/// page in the way of brk is no heap.
#[test]
fn the_kernels_merging_and_splitting_misleads_nobody() {
    let rows = [KERNEL, ("loader", 2128, 5), MAIN_STACK, ("unknown", 9152 + BSS.1, 11)];
    check(("kernelvma", "split"), 11_496, &rows);
    let guard = snapshot_only("kernelvma", "guard-install", &[]);
    assert!(figures(&guard).contains(&("thread-stack", 8192, 1)), "{:?}", figures(&guard));
    assert!(figures(&guard).contains(&("unknown", 9152 + BSS.1, 11)));
    let blocked = snapshot_only("kernelvma", "brk-blocked", &[]);
    assert!(figures(&blocked).iter().all(|row| row.0 != "glibc-main-heap" || row.1 > 4), "{blocked:?}");
    assert_eq!(blocked.totals.virt >> 10, 24_676);
}
