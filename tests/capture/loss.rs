//! Forced loss: with rings far too small for the program and a reader that is stopped for half of its
//! calls, the report has to say how much was lost and which regions are doubtful, and to be right about
//! all others.
//!
//! What is right is known from a second run of the same single-threaded program, without
//! address randomisation and with rings that lose nothing.

use crate::perf::skip_without_perf;
use crate::support::report::{AuditReport, spans_of_maps, spans_of_regions};
use crate::support::{Audit, Guard, finished, program, run_command, skip_without_bpf};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;

/// The reader while the program does a quarter of its calls.
#[derive(Clone, Copy, PartialEq)]
enum Reader {
    Runs,
    /// Nothing is read: the rings fill up, and what comes then is lost.
    Stopped,
}

use Reader::{Runs, Stopped};

/// One thread of the churn program, at the same addresses each time.
fn churn(options: &[&str], folder: &Path, quarters: [Reader; 4]) -> Audit {
    let (churn, out, report) = (program("churn"), folder.join("maps"), folder.join("report.json"));
    // More than the smallest rings of perf hold.
    let turns = if options.contains(&"perf") { "4000" } else { "900" };
    let words =
        [churn.as_os_str(), "11".as_ref(), "1".as_ref(), turns.as_ref(), out.as_os_str(), "steps".as_ref()];
    let mut run = run_command(&report, &[&["--aslr", "off"], options].concat(), &words);
    run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut vmaudit = Guard(run.spawn().expect("vmaudit starts"));
    let mut go = vmaudit.0.stdin.take().expect("piped");
    let mut steps = BufReader::new(vmaudit.0.stdout.take().expect("piped")).lines();
    // After the last quarter it waits once more.
    for reader in quarters.into_iter().chain([Runs]) {
        assert_eq!(steps.next().expect("a step").expect("text"), "STEP");
        match reader {
            Runs => vmaudit.signal(libc::SIGCONT),
            Stopped => vmaudit.stop(),
        }
        go.write_all(b"\n").expect("it reads");
    }
    let audit = finished(vmaudit.finish().expect("vmaudit ends"), &report);
    assert_eq!(audit.code(), Some(0), "{}", audit.stderr);
    audit
}

/// The regions are what the program read from its own maps.
fn assert_true_map(audit: &Audit, folder: &Path) {
    let first = audit.report().first();
    let text = std::fs::read(folder.join(format!("maps.{}", first["pid"]))).expect("the program's own maps");
    assert_eq!(spans_of_regions(first), spans_of_maps(&text));
    assert_eq!(first["coverage"]["ledger_drift"], 0);
}

fn regions(report: &AuditReport) -> &[Value] {
    report.first()["regions"].as_array().map_or(&[], Vec::as_slice)
}

fn address(region: &Value, which: &str) -> u64 {
    let text = region[which].as_str().unwrap_or_default();
    u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("an address")
}

/// Call and category of what made a region.
fn cause(region: &Value) -> (&Value, &Value) {
    (&region["origin"]["op"], &region["category"])
}

fn stack<'r>(report: &'r AuditReport, region: &Value) -> Option<&'r Value> {
    region["origin"]["stack"].as_u64().map(|n| &report.json["stacks"][n as usize])
}

fn frames(stack: Option<&Value>) -> &[Value] {
    stack.and_then(|stack| stack["frames"].as_array()).map_or(&[], Vec::as_slice)
}

/// The same frames; a stack that says that it ends early (the record of the module that comes next was
/// lost) has the first of them, and then the address that it could not tell.
fn assert_true_stack(found: Option<&Value>, truth: Option<&Value>, at: &Value) {
    let (shown, whole) = (frames(found), frames(truth));
    match found.filter(|stack| stack["completeness"] == "incomplete").and(shown.split_last()) {
        Some((last, known)) if last["module"] == "[unknown]" => {
            assert_eq!(known, &whole[..known.len().min(whole.len())], "{at}");
        }
        _ => assert_eq!(shown, whole, "{at}"),
    }
}

/// The complete report's region that covers a byte.
fn covering(complete: &AuditReport, at: u64) -> &Value {
    let holds = |r: &&Value| address(r, "start") <= at && at < address(r, "end");
    regions(complete).iter().find(holds).expect("mapped in both runs")
}

/// `small`: options for rings that the program's calls do not fit into.
fn what_is_not_doubtful_is_right(backend: &[&str], small: &[&str]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let complete = churn(backend, folder.path(), [Runs; 4]);
    assert_eq!(complete.report().event("lost"), 0);
    let lossy = churn(&[backend, small].concat(), folder.path(), [Runs, Stopped, Runs, Stopped]);
    let report = lossy.report();
    assert!(report.event("lost") > 0, "nothing was lost");
    assert_true_map(&lossy, folder.path());
    let doubtful: u64 =
        regions(report).iter().filter(|r| !r["doubt"].is_null()).filter_map(|r| r["virt"].as_u64()).sum();
    assert!(doubtful > 0, "no call was lost, only stacks");
    assert_eq!(report.first()["coverage"]["doubtful"], doubtful);
    for region in regions(report).iter().filter(|r| r["doubt"].is_null() && r["category"] != "unknown") {
        let truth = covering(complete.report(), address(region, "start"));
        assert_eq!(cause(region), cause(truth), "{}", region["start"]);
        let stacks = (stack(report, region), stack(complete.report(), truth));
        assert_true_stack(stacks.0, stacks.1, &region["start"]);
    }
}

#[test]
fn what_is_not_doubtful_is_right_with_bpf() {
    if skip_without_bpf("loss") {
        return;
    }
    what_is_not_doubtful_is_right(&["--backend", "bpf"], &["--ring-bytes", "16384", "--spill-bytes", "4096"]);
}

#[test]
fn what_is_not_doubtful_is_right_with_perf() {
    if skip_without_perf("loss, perf") {
        return;
    }
    // Its rings are 64 KiB for each CPU at least.
    what_is_not_doubtful_is_right(&["--backend", "perf"], &["--ring-bytes", "4096", "--spill-bytes", "4096"]);
}

#[test]
fn a_full_ring_costs_stacks_and_not_the_ledger() {
    if skip_without_bpf("loss") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let complete = churn(&[], folder.path(), [Runs; 4]);
    let lossy = churn(&["--ring-bytes", "4096"], folder.path(), [Runs, Stopped, Runs, Stopped]);
    let report = lossy.report();
    assert!(report.event("lost") > 0, "nothing was lost");
    assert_true_map(&lossy, folder.path());
    assert_eq!(report.first()["coverage"]["unknown"], 0);
    for region in regions(report) {
        let truth = covering(complete.report(), address(region, "start"));
        assert_eq!(region["origin"]["op"], truth["origin"]["op"], "{}", region["start"]);
    }
}
