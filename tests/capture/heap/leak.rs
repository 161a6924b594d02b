//! A C++ service that leaks, without frame pointers: found while it runs, to the line.

use crate::support::heap::{Obedient, Watching, first, frames, rows_of, sum};
use crate::support::report::{list, number};
use crate::support::{manifest_dir, program, skip_without_bpf};
use serde_json::Value;
use std::time::{Duration, Instant};

const LEAK: u64 = 262_144 * 4;
const LEAKER: &str = "service::Session::remember";

fn service() -> Obedient {
    let mut service = Obedient::start(&program("heap_leak"), &[]);
    assert_eq!(service.answer(), "ready");
    service
}

fn leaking_line() -> u64 {
    let source = std::fs::read_to_string(manifest_dir().join("tests/programs/heap_leak.cpp")).expect("text");
    let at = source.lines().position(|line| line.contains("// the leak")).expect("the leak");
    at as u64 + 1
}

/// The one row of the leak, at its line.
fn the_leak(report: &Value) -> &Value {
    let rows = rows_of(report, LEAKER);
    let [row] = rows[..] else { panic!("{} rows leak", rows.len()) };
    let frame = frames(report, row).iter().find(|frame| frame["symbol"] == LEAKER).expect("the frame");
    assert!(frame["file"].as_str().is_some_and(|file| file.ends_with("heap_leak.cpp")), "{frame}");
    assert_eq!(frame["line"].as_u64(), Some(leaking_line()), "{frame}");
    let outermost = frames(report, row).last().expect("frames");
    assert_eq!(outermost["symbol"], "_start", "{outermost}");
    row
}

#[test]
fn the_leak_and_nothing_else() {
    if skip_without_bpf("heap_leak") {
        return;
    }
    let mut service = service();
    let mut watching = Watching::of(service.program.0.id(), &["--interval", "0.2", "--leaks-only"]);
    // What is requested once, at the start, is no leak.
    service.order("fill");
    let mut leaks = 0;
    let mut newest = Value::Null;
    for _ in 0..8 {
        service.order("leak");
        leaks += 1;
        newest = watching.later();
    }
    let grown = number(the_leak(&newest), "bytes");
    assert_eq!(grown, leaks * LEAK);
    let report = watching.stop();
    let [only] = list(first(&report), "rows") else {
        panic!("more than the leak: {:#}", first(&report)["rows"]);
    };
    assert_eq!(only, the_leak(&report));
    assert_eq!(only["leak"], true);
    assert_eq!(number(only, "blocks"), leaks);
    assert_eq!(number(&report["events"], "lost"), 0);
    assert!(number(&first(&report)["left_out"], "bytes") >= 50 * 40_000, "the cache is there, too");
}

#[test]
fn growth_from_one_snapshot_to_the_next() {
    if skip_without_bpf("heap_leak") {
        return;
    }
    let mut service = service();
    let mut watching = Watching::of(service.program.0.id(), &["--interval", "0.2"]);
    // Growth is measured from the first snapshot on.
    watching.next();
    for leaks in 1..=3 {
        service.order("leak");
        let mut report = watching.next();
        while sum(&rows_of(&report, LEAKER), "bytes") < leaks * LEAK {
            report = watching.next();
        }
        let row = the_leak(&report);
        assert_eq!(number(row, "bytes"), leaks * LEAK);
        assert_eq!(number(row, "growth"), LEAK);
        // Snapshots without an order between them.
        watching.later();
        assert_eq!(the_leak(&watching.later())["growth"], 0);
    }
    watching.stop();
}

#[test]
fn what_is_young_is_left_out() {
    if skip_without_bpf("heap_leak") {
        return;
    }
    const AGE: Duration = Duration::from_secs(2);
    let mut service = service();
    let mut watching = Watching::of(service.program.0.id(), &["--interval", "0.1", "--older", "2s"]);
    service.order("leak");
    let mut report = watching.next();
    while rows_of(&report, LEAKER).is_empty() {
        let left_out = number(&first(&report)["left_out"], "bytes");
        assert!(left_out >= LEAK, "it is somewhere: {left_out}");
        report = watching.next();
    }
    // On a machine that is too busy to report within two seconds, the young block is old by then.
    for old in 1..=20 {
        let ordered = Instant::now();
        service.order("leak");
        let report = watching.later();
        let in_time = ordered.elapsed() < AGE;
        for row in list(first(&report), "rows") {
            assert!(number(row, "oldest_ns") >= AGE.as_nanos() as u64, "{row}");
        }
        if in_time {
            assert_eq!(number(the_leak(&report), "blocks"), old, "{report:#}");
            assert!(number(&first(&report)["left_out"], "bytes") >= LEAK);
            watching.stop();
            return;
        }
    }
    panic!("no report within two seconds, twenty times");
}
