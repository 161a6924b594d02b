//! Recorded traces and snapshots of real programs through ledger and attribution, against the
//! figures that were measured when they were taken (`tests/fixtures/captures/`).

use crate::captures::recorded::{figures, snapshot_knowing, snapshot_only, traced, without_bss};
use std::collections::BTreeMap;
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
    let rows = without_bss(&rows, 52);
    assert_eq!(figures(&found), rows, "and without history");
    assert_eq!(evidence(&found, "glibc-arena"), ["shape"]);
    let headers =
        [0x7f19_6c00_0000, 0x7f19_7400_0000, 0x7f19_7800_0000, 0x7f19_7c00_0000].map(|at| (at, 0x21000));
    let found = snapshot_only("arenas4", "threads-up", &headers);
    assert_eq!((figures(&found), evidence(&found, "glibc-arena")), (rows, vec!["header"]));
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
        assert_eq!(figures(&snapshot_only("stacks4", phase, &[])), without_bss(&rows, 52));
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
    assert_eq!(figures(&snapshot_only("freeonly", "thread", &[])), without_bss(&rows, 52));
}

#[test]
fn an_arena_next_to_jemalloc() {
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
        (Some(349_184), Some(32_784), Some(2496))
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
    assert_eq!(holes(&alone), 8176);
    // with the second library's, which has 4 MiB
    let bss = figures(&alone).iter().find(|row| row.0 == "unknown").map(|row| row.1);
    assert_eq!(bss, Some(52 + 4096));

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
    // with names, the page of TLS by brk is distinguished
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

#[track_caller]
fn virt(found: &Attributed, category: &str) -> u64 {
    figures(found).iter().find(|row| row.0 == category).map_or(0, |row| row.1)
}

/// An extent of jemalloc's right below an arena is one VMA with it. The arena's header, or without it the end
/// of the reserved part, shows where one ends; jemalloc's strings in the file show its owner.
#[test]
fn jemalloc_merged_with_an_arena() {
    let arenas = [0x7f0f_e800_0000, 0x7f0f_ec00_0000, 0x7f0f_f000_0000, 0x7f0f_f800_0000];
    let headers = arenas.map(|at| (at, 0x21000));
    for known in [&headers[..], &[]] {
        let found = snapshot_knowing("fgrs-je", "large", (known, &["jemalloc"]));
        assert_eq!(virt(&found, "glibc-arena"), 4 * 65_536);
        assert_eq!(virt(&found, "jemalloc"), 262_144 + 18_432 + 8192);
        assert_eq!(virt(&found, "thread-stack"), 4 * 2052 + 12, "and a signal stack");
    }
    // nothing shows that it is jemalloc's: no rule claims it
    let found = snapshot_only("fgrs-je", "large", &[]);
    assert_eq!((virt(&found, "glibc-arena"), virt(&found, "jemalloc")), (4 * 65_536, 0));
    assert!(virt(&found, "unknown") >= 262_144);
    let found = snapshot_knowing("fgrs-je-stripped", "threads-up", (&[], &["jemalloc"]));
    assert_eq!((virt(&found, "jemalloc"), virt(&found, "glibc-arena")), (16_384, 131_072));
    let finding = found.findings.iter().find(|f| f.category.id == "jemalloc").expect("a finding");
    assert!(finding.fix[0].knob.starts_with("_RJEM_MALLOC_CONF=retain:false"), "{:?}", finding.fix);
    assert!(finding.no_help.iter().any(|no| no.knob == "MALLOC_CONF"), "{:?}", finding.no_help);
}

#[test]
fn regions_of_google_tcmalloc() {
    let found = snapshot_only("fgrs-tcb", "threads-up", &[]);
    assert_eq!((virt(&found, "tcmalloc"), evidence(&found, "tcmalloc")), (3 << 20, vec!["shape"]));
    assert_eq!(virt(&found, "glibc-arena"), 4 * 65_536);
    let finding = found.findings.iter().find(|f| f.category.id == "tcmalloc").expect("a finding");
    assert!(finding.fix.is_empty() && finding.why.contains("regions of 1 GiB"), "{}", finding.why);
    let found = snapshot_knowing("fgrs-tcb", "threads-up", (&[], &["tcmalloc"]));
    assert_eq!(virt(&found, "tcmalloc"), (3 << 20) + 2056);
}

#[test]
fn arenas_of_mimalloc() {
    for (name, virt_of_it) in [("fgrs-mi2", 1_048_576), ("fgrs-mi3", 1_050_944)] {
        let found = snapshot_knowing(name, "threads-up", (&[], &["mimalloc"]));
        assert_eq!(
            (virt(&found, "mimalloc"), virt(&found, "glibc-arena")),
            (virt_of_it, 4 * 65_536),
            "{name}"
        );
        let finding = found.findings.iter().find(|f| f.category.id == "mimalloc").expect("a finding");
        assert!(finding.fix[0].knob.starts_with("MIMALLOC_ARENA_RESERVE"), "{:?}", finding.fix);
        let alone = snapshot_only(name, "threads-up", &[]);
        assert_eq!(virt(&alone, "mimalloc"), 0, "{name}: 1 GiB alone says nothing");
    }
}

#[test]
fn heaps_that_are_full() {
    // three heaps of one arena, two of them merged
    let found = snapshot_only("arena-150MB", "threads-up", &[]);
    let row = ("glibc-arena", 3 * 65_536, 3);
    assert!(figures(&found).contains(&row), "{:?}", figures(&found));
    let found = snapshot_only("dlmo", "1MB-in-second-malloc", &[]);
    assert_eq!(virt(&found, "glibc-main-heap"), 132 + 1024, "the second C library's");
}

#[test]
fn musl_and_its_stacks_in_one_vma() {
    let found = snapshot_only("alloc-musl", "threads", &[]);
    assert_eq!((virt(&found, "unknown"), virt(&found, "thread-stack")), (8, 4 * 140));
    assert_eq!(virt(&found, "musl-malloc"), 60 + 3936 + (196 - 132) + (40_132 - 132));
}

#[test]
fn everything_in_brk_is_gperftools() {
    let found = snapshot_only("alloc-tcm", "large", &[]);
    assert_eq!(virt(&found, "tcmalloc"), 274_436);
    assert_eq!(virt(&found, "glibc-main-heap"), 0);
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
        // their bss
        [("go", "100MB", 208), ("go-stripped", "start", 208), ("gocgo", "4-locked-threads", 640 + 52)]
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
    // an arena is proven by its pools, which smaps does not show
    assert_eq!((python("python-arena").0, python("glibc-arena").1), (0, 8));
}
