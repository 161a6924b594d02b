//! Each allocator's rule on hand-built cases; addresses and stacks follow real captures.

use crate::case::*;
use vmaudit::ledger::Origin;
use vmaudit::model::observation::{GivenStack, StackLists, ThreadBlocks};
use vmaudit::model::{Addr, AddrRange, Bytes, FileMarks, VmFlags, VmOp, VmaDetail};

/// Debian's libc: internal functions have no name, exported ones do.
const STRIPPED_ARENA: &[&str] = &[
    "libc.so.6!__mmap+0x13",
    "libc.so.6@0x95615",
    "libc.so.6@0x95b32",
    "libc.so.6@0x982ac",
    "libc.so.6!malloc+0x11e",
    "arenas!worker+0x32",
    "libc.so.6@0x891f5",
    "libc.so.6@0x1098ec",
];

fn arena(case: &mut Case, tid: i32, base: u64, stack: &[&str]) {
    let stack = case.stack(stack);
    let origin = case.mmap(tid, 128 * MIB, (NONE, ANON | NORESERVE), stack);
    let record = case.record(origin);
    record.unmapped = Bytes(64 * MIB);
    record.unmap_calls = 2;
    record.mprotect_calls = 1;
    case.vma((base, base + 0x21000), "rw-p", "", Origin::Event(origin));
    case.vma((base + 0x21000, base + 64 * MIB), "---p", "", Origin::Event(origin));
    case.resident(base, base + 0x1000);
}

#[test]
fn four_arenas_of_a_stripped_libc_are_one_finding() {
    let mut case = Case::new();
    let hint = ["libc.so.6!__mmap+0x13", "libc.so.6@0x95581", "libc.so.6@0x95b32", "libc.so.6@0x982ac"];
    let hint: Vec<&str> = hint.into_iter().chain(STRIPPED_ARENA[4..].iter().copied()).collect();
    arena(&mut case, 4001, 0x7f19_6c00_0000, STRIPPED_ARENA);
    arena(&mut case, 4002, 0x7f19_7400_0000, STRIPPED_ARENA);
    // the third shape: 64 MiB at a hint, from another call site in alloc_new_heap
    arena(&mut case, 4003, 0x7f19_7800_0000, &hint);
    arena(&mut case, 4004, 0x7f19_7c00_0000, STRIPPED_ARENA);
    let found = case.attribute();

    let [row] = found.rows.as_slice() else { panic!("{:?}", found.rows) };
    assert_eq!((row.category.id, row.footprint.virt, row.instances), ("glibc-arena", 262_144 * KIB, 4));
    assert_eq!(row.footprint.writable, 4 * 132 * KIB);
    assert_eq!(row.footprint.rss, 4 * 4 * KIB);
    let parts: Vec<&str> = found.pieces.iter().map(|p| p.part).collect();
    assert_eq!(parts[..2], ["arena used part", "arena reserved part"]);
    assert!(found.pieces.iter().all(|p| p.evidence.as_str() == "stack"));

    let [finding] = found.findings.as_slice() else { panic!("{:?}", found.findings) };
    assert_eq!((finding.instances, finding.title.as_str()), (4, "4 glibc malloc arenas"));
    assert_eq!(finding.threads, [4001, 4002, 4003, 4004]);
    assert_eq!(
        finding.ranges[0],
        AddrRange::new(0x7f19_6c00_0000, 0x7f19_7000_0000),
        "used and reserved part are one range"
    );
    assert_eq!(
        finding.story.as_deref(),
        Some("mmap(128 MiB, PROT_NONE, NORESERVE), trimmed to 64 MiB by two munmaps, opened by one mprotect")
    );
    let [fix] = finding.fix.as_slice() else { panic!("{:?}", finding.fix) };
    assert!(fix.knob.starts_with("MALLOC_ARENA_MAX=1"));
    assert_eq!((fix.saves_virt, fix.saves_rss), (found.totals.unused(), 0));
}

#[test]
fn an_arena_that_only_free_made_says_so() {
    let mut case = Case::new();
    let mut stack = STRIPPED_ARENA.to_vec();
    stack[4] = "libc.so.6!__libc_free+0xef";
    stack[5] = "freeonly!worker+0x6";
    arena(&mut case, 4001, 0x7feb_7c00_0000, &stack);
    let found = case.attribute();
    assert!(finding(&found, "glibc-arena").why.contains("free() of a thread is enough"));
}

#[test]
fn a_library_function_that_calls_malloc_is_named() {
    let mut case = Case::new();
    let stack = [
        "libc.so.6!__mmap+0x13",
        "libc.so.6@0x95615",
        "libc.so.6!malloc+0x11e",
        "libc.so.6!_IO_file_doallocate+0x8c",
        "libc.so.6!fgets+0x8e",
        "blog-prefix!act+0x2e2",
        "libc.so.6@0x891f5",
    ];
    arena(&mut case, 4001, 0x7f86_5800_0000, &stack);
    let je = case.stack(&[
        "libc.so.6!__mmap+0x13",
        "blog-prefix!je_pages_map",
        "blog-prefix!je_extent_alloc_mmap",
        "blog-prefix!base_block_alloc.isra.0",
        "blog-prefix!je_base_new",
        "blog-prefix!main",
    ]);
    let base = case.mmap(PID, 2 * MIB, (RW, ANON | NORESERVE), je);
    case.vma((0x7f86_6000_0000, 0x7f86_6020_0000), "rw-p", "", Origin::Event(base));
    let found = case.attribute();
    let arena = finding(&found, "glibc-arena");
    assert!(arena.why.contains("fgets of the C library calls malloc"), "{}", arena.why);
    assert!(arena.why.contains("beside jemalloc"), "{}", arena.why);
    assert!(arena.no_help.iter().any(|no| no.knob == "settings of jemalloc"), "{:?}", arena.no_help);
    assert_eq!(pieces(&found)[2].3, "jemalloc base (metadata)");
}

#[test]
fn pthread_getattr_np_makes_an_arena_in_a_stripped_rust_program() {
    let mut case = Case::new();
    let stack = [
        "libc.so.6!__mmap+0x13",
        "libc.so.6@0x95615",
        "libc.so.6@0x95b32",
        "libc.so.6@0x982ac",
        "libc.so.6!malloc+0x11e",
        "libc.so.6!pthread_getattr_np+0x11a",
        "fgrs-je-stripped@0x9f74f",
        "libc.so.6@0x891f5",
    ];
    arena(&mut case, 4001, 0x7f70_3400_0000, &stack);
    let found = case.attribute();
    assert!(finding(&found, "glibc-arena").why.contains("pthread_getattr_np of the C library"));
}

#[test]
fn merged_extent_and_arena_are_distinguished_by_origin() {
    let mut case = Case::new();
    let je = case.stack(&[
        "libc.so.6!__mmap",
        "p!_rjem_je_pages_map",
        "p!_rjem_je_extent_alloc_mmap",
        "p!_rjem_je_ecache_alloc_grow",
        "p!pac_alloc_real",
        "p!_rjem_je_large_palloc",
        "p!main",
    ]);
    let extent = case.mmap(PID, 256 * MIB, (RW, ANON | NORESERVE), je);
    let glibc = case.stack(STRIPPED_ARENA);
    let arena = case.mmap(4001, 128 * MIB, (NONE, ANON | NORESERVE), glibc);
    let base = 0x7f00_1000_0000;
    let (e, a) = (Origin::Event(extent), Origin::Event(arena));
    let split = base + 256 * MIB;
    case.merged_vma("rw-p", "", &[(base, split, e), (split, split + 132 * KIB, a)]);
    case.vma((split + 132 * KIB, split + 64 * MIB), "---p", "", a);
    let found = case.attribute();
    assert_eq!(virt(&found, "jemalloc"), 256 * MIB);
    assert_eq!(virt(&found, "glibc-arena"), 64 * MIB);
}

