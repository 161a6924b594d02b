//! Whether VIRT matters, on processes with limits and without.

use crate::support::{self, Guard, vmaudit};
use serde_json::Value;
use std::process::{Command, Stdio};

/// The JSON snapshot of a shell that waits under `limits`.
fn snapshot_under(limits: &str) -> Value {
    let mut shell = Command::new("bash");
    shell.args(["-c", &format!("{limits}; echo ready; read line")]);
    let mut child =
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map(Guard).expect("bash starts");
    let mut ready = [0; 6];
    std::io::Read::read_exact(child.0.stdout.as_mut().expect("a pipe"), &mut ready).expect("it says ready");
    let pid = child.0.id().to_string();
    let out =
        Command::new(vmaudit()).args(["snapshot", "-f", "json", "-p", &pid]).output().expect("vmaudit runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).expect("JSON")
}

fn check<'r>(report: &'r Value, id: &str) -> &'r Value {
    let checks = report["processes"][0]["verdict"]["checks"].as_array().expect("checks");
    checks.iter().find(|check| check["id"] == id).unwrap_or_else(|| panic!("{id} in {checks:?}"))
}

#[test]
fn unlimited_is_harmless() {
    let report = snapshot_under("ulimit -v unlimited; ulimit -d unlimited");
    assert!(check(&report, "address-space")["limit"].is_null());
    let mappings = check(&report, "mappings");
    assert!(mappings["used"].as_u64() > Some(5) && mappings["limit"].as_u64() > mappings["used"].as_u64());
    let strict =
        std::fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() == "2");
    assert_eq!(report["processes"][0]["verdict"]["matters"], strict);
}

#[test]
fn a_limit_on_the_address_space_matters_and_is_in_bytes() {
    let report = snapshot_under("ulimit -v 262144");
    let found = check(&report, "address-space");
    assert_eq!(found["limit"], 256 << 20);
    assert_eq!(found["used"], report["processes"][0]["totals"]["virt"]);
    assert_eq!(found["state"], "limited");
    assert_eq!(report["processes"][0]["verdict"]["matters"], true);
    let text = report["processes"][0]["verdict"]["text"].as_str().expect("text");
    assert!(text.contains("RLIMIT_AS"), "{text}");
}

#[test]
fn a_limit_on_data_counts_private_writable_memory() {
    let report = snapshot_under("ulimit -d 65536");
    let found = check(&report, "data");
    assert_eq!(found["limit"], 64 << 20);
    let used = found["used"].as_u64().expect("a number");
    assert!(used > 0 && used < report["processes"][0]["totals"]["virt"].as_u64().expect("virt"));
}

#[test]
fn the_verdict_stands_above_the_tables_and_comes_back_from_a_recording() {
    if support::skip_without_bpf("the_verdict_comes_back") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let recording = folder.path().join("r.vma");
    let run = Command::new(vmaudit())
        .arg("run")
        .arg("-o")
        .arg(&recording)
        .args(["--", "true"])
        .output()
        .expect("vmaudit runs");
    let text = String::from_utf8_lossy(&run.stdout);
    let verdict = text.find("  VIRT ").expect("a verdict");
    assert!(verdict < text.find("VIRT        RSS").expect("the table"), "{text}");
    let again =
        Command::new(vmaudit()).args(["report", "--replay"]).arg(&recording).output().expect("vmaudit runs");
    let again = String::from_utf8_lossy(&again.stdout);
    let lines = |text: &str| text.lines().skip(1).take(2).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(lines(&text), lines(&again));
}

/// Near the limit on mappings it is their number that has to change, not their bytes.
#[test]
fn too_many_mappings_are_reported_as_such() {
    if support::skip_without_bpf("too_many_mappings_are_reported_as_such") {
        return;
    }
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").expect("a limit");
    let count = limit.trim().parse::<u64>().expect("a number") - 500;
    let audit = support::audit(
        &[],
        &[support::program("manymaps").as_os_str(), count.to_string().as_ref(), "nowait".as_ref()],
    );
    let process = audit.report().first();
    let finding = &process["findings"][0];
    let why = finding["why"].as_str().expect("text");
    assert!(why.contains("vm.max_map_count"), "{why}");
    let fixes = finding["fix"].as_array().expect("fixes");
    assert!(fixes.iter().all(|fix| fix["saves_virt"] == 0), "{fixes:?}");
    assert!(
        fixes
            .iter()
            .any(|fix| fix["knob"].as_str().is_some_and(|knob| knob.starts_with("sysctl vm.max_map_count")))
    );
}
