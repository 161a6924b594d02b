//! The text report: its layout, width, honesty, terminal safety.

use crate::case::*;
use vmaudit::ledger::{Doubt, Origin};
use vmaudit::model::Bytes;
use vmaudit::model::observation::ResidencySource;
use vmaudit::render::{Color, TextOptions, to_text};
use vmaudit::report::{EventCounts, ProcessAudit, ProcessFacts, Report, RunFacts, build, build_for_text};

/// The jemalloc program with a glibc arena, in small.
fn silly() -> Case {
    let mut case = Case::new();
    case.observations.comm = b"silly".to_vec();
    let base = case.stack(&[
        "libc.so.6!__mmap+0x13",
        "silly!je_pages_map+0x52 pages.c:190",
        "silly!je_extent_alloc_mmap+0x15 extent_mmap.c:26",
        "silly!base_block_alloc.isra.0+0x287 base.c:93",
        "silly!je_base_new+0x6d base.c:370",
        "silly!main silly_run.c:120",
        "libc.so.6@0x2724a",
        "libc.so.6!__libc_start_main+0x85",
        "silly!_start+0x21",
    ]);
    let extent = case.stack(&[
        "libc.so.6!__mmap+0x13",
        "silly!je_pages_map+0x52 pages.c:190",
        "silly!je_extent_alloc_mmap+0x15 extent_mmap.c:26",
        "silly!je_ehooks_default_alloc_impl+0xd8 ehooks.c:22",
        "silly!je_ecache_alloc_grow+0x727 extent.c:800",
        "silly!pac_alloc_real+0x8e pac.c:118",
        "silly!pac_alloc_impl+0xdb pac.c:178",
        "silly!je_pa_alloc+0x50 pa.c:141",
        "silly!arena_slab_alloc+0x9f arena.c:841",
        "silly!je_arena_cache_bin_fill_small+0x9f arena.c:1040",
        "silly!je_tcache_alloc_small_hard+0x9f tcache.c:241",
        "silly!je_malloc_default+0x9f jemalloc.c:2722",
        "silly!lua_newstate lstate.c:290",
        "silly!thread_worker silly_run.c:57",
        "libc.so.6@0x891f5",
        "libc.so.6@0x1098ec",
    ]);
    let arena = case.stack(&[
        "libc.so.6!__mmap+0x13",
        "libc.so.6@0x95615",
        "libc.so.6!malloc+0x11e",
        "libc.so.6!_IO_file_doallocate+0x8c",
        "libc.so.6!fgets+0x8e",
        "silly!luaL_loadfilex lauxlib.c:742",
        "silly!thread_worker silly_run.c:57",
        "libc.so.6@0x891f5",
    ]);
    let create = case.stack(&[
        "libc.so.6!__mmap+0x13",
        "libc.so.6!pthread_create+0x981",
        "silly!main silly_run.c:101",
    ]);
    case.vma((0x5555_5555_4000, 0x5555_555f_4000), "r-xp", "/usr/bin/silly", Origin::Kernel);
    let a = case.mmap(34, 128 * MIB, (NONE, ANON | NORESERVE), arena);
    let record = case.record(a);
    (record.unmapped, record.unmap_calls, record.mprotect_calls) = (Bytes(64 * MIB), 2, 1);
    case.vma((0x7fff_f000_0000, 0x7fff_f002_1000), "rw-p", "", Origin::Event(a));
    case.vma((0x7fff_f002_1000, 0x7fff_f400_0000), "---p", "", Origin::Event(a));
    case.resident(0x7fff_f000_0000, 0x7fff_f001_8000);
    for i in 0..3u64 {
        let stack = case.mmap(PID, 8_392_704, (NONE, ANON | STACK), create);
        case.record(stack).mprotect_calls = 1;
        let at = 0x7fff_f500_0000 + i * 0x80_1000;
        case.vma((at, at + 0x1000), "---p", "", Origin::Event(stack));
        case.vma((at + 0x1000, at + 0x80_1000), "rw-p", "", Origin::Event(stack));
        case.resident(at + 0x7f_9000, at + 0x80_1000);
        case.started_thread(32 + i as i32, at + 0x80_0fc0, false);
    }
    let b = case.mmap(PID, 2 * MIB, (RW, ANON | NORESERVE), base);
    let e = case.mmap(32, 8 * MIB, (RW, ANON | NORESERVE), extent);
    let at = 0x7fff_f700_0000;
    let parts = [(at, at + 2 * MIB, Origin::Event(b)), (at + 2 * MIB, at + 10 * MIB, Origin::Event(e))];
    case.merged_vma("rw-p", "", &parts);
    case.resident(at, at + 0x10000);
    case.resident(at + 2 * MIB, at + 9 * MIB);
    case.vma((0x7fff_ffff_0000, 0x7fff_ffff_1000), "rw-p", "[stack]", Origin::Kernel);
    case
}

