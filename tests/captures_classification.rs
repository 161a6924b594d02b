//! Recorded traces and snapshots of real programs through ledger and attribution, against the
//! figures that were measured when they were taken (`tests/fixtures/captures/`).

mod support;

use std::collections::BTreeMap;
use support::recorded::{figures, snapshot_only, traced};
use vmaudit::attribution::Attributed;

type Row = (&'static str, u64, u64);

/// What a dynamically linked glibc program of one file has besides.
const KERNEL: Row = ("kernel", 32, 3);
const MAIN_HEAP: Row = ("glibc-main-heap", 132, 1);
const MAIN_STACK: Row = ("main-stack", 132, 1);

#[track_caller]
fn check((name, phase): (&str, &str), virt: u64, rows: &[Row]) -> Attributed {
    let found = traced(name, phase);
    assert_eq!(figures(&found), rows, "{name}.{phase}");
    assert_eq!(found.totals.virt >> 10, virt, "VmSize of {name}.{phase}");
    assert_eq!((found.coverage.unknown, found.coverage.preexisting), (0, 0));
    found
}

/// Evidence of all pieces of a category.
fn evidence(found: &Attributed, category: &str) -> Vec<&'static str> {
    let mut all: Vec<_> = found.pieces.iter().filter(|p| p.category.id == category).collect();
    all.dedup_by_key(|p| p.evidence);
    all.iter().map(|p| p.evidence.as_str()).collect()
}

#[test]
fn four_threads_four_arenas() {
    let rows = [
        ("glibc-arena", 262_144, 4),
        MAIN_HEAP,
        KERNEL,
        ("loader", 2180, 6),
        MAIN_STACK,
        ("thread-stack", 32_784, 4),
    ];
    let found = check(("arenas4", "threads-up"), 297_404, &rows);
    assert_eq!(evidence(&found, "glibc-arena"), ["stack"]);
    assert_eq!(evidence(&found, "thread-stack"), ["stack"]);
    let findings: Vec<_> = found.findings.iter().filter(|f| f.category.id == "glibc-arena").collect();
    let [finding] = findings.as_slice() else { panic!("one caller, one finding: {findings:?}") };
    // two call sites in alloc_new_heap, four threads
    assert_eq!(finding.threads, [16691, 16692, 16693, 16694]);
    assert_eq!(finding.fix[0].saves_rss, 0);
    assert_eq!(found.totals.reserved >> 10, 262_144 - 4 * 132 + 4 * 4);

    let found = snapshot_only("arenas4", "threads-up", &[]);
    assert_eq!(figures(&found), rows, "and without history");
    assert_eq!(evidence(&found, "glibc-arena"), ["shape"]);
    let headers =
        [0x7f19_6c00_0000, 0x7f19_7400_0000, 0x7f19_7800_0000, 0x7f19_7c00_0000].map(|at| (at, 0x21000));
    let found = snapshot_only("arenas4", "threads-up", &headers);
    assert_eq!((figures(&found), evidence(&found, "glibc-arena")), (rows.to_vec(), vec!["header"]));
}

#[test]
fn before_the_threads_there_is_none() {
    check(("arenas4", "before-threads"), 2344, &[KERNEL, ("loader", 2180, 6), MAIN_STACK]);
}

#[test]
fn stacks_with_and_without_guards() {
    let rows = [MAIN_HEAP, KERNEL, ("loader", 2180, 6), MAIN_STACK, ("thread-stack", 32_784, 4)];
    for phase in ["threads-up", "threads-joined"] {
        let found = check(("stacks4", phase), 35_260, &rows);
        assert_eq!(found.rows[0].footprint.reserved >> 10, 16, "four guards");
        assert_eq!(figures(&snapshot_only("stacks4", phase, &[])), rows);
    }
    // four stacks, one VMA
    let rows = [MAIN_HEAP, KERNEL, ("loader", 2180, 6), MAIN_STACK, ("thread-stack", 32_768, 4)];
    check(("stacks-noguard", "threads-up"), 35_244, &rows);
    // one frame a stack, no MAP_STACK
    let rows = [KERNEL, ("loader", 28, 1), MAIN_STACK, ("thread-stack", 560, 4)];
    check(("stacks-musl", "threads-up"), 752, &rows);
}

