//! Programs that make more calls than can be read as they come.

use crate::support::report::{spans_of_maps, spans_of_regions};
use crate::support::stacks::calls_of;
use crate::support::{audit, program, skip_without_bpf, stuck, vmaudit};
use std::process::{Command, Stdio};

#[test]
fn busy_threads_lose_no_call() {
    if skip_without_bpf("busy") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let maps = folder.path().join("maps");
    let words = ["16".as_ref(), "3000".as_ref(), maps.as_os_str(), "mixed".as_ref()];
    let audit = audit(&[], &[&[program("storm").as_os_str()][..], &words].concat());
    assert_eq!(audit.code(), Some(0), "{}", audit.stderr);
    let report = audit.report();
    assert_eq!(report.event("lost"), 0, "{}", audit.stderr);
    let text = std::fs::read(&maps).expect("the program's own maps");
    assert_eq!(spans_of_regions(report.first()), spans_of_maps(&text));
    assert_eq!(report.first()["coverage"]["ledger_drift"], 0);
}

/// The calls of one thread, with their stacks.
fn calls_with(backend: &str) -> (Vec<(String, Vec<crate::support::stacks::Frame>)>, String) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (events, maps) = (folder.path().join("events"), folder.path().join("maps"));
    let mut run = Command::new(vmaudit());
    run.args(["events", "--as-root", "-v", "--backend", backend, "-f", "json", "--aslr", "off", "--report"]);
    run.arg(&events).arg("--").arg(program("storm")).args(["1", "3000"]).arg(&maps).arg("mixed");
    let output = stuck::output(run.stdin(Stdio::null()));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let text = std::fs::read_to_string(&events).expect("the events");
    let mut calls = calls_of(&text, |event| event["pid"] != event["tid"]);
    assert_eq!(calls.len(), 1, "one thread is not the first");
    (calls.pop_first().map(|(_, calls)| calls).unwrap_or_default(), said)
}

/// What the kernel's side sends as the number of a stack is that stack: with notify, each is copied and
/// unwound.
#[test]
fn stacks_that_were_known_already_are_the_same() {
    if skip_without_bpf("busy") {
        return;
    }
    let (sent, said) = calls_with("bpf");
    let (unwound, _) = calls_with("notify");
    assert!(sent.len() > 2500, "{}", sent.len());
    assert_eq!(sent, unwound);
    let known =
        said.lines().find_map(|line| line.split_once(" stacks were copied, ")?.1.split_once(" were known"));
    let known: usize = known.expect("it says so").0.parse().expect("a number");
    assert!(known > 1000, "{said}");
}
