//! The JSON contract (docs/report.md): names, sums, renumbered stacks; and sums over
//! random address spaces.

use crate::case::*;
use proptest::prelude::*;
use serde_json::Value;
use vmaudit::ledger::{Doubt, Origin, OriginId};
use vmaudit::model::observation::ResidencySource;
use vmaudit::model::{AddrRange, Bytes};
use vmaudit::render::to_json;
use vmaudit::report::{EventCounts, ProcessAudit, ProcessFacts, Report, RunFacts, build};

fn report(case: &Case) -> Report {
    let run = RunFacts {
        backend: "bpf".to_string(),
        events: EventCounts {
            seen: 1284,
            lost: 0,
            without_stack: 0,
            truncated_stacks: 2,
            unwind_incomplete: 1,
        },
        ..RunFacts::default()
    };
    let facts = ProcessFacts { exit_code: Some(0), wall_ns: Some(12_400_000_000), ..ProcessFacts::default() };
    build(&run, &[ProcessAudit { input: case.input(), facts: &facts }])
}

fn small_case() -> Case {
    let mut case = Case::new();
    // an unreferenced stack must not be exported
    case.stack(&["libc.so.6!__munmap", "p!main"]);
    let stack =
        case.stack(&["libc.so.6!__mmap", "libc.so.6@0x95615", "libc.so.6!malloc+0x11e", "p!worker a.c:7"]);
    let origin = case.mmap(4001, 128 * MIB, (NONE, ANON | NORESERVE), stack);
    let base = 0x7ffe_f000_0000;
    case.vma((0x5500_0000_0000, 0x5500_0000_1000), "r-xp", "/opt/program", Origin::Kernel);
    case.vma((base, base + 132 * KIB), "rw-p", "", Origin::Event(origin));
    case.vma((base + 132 * KIB, base + 64 * MIB), "---p", "", Origin::Event(origin));
    case.vma((0x7fff_f000_0000, 0x7fff_f001_0000), "rw-p", "", Origin::Unknown);
    case.reconciled.regions[3].doubt = Some(Doubt::EventsLost);
    case.resident(base, base + 0x4000);
    case.reconciled.drift = Bytes(4096);
    case.observations.status.vm_peak = 200 * MIB;
    case.observations.cmdline = vec![b"program".to_vec(), vec![0xff, b'\n']];
    case
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().map(|o| o.keys().map(String::as_str).collect()).unwrap_or_default()
}

fn has(value: &Value, expected: &[&str]) {
    let present = keys(value);
    for key in expected {
        assert!(present.contains(key), "{key} is missing in {present:?}");
    }
}

#[test]
fn every_field_of_the_contract_is_there() {
    let json: Value = serde_json::from_str(&to_json(&report(&small_case())).unwrap()).unwrap();
    has(&json, &["schema", "backend", "events", "processes", "stacks"]);
    assert_eq!(json["schema"], 1);
    has(&json["events"], &["seen", "lost", "truncated_stacks", "unwind_incomplete"]);
    let p = &json["processes"][0];
    has(
        p,
        &[
            "pid",
            "comm",
            "exe",
            "cmdline",
            "exit_code",
            "signal",
            "container",
            "threads_seen",
            "aslr",
            "totals",
            "coverage",
            "categories",
            "regions",
            "findings",
            "timeline",
        ],
    );
    has(&p["totals"], &["virt", "rss", "swap", "unused", "writable", "reserved", "vm_peak"]);
    has(&p["coverage"], &["traced", "preexisting", "kernel", "unknown", "ledger_drift"]);
    has(&p["categories"][0], &["id", "name", "virt", "writable", "rss", "swap", "unused", "regions"]);
    let region = &p["regions"][1];
    has(region, &["start", "end", "prot", "category", "evidence", "virt", "rss", "swap", "path", "origin"]);
    assert_eq!(
        (&region["start"], &region["prot"], &region["evidence"], &region["path"]),
        (&"0x7ffef0000000".into(), &"rw-p".into(), &"stack".into(), &Value::Null)
    );
    has(&region["origin"], &["event", "op", "tid", "comm", "time_ns", "stack"]);
    assert_eq!((&region["origin"]["op"], &region["origin"]["stack"]), (&"mmap".into(), &0.into()));
    assert_eq!(p["regions"][0]["origin"], Value::Null);
    assert_eq!(p["regions"][3]["doubt"], "events-lost");
    has(&p["findings"][0], &["category", "virt", "rss", "unused", "regions", "stack", "title", "why", "fix"]);
    has(&p["findings"][0]["fix"][0], &["knob", "saves_virt", "saves_rss", "note"]);
    assert_eq!(json["stacks"].as_array().unwrap().len(), 1, "only stacks in use");
    let frames = &json["stacks"][0]["frames"];
    has(&frames[0], &["module", "build_id", "offset", "symbol", "symbol_offset", "file", "line", "inlined"]);
    assert_eq!(json["stacks"][0]["truncated"], false);
    let roles: Vec<&Value> = frames.as_array().unwrap().iter().map(|frame| &frame["role"]).collect();
    assert_eq!(roles, ["wrapper", "libc", "allocator", "program"]);
    assert_eq!(json["stacks"][0]["caller"], 3);
    assert_eq!((&frames[1]["symbol"], &frames[1]["offset"]), (&Value::Null, &"0x95615".into()));
    assert_eq!(frames[1]["function_start"], "0x95600");
    assert_eq!((&frames[3]["file"], &frames[3]["line"]), (&"/src/a.c".into(), &7.into()));
    assert_eq!(p["coverage"]["ledger_drift"], 4096);
    assert_eq!(p["coverage"]["doubtful"], 0x1_0000);
    assert_eq!(p["cmdline"][1], "\u{fffd}\n", "any bytes become text");
}