#[test]
fn free_alone_makes_an_arena() {
    let rows = [
        ("glibc-arena", 65_536, 1),
        MAIN_HEAP,
        KERNEL,
        ("loader", 2180, 6),
        MAIN_STACK,
        ("thread-stack", 8196, 1),
    ];
    let found = check(("freeonly", "thread"), 76_208, &rows);
    assert!(found.findings[0].why.contains("never had to call malloc"), "{}", found.findings[0].why);
    assert_eq!(figures(&snapshot_only("freeonly", "thread", &[])), rows);
}

#[test]
fn an_arena_beside_jemalloc() {
    let rows = [
        ("glibc-arena", 65_536, 1),
        MAIN_HEAP,
        ("jemalloc", 12_288, 5),
        KERNEL,
        ("loader", 6276, 10),
        MAIN_STACK,
        ("thread-stack", 8196, 1),
    ];
    let found = check(("blog-prefix-fgets-shared", "thread"), 92_592, &rows);
    let arena = &found.findings[0];
    assert!(arena.why.contains("fgets of the C library calls malloc for its own use"), "{}", arena.why);
    assert!(arena.why.contains("beside jemalloc"), "{}", arena.why);
    let parts: BTreeMap<&str, u64> =
        found.pieces.iter().filter(|p| p.category.id == "jemalloc").fold(BTreeMap::new(), |mut sums, p| {
            *sums.entry(p.part).or_default() += p.footprint.virt >> 10;
            sums
        });
    assert_eq!(parts.keys().copied().collect::<Vec<_>>(), ["jemalloc base (metadata)", "jemalloc extent"]);
    let found = traced("blog-prefix-fgets-shared", "before");
    assert!(!figures(&found).iter().any(|r| r.0 == "glibc-arena"));
}

#[test]
fn jemalloc_in_a_stripped_library() {
    let rows =
        [("jemalloc", 349_184, 22), KERNEL, ("loader", 8680, 15), MAIN_STACK, ("thread-stack", 32_784, 4)];
    let found = check(("alloc-je", "large"), 390_812, &rows);
    assert_eq!(evidence(&found, "jemalloc"), ["stack"]);
    let alone = snapshot_only("alloc-je", "large", &[]);
    let virt = |id: &str| figures(&alone).iter().find(|r| r.0 == id).map(|r| r.1);
    assert_eq!(
        (virt("jemalloc"), virt("thread-stack"), virt("unknown")),
        (Some(349_184), Some(32_784), None)
    );
}

#[test]
fn the_loader_and_its_holes() {
    let rows = [MAIN_HEAP, KERNEL, ("loader", 14_824, 8), MAIN_STACK];
    let found = check(("tls2m", "dlopened"), 15_120, &rows);
    let holes = |found: &Attributed| {
        let holes = found.pieces.iter().filter(|p| p.part == "hole between segments");
        holes.map(|p| p.footprint.virt >> 10).sum::<u64>()
    };
    assert_eq!(holes(&found), 2044 + 2044 + 4088);
    let by_dlopen = found.findings.iter().find(|f| f.title.contains("dlopen")).expect("its own finding");
    assert!(
        by_dlopen.fix.iter().any(|f| f.knob.contains("max-page-size=4096") && f.saves_virt >> 10 == 8176)
    );
    let alone = snapshot_only("tls2m", "dlopened", &[]);
    assert_eq!((figures(&alone), holes(&alone)), (rows.to_vec(), 8176));

    check(("bigalign", "start"), 67_880, &[KERNEL, ("loader", 67_716, 7), MAIN_STACK]);
}

#[test]
fn tls_of_a_library_is_malloc_of_the_touching_thread() {
    let rows = [
        ("glibc-arena", 65_536, 1),
        MAIN_HEAP,
        ("glibc-mmapped", 2056, 2),
        KERNEL,
        ("loader", 6648, 8),
        MAIN_STACK,
        ("thread-stack", 8196, 1),
    ];
    check(("tls", "thread-touched"), 82_732, &rows);
}

