//! What `vmaudit heap` prints, from events to text, JSON and folded stacks.

use crate::case::Case;
use crate::flame::reports::{Decoded, decode};
use vmaudit::heap::HeapBy;
use vmaudit::heap::mappings;
use vmaudit::heap::report::model::Function;
use vmaudit::heap::report::{HeapFacts, HeapProcessFacts, HeapReport, build};
use vmaudit::heap::{Filter, Heaps, LedgerOptions, Sampling};
use vmaudit::model::{Addr, ContextKey, Covers, HeapEvent, HeapOp, MmKey, NoStack, StackId, is_hidden};
use vmaudit::render::text::TextOptions;
use vmaudit::render::{
    HeapView, heap_to_folded, heap_to_html, heap_to_pprof, heap_to_svg, heap_to_text, to_json,
};
use vmaudit::report::model::{CategoryRow, Events, Process};

const STACKS: HeapView = HeapView { by: HeapBy::Outstanding, reverse: false };
const REVERSED: HeapView = HeapView { by: HeapBy::Outstanding, reverse: true };

const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;
const START: u64 = 5_000 * SECOND;
const PID: i32 = 4123;
const MM: MmKey = MmKey(0xffff_8880_0000_0040);

/// A run of a program: events, and what is known of it.
struct Scene {
    case: Case,
    heaps: Heaps,
    next: u64,
    seen: u64,
    functions: Vec<Function>,
    known: HeapProcessFacts,
    sampling: Sampling,
    /// Of a sequence that is random enough, and is the same each time.
    draw: u64,
}

impl Scene {
    fn new(comm: &str, functions: &[(&str, &str)], sampling: Sampling) -> Scene {
        let function = |(name, module): &(&str, &str)| Function {
            name: name.to_string(),
            module: module.to_string(),
            allocator: "test".to_string(),
        };
        let heaps = Heaps::new(LedgerOptions { sampling, start_ns: START });
        let known = HeapProcessFacts {
            comm: comm.to_string(),
            attached: true,
            watched_ns: Some(20 * SECOND),
            ..HeapProcessFacts::default()
        };
        let functions = functions.iter().map(function).collect();
        Scene {
            case: Case::new(),
            heaps,
            next: 0x5555_0000_0000,
            seen: 0,
            functions,
            known,
            sampling,
            draw: 1,
        }
    }

    fn apply(&mut self, at_ms: u64, (function, stack): (u32, Result<StackId, NoStack>), op: HeapOp) {
        self.seen += 1;
        let (time_ns, pid, tid, mm) = (START + at_ms * 1_000_000, PID, PID, MM);
        self.heaps.apply(&HeapEvent { time_ns, pid, tid, mm, function, op, stack });
    }

    fn allocate(&mut self, at_ms: u64, (function, stack): (u32, StackId), size: u64) -> Addr {
        self.allocate_in(at_ms, (function, stack), (size, None))
    }

    fn allocate_in(
        &mut self,
        at_ms: u64,
        (function, stack): (u32, StackId),
        (size, context): (u64, Option<ContextKey>),
    ) -> Addr {
        let address = Addr(self.next);
        self.next += (size | 15) + 1;
        self.draw = self.draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if (self.draw >> 11) as f64 / (1u64 << 53) as f64 >= self.sampling.probability(size) {
            return Addr(0);
        }
        self.apply(at_ms, (function, Ok(stack)), HeapOp::Allocated { address, size, context });
        address
    }

    /// Of a block that was not drawn, the kernel reports no free.
    fn free(&mut self, at_ms: u64, address: Addr) {
        if address.0 == 0 {
            return;
        }
        self.apply(at_ms, (0, Err(NoStack::NotTaken)), HeapOp::Freed { address });
    }

    fn mark(&mut self, at_ms: u64) {
        self.heaps.mark(START + at_ms * 1_000_000);
    }

    fn report(&self, filter: Filter) -> HeapReport {
        let facts = HeapFacts {
            backend: "bpf".to_string(),
            allocators: vec!["libc".to_string(), "cxx".to_string()],
            functions: self.functions.clone(),
            events: Events { seen: self.seen, ..Events::default() },
            start_ns: START,
            ..HeapFacts::default()
        };
        let now = START + 20 * SECOND;
        let picture = self.heaps.ledger(MM).unwrap().picture(self.heaps.sites(), filter, now);
        build(&facts, &[(&self.known, &picture)], &self.case.stacks, &self.case.symbols)
    }
}

