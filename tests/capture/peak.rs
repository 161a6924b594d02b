//! VmPeak explained: exactly the kernel's, for programs of one thread, and by the right calls.

use crate::support::report::{list, number};
use crate::support::{self, audit, program, skip_without_bpf};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsString;

const MIB: u64 = 1 << 20;

/// What the kernel reported to each process: (what, pid) → VmPeak, bytes.
type Peaks = BTreeMap<(String, u64), u64>;

/// Runs a mode of peaks.c.
fn peaks(mode: &str) -> Option<(support::Audit, Peaks)> {
    if skip_without_bpf("run_peak") {
        return None;
    }
    let command = [program("peaks").into_os_string(), OsString::from(mode)];
    let audit = audit(&[], &command);
    assert_eq!(audit.code(), Some(0), "{}\n{}", audit.stdout, audit.stderr);
    audit.report().assert_exact();
    let line = |line: &str| {
        let mut words = line.split(' ');
        let mut next = || words.next().expect("three words").to_owned();
        let (what, pid, peak) = (next(), next(), next());
        ((what, pid.parse().expect("a pid")), peak.parse().expect("bytes"))
    };
    let reported: BTreeMap<(String, u64), u64> = audit.stdout.lines().map(line).collect();
    for ((what, pid), peak) in &reported {
        let process = audit.report().process(*pid).expect("it is in the report");
        assert_eq!(number(&process["peak"], "virt"), *peak, "VmPeak of {what}");
    }
    Some((audit, reported))
}

/// The share of the peak that shrank most: what it is, its bytes then and now, and its stack.
fn largest_loss(audit: &support::Audit, process: &Value) -> (String, u64, u64, Vec<String>) {
    let lost = |share: &&Value| number(share, "bytes").saturating_sub(number(share, "now_bytes"));
    let share = list(&process["peak"], "by_stack").iter().max_by_key(lost).expect("a share");
    let op = share["op"].as_str().expect("a name").to_owned();
    let names = audit.report().stack_names(&share["stack"]);
    (op, number(share, "bytes"), number(share, "now_bytes"), names)
}

#[test]
fn mappings_that_are_gone_are_named() {
    let Some((audit, _)) = peaks("mmap") else { return };
    let process = audit.report().first();
    let (op, then, now, stack) = largest_loss(&audit, process);
    assert_eq!((op.as_str(), then, now), ("mmap", 64 * MIB, 0));
    assert!(stack.iter().any(|f| f == "peaks!map") && stack.iter().any(|f| f == "peaks!main"), "{stack:?}");
    // The second one, of the same function but another place in main, was there, too; the third came later.
    let gone: Vec<u64> = list(&process["peak"], "by_stack")
        .iter()
        .filter(|share| share["category"] == "app-mmap")
        .map(|share| number(share, "bytes"))
        .collect();
    assert_eq!(gone, [64 * MIB, 32 * MIB]);
}

#[test]
fn a_stack_that_grew_between_calls_counts() {
    let Some((audit, _)) = peaks("stack") else { return };
    let process = audit.report().first();
    assert_eq!(largest_loss(&audit, process).1, 64 * MIB);
    let stack = process["peak"]["by_category"]["main-stack"].as_u64().expect("the stack is a part");
    assert!(stack > 2 * MIB, "the stack had {stack} bytes");
    let Some((audit, _)) = peaks("stack-end") else { return };
    let process = audit.report().first();
    assert_eq!(number(&process["peak"], "virt"), number(&process["totals"], "virt"));
}

#[test]
fn moves_replacements_and_the_break() {
    for (mode, op, lost) in [("remap", "mremap", 40), ("fixed", "mmap", 40), ("brk", "brk", 32)] {
        let Some((audit, _)) = peaks(mode) else { return };
        let (found, then, now, _) = largest_loss(&audit, audit.report().first());
        assert_eq!((found.as_str(), (then - now) / MIB), (op, lost), "{mode}");
    }
}

#[test]
fn children_and_new_programs_have_their_own() {
    let Some((audit, reported)) = peaks("fork") else { return };
    assert_eq!(reported.len(), 2, "{reported:?}");
    let child = reported.keys().find(|(what, _)| what == "child").expect("the child").1;
    let process = audit.report().process(child).expect("in the report");
    assert_eq!(largest_loss(&audit, process).1, 16 * MIB, "the child never had the parent's 64 MiB");
    assert_eq!(largest_loss(&audit, audit.report().first()).1, 64 * MIB);

    let Some((audit, _)) = peaks("exec") else { return };
    let (op, then, ..) = largest_loss(&audit, audit.report().first());
    assert_eq!((op.as_str(), then / MIB), ("brk", 32), "the old program's peak is gone");

    let Some((audit, reported)) = peaks("vfork") else { return };
    assert_eq!(reported.len(), 2, "{reported:?}");
    let parent = audit.report().first();
    assert_eq!(largest_loss(&audit, parent).1, 64 * MIB, "what the vfork child did in its address space");
}
