//! `vmaudit run --heap`: one run says who mapped and who holds.

use crate::support::report::{list, number};
use crate::support::{program, skip_without_bpf, stuck, vmaudit};
use serde_json::Value;
use std::process::Command;

fn report_of(arguments: &[&str]) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("report.json");
    let mut command = Command::new(vmaudit());
    command.args(arguments).args(["--as-root", "-f", "json", "--report"]).arg(&file);
    let output = stuck::output(command.arg("--").arg(program("heap_peak")));
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
    assert!(virt(&own) > 16 << 30, "{own}");
    let findings = list(process, "findings");
    assert_ne!(findings[0]["category"], "vmaudit");
    assert_eq!(findings[findings.len() - 1]["category"], "vmaudit");
    assert!(rows.iter().all(|row| row["id"] != "app-mmap"), "the library's own calls");
    // Stacks lead through the library, to whoever called malloc.
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

#[test]
fn what_it_cannot_do_is_said_before_the_start() {
    for (arguments, code, why) in [
        (&["-f", "html", "--heap"][..], 2, "vmaudit heap -f html shows the heap"),
        (&["-o", "recording", "--heap"], 2, "cannot be used with"),
        (&["--heap=1"], 2, "leave --sample out"),
    ] {
        let mut command = Command::new(vmaudit());
        let output = stuck::output(command.arg("run").args(arguments).args(["--", "/bin/false"]));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(why), "{said}");
    }
}