/// A service that leaks 1 MiB a second, keeps a cache, and frees what it reads.
fn leaking(sampling: Sampling) -> Scene {
    let functions = [("operator new[](unsigned long)", "libstdc++.so.6"), ("malloc", "libc.so.6")];
    let mut scene = Scene::new("service", &functions, sampling);
    let root = ["libc.so.6@0x2724a", "libc.so.6!__libc_start_main+0x85", "service!_start+0x21"];
    let mut stack = |inner: &[&str]| scene.case.stack(&[inner, &root].concat());
    let leak = stack(&[
        "service!Session::remember(int)+0x1d session.cpp:88",
        "service!Session::handle(Request)+0x41 session.cpp:120",
        "service!main+0x99 main.cpp:30",
    ]);
    let cache = stack(&[
        "libc.so.6!__strdup+0x1a",
        "service!Cache::put(char)+0x80 cache.cpp:14",
        "service!main+0x60 main.cpp:21",
    ]);
    let read =
        stack(&["service!Session::handle(Request)+0x18 session.cpp:101", "service!main+0x99 main.cpp:30"]);
    let setup = stack(&["service!main+0x12 main.cpp:9"]);
    for key in 0..1200 {
        scene.allocate(50, (1, cache), 40 + key % 17);
    }
    scene.allocate(1, (1, setup), 65_536);
    for second in 0..20 {
        let at = second * 1000 + 100;
        scene.allocate(at, (0, leak), MIB);
        let buffer = scene.allocate(at, (1, read), 16_384);
        scene.free(at + 3, buffer);
        if second == 19 {
            scene.allocate(at, (1, read), 16_384);
        }
        if second % 5 == 4 {
            scene.mark(at + 500);
        }
    }
    scene.free(19_900, Addr(0x1000));
    scene
}

fn lines_fit(text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{line}");
        assert_eq!(line.trim_end(), line);
    }
}

