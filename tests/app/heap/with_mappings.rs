//! `vmaudit run --heap`: one run says who mapped and who holds.

use crate::support::report::{list, number};
use crate::support::{program, skip_without_bpf, vmaudit, watchdog};
use serde_json::Value;
use std::process::Command;

fn report_of(arguments: &[&str]) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("report.json");
    let mut command = Command::new(vmaudit());
    command.args(arguments).args(["--as-root", "-f", "json", "--report"]).arg(&file);
    let output = watchdog::output(command.arg("--").arg(program("heap_peak")));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&std::fs::read(file).expect("a report")).expect("JSON")
}

#[test]
fn one_run_has_both() {
    if skip_without_bpf("one_run_has_both") {
        return;
    }
    let alone = report_of(&["heap"]);
    let both = report_of(&["run", "--heap"]);
    let totals = |heap: &Value, what: &str| number(&heap["processes"][0]["totals"], what);
    for what in ["allocations", "allocated_bytes", "frees", "outstanding_bytes", "peak_bytes"] {
        assert!(totals(&alone, what) > 0, "{what}");
        assert_eq!(totals(&both["heap"], what), totals(&alone, what), "{what}");
    }
    let process = &both["processes"][0];
    assert_eq!(number(&process["coverage"], "ledger_drift"), 0);
    let rows = list(process, "categories");
    let virt = |row: &&Value| number(row, "virt");
    assert_eq!(rows.iter().map(|row| virt(&row)).sum::<u64>(), number(&process["totals"], "virt"));
    let own = rows.iter().find(|row| row["id"] == "vmaudit").expect("what counting takes");
    // Little is counted, and no more is mapped than that takes.
    assert!((1..8 << 20).contains(&virt(&own)), "{own}");
    let findings = list(process, "findings");
    assert_ne!(findings[0]["category"], "vmaudit");
    assert_eq!(findings[findings.len() - 1]["category"], "vmaudit");
    assert!(rows.iter().all(|row| row["id"] != "app-mmap"), "the library's own calls");
    // Stacks lead through the library, to malloc's caller.
    let stacks = list(&both, "stacks");
    let through: Vec<&Value> = stacks
        .iter()
        .filter(|stack| {
            let frames = list(stack, "frames");
            frames
                .iter()
                .any(|frame| frame["module"].as_str().is_some_and(|name| name.contains("vmaudit-heap")))
                && frames.iter().any(|frame| frame["symbol"] == "main")
        })
        .collect();
    assert!(!through.is_empty());
    for stack in through {
        assert_eq!(stack["completeness"], "complete", "{stack}");
        let frames = list(stack, "frames");
        let hook =
            |frame: &&Value| frame["module"].as_str().is_some_and(|name| name.contains("vmaudit-heap"));
        assert!(frames.iter().filter(hook).all(|frame| frame["role"] == "allocator"), "{stack}");
    }
}

/// `report REC` is what the run printed, and each view of the heap.
#[test]
fn a_recording_has_both() {
    if skip_without_bpf("a_recording_has_both") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let recording = folder.path().join("rec");
    let run = report_of(&["run", "--heap", "-o", recording.to_str().expect("a path")]);
    let report = |options: &[&str]| {
        let output = watchdog::output(Command::new(vmaudit()).arg("report").args(options).arg(&recording));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned(), said)
    };
    let (code, json, said) = report(&["-f", "json"]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(serde_json::from_str::<Value>(&json).expect("JSON"), run);
    // The mappings are made anew, the heap is as it was.
    let replayed: Value = serde_json::from_str(&report(&["--replay", "-f", "json"]).1).expect("JSON");
    assert_eq!(replayed["heap"], run["heap"]);
    assert_eq!(replayed["processes"][0]["totals"]["virt"], run["processes"][0]["totals"]["virt"]);
    let (_, text, _) = report(&[]);
    assert!(text.contains("coverage") || text.contains("VIRT"), "{text}");
    assert!(text.contains("outstanding") && text.contains("by stack"), "{text}");
    let (_, peak, _) = report(&["--by", "peak"]);
    assert!(peak.contains("peak") && !peak.contains("VIRT "), "{peak}");
    let (code, html, said) = report(&["--by", "outstanding", "-f", "html"]);
    assert!(code == Some(0) && html.contains("· heap · vmaudit"), "{said}");
    let (code, html, said) = report(&["-f", "html"]);
    assert!(code == Some(0) && !html.contains("· heap · vmaudit"), "{said}");
    assert!(said.contains("--by outstanding"), "{said}");
    let (code, _, said) = report(&["--by", "peak", "--at", "0.001"]);
    assert!(code == Some(2) && said.contains("are about mappings here"), "{said}");
    // Calls and addresses are there as ever.
    let events = watchdog::output(Command::new(vmaudit()).arg("events").arg(&recording));
    assert!(events.status.success() && !events.stdout.is_empty());
}

#[test]
fn what_it_cannot_do_is_said_before_the_start() {
    for (arguments, code, why) in [
        (&["-f", "html", "--heap"][..], 2, "vmaudit heap -f html shows the heap"),
        (&["--heap=1"], 2, "leave --sample out"),
    ] {
        let mut command = Command::new(vmaudit());
        let output = watchdog::output(command.arg("run").args(arguments).args(["--", "/bin/false"]));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(why), "{said}");
    }
}