#[test]
fn without_history_the_heap_header_cuts_a_merged_vma() {
    let mut case = Case::new();
    let base = 0x7f00_1000_0000;
    let split = base + 256 * MIB;
    case.merged_vma("rw-p", "", &[(base, split + 132 * KIB, Origin::Preexisting)]);
    case.vma((split + 132 * KIB, split + 64 * MIB), "---p", "", Origin::Preexisting);
    case.heap_info(split, 132 * KIB);
    let found = case.attribute();
    assert_eq!(
        pieces(&found),
        [
            (base, split, "unknown", "unknown", "shape"),
            (split, split + 132 * KIB, "glibc-arena", "arena used part", "header"),
            (split + 132 * KIB, split + 64 * MIB, "glibc-arena", "arena reserved part", "header"),
        ]
    );
    assert_eq!(found.rows.iter().map(|r| r.instances).sum::<u64>(), 2);
}

#[test]
fn without_history_and_memory_the_pair_of_vmas_is_enough() {
    let mut case = Case::new();
    let base = 0x7f00_1000_0000;
    case.vma((base, base + 132 * KIB), "rw-p", "", Origin::Preexisting);
    case.vma((base + 132 * KIB, base + 64 * MIB), "---p", "", Origin::Preexisting);
    // JVM metaspace: the same call, but not on a 64 MiB boundary
    let meta = 0x7f80_ef00_0000;
    case.vma((meta, meta + 132 * KIB), "rw-p", "", Origin::Preexisting);
    case.vma((meta + 132 * KIB, meta + 64 * MIB), "---p", "", Origin::Preexisting);
    let found = case.attribute();
    assert_eq!((virt(&found, "glibc-arena"), virt(&found, "unknown")), (64 * MIB, 64 * MIB));
    assert!(found.pieces[..2].iter().all(|p| p.evidence.as_str() == "shape"));
}

#[test]
fn a_static_stripped_glibc_is_known_by_its_call() {
    let mut case = Case::new();
    arena(&mut case, 4001, 0x7f00_1000_0000, &["arenas-static@0x20e90"]);
    let found = case.attribute();
    assert_eq!(virt(&found, "glibc-arena"), 64 * MIB);
    assert!(found.pieces.iter().all(|p| p.evidence.as_str() == "shape"));
}

#[test]
fn stacks_alive_cached_and_guarded() {
    let mut case = Case::new();
    let stack = case.stack(&["libc.so.6!__mmap+0x13", "libc.so.6!pthread_create+0x981", "stacks!main+0xf3"]);
    for (tid, base) in [(4001, 0x7f37_fa44_0000), (4002, 0x7f37_fac4_1000), (4003, 0x7f37_fb44_2000)] {
        let origin = case.mmap(PID, 8_392_704, (NONE, ANON | STACK), stack);
        case.record(origin).mprotect_calls = 1;
        case.vma((base, base + 0x1000), "---p", "", Origin::Event(origin));
        case.vma((base + 0x1000, base + 0x80_1000), "rw-p", "", Origin::Event(origin));
        case.started_thread(tid, base + 0x80_0fc0, tid != 4001);
        case.resident(base + 0x7f_f000, base + 0x80_1000);
    }
    // one of them is in the C library's cache, and one was not joined
    case.observations.thread_blocks.lists = Some(StackLists {
        cached: vec![Addr(0x7f37_fac4_1000 + 0x80_0f00)],
        unjoined: vec![Addr(0x7f37_fb44_2000 + 0x80_0f00)],
        ..StackLists::default()
    });
    let found = case.attribute();
    let [row] = found.rows.as_slice() else { panic!("{:?}", found.rows) };
    assert_eq!((row.category.id, row.instances, row.footprint.virt), ("thread-stack", 3, 3 * 8_392_704));
    assert_eq!(row.footprint.reserved, 3 * 4096);
    assert_eq!(row.footprint.rss, 3 * 8192);
    let parts: Vec<&str> = found.pieces.iter().map(|p| p.part).collect();
    assert_eq!(parts[..4], ["guard", "thread stack", "guard", "cached stack of an exited thread"]);
    let finding = &found.findings[0];
    assert_eq!(finding.threads, [4001, 4002, 4003]);
    assert!(finding.why.contains("2 of them belonged to threads that have exited"), "{}", finding.why);
    assert!(finding.why.contains("1 of these nobody has joined"), "{}", finding.why);
    let cache = finding.fix.iter().find(|f| f.knob.contains("stack_cache_size=0")).unwrap();
    assert_eq!((cache.saves_virt, cache.saves_rss), (8 * MIB, 8192), "only of what is kept");
    assert!(finding.fix.iter().any(|f| f.knob.contains("pthread_join")));
    let limit = finding.fix.iter().find(|f| f.knob.contains("ulimit -s")).unwrap();
    assert_eq!(limit.saves_virt, 3 * 7 * MIB);
}

#[test]
fn without_history_a_stack_pointer_proves_a_stack() {
    let mut case = Case::new();
    for base in [0x7f37_fa44_0000, 0x7f37_fb00_0000] {
        case.vma((base, base + 0x1000), "---p", "", Origin::Preexisting);
        case.vma((base + 0x1000, base + 0x80_1000), "rw-p", "", Origin::Preexisting);
    }
    case.live_thread(4001, 0x7f37_fa44_0000 + 0x80_0000);
    let found = case.attribute();
    assert_eq!(
        pieces(&found).iter().map(|p| (p.2, p.3, p.4)).collect::<Vec<_>>(),
        [
            ("thread-stack", "guard", "thread"),
            ("thread-stack", "thread stack", "thread"),
            ("thread-stack", "guard", "shape"),
            ("thread-stack", "thread stack", "shape"),
        ],
        "it was not checked whether a thread has left it"
    );
    assert_eq!(found.pieces[1].thread, Some(4001));
    case.observations.thread_blocks.searched = true;
    let parts =
        |case: &Case| -> Vec<_> { pieces(&case.attribute())[2..].iter().map(|p| (p.2, p.3)).collect() };
    assert_eq!(parts(&case), [("unknown", "unknown"); 2], "a size alone is no stack");
    case.observations.thread_blocks.ended = vec![Addr(0x7f37_fb80_0740)];
    let left = |part: &'static str| [("thread-stack", "guard"), ("thread-stack", part)];
    assert_eq!(parts(&case), left("stack of an exited thread"), "joined or not: not known");
    let block = case.observations.thread_blocks.ended[0];
    let lists = |cached: Vec<Addr>, unjoined: Vec<Addr>| {
        Some(StackLists { cached, unjoined, ..StackLists::default() })
    };
    case.observations.thread_blocks.lists = lists(vec![block], Vec::new());
    assert_eq!(parts(&case), left("cached stack of an exited thread"));
    case.observations.thread_blocks.lists = lists(Vec::new(), vec![block]);
    assert_eq!(parts(&case), left("stack of an exited thread that was not joined"));
    case.observations.thread_blocks.lists = lists(Vec::new(), Vec::new());
    assert_eq!(
        parts(&case),
        [("unknown", "unknown"); 2],
        "a block is left, and the stack is not the C library's"
    );
}

/// The loader's variables lead to the newest thread's block: its page is the stack's, also where the thread has not run yet,
/// and neither a stack pointer nor a list says that it is one.
#[test]
fn the_newest_stack_is_none_of_the_loaders_data() {
    const AT: u64 = 0x7f37_0000_0000;
    const BLOCK: Addr = Addr(AT + 0xb_1000 - 0x900);
    let mut case = Case::new();
    case.vma((AT, AT + 0x1000), "---p", "", Origin::Preexisting);
    case.vma((AT + 0x1000, AT + 0xb_1000), "rw-p", "", Origin::Preexisting);
    case.observations.code.loader_data = Some(vec![BLOCK]);
    case.observations.thread_blocks.lists = Some(StackLists::default());
    case.observations.thread_blocks.searched = true;
    let starts = |case: &Case| -> Vec<_> { case.attribute().pieces.iter().map(|p| p.range.start).collect() };
    assert_eq!(starts(&case).last(), Some(&BLOCK.page_down()), "where it is no thread's");
    case.observations.thread_blocks.ended = vec![BLOCK];
    assert_eq!(starts(&case), [Addr(AT), Addr(AT + 0x1000)]);
}

