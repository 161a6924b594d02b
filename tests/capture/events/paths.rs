//! Names of files in events are those of maps.

use crate::support::{program, skip_without_bpf, vmaudit, watchdog};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;

#[test]
fn files_in_no_folder_have_their_names() {
    if skip_without_bpf("files_in_no_folder_have_their_names") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("events");
    let mut command = Command::new(vmaudit());
    command.args(["events", "--as-root", "-f", "json", "--report"]).arg(&file).arg("--");
    let output = watchdog::output(command.arg(program("memfds")));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).expect("text");
    let lines = printed.lines().filter_map(|line| line.split_once(' '));
    let maps: BTreeMap<&str, &str> =
        lines.map(|(at, name)| (at, name.trim_end_matches(" (deleted)"))).collect();
    assert_eq!(maps.len(), 4, "{printed}");
    let events = std::fs::read_to_string(&file).expect("events");
    let events: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let seen: BTreeMap<&str, &str> = events
        .iter()
        .filter(|event| event["op"] == "mmap")
        .filter_map(|event| Some((event["result"].as_str()?, event["path"].as_str()?)))
        .filter(|(at, _)| maps.contains_key(at))
        .collect();
    assert_eq!(seen, maps);
}