#[test]
fn a_second_libc_grows_its_main_arena_by_mmap() {
    let rows = [("glibc-main-heap", 132 + 1024, 2), KERNEL, ("loader", 4108, 7), MAIN_STACK];
    let found = check(("dlmo", "1MB-in-second-malloc"), 5428, &rows);
    assert!(found.pieces.iter().any(|p| p.part == "main heap by mmap (brk refused)"));
}

#[test]
fn static_programs_by_the_shape_of_their_calls() {
    let heap = ("glibc-main-heap", 136, 1);
    let rows = [
        ("glibc-arena", 131_072, 2),
        heap,
        KERNEL,
        ("loader", 792, 2),
        MAIN_STACK,
        ("thread-stack", 16_392, 2),
    ];
    let found = check(("arenas-glibc-static-stripped", "threads-up"), 148_556, &rows);
    assert_eq!(evidence(&found, "glibc-arena"), ["shape"]);
    assert_eq!(figures(&snapshot_only("arenas-glibc-static-stripped", "threads-up", &[])), rows);
    // with names, the page of TLS by brk is told apart
    let rows = [rows[0], MAIN_HEAP, KERNEL, ("loader", 796, 3), MAIN_STACK, rows[5]];
    check(("arenas-glibc-static", "threads-up"), 148_556, &rows);
}

#[test]
fn go_and_mimalloc() {
    let rows = [("go-heap", 777_480, 24), KERNEL, ("loader", 1404, 2), MAIN_STACK];
    let found = check(("go", "100MB"), 779_048, &rows);
    assert_eq!(evidence(&found, "go-heap"), ["stack"]);
    let alone = snapshot_only("go", "100MB", &[]);
    assert_eq!((figures(&alone)[0].0, figures(&alone)[0].1), ("go-heap", 777_480));
    let rows =
        [KERNEL, ("loader", 2884, 9), MAIN_STACK, ("mimalloc", 196_640, 10), ("thread-stack", 32_784, 4)];
    check(("alloc-mi", "threads"), 232_472, &rows);
}

/// The runtimes of the field guide, by smaps alone: the JVM's figures are those that its own native
/// memory tracking gives for such a process.
#[test]
fn managed_runtimes_from_a_snapshot_alone() {
    let of = |name: &str, phase: &str| {
        let found = snapshot_only(name, phase, &[]);
        move |id: &str| figures(&found).iter().find(|r| r.0 == id).map_or((0, 0), |r| (r.1, r.2))
    };
    let java = of("java", "16-threads");
    assert_eq!(java("jvm-heap"), (6_172_672, 1));
    assert_eq!(java("jvm-class-space"), (1_048_576, 1));
    assert_eq!(java("jvm-metaspace"), (65_536, 1));
    assert_eq!(java("jvm-shared-classes").0, 16_384);
    // the code cache, and maps of its three heaps
    assert_eq!(java("jvm-code-cache"), (245_760 + 940 + 940 + 48, 4));
    // two bitmaps, three tables of bytes, the marking stack
    assert_eq!(java("jvm-gc").0, 2 * 96_448 + 3 * 12_056 + 32_768);
    assert_eq!(java("glibc-arena"), (983_040, 15));

    for (name, phase, unknown) in
        [("go", "100MB", 0), ("go-stripped", "start", 0), ("gocgo", "4-locked-threads", 640)]
    {
        let go = of(name, phase);
        assert!((640_000..780_000).contains(&go("go-heap").0), "{name}: {}", go("go-heap").0);
        assert_eq!(go("unknown").0, unknown, "{name}");
    }

    for (phase, isolates) in [("start", 1), ("worker", 2)] {
        let found = snapshot_only("node", phase, &[]);
        let pieces = found.pieces.iter().filter(|p| p.category.id == "v8" && p.part.starts_with("co"));
        assert_eq!(pieces.map(|p| p.footprint.virt).sum::<u64>(), isolates * (512 << 20));
        assert!(found.pieces.iter().any(|p| p.part == "copy of the built-in functions"));
        assert!(found.findings[0].title.contains("V8 code range"), "{}", found.findings[0].title);
    }

    let python = of("py311", "8-threads");
    assert_eq!((python("python-arena").0, python("glibc-arena").1), (3072, 8));
}