fn compare(name: &str, text: &str) {
    let path = format!("{}/tests/fixtures/heap/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("VMAUDIT_WRITE").is_some() {
        std::fs::write(&path, text).expect("fixture");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{name}");
}

#[test]
fn a_profile_has_all_values() {
    let report = leaking(Sampling::EXACT).report(Filter::default());
    let Decoded { profile, types } = decode(&heap_to_pprof(&report, HeapBy::Allocations).expect("a profile"));
    let p = &report.processes[0];
    let sum = |name: &str| -> u64 {
        let at = types.iter().position(|known| known == name).expect(name);
        profile.sample.iter().map(|sample| sample.value[at] as u64).sum()
    };
    assert_eq!(profile.string_table[profile.default_sample_type as usize], "alloc_objects");
    assert_eq!(sum("inuse_space"), p.totals.outstanding_bytes);
    assert_eq!(sum("inuse_objects"), p.totals.outstanding_blocks);
    assert_eq!(sum("alloc_space"), p.totals.allocated_bytes);
    assert_eq!(sum("alloc_objects"), p.totals.allocations);
    assert_eq!(profile.period, 1);
    let sampled = leaking(Sampling::every(64 << 10)).report(Filter::default());
    let Decoded { profile, .. } = decode(&heap_to_pprof(&sampled, HeapBy::Outstanding).expect("a profile"));
    assert_eq!(profile.period, 64 << 10);
}

#[test]
fn a_flame_graph_is_as_wide_as_the_total() {
    let report = leaking(Sampling::EXACT).report(Filter::default());
    let bytes = report.processes[0].totals.outstanding_bytes;
    for view in [STACKS, REVERSED] {
        let svg = heap_to_svg(&report, view).expect("a graph");
        assert!(svg.contains(&format!("data-x=\"0\" data-w=\"{bytes}\" data-level=\"0\"")), "{svg}");
    }
    let calls = HeapView { by: HeapBy::Temporary, reverse: false };
    let svg = heap_to_svg(&report, calls);
    let temporary = report.processes[0].totals.temporary.unwrap_or(0);
    assert_eq!(svg.is_ok(), temporary > 0, "{temporary}");
}

#[test]
fn a_leak_is_first_and_rows_add_up() {
    let report = leaking(Sampling::EXACT).report(Filter::default());
    let text = heap_to_text(&report, STACKS, TextOptions::default());
    lines_fit(&text);
    compare("leak.txt", &text);
    let p = &report.processes[0];
    assert_eq!(p.rows.iter().map(|r| r.amount.bytes).sum::<u64>(), p.totals.outstanding_bytes);
    let top = TextOptions { top: 1, ..TextOptions::default() };
    let text = heap_to_text(&report, STACKS, top);
    assert!(text.contains("3 other stacks"), "{text}");
}

#[test]
fn only_what_never_frees_and_grows_is_a_leak() {
    let report = leaking(Sampling::EXACT).report(Filter { leaks_only: true, ..Filter::default() });
    let text = heap_to_text(&report, STACKS, TextOptions::default());
    lines_fit(&text);
    compare("leaks_only.txt", &text);
    assert_eq!(report.processes[0].rows.len(), 1);
}

#[test]
fn old_and_large_blocks_alone() {
    let filter =
        Filter { older_ns: Some(10 * SECOND), min_size: Some(4096), max_size: None, leaks_only: false };
    let report = leaking(Sampling::EXACT).report(filter);
    let text = heap_to_text(&report, STACKS, TextOptions::default());
    lines_fit(&text);
    compare("older.txt", &text);
    let p = &report.processes[0];
    assert_eq!(p.shown.bytes + p.left_out.bytes, p.totals.outstanding_bytes);
}

#[test]
fn a_sample_says_how_good_it_is() {
    let report = leaking(Sampling::every(64 << 10)).report(Filter::default());
    let text = heap_to_text(&report, STACKS, TextOptions::default());
    lines_fit(&text);
    compare("sampled.txt", &text);
}

#[test]
fn from_the_inside_out() {
    let report = leaking(Sampling::EXACT).report(Filter::default());
    let text = heap_to_text(&report, REVERSED, TextOptions::default());
    lines_fit(&text);
    compare("reverse.txt", &text);
}

#[test]
fn folded_either_way() {
    let mut scene = leaking(Sampling::EXACT);
    let op = HeapOp::Allocated { address: Addr(0x10), size: 7, context: None };
    scene.apply(19_990, (1, Err(NoStack::Lost)), op);
    let report = scene.report(Filter::default());
    let folded = heap_to_folded(&report, STACKS);
    compare("leak.folded", &folded);
    let value = |line: &str| line.rsplit(' ').next().and_then(|n| n.parse::<u64>().ok()).expect("a value");
    assert_eq!(folded.lines().map(value).sum::<u64>(), report.processes[0].shown.bytes);
    let reversed = heap_to_folded(&report, REVERSED);
    let turned = |line: &str| {
        let (names, value) = line.rsplit_once(' ').expect("a value");
        let names: Vec<&str> = names.split(';').rev().collect();
        format!("{} {value}", names.join(";"))
    };
    let mut expected: Vec<String> = folded.lines().map(turned).collect();
    expected.sort();
    assert_eq!(reversed.lines().collect::<Vec<_>>(), expected);
}

/// A backend whose sort leaks into a context that lives as long as the session.
#[test]
fn memory_contexts_are_a_table_of_their_own() {
    let functions = [("palloc", "postgres"), ("MemoryContextAlloc", "postgres")];
    let mut scene = Scene::new("postgres", &functions, Sampling::EXACT);
    let stack = scene.case.stack(&["postgres!leak_into_top+0x31 leaky.c:12", "postgres!ExecProject+0x20"]);
    let other = scene.case.stack(&["postgres!ExecInitNode+0x31", "postgres!PostgresMain+0x20"]);
    let [top, cache, query, unknown] = [0x1000, 0x2000, 0x3000, 0x4000].map(ContextKey);
    let create = |context, parent, name: &str| HeapOp::ContextCreated {
        context,
        parent,
        name: Some(name.as_bytes().to_vec()),
    };
    for op in [
        create(top, None, "TopMemoryContext"),
        create(cache, Some(top), "CacheMemoryContext"),
        create(query, Some(top), "ExecutorState"),
    ] {
        scene.apply(1, (0, Err(NoStack::NotTaken)), op);
    }
    for at in 0..300 {
        scene.allocate_in(at * 10, (1, stack), (8192, Some(cache)));
        scene.allocate_in(at * 10, (0, other), (64, Some(query)));
    }
    scene.allocate_in(10, (0, other), (1000, Some(unknown)));
    scene.allocate(10, (0, other), 24);
    let reset = HeapOp::ContextReset { context: query, covers: Covers::Tree };
    scene.apply(4000, (0, Err(NoStack::NotTaken)), reset);
    scene.allocate_in(5000, (0, other), (640, Some(query)));
    let report = scene.report(Filter::default());
    let text = heap_to_text(&report, STACKS, TextOptions::default());
    lines_fit(&text);
    compare("contexts.txt", &text);
}

#[test]
fn losses_and_hostile_names_are_shown() {
    let mut scene = leaking(Sampling::EXACT);
    scene.known.comm = "\x1b[31mred\n\u{9b}1m\u{202e}".to_string();
    scene.known.gaps.push("libfoo.so: no symbols\x07".to_string());
    scene.functions[0].name = "evil\x1b]0;".to_string();
    scene.heaps.lost(17);
    scene.free(19_950, Addr(0x2000));
    let taken = HeapOp::Allocated { address: Addr(0x5555_0000_0000), size: 8, context: None };
    scene.apply(19_960, (1, Err(NoStack::Unreadable)), taken);
    scene.apply(19_970, (1, Err(NoStack::NotTaken)), HeapOp::Refused { size: 1 << 50 });
    let report = scene.report(Filter::default());
    let text = heap_to_text(&report, STACKS, TextOptions::default());
    lines_fit(&text);
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "17 events were lost",
        "1 block whose free was not seen",
        "1 free of what was allocated before vmaudit attached",
        "1 free after the loss",
        "1 allocation refused, 1024.0 TiB in all",
        "libfoo.so: no symbols\\u{7}",
        "(no stack: it could not be read)",
    ] {
        assert!(joined.contains(part), "{part} is not in\n{text}");
    }
    assert!(!text.contains(|c: char| c != '\n' && c.is_control()));
    assert!(!heap_to_folded(&report, STACKS).contains('\x1b'));
    let (json, svg) = (to_json(&report).expect("JSON"), heap_to_svg(&report, STACKS).expect("a graph"));
    for text in [json, svg, heap_to_html(&report).expect("a page")] {
        assert!(!text.contains(|c: char| c != '\n' && is_hidden(c)), "{text}");
    }
}

