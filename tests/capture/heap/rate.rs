//! A service that allocates 200,000 times a second lives on, and its report is right.

use crate::support::heap::{assert_sums, first, rows_of, sum};
use crate::support::report::number;
use crate::support::{self, program, skip_without_bpf, vmaudit};
use serde_json::Value;
use std::process::Command;

const CALLS: u64 = 600_000;
const RATE: u64 = 200_000;

#[test]
fn two_hundred_thousand_allocations_a_second() {
    if skip_without_bpf("heap_rate") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("report.json");
    let mut command = Command::new(vmaudit());
    command.args(["heap", "--as-root", "-f", "json", "--report"]).arg(&file).arg("--");
    command.arg(program("alloc_rate")).args([CALLS, RATE].map(|n| n.to_string()));
    let output = command.output().expect("vmaudit starts");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stdout);
    let own: Vec<u64> = said.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    let [calls, bytes, blocks, held, took_ns] = own[..] else { panic!("{said}") };
    assert_eq!(calls, CALLS);

    let report: Value = serde_json::from_slice(&std::fs::read(&file).expect("a report")).expect("JSON");
    assert_sums(&report);
    let (seen, lost) = (number(&report["events"], "seen"), number(&report["events"], "lost"));
    let doubts = &first(&report)["doubts"];
    println!(
        "{} allocations a second (requested: {RATE}), {seen} events, {lost} lost, {} without stack",
        calls * 1_000_000_000 / took_ns,
        number(&report, "without_stack"),
    );
    // The BPF programs count every call, whether or not it can be sent: each allocation but the first of each
    // slot comes after a free; libc and the loader have a few of their own.
    let expected = calls + calls - blocks;
    assert!((expected..expected + 1000).contains(&seen), "{seen}, and not {expected}");
    assert_eq!(number(doubts, "lost_events"), lost);
    let rows = rows_of(&report, "handle");
    let without: Vec<&Value> = support::report::list(first(&report), "rows")
        .iter()
        .filter(|row| row["no_stack"] == "lost")
        .collect();
    if lost == 0 {
        let all = |unit: &str| sum(&rows, unit) + sum(&without, unit);
        assert_eq!(all("allocations"), calls);
        assert_eq!(all("allocated_bytes"), bytes);
        assert_eq!((all("blocks"), all("bytes")), (blocks, held));
    } else {
        // No more is missing than is reported.
        let made = number(&first(&report)["totals"], "allocations");
        assert!(made <= calls + 1000 && made + lost >= calls, "{made} and {lost} lost, of {calls}");
    }
}