fn report(case: &Case, facts: &ProcessFacts, events: EventCounts) -> Report {
    let run = RunFacts { backend: "bpf".to_string(), events, ..RunFacts::default() };
    build(&run, &[ProcessAudit { input: case.input(), facts }])
}

fn exited() -> ProcessFacts {
    ProcessFacts {
        exit_code: Some(0),
        wall_ns: Some(12_400_000_000),
        threads_seen: Some(6),
        ..ProcessFacts::default()
    }
}

fn text(case: &Case) -> String {
    let report = report(case, &exited(), EventCounts { seen: 1284, ..EventCounts::default() });
    to_text(&report, TextOptions::default())
}

#[test]
fn the_example_of_the_design() {
    let text = text(&silly());
    let expected = include_str!("../fixtures/attribution/silly.txt");
    if std::env::var_os("VMAUDIT_PRINT").is_some() {
        print!("{text}");
    }
    assert_eq!(text, expected);
    assert!(text.lines().all(|l| l.chars().count() <= 100));
}

/// Threads that have ended are no threads of a process that still runs.
#[test]
fn threads_that_run_are_told_from_those_that_ended() {
    let mut case = silly();
    case.live_thread(4123, 0x7ffe_0000_1000);
    case.live_thread(4124, 0x7ffe_0000_2000);
    let running = ProcessFacts { exit_code: None, ..exited() };
    let running = report(&case, &running, EventCounts::default());
    assert_eq!(running.processes[0].threads_alive, Some(2));
    let text = to_text(&running, TextOptions::default());
    assert!(text.contains(" · 2 threads, 6 seen · "), "{text}");
    assert_eq!(report(&case, &exited(), EventCounts::default()).processes[0].threads_alive, None);
}