/// A stack that the program mapped and gave to a thread is its own: the C library's list says so, or the call. What else
/// the call mapped is no stack.
#[test]
fn a_given_stack_is_who_mapped_it() {
    const AT: u64 = 0x7f37_0000_0000;
    let of = |listed: bool, caller: &str| {
        let mut case = Case::new();
        let stack = case.stack(&["libc.so.6!__mmap+0x13", caller, "stacks!main+0xf3"]);
        let origin = case.mmap(PID, 16 * MIB, (RW, ANON), stack);
        case.vma((AT, AT + 16 * MIB), "rw-p", "", Origin::Event(origin));
        let (from, to) = (Addr(AT + 4 * MIB), Addr(AT + 6 * MIB));
        case.live_thread(4001, to.0 - 0x1000);
        let block = Addr(to.0 - 0x900);
        case.observations.thread_blocks.living = vec![(4001, block)];
        let given = GivenStack { tid: Some(4001), block, stack: Some(AddrRange { start: from, end: to }) };
        case.observations.thread_blocks.lists =
            listed.then(|| StackLists { given: vec![given], ..StackLists::default() });
        let found = case.attribute();
        (virt(&found, "thread-stack"), virt(&found, "app-mmap"), finding(&found, "thread-stack").clone())
    };
    let (stack, rest, known) = of(true, "libpool.so!pool_stacks+0x20");
    assert_eq!((stack, rest), (2 * MIB, 14 * MIB));
    assert!(known.why.contains("libpool.so, pool_stacks mapped it"), "{}", known.why);
    assert!(known.no_help[0].knob.starts_with("ulimit -s") && known.fix.is_empty(), "{known:?}");
    assert_eq!(known.threads, [4001]);
    let (_, _, by_call) = of(false, "libpool.so!pool_stacks+0x20");
    assert_eq!(by_call.why, known.why);
    let (_, _, by_libc) = of(false, "libc.so.6!pthread_create+0x981");
    assert!(!by_libc.why.contains("was given"), "{}", by_libc.why);
}

/// Of 19 stacks two have the size of `ulimit -s`: what that saves is saved of these.
#[test]
fn stacks_of_several_sizes() {
    let mut case = Case::new();
    let mut at = 0x7f37_0000_0000;
    for n in 0..19 {
        let len = if n < 2 { 8 * MIB } else { 704 * KIB };
        case.vma((at, at + 4 * KIB), "---p", "", Origin::Preexisting);
        case.vma((at + 4 * KIB, at + 4 * KIB + len), "rw-p", "", Origin::Preexisting);
        case.live_thread(4001 + n, at + len);
        at += 16 * MIB;
    }
    let found = case.attribute();
    let stacks = finding(&found, "thread-stack");
    assert!(stacks.why.contains("2 of 8 MiB and 17 of 704 KiB"), "{}", stacks.why);
    assert!(stacks.why.contains("those of 8 MiB have the size of `ulimit -s`"), "{}", stacks.why);
    let promised: Vec<(&str, u64)> =
        stacks.fix.iter().map(|fix| (fix.knob.as_str(), fix.saves_virt)).collect();
    assert_eq!(promised[0], ("ulimit -s 1024 (or pthread_attr_setstacksize)", 14 * MIB));
    assert_eq!(promised[1], ("fewer threads", 0), "the others are small as they are");
    assert!(stacks.no_help.is_empty(), "{:?}", stacks.no_help);
}

