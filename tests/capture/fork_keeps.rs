//! What fork does not copy though no call says so: mappings that their driver keeps (VM_DONTCOPY).

use crate::support::report::{AuditReport, number};
use crate::support::{audit, program, skip, skip_without_bpf};

fn all_is_known(report: &AuditReport) {
    for process in report.json["processes"].as_array().expect("processes") {
        for key in ["ledger_drift", "unknown", "doubtful"] {
            assert_eq!(number(&process["coverage"], key), 0, "{key} of {:.400}", process.to_string());
        }
    }
}

fn every_process_is_exact(backend: &str) {
    let audit = audit(&["--backend", backend], &[program("perf_ring").into_os_string()]);
    if audit.code() == Some(77) {
        return skip(backend, "perf events are refused here");
    }
    assert_eq!(audit.code(), Some(0), "{}", audit.stderr);
    let report = audit.report();
    assert_eq!(report.json["backend"], backend);
    assert_eq!(report.processes().len(), 13, "three times three children and one of theirs, and the parent");
    all_is_known(report);
}

#[test]
fn with_bpf() {
    if !skip_without_bpf("bpf") {
        every_process_is_exact("bpf");
    }
}

#[test]
fn with_perf() {
    every_process_is_exact("perf");
}

#[test]
fn with_notify() {
    every_process_is_exact("notify");
}

/// Without an effect in maps, a refusal is known from the child.
#[test]
fn what_is_sealed_goes_to_the_child_by_notify() {
    let audit = audit(&["--backend", "notify"], &[program("sealed").into_os_string()]);
    if audit.code() == Some(77) {
        return skip("notify", "no mseal here");
    }
    assert_eq!(audit.code(), Some(0), "{}", audit.stderr);
    let report = audit.report();
    assert_eq!(report.processes().len(), 2);
    all_is_known(report);
}