/// The program of case C2 after its purge, with the figures of a run.
#[test]
fn compared_with_the_mappings_each_difference_has_a_name() {
    let mut report = leaking(Sampling::EXACT).report(Filter::default());
    let row = CategoryRow {
        id: "jemalloc".to_string(),
        name: "jemalloc".to_string(),
        virt: 40 * MIB,
        rss: 22 * MIB,
        purged: 11 * MIB,
        ..CategoryRow::default()
    };
    let mappings = Process { categories: vec![row], ..Process::default() };
    let process = &mut report.processes[0];
    process.beside = mappings::compare(process, &mappings);
    let text = heap_to_text(&report, STACKS, TextOptions { top: 0, ..TextOptions::default() });
    lines_fit(&text);
    compare("beside.txt", &text);
}

#[test]
fn json_has_a_version_and_comes_back_whole() {
    let report = leaking(Sampling::EXACT).report(Filter::default());
    let json = to_json(&report).unwrap();
    assert!(json.contains("\"schema\": 1") && json.contains("\"command\": \"heap\""));
    let back: HeapReport = serde_json::from_str(&json).unwrap();
    assert_eq!(back, report);
}

#[test]
fn nothing_outstanding_is_said() {
    let mut scene = Scene::new("quiet", &[("malloc", "libc.so.6")], Sampling::EXACT);
    let stack = scene.case.stack(&["quiet!main+0x1"]);
    let block = scene.allocate(1, (0, stack), 10);
    scene.free(2, block);
    let text = heap_to_text(&scene.report(Filter::default()), STACKS, TextOptions::default());
    assert!(text.contains("nothing is outstanding"), "{text}");
    lines_fit(&text);
}