#[test]
fn json_reads_back() {
    let report = report(&small_case());
    let read: Report = serde_json::from_str(&to_json(&report).unwrap()).unwrap();
    assert_eq!(read, report);
    // an older or a newer writer: missing fields get defaults, unknown ones are ignored
    let sparse: Report = serde_json::from_str(r#"{"schema":1,"new":3,"processes":[{"pid":7}]}"#).unwrap();
    assert_eq!((sparse.schema, sparse.processes[0].pid), (1, 7));
}

#[derive(Clone, Debug)]
struct RandomVma {
    gap: u64,
    pages: u64,
    perms: &'static str,
    name: &'static str,
    origin: u8,
    cut: u64,
}

fn random_vma() -> impl Strategy<Value = RandomVma> {
    let perms = prop::sample::select(vec!["rw-p", "---p", "r--p", "r-xp", "rw-s"]);
    let names = vec![
        "",
        "",
        "",
        "[heap]",
        "[stack]",
        "[vdso]",
        "[vvar]",
        "/lib/a.so",
        "/dev/zero (deleted)",
        "[anon:x]",
    ];
    (0u64..3, 1u64..600, perms, prop::sample::select(names), 0u8..12, 0u64..600)
        .prop_map(|(gap, pages, perms, name, origin, cut)| RandomVma { gap, pages, perms, name, origin, cut })
}

fn random_case(vmas: &[RandomVma], runs: &[(u64, u64)], source: u8) -> Case {
    let mut case = Case::new();
    let stacks = [
        case.stack(&["libc.so.6!__mmap", "libc.so.6@0x95615", "libc.so.6!malloc", "p!main"]),
        case.stack(&["libc.so.6!__mmap", "libc.so.6!pthread_create", "p!main"]),
        case.stack(&["libc.so.6!__mmap", "libjemalloc.so.2@0x1234", "p!main"]),
        case.stack(&["p@0x1234"]),
    ];
    let calls = [(NONE, ANON | NORESERVE), (NONE, ANON | STACK), (RW, ANON | NORESERVE), (RW, ANON)];
    let mut at = 0x7f00_0000_0000;
    for (i, v) in vmas.iter().enumerate() {
        at += v.gap * 4096;
        let end = at + v.pages * 4096;
        let mut origin = || match v.origin {
            0..8 => {
                let len = if v.origin % 2 == 0 { 128 * MIB } else { 2 * MIB };
                let id = case.mmap(4001, len, calls[i % 4], stacks[i % 4]);
                Origin::Event(OriginId(id.0))
            }
            8 => Origin::Kernel,
            9 | 10 => Origin::Preexisting,
            _ => Origin::Unknown,
        };
        let split = at + v.cut.min(v.pages) * 4096;
        let parts = [(at, split, origin()), (split, end, origin())];
        let parts: Vec<_> = parts.into_iter().filter(|p| p.0 < p.1).collect();
        case.merged_vma(v.perms, v.name, &parts);
        at = end;
    }
    let mut page = 0x7f00_0000_0000 / 4096;
    for (i, &(gap, pages)) in runs.iter().enumerate() {
        let range = AddrRange::new((page + gap) * 4096, (page + gap + pages) * 4096);
        match i % 3 {
            0 => case.observations.residency.resident.push(range),
            1 => case.observations.residency.swapped.push(range),
            _ => case.reconciled.purged.push(range),
        }
        // purged and resident may overlap
        page += gap + if i % 2 == 0 { pages } else { pages / 2 };
    }
    for list in [
        &mut case.observations.residency.swapped,
        &mut case.observations.residency.resident,
        &mut case.reconciled.purged,
    ] {
        let mut last = 0;
        list.retain(|r| {
            let keep = r.start.0 >= last;
            if keep {
                last = r.end.0;
            }
            keep
        });
    }
    // a page is resident or swapped, never both
    let swapped = case.observations.residency.swapped.clone();
    case.observations.residency.resident.retain(|r| !swapped.iter().any(|s| s.overlaps(*r)));
    if source == 1 {
        let mappings = case.observations.mappings.iter().enumerate();
        let shared_out = mappings.map(|(i, m)| {
            (m.range, (m.range.len() / 3) & !0xfff, (i as u64 % 2) * 4096 * u64::from(m.range.len() > 8192))
        });
        case.observations.residency.per_vma = shared_out.collect();
        case.observations.residency.source = ResidencySource::SmapsProportion;
    }
    case
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn sums_hold_for_any_address_space(
        vmas in prop::collection::vec(random_vma(), 0..24),
        runs in prop::collection::vec((0u64..40, 1u64..90), 0..60),
        source in 0u8..2,
        heaps in prop::collection::vec(0u64..4, 0..3),
    ) {
        let mut case = random_case(&vmas, &runs, source);
        for h in heaps {
            case.heap_info(0x7f00_0000_0000 + h * 64 * MIB, 132 * KIB);
        }
        let report = report(&case);
        let p = &report.processes[0];
        let mapped: u64 = case.observations.mappings.iter().map(|m| m.range.len()).sum();
        prop_assert_eq!(p.totals.virt, mapped);
        prop_assert_eq!(p.totals.unused, p.totals.virt - p.totals.rss - p.totals.swap);
        let c = &p.coverage;
        prop_assert_eq!(c.traced + c.preexisting + c.kernel + c.unknown, p.totals.virt);
        let sum = |f: fn(&vmaudit::report::model::CategoryRow) -> u64| p.categories.iter().map(f).sum::<u64>();
        prop_assert_eq!(sum(|r| r.virt), p.totals.virt);
        prop_assert_eq!(sum(|r| r.writable), p.totals.writable);
        prop_assert_eq!(sum(|r| r.rss), p.totals.rss);
        prop_assert_eq!(sum(|r| r.swap), p.totals.swap);
        prop_assert_eq!(sum(|r| r.unused), p.totals.unused);
        prop_assert_eq!(sum(|r| r.reserved), p.totals.reserved);
        prop_assert_eq!(sum(|r| r.purged), p.totals.purged);
        prop_assert_eq!(sum(|r| r.pieces), p.regions.len() as u64);
        prop_assert_eq!(p.regions.iter().map(|r| r.virt).sum::<u64>(), p.totals.virt);
        // every byte of the maps is in exactly one region
        let mut ends = 0;
        let mut covered = Vec::new();
        for r in &p.regions {
            let (start, end) = (number(&r.start), number(&r.end));
            prop_assert!(start >= ends && end > start && end - start == r.virt);
            prop_assert!(r.rss + r.swap <= r.virt);
            ends = end;
            covered.push((start, end));
        }
        for m in &case.observations.mappings {
            let inside = covered.iter().filter(|c| m.range.contains_range(AddrRange::new(c.0, c.1)));
            prop_assert_eq!(inside.map(|c| c.1 - c.0).sum::<u64>(), m.range.len());
        }
        // findings hold every unused byte once
        prop_assert_eq!(p.findings.iter().map(|f| f.virt).sum::<u64>(), p.findings.iter()
            .flat_map(|f| &f.ranges).map(|r| number(&r.end) - number(&r.start)).sum::<u64>());
        prop_assert_eq!(p.findings.iter().map(|f| f.unused).sum::<u64>(), p.totals.unused);
        prop_assert!(p.findings.is_sorted_by(|a, b| a.unused >= b.unused));
        let text = vmaudit::render::to_text(&report, vmaudit::render::TextOptions::default());
        let long: Vec<&str> = text.lines().filter(|l| l.chars().count() > 100).collect();
        prop_assert!(long.is_empty(), "{:?}", long);
    }
}