#[test]
fn what_is_lost_estimated_or_old_is_said() {
    let mut case = silly();
    case.reconciled.drift = Bytes(8192);
    case.reconciled.regions[1].doubt = Some(Doubt::EventsLost);
    case.observations.residency.source = ResidencySource::SmapsProportion;
    case.observations.gaps.push("smaps of 4000: permission denied".to_string());
    let facts = ProcessFacts {
        signal: Some(9),
        wall_ns: Some(61_000_000_000),
        snapshot_age_ns: Some(250_000_000),
        ..ProcessFacts::default()
    };
    let events =
        EventCounts { seen: 10, lost: 64, without_stack: 7, truncated_stacks: 3, unwind_incomplete: 5 };
    let text = to_text(&report(&case, &facts, events), TextOptions::default());
    for line in [
        "killed by signal 9 (SIGKILL) after 61.0 s",
        "10 events, 64 lost",
        "64 events were lost because the buffer was full",
        "7 events are known without their stacks",
        "3 stacks end early: not enough of the stack was copied",
        "5 stacks end early: no unwind information",
        "4000 died by signal 9 without being held: VIRT is of its end, RSS of the last snapshot,",
        "8 KiB where the record of calls and the kernel's maps disagree",
        "132 KiB have a doubtful origin",
        "RSS within one kernel mapping is an estimate",
        "smaps of 4000: permission denied",
        "doubt",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[test]
fn what_was_not_examined_is_not_called_unused() {
    let mut case = silly();
    case.observations.residency.source = ResidencySource::None;
    let facts = ProcessFacts { signal: Some(9), snapshot_age_ns: Some(0), ..ProcessFacts::default() };
    let text = to_text(&report(&case, &facts, EventCounts::default()), TextOptions::default());
    assert!(text.contains("not known"), "{text}");
    assert!(!text.contains("last snapshot"), "{text}");
    assert!(!text.contains(" unused ·"), "{text}");
}

#[test]
fn hostile_names_stay_text() {
    let mut case = Case::new();
    case.observations.comm = b"\x1b]0;gotcha\x07\xff".to_vec();
    let stack = case.stack(&["libc.so.6!__mmap", "evil\x1b[2J!fn\rname x\u{202e}.c:1", "p!main"]);
    let origin = case.mmap(4001, MIB, (RW, ANON), stack);
    case.record(origin).task.comm = b"a\nb".to_vec();
    case.vma((0x7f00_0000_0000, 0x7f00_0010_0000), "rw-p", "", Origin::Event(origin));
    case.observations.gaps.push("bad\x1b[31m".to_string());
    let text = text(&case);
    let bad = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
    assert!(!text.contains(bad), "{text:?}");
    assert!(text.starts_with("\\u{1b}]0;gotcha\\u{7}"), "{text}");
}

#[test]
fn colour_only_on_request() {
    let report = report(&silly(), &exited(), EventCounts::default());
    let plain = to_text(&report, TextOptions::default());
    let coloured = to_text(&report, TextOptions { color: Color::Always, ..TextOptions::default() });
    assert!(!plain.contains('\x1b'));
    let mut stripped = coloured.clone();
    while let Some(at) = stripped.find("\x1b[") {
        let end = at + stripped[at..].find('m').unwrap();
        stripped.replace_range(at..=end, "");
    }
    assert_ne!(coloured, plain);
    assert_eq!(stripped, plain, "colour changes no column");
}

#[test]
fn top_limits_and_sums_the_rest() {
    let report = report(&silly(), &exited(), EventCounts::default());
    let text = to_text(&report, TextOptions { top: 2, ..TextOptions::default() });
    assert!(text.contains("… and 4 smaller, 3.6 MiB unused together"), "{text}");
    assert!(!text.contains("\n  3  "));
}

#[test]
fn further_processes_are_a_table_and_their_findings() {
    let mut child = silly();
    child.observations.pid = 4001;
    child.observations.comm = b"child".to_vec();
    let small = {
        let mut small = Case::new();
        small.observations.pid = 4002;
        small.observations.comm = b"sh".to_vec();
        small.vma((0x5500_0000_0000, 0x5500_0000_1000), "r-xp", "/bin/sh", Origin::Kernel);
        small
    };
    let main = silly();
    let run = RunFacts { backend: "bpf".to_string(), ..RunFacts::default() };
    let facts = exited();
    let audit = |case| ProcessAudit { input: Case::input(case), facts: &facts };
    // one stack table for all, as the ledger keeps it
    let mut audits = vec![audit(&main), audit(&small), audit(&child)];
    for audit in &mut audits {
        audit.input.stacks = &main.stacks;
        audit.input.symbols = &main.symbols;
    }
    let text = to_text(&build(&run, &audits), TextOptions::default());
    let at = |needle: &str| text.find(needle).unwrap_or_else(|| panic!("{needle} is not in\n{text}"));
    assert!(at("other processes") < at("    4001  child"), "{text}");
    assert!(at("    4001  child") < at("    4002  sh"), "largest unused first\n{text}");
    assert!(at("child (pid 4001)") > at("    4002  sh"));
    let line = text.lines().find(|l| l.contains("63.9 MiB unused") && l.starts_with("     ")).unwrap();
    assert!(line.contains("glibc malloc arena · luaL_loadfilex < thread_worker"), "{line}");
    assert!(text.lines().all(|l| l.chars().count() <= 100));
    let many: Vec<_> = std::iter::once(audits[1]).chain(std::iter::repeat_n(audits[2], 30)).collect();
    let text = to_text(&build(&run, &many), TextOptions::default());
    assert!(text.contains("a larger process follows below: child (pid 4001)"), "{text}");
    assert_eq!(text.matches("    4001  child").count(), 10, "{text}");
    assert!(text.contains("20 more"), "{text}");
    let alone = to_text(&build(&run, &audits[..1]), TextOptions::default());
    assert!(!alone.contains("  other processes"));
}

#[test]
fn a_stack_that_is_missing_makes_no_origin_doubtful() {
    let mut case = silly();
    let sound = text(&case);
    case.reconciled.regions[1].doubt = Some(Doubt::StackLost);
    assert_eq!(text(&case), sound);
    let report = report(&case, &exited(), EventCounts::default());
    assert_eq!(report.processes[0].coverage.doubtful, 0);
    let doubts: Vec<&str> = report.processes[0].regions.iter().filter_map(|r| r.doubt.as_deref()).collect();
    assert_eq!(doubts, ["stack-lost"]);
}

#[test]
fn the_text_needs_no_regions() {
    let mut scattered = silly();
    for n in 0..20 {
        let at = 0x7fff_ffff_4000 + n * 0x3000;
        scattered.vma((at, at + 0x1000), "rw-p", "", Origin::Preexisting);
    }
    scattered.reconciled.regions[1].doubt = Some(Doubt::EventsLost);
    let attached = ProcessFacts { attached: true, ..exited() };
    let run = RunFacts { backend: "bpf".to_string(), ..RunFacts::default() };
    for (case, facts) in [(silly(), exited()), (scattered, attached)] {
        let audits = [ProcessAudit { input: case.input(), facts: &facts }];
        let (whole, short) = (build(&run, &audits), build_for_text(&run, &audits));
        assert!(short.processes[0].regions.is_empty() && !whole.processes[0].regions.is_empty());
        let options = TextOptions { top: 100, ..TextOptions::default() };
        assert_eq!(to_text(&short, options), to_text(&whole, options));
    }
}

#[test]
fn nothing_to_show_is_said() {
    let text = to_text(&build(&RunFacts::default(), &[]), TextOptions::default());
    assert_eq!(text, "no process was observed\n");
}