/// The caller of pthread_create chose the size: C++ has a `std::thread`, too, and a library that a Rust
/// thread calls may start threads of its own.
#[test]
fn who_starts_a_thread_chooses_its_stack() {
    const CREATE: [&str; 2] = ["libc.so.6!__mmap", "libc.so.6!pthread_create"];
    let first_fix = |callers: &[&str], len: u64| {
        let mut case = Case::new();
        let stack = case.stack(&[&CREATE[..], callers].concat());
        let origin = case.mmap(PID, len + 4096, (NONE, ANON | STACK), stack);
        case.vma((0x7f37_0000_0000, 0x7f37_0000_1000), "---p", "", Origin::Event(origin));
        case.vma((0x7f37_0000_1000, 0x7f37_0000_1000 + len), "rw-p", "", Origin::Event(origin));
        finding(&case.attribute(), "thread-stack").fix[0]
            .knob
            .split(' ')
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let cxx = [
        "libstdc++.so.6!_ZNSt6thread15_M_start_threadESt10unique_ptr",
        "pool!std::thread::thread",
        "pool!main",
    ];
    assert_eq!(first_fix(&cxx, 8 * MIB), "ulimit");
    const RUST: &str = "app!_ZN3std3sys6thread4unix6Thread3new17h0123456789abcdefE";
    assert_eq!(first_fix(&[RUST, "app!main"], 2 * MIB), "RUST_MIN_STACK=1048576");
    assert_eq!(first_fix(&[RUST, "app!main"], 4 * MIB), "a", "thread::Builder::stack_size, or the variable");
    assert_eq!(first_fix(&["liba.so!start_pool", RUST, "app!main"], 8 * MIB), "ulimit");
    assert_eq!(first_fix(&["libtsan.so.2!pthread_create", RUST], 2 * MIB), "RUST_MIN_STACK=1048576");
    assert_eq!(first_fix(&["libgomp.so.1@0x1d000", "app!main"], 8 * MIB), "OMP_STACKSIZE=1M");
    assert_eq!(first_fix(&["liba.so!start_pool", "libgomp.so.1@0x1d000", "app!main"], 8 * MIB), "ulimit");
    // of libuv's only those of the pool have a size of its own, where it did not call uv_thread_create
    const UV: &str = "node!uv_thread_create_ex";
    const ONCE: &str = "libc.so.6!__pthread_once_slow";
    for limit in ["node!uv_thread_create", "libother.so@0x9000", "node!start_workers"] {
        assert_eq!(first_fix(&[UV, limit, ONCE, "node!uv_once", "node!main"], 8 * MIB), "ulimit", "{limit}");
    }
    assert_eq!(first_fix(&[UV, "node!main"], 8 * MIB), "ulimit");
}

/// The size of the pool's stacks is the usual limit's and not taken from it: `ulimit -s` is denied where the stack proves
/// that, and nothing is promised of four stacks where only a snapshot is there.
#[test]
fn the_limit_promises_nothing_of_libuvs_pool() {
    const AT: u64 = 0x7f37_0000_0000;
    let attribute = |once: Option<&str>, marked: bool| {
        let mut case = Case::new();
        case.vma((0x40_0000, 0x50_0000), "r-xp", "/usr/bin/node", Origin::Preexisting);
        if marked {
            let file = case.observations.mappings[0].file.expect("a file");
            let marks = vec!["UV_THREADPOOL_SIZE".to_owned()];
            case.observations.code.files.push(FileMarks { file, marks, setting: None, version: None });
        }
        let stack = case.stack(&[
            "libc.so.6!__mmap",
            "libc.so.6!pthread_create",
            "node!uv_thread_create_ex",
            once.unwrap_or("node!init_once"),
            "libc.so.6!__pthread_once_slow",
            "node!uv_once",
        ]);
        for (tid, n) in (4001..).zip(0..6) {
            let at = AT + n * 16 * MIB;
            let origin = match once.is_some() {
                true => Origin::Event(case.mmap(PID, 8 * MIB + 4096, (NONE, ANON | STACK), stack)),
                false => Origin::Preexisting,
            };
            case.vma((at, at + 4096), "---p", "", origin);
            case.vma((at + 4096, at + 4096 + 8 * MIB), "rw-p", "", origin);
            case.live_thread(tid, at + 8 * MIB);
        }
        finding(&case.attribute(), "thread-stack").clone()
    };
    let without_names = attribute(Some("node@0x9000"), false);
    assert_eq!(without_names.fix[0].knob, "UV_THREADPOOL_SIZE=1");
    let pool = attribute(Some("node!init_once"), false);
    let promised: Vec<_> = pool.fix.iter().map(|fix| (fix.knob.as_str(), fix.saves_virt)).collect();
    assert_eq!(promised[0], ("UV_THREADPOOL_SIZE=1", 5 * (8 * MIB + 4096)), "{promised:?}");
    assert!(pool.no_help.iter().any(|no| no.knob == "ulimit -s"), "{:?}", pool.no_help);
    assert!(pool.title.contains("6 stacks of libuv's pool"), "{}", pool.title);
    let limit = |marked: bool| attribute(None, marked).fix[0].saves_virt;
    assert_eq!((limit(false), limit(true)), (42 * MIB, 14 * MIB));
}

/// A thread's own stack has the C library's block for it, wherever its stack pointer is; what is mapped as a
/// stack and has none is no thread's.
#[test]
fn a_thread_that_runs_on_a_fibre_is_not_dead() {
    const AT: u64 = 0x7f37_f000_0000;
    let mut case = Case::new();
    for n in 0..3 {
        let base = AT + n * 0x10_0000;
        for (from, to, perms, flags) in
            [(0, 0x1000, "---p", "mr nh"), (0x1000, 0x8_1000, "rw-p", "rd wr ac nh")]
        {
            case.vma((base + from, base + to), perms, "", Origin::Preexisting);
            let range = AddrRange::new(base + from, base + to);
            let flags = VmFlags::parse(flags.as_bytes());
            case.observations.details.vmas.push(VmaDetail {
                range,
                flags,
                pss: 0,
                page_size: 4096,
                hugetlb: 0,
            });
        }
    }
    case.live_thread(PID, 0x7fff_0000_0000);
    case.live_thread(4001, AT + 0x10_8000);
    case.observations.thread_blocks =
        ThreadBlocks { living: vec![(4001, Addr(AT + 0x8_0000))], searched: true, ..ThreadBlocks::default() };
    let found = case.attribute();
    let reported: Vec<_> = found.pieces.iter().map(|p| (p.category.id, p.part, p.thread)).collect();
    assert_eq!(
        reported[..2],
        [("thread-stack", "guard", Some(4001)), ("thread-stack", "thread stack", Some(4001))]
    );
    assert!(
        reported[2..].iter().all(|(id, _, thread)| (*id, *thread) == ("fibre-stack", None)),
        "{reported:?}"
    );
    let fibres = finding(&found, "fibre-stack");
    assert_eq!(fibres.title, "2 stacks of no thread");
    assert!(fibres.fix.is_empty() && fibres.no_help[0].knob.contains("stack_cache_size"));
    case.vma(
        (0x5500_0000_0000, 0x5500_0000_1000),
        "r-xp",
        "/usr/lib/libruby-3.1.so.3.1",
        Origin::Preexisting,
    );
    assert_eq!(finding(&case.attribute(), "fibre-stack").title, "2 stacks of no thread", "of another size");
}

#[test]
fn calloc_under_pthread_create_is_no_stack() {
    let mut case = Case::new();
    let stack = case.stack(&[
        "libc.so.6!__mmap",
        "libc.so.6@0x95f28",
        "libc.so.6!__libc_calloc",
        "ld-linux-x86-64.so.2@0x10cb3",
        "ld-linux-x86-64.so.2!_dl_allocate_tls",
        "libc.so.6!pthread_create",
        "p!main",
    ]);
    let origin = case.mmap(PID, 264 * KIB, (RW, ANON), stack);
    case.vma((0x7f00_0000_0000, 0x7f00_0000_0000 + 264 * KIB), "rw-p", "", Origin::Event(origin));
    assert_eq!(virt(&case.attribute(), "glibc-mmapped"), 264 * KIB);
}

#[test]
fn a_signal_stack_of_rust() {
    let mut case = Case::new();
    let stack = case.stack(&[
        "libc.so.6!__mmap",
        "fgrs!std::sys::pal::unix::stack_overflow::imp::make_handler+0x144",
        "fgrs!main",
    ]);
    let origin = case.mmap(PID, 12288, (RW, ANON | STACK), stack);
    case.vma((0x7f00_0000_0000, 0x7f00_0000_1000), "---p", "", Origin::Event(origin));
    case.vma((0x7f00_0000_1000, 0x7f00_0000_3000), "rw-p", "", Origin::Event(origin));
    let found = case.attribute();
    assert_eq!(found.findings[0].title, "signal stack");
    assert_eq!(found.pieces[1].part, "signal stack");
}

#[test]
fn the_heap_by_brk_is_one_thing_however_it_grew() {
    let mut case = Case::new();
    let stack = ["libc.so.6!brk", "libc.so.6!sbrk", "libc.so.6@0x96042", "libc.so.6!malloc", "brk!main"];
    let stack = case.stack(&stack);
    let op = || VmOp::Brk { requested: Addr(0x1000), current: None };
    let (a, b) = (case.call(PID, op(), Some(stack)), case.call(PID, op(), Some(stack)));
    let base = 0x55d2_516a_8000;
    let split = base + 132 * KIB;
    let parts = [(base, split, Origin::Event(a)), (split, split + 196 * KIB, Origin::Event(b))];
    case.merged_vma("rw-p", "[heap]", &parts);
    let found = case.attribute();
    assert_eq!(found.rows[0].category.id, "glibc-main-heap");
    assert_eq!((found.rows[0].instances, found.findings.len()), (1, 1));
}

/// GCL takes its heap by sbrk, and is stripped: malloc of the libc.so.6 that it called has no part in it.
#[test]
fn what_a_program_takes_by_sbrk_is_not_mallocs() {
    let mut case = Case::new();
    let stack = case.stack(&["libc.so.6!brk", "libc.so.6!sbrk", "app@0x2afd8", "app@0xba216"]);
    let op = VmOp::Brk { requested: Addr(0x1000), current: None };
    let origin = case.call(PID, op, Some(stack));
    let base = 0x55d2_516a_8000;
    case.vma((base, base + 64 * MIB), "rw-p", "[heap]", Origin::Event(origin));
    let arena = case.stack(&["libc.so.6!__mmap", "app@0x2afd8", "app@0xba216"]);
    let origin = case.mmap(PID, 64 * MIB, (NONE, ANON | NORESERVE), arena);
    case.vma((0x7f00_0000_0000, 0x7f00_0400_0000), "---p", "", Origin::Event(origin));
    let found = case.attribute();
    assert_eq!(virt(&found, "app-mmap"), 128 * MIB);
    let brk =
        found.findings.iter().find(|f| f.why.starts_with("reserved by app, a function without a name;"));
    assert!(brk.is_some_and(|f| f.fix.is_empty()), "{:?}", found.findings);
}

#[test]
fn blocks_and_the_main_arena_by_mmap() {
    let mut case = Case::new();
    let at =
        |site: &'static str| ["libc.so.6!__mmap", site, "libc.so.6@0x96cfc", "libc.so.6!malloc", "p!main"];
    let block = case.stack(&at("libc.so.6@0x95f28"));
    let morecore = case.stack(&at("libc.so.6@0x95e61"));
    let mut next = 0x7f00_0000_0000;
    let mut map = |case: &mut Case, len: u64, stack| {
        let origin = case.mmap(PID, len, (RW, ANON), stack);
        case.vma((next, next + len), "rw-p", "", Origin::Event(origin));
        next += len + 0x1000;
    };
    map(&mut case, 16_781_312, block);
    map(&mut case, MIB, block);
    map(&mut case, MIB, morecore);
    map(&mut case, MIB, morecore);
    let found = case.attribute();
    assert_eq!(virt(&found, "glibc-mmapped"), 16_781_312 + MIB);
    assert_eq!(virt(&found, "glibc-main-heap"), 2 * MIB);
}

#[test]
fn what_jemalloc_purged_and_kept_is_a_part_of_its_own() {
    let mut case = Case::new();
    let stack =
        case.stack(&["libc.so.6!__mmap", "libjemalloc.so.2@0x5d645", "libjemalloc.so.2!malloc", "p!main"]);
    let origin = case.mmap(PID, 8 * MIB, (RW, ANON | NORESERVE), stack);
    let base = 0x7f00_0000_0000;
    case.vma((base, base + 8 * MIB), "rw-p", "", Origin::Event(origin));
    case.resident(base, base + MIB);
    // touched again since it was purged
    case.resident(base + 3 * MIB, base + 3 * MIB + 0x1000);
    case.reconciled.purged = vec![AddrRange::new(base + 2 * MIB, base + 6 * MIB)];
    let found = case.attribute();
    assert_eq!(found.totals.purged, 4 * MIB - 0x1000);
    let retained: u64 = found.pieces.iter().filter(|p| p.part == "retained").map(|p| p.footprint.virt).sum();
    assert_eq!(retained, 4 * MIB - 0x1000);
    assert_eq!((found.rows[0].category.id, found.rows[0].instances), ("jemalloc", 1));
    assert_eq!(found.rows[0].footprint.virt, 8 * MIB);
    assert!(found.findings[0].fix.iter().any(|f| f.knob == "MALLOC_CONF=retain:false"));
}

#[test]
fn stripped_static_jemalloc_by_its_calls() {
    let mut case = Case::new();
    let stack = case.stack(&["alloc-je@0x68222"]);
    let other = case.stack(&["alloc-je@0x11111"]);
    for (i, len) in [2 * MIB, 2 * MIB, 5 * MIB / 2].into_iter().enumerate() {
        let origin = case.mmap(PID, len, (RW, ANON | NORESERVE), stack);
        let base = 0x7f00_0000_0000 + i as u64 * 16 * MIB;
        case.vma((base, base + len), "rw-p", "", Origin::Event(origin));
    }
    let own = case.mmap(PID, 3 * MIB, (RW, ANON), other);
    case.vma((0x7f10_0000_0000, 0x7f10_0000_0000 + 3 * MIB), "rw-p", "", Origin::Event(own));
    let found = case.attribute();
    assert_eq!(virt(&found, "jemalloc"), 13 * MIB / 2);
    assert_eq!(virt(&found, "app-mmap"), 3 * MIB);
    assert!(found.pieces[..3].iter().all(|p| p.evidence.as_str() == "shape"));
}

#[test]
fn the_loader_owns_images_bss_tls_and_holes() {
    let mut case = Case::new();
    let ld = case.stack(&["ld-linux-x86-64.so.2@0x20ca3", "ld-linux-x86-64.so.2@0x68dc"]);
    let tls = case.mmap(PID, 12288, (RW, ANON), ld);
    let lib = case.mmap_file(2 * MIB, "/usr/lib/libfoo.so", ld);
    let bss = case.mmap(PID, 53072, (RW, ANON | FIXED), ld);
    case.vma((0x5500_0000_0000, 0x5500_0000_1000), "r-xp", "/opt/program", Origin::Kernel);
    case.vma((0x5500_0000_1000, 0x5500_0000_2000), "rw-p", "", Origin::Kernel);
    case.vma((0x7f00_0000_0000, 0x7f00_0000_3000), "rw-p", "", Origin::Event(tls));
    case.vma((0x7f00_0000_3000, 0x7f00_0000_4000), "r-xp", "/usr/lib/libfoo.so", Origin::Event(lib));
    case.vma((0x7f00_0000_4000, 0x7f00_0020_4000), "---p", "/usr/lib/libfoo.so", Origin::Event(lib));
    let data =
        case.vma((0x7f00_0020_4000, 0x7f00_0020_5000), "rw-p", "/usr/lib/libfoo.so", Origin::Event(lib));
    case.observations.mappings[data].offset = 0x1000;
    case.vma((0x7f00_0020_5000, 0x7f00_0021_2000), "rw-p", "", Origin::Event(bss));
    let found = case.attribute();
    let got: Vec<_> = pieces(&found).iter().map(|p| (p.2, p.3, p.4)).collect();
    assert_eq!(
        got,
        [
            ("loader", "image", "kernel"),
            ("loader", "bss", "kernel"),
            ("loader", "TLS and loader data", "stack"),
            ("loader", "image", "stack"),
            ("loader", "hole between segments", "stack"),
            ("loader", "image", "stack"),
            ("loader", "bss", "stack"),
        ]
    );
    let finding = &found.findings[0];
    assert!(finding.fix[0].knob.contains("max-page-size=4096"));
    // bss, and what the loader allocated, are no images
    assert_eq!(finding.title, "2 ELF images and what belongs to them");
    // data that lies one page further than in the file: linked for pages of 4 KiB
    case.observations.mappings[data].offset = 0x20_0000;
    let found = case.attribute();
    assert_eq!(pieces(&found)[4].3, "page between segments");
    assert!(found.findings[0].fix.is_empty(), "{:?}", found.findings[0].fix);
}

#[test]
fn a_malloc_under_dlopen_is_mallocs() {
    let mut case = Case::new();
    let stack = case.stack(&[
        "libc.so.6!__mmap",
        "libc.so.6@0x95f28",
        "libc.so.6!malloc",
        "ld-linux-x86-64.so.2@0x10cb3",
        "libc.so.6!dlopen",
        "p!main",
    ]);
    let origin = case.mmap(PID, 200 * KIB, (RW, ANON), stack);
    case.vma((0x7f00_0000_0000, 0x7f00_0000_0000 + 200 * KIB), "rw-p", "", Origin::Event(origin));
    assert_eq!(virt(&case.attribute(), "glibc-mmapped"), 200 * KIB);
}

#[test]
fn files_shared_memory_kernel_and_the_programs_own() {
    let mut case = Case::new();
    let own = case.stack(&["libc.so.6!__mmap", "p!load_table table.c:12", "p!main"]);
    let data = case.mmap_file(MIB, "/var/data.bin", own);
    let table = case.mmap(PID, 4 * MIB, (RW, ANON), own);
    case.vma((0x10_0000_0000, 0x10_0010_0000), "r--p", "/var/data.bin", Origin::Event(data));
    case.vma((0x20_0000_0000, 0x20_0040_0000), "rw-p", "", Origin::Event(table));
    case.vma((0x30_0000_0000, 0x30_0010_0000), "rw-s", "/dev/zero (deleted)", Origin::Preexisting);
    case.vma((0x31_0000_0000, 0x31_0010_0000), "rw-s", "/SYSV00000001 (deleted)", Origin::Preexisting);
    case.vma((0x32_0000_0000, 0x32_0010_0000), "rw-s", "/memfd:buffer (deleted)", Origin::Preexisting);
    case.vma((0x33_0000_0000, 0x33_0010_0000), "rw-p", "", Origin::Unknown);
    case.vma((0x40_0000_0000, 0x40_0000_4000), "r--p", "[vvar]", Origin::Kernel);
    case.vma((0x40_0000_4000, 0x40_0000_6000), "r-xp", "[vdso]", Origin::Kernel);
    case.vma((0x50_0000_0000, 0x50_0002_1000), "rw-p", "[stack]", Origin::Kernel);
    case.resident(0x40_0000_0000, 0x40_0000_6000);
    let found = case.attribute();
    let ids: Vec<_> = pieces(&found).iter().map(|p| p.2).collect();
    assert_eq!(
        ids,
        ["file", "app-mmap", "shared-anon", "sysv-shm", "memfd", "unknown", "kernel", "kernel", "main-stack"]
    );
    // vvar's pages are present in pagemap, but smaps counts none of them
    assert_eq!(found.totals.rss, 0x2000);
    assert!(finding(&found, "app-mmap").why.contains("reserved by p, load_table; "));
}

#[test]
fn inherited_by_fork_is_said() {
    let mut case = Case::new();
    arena(&mut case, 3001, 0x7f00_1000_0000, STRIPPED_ARENA);
    case.reconciled.origins[0].task.pid = 3000;
    let found = case.attribute();
    let finding = finding(&found, "glibc-arena");
    assert_eq!(finding.inherited_from, Some(3000));
    assert!(finding.why.contains("made by process 3000 and inherited by fork"));
}

#[test]
fn without_names_and_without_a_stack_nothing_is_guessed() {
    let mut case = Case::new();
    let op = VmOp::Mmap { addr: Addr(0), len: MIB, prot: RW, flags: ANON, fd: -1, offset: 0, file: None };
    let origin = case.call(PID, op, None);
    case.vma((0x7f00_0000_0000, 0x7f00_0010_0000), "rw-p", "", Origin::Event(origin));
    let found = case.attribute();
    assert_eq!(virt(&found, "unknown"), MIB);
    assert_eq!(found.coverage.traced, MIB);
}

/// ld.so runs constructors: its frames are in the stack of whatever they map.
#[test]
fn what_a_constructor_maps_is_not_the_loaders() {
    let mut case = Case::new();
    let stack = case.stack(&[
        "libc.so.6!__mmap",
        "libplugin.so@0x1234",
        "libplugin.so@0x2345",
        "ld-linux-x86-64.so.2@0x5555",
        "ld-linux-x86-64.so.2@0x6666",
    ]);
    let origin = case.mmap(PID, 3 * MIB, (RW, ANON), stack);
    case.vma((0x7f00_0000_0000, 0x7f00_0000_0000 + 3 * MIB), "rw-p", "", Origin::Event(origin));
    assert_eq!(virt(&case.attribute(), "app-mmap"), 3 * MIB);
}

#[test]
fn a_malloc_of_another_library_is_not_glibcs() {
    let mut case = Case::new();
    let stack = case.stack(&["libc.so.6!__mmap", "libownalloc.so!malloc", "p!main"]);
    let origin = case.mmap(PID, 3 * MIB, (RW, ANON), stack);
    case.vma((0x7f00_0000_0000, 0x7f00_0000_0000 + 3 * MIB), "rw-p", "", Origin::Event(origin));
    case.vma((0x7f10_0000_0000, 0x7f10_0010_0000), "r-xp", "/usr/lib/libc.so.6", Origin::Preexisting);
    assert_eq!(virt(&case.attribute(), "app-mmap"), 3 * MIB);
}

/// 2.5 + 3 + 3.5 MiB, placed one below the other beneath a thread's stack, where nothing is aligned.
#[test]
fn merged_extents_of_a_loaded_jemalloc_need_no_alignment() {
    let found = |library: &str| {
        let mut case = Case::new();
        case.vma((0x7f32_bd50_0000, 0x7f32_bd58_0000), "r-xp", library, Origin::Preexisting);
        case.vma((0x7f32_bb0f_c000, 0x7f32_bb9f_c000), "rw-p", "", Origin::Preexisting);
        let found = case.attribute();
        (virt(&found, "jemalloc"), virt(&found, "unknown"))
    };
    assert_eq!(found("/usr/lib/libjemalloc.so.2"), (9 * MIB, 0));
    assert_eq!(found("/usr/lib/libother.so.2"), (0, 9 * MIB));
}

/// What OpenJDK 17 with a heap of 512 MiB shows without any traced call, between two arenas.
#[test]
fn a_jvm_is_known_by_its_shape() {
    let found = |library: &str| {
        let mut case = Case::new();
        let mut vma = |start: u64, end: u64, perms: &str, name: &str| {
            case.vma((start, end), perms, name, Origin::Preexisting);
        };
        vma(0xe000_0000, 0xf7a0_0000, "rw-p", "");
        vma(0xf7a0_0000, 0xffe0_0000, "---p", "");
        vma(0xffe0_0000, 0xffe7_5000, "rw-p", "/usr/lib/jvm/lib/server/classes.jsa");
        vma(0xffe7_5000, 0x1_0000_0000, "rw-p", "");
        vma(0x7fbe_0000_0000, 0x7fbe_0002_1000, "rw-p", "");
        vma(0x7fbe_0002_1000, 0x7fbe_0400_0000, "---p", "");
        vma(0x7fbe_0400_0000, 0x7fbe_0402_0000, "rw-p", "");
        vma(0x7fbe_0402_0000, 0x7fbe_0800_0000, "---p", "");
        vma(0x7fbe_0800_0000, 0x7fbe_08bc_7000, "rw-p", "/usr/lib/jvm/lib/server/classes.jsa");
        vma(0x7fbe_08bc_7000, 0x7fbe_0900_0000, "---p", "");
        vma(0x7fbe_0900_0000, 0x7fbe_0901_0000, "rw-p", "");
        vma(0x7fbe_0901_0000, 0x7fbe_4900_0000, "---p", "");
        vma(0x7fbe_4c00_0000, 0x7fbe_4c02_1000, "rw-p", "");
        vma(0x7fbe_4c02_1000, 0x7fbe_5000_0000, "---p", "");
        // a block of malloc's that merged with the lower of two mark bitmaps of 8 MiB, a card table of 1 MiB
        vma(0x7fbe_6420_0000, 0x7fbe_6450_0000, "rw-p", "");
        vma(0x7fbe_6450_0000, 0x7fbe_64b0_0000, "---p", "");
        vma(0x7fbe_64b0_0000, 0x7fbe_64d0_0000, "rw-p", "");
        vma(0x7fbe_64d0_0000, 0x7fbe_6530_0000, "---p", "");
        vma(0x7fbe_6530_0000, 0x7fbe_6534_0000, "rw-p", "");
        vma(0x7fbe_6534_0000, 0x7fbe_6540_0000, "---p", "");
        vma(0x7fbe_6540_0000, 0x7fbe_6567_0000, "rwxp", "");
        vma(0x7fbe_6567_0000, 0x7fbe_6c93_8000, "---p", "");
        vma(0x7fbe_7000_0000, 0x7fbe_7100_0000, "r-xp", library);
        for at in [0x7fbe_0000_0000, 0x7fbe_4c00_0000] {
            case.heap_info(at, 132 * KIB);
        }
        let found = case.attribute();
        let ids = [
            "jvm-heap",
            "jvm-metaspace",
            "jvm-shared-classes",
            "jvm-class-space",
            "jvm-code-cache",
            "jvm-gc",
            "glibc-arena",
            "unknown",
        ];
        ids.map(|id| virt(&found, id) >> 10)
    };
    let (archive, code) = (16 << 10, (0x6c93_8000 - 0x6540_0000) >> 10);
    assert_eq!(
        found("/usr/lib/jvm/lib/server/libjvm.so"),
        [512 << 10, 64 << 10, archive, 1024 << 10, code, 17 << 10, 128 << 10, 1024]
    );
    assert_eq!(found("/usr/lib/libother.so")[..6], [0; 6], "without a JVM nothing is the JVM's");
}

/// Node 20 whose code range lies behind its brk heap, as it does now and then: there is no copy of the
/// built-in functions in it.
#[test]
fn a_code_range_near_the_program_is_v8s_where_the_program_holds_v8() {
    let found = |mark: &str, end: u64| {
        let mut case = Case::new();
        let mut vma = |start: u64, end: u64, perms: &str, name: &str| {
            case.vma((start, end), perms, name, Origin::Preexisting);
        };
        vma(0x00b7_2000, 0x025f_e000, "r-xp", "/usr/bin/node");
        vma(0x17d6_a000, 0x17f8_0000, "rw-p", "[heap]");
        vma(0x17f8_0000, 0x17f8_2000, "rw-p", "");
        vma(0x17f8_2000, 0x17f8_3000, "---p", "");
        vma(0x17f8_3000, 0x17fb_f000, "rwxp", "");
        vma(0x17fb_f000, end, "---p", "");
        let file = case.observations.mappings[0].file.expect("a file");
        let marks = FileMarks { file, marks: vec![mark.to_owned()], setting: None, version: None };
        case.observations.code.files.push(marks);
        virt(&case.attribute(), "v8") >> 20
    };
    assert_eq!(found("v8", 0x37f8_0000), 512);
    assert_eq!(found("other", 0x37f8_0000), 0, "another compiler's");
    assert_eq!(found("v8", 0x27f8_0000), 0, "a range of another size");
}

/// Deno 2.9 where the kernel gave its code range an address that is not at a multiple of 256 KiB: V8 opens whole pages.
#[test]
fn a_code_range_that_is_opened_whole_has_what_is_left_at_its_ends() {
    let found = |below: u64, above: u64, end: u64| {
        let mut case = Case::new();
        let mut vma = |start: u64, end: u64, perms: &str, name: &str| {
            case.vma((start, end), perms, name, Origin::Preexisting);
        };
        vma(0x7f38_6204_0000 - below, 0x7f38_6204_0000, "---p", "");
        vma(0x7f38_6204_0000, 0x7f38_81dc_0000, "rwxp", "");
        vma(0x7f38_81dc_0000, 0x7f38_81fe_6000, "r-xp", "/opt/deno");
        vma(0x7f38_81fe_6000, end, "rwxp", "");
        vma(end, end + above, "---p", "");
        virt(&case.attribute(), "v8") >> 10
    };
    let end = 0x7f38_8200_0000;
    assert_eq!(found(108 * KIB, 148 * KIB, end), 512 << 10, "as it was");
    assert_eq!(found(108 * KIB, 64 * MIB, end), 512 << 10, "merged with what follows");
    assert_eq!(found(64 * MIB, 148 * KIB, end), 512 << 10, "merged with what lies below");
    assert_eq!(found(64 * MIB, 64 * MIB, end), (512 << 10) - 256, "merged with both");
    assert_eq!(found(64 * KIB, 64 * KIB, end), 0, "too little is left");
    assert_eq!(found(108 * KIB, 148 * KIB, end - 64 * KIB), 0, "pages are opened whole");
}

/// A flag of V8 is spelled as its embedder takes it; who embeds it has to be known for a promise.
#[test]
fn a_flag_of_v8_is_spelled_as_its_embedder_takes_it() {
    let found = |marks: &[&str]| {
        let mut case = Case::new();
        let mut vma = |start: u64, end: u64, perms: &str, name: &str| {
            case.vma((start, end), perms, name, Origin::Preexisting);
        };
        vma(0x00b7_2000, 0x025f_e000, "r-xp", "/opt/program");
        // Chromium's, which maps shows as [heap]: src/procfs/maps.rs
        vma(0x2000_0000, 0x4000_0000, "rwxp", "");
        let file = case.observations.mappings[0].file.expect("a file");
        let marks = marks.iter().map(|mark| (*mark).to_owned()).collect();
        case.observations.code.files.push(FileMarks { file, marks, setting: None, version: None });
        let found = case.attribute();
        let finding = found.findings.iter().find(|finding| finding.category.id == "v8").expect("V8");
        let fix = &finding.fix[0];
        (fix.knob.clone(), fix.saves_virt >> 20)
    };
    let of = |embedder: &str| found(&["v8", embedder]);
    assert_eq!(of("v8-in-chromium"), ("--js-flags=--jitless".into(), 512));
    assert_eq!(of("v8-in-deno"), ("DENO_V8_FLAGS=--jitless".into(), 512));
    assert_eq!(of("v8-in-node"), ("--jitless".into(), 512));
    let electron = found(&["v8", "v8-in-chromium", "v8-in-node"]);
    assert_eq!(electron.0, "--js-flags=--jitless");
    assert_eq!(found(&["v8"]), ("V8's flag --jitless, if the program lets it be given".into(), 0));
    assert_eq!(found(&["v8-in-node"]).1, 0, "of another file");
}

/// Names that the C library and allocators give their mappings come before everything else.
#[test]
fn names_of_allocators() {
    let names = [
        ("[anon: glibc: malloc arena]", "glibc-arena", "arena used part"),
        ("[anon: glibc: malloc]", "glibc-mmapped", "block with a mapping of its own"),
        ("[anon: glibc: loader malloc]", "loader", "thread-local storage"),
        ("[anon: glibc: pthread stack: 4001]", "thread-stack", "thread stack"),
        ("[anon: glibc: pthread user stack: 4001]", "thread-stack", "thread stack"),
        ("[anon: glibc: unused stack]", "thread-stack", "stack of an exited thread"),
        ("[anon: glibc: getrandom states]", "glibc-mmapped", "the C library's own data"),
        ("[anon:jemalloc_pg]", "jemalloc", "jemalloc extent"),
        ("[anon:jemalloc_pg_overcommit]", "jemalloc", "jemalloc extent"),
        ("[anon:mimalloc]", "mimalloc", "arena"),
        ("[anon:tcmalloc_region_NORMAL]", "tcmalloc", "region"),
        ("[anon:scudo:primary]", "bionic-malloc", "small blocks"),
        ("[anon:scudo:secondary]", "bionic-malloc", "large blocks"),
        ("[anon:libc_malloc]", "bionic-malloc", "blocks"),
    ];
    let mut case = Case::new();
    for (n, (name, ..)) in names.iter().enumerate() {
        let at = 0x7f00_0000_0000 + n as u64 * 16 * MIB;
        case.vma((at, at + MIB), "rw-p", name, Origin::Preexisting);
    }
    let found = case.attribute();
    for (piece, (name, category, part)) in found.pieces.iter().zip(names) {
        let reported = (piece.category.id, piece.evidence.as_str(), piece.part);
        assert_eq!((reported.0, reported.1), (category, "name"), "{name}");
        assert!(category == "loader" || reported.2 == part, "{name}: {}", reported.2);
    }
}

/// Abseil's small allocator is in many programs that have another malloc.
#[test]
fn memory_of_abseils_is_tcmallocs_where_tcmalloc_is() {
    let found = |mark: &str| {
        let mut case = Case::new();
        case.vma((0x5000_0000, 0x5000_1000), "r-xp", "/opt/program", Origin::Preexisting);
        case.vma((0x7f00_0000_0000, 0x7f00_0000_0000 + MIB), "rw-p", "[anon:absl]", Origin::Preexisting);
        let file = case.observations.mappings[0].file.expect("a file");
        let marks = FileMarks { file, marks: vec![mark.to_owned()], setting: None, version: None };
        case.observations.code.files.push(marks);
        case.attribute().pieces.iter().find(|p| p.range.start.0 == 0x7f00_0000_0000).map(|p| p.category.id)
    };
    assert_eq!(found("tcmalloc"), Some("tcmalloc"));
    assert_eq!(found("v8"), Some("app-mmap"));
}

/// gperftools' settings do nothing to google/tcmalloc, whose small mappings are no page heap.
#[test]
fn what_google_tcmalloc_maps_outside_of_its_regions_gets_no_setting_of_gperftools() {
    let found = |mark: &str| {
        let mut case = Case::new();
        case.vma((0x5000_0000, 0x5000_1000), "r-xp", "/opt/program", Origin::Preexisting);
        let own = (0x7f00_0000_0000, 0x7f00_0000_0000 + 2 * MIB);
        case.vma(own, "rw-p", "[anon:tcmalloc_region_METADATA]", Origin::Preexisting);
        let file = case.observations.mappings[0].file.expect("a file");
        let marks = FileMarks { file, marks: vec![mark.to_owned()], setting: None, version: None };
        case.observations.code.files.push(marks);
        let found = case.attribute();
        finding(&found, "tcmalloc").fix.iter().map(|fix| fix.knob.clone()).collect::<Vec<_>>()
    };
    assert_eq!(found("tcmalloc"), [""; 0]);
    assert_eq!(found("gperftools"), ["TCMALLOC_AGGRESSIVE_DECOMMIT=1"]);
}

/// chdb and libarrow in one process: each reads a variable of its own name.
#[test]
fn the_variable_is_that_of_the_copy_of_jemalloc_that_made_the_call() {
    let found = |module: Option<&str>| {
        let mut case = Case::new();
        for (n, name) in ["/opt/a.so", "/opt/b.so"].into_iter().enumerate() {
            let at = 0x5000_0000 + n as u64 * MIB;
            case.vma((at, at + 4 * KIB), "r-xp", name, Origin::Preexisting);
        }
        for (n, variable) in ["A_MALLOC_CONF", "B_MALLOC_CONF"].into_iter().enumerate() {
            let file = case.observations.mappings[n].file.expect("a file");
            let (marks, setting) = (vec!["jemalloc".to_owned()], Some(variable.to_owned()));
            case.observations.code.files.push(FileMarks { file, marks, setting, version: None });
        }
        let origin = match module {
            Some(module) => {
                let at = format!("{module}!je_extent_alloc_mmap");
                let stack = case.stack(&["libc.so.6!__mmap", &at, "program!main"]);
                Origin::Event(case.mmap(4000, 2 * MIB, (RW, ANON | NORESERVE), stack))
            }
            None => Origin::Preexisting,
        };
        case.vma((0x7f00_0000_0000, 0x7f00_0020_0000), "rw-p", "[anon:jemalloc_pg]", origin);
        let found = case.attribute();
        finding(&found, "jemalloc").fix[0].knob.clone()
    };
    assert_eq!(found(Some("a.so")), "A_MALLOC_CONF=retain:false");
    assert_eq!(found(Some("b.so")), "B_MALLOC_CONF=retain:false");
    assert_eq!(found(None), "A_MALLOC_CONF or B_MALLOC_CONF=retain:false", "whose it is is not known");
}

/// Varnish gives its workers 80 KiB.
#[test]
fn stacks_that_are_small_get_no_advice_to_be_smaller() {
    let found = |size: u64| {
        let mut case = Case::new();
        let stack = case.stack(&["libc.so.6!__mmap", "libc.so.6!pthread_create", "server!pool_herder"]);
        for n in 0..3u64 {
            let at = 0x7f00_0000_0000 + n * 16 * MIB;
            let origin = case.mmap(4000, size + 4 * KIB, (NONE, ANON | NORESERVE | STACK), stack);
            case.vma((at, at + 4 * KIB), "---p", "", Origin::Event(origin));
            case.vma((at + 4 * KIB, at + 4 * KIB + size), "rw-p", "", Origin::Event(origin));
        }
        let found = case.attribute();
        finding(&found, "thread-stack").fix.iter().map(|fix| fix.knob.clone()).collect::<Vec<_>>()
    };
    assert_eq!(found(80 * KIB), [""; 0]);
    assert_eq!(found(4 * MIB), ["a smaller pthread_attr_setstacksize"]);
}

/// retain:false multiplies mappings: near the limit it is what does not help.
#[test]
fn retain_is_no_advice_near_max_map_count() {
    let advice = |limit: Option<u64>| {
        let mut case = Case::new();
        case.vma((0x5000_0000, 0x5000_1000), "r-xp", "/usr/lib/libjemalloc.so.2", Origin::Preexisting);
        for n in 0..100u64 {
            let at = 0x7f00_0000_0000 + n * 16 * MIB;
            case.vma((at, at + 2 * MIB), "rw-p", "", Origin::Preexisting);
        }
        case.observations.limits.max_map_count = limit;
        let found = case.attribute();
        let finding = finding(&found, "jemalloc").clone();
        let wont =
            finding.no_help.iter().find(|no| no.knob.contains("retain:false")).map(|no| no.why.clone());
        (finding.fix.iter().any(|fix| fix.knob.contains("retain:false")), wont)
    };
    let (offered, wont) = advice(Some(65_530));
    assert!(offered && wont.is_none());
    let (offered, wont) = advice(Some(250));
    assert!(!offered);
    assert!(wont.is_some_and(|why| why.contains("101 of 250 now")), "the figures are reported");
    assert!(advice(None).0, "where the limit is not known");
}

/// Programs and runtimes choose the size of stacks, too; the tunable for cached ones came with glibc 2.34.
#[test]
fn advice_on_stacks_takes_the_limit_and_the_version_into_account() {
    let advice = |version: (u32, u32)| {
        let mut case = Case::new();
        for n in 0..3u64 {
            let at = 0x7f00_0000_0000 + n * 16 * MIB;
            case.vma((at, at + 4 * KIB), "---p", "", Origin::Preexisting);
            case.vma((at + 4 * KIB, at + 4 * KIB + 2 * MIB), "rw-p", "", Origin::Preexisting);
        }
        case.observations.threads = vec![vmaudit::model::observation::ThreadObservation {
            tid: PID,
            comm: b"program".to_vec(),
            stack_pointer: Some(vmaudit::model::Addr(0x7fff_0000_0000)),
        }];
        let ended = (0..3u64).map(|n| Addr(0x7f00_0020_0800 + n * 16 * MIB)).collect();
        case.observations.thread_blocks = ThreadBlocks { ended, searched: true, ..ThreadBlocks::default() };
        let file = vmaudit::model::MappingFile { major: 8, minor: 1, inode: 7 };
        let marks = vec!["glibc".to_owned()];
        let libc = vmaudit::model::FileMarks { file, marks, setting: None, version: Some(version) };
        case.observations.code.files.push(libc);
        let found = case.attribute();
        let finding = finding(&found, "thread-stack").clone();
        assert!(finding.no_help.iter().any(|no| no.knob == "ulimit -s"), "{:?}", finding.no_help);
        finding.fix.iter().any(|fix| fix.knob.contains("stack_cache_size"))
    };
    assert!(advice((2, 36)) && advice((2, 34)) && !advice((2, 31)));
}

/// A call whose stack did not fit in the buffer says so, and nothing is made of its shape.
#[test]
fn what_is_not_explained_says_why() {
    let mut case = Case::new();
    let stack = case.stack(&["libfoo.so!f"]);
    let lost = case.mmap(PID, 3 * MIB, (RW, ANON), stack);
    case.record(lost).stack = Err(vmaudit::model::NoStack::Lost);
    case.vma((0x7f00_0000_0000, 0x7f00_0030_0000), "rw-p", "", Origin::Event(lost));
    let found = case.attribute();
    let finding = finding(&found, "unknown");
    assert!(finding.why.contains("for which the buffer had no space (--ring-bytes)"), "{}", finding.why);

    // traced, and nothing was lost: it was there before
    let mut case = Case::new();
    case.vma((0x7f00_0000_0000, 0x7f00_0030_0000), "rw-p", "", Origin::Preexisting);
    case.reconciled.events = 1;
    let found = case.attribute();
    let finding = self::finding(&found, "unknown");
    assert!(finding.why.ends_with("it was mapped before tracing began: no call was seen"), "{}", finding.why);
}
