//! `attach --cgroup` to a plain cgroup, without any engine: who is in it, who is moved into it, and its
//! end.

use crate::support::cgroup::Group;
use crate::support::container::{Talk, attach_and_listen};
use crate::support::report::number;
use crate::support::{program, skip, skip_without_bpf};
use std::fs;
use std::process::Command;

#[test]
fn who_is_moved_in_later_is_traced_and_the_end_is_seen() {
    let test = "who_is_moved_in_later_is_traced_and_the_end_is_seen";
    if skip_without_bpf(test) {
        return;
    }
    let group = match Group::new("moved") {
        Ok(group) => group,
        Err(why) => return skip(test, &why),
    };
    let start = || Talk::start(&mut Command::new(program("container_app"))).expect("it starts");
    let (first, mut second) = (start(), start());
    group.put(&first);
    let path = group.0.to_str().expect("a path");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let events = folder.path().join("events");
    let mut running = Some(first);
    // No signal interrupts: it ends when the last process has left.
    let audit =
        attach_and_listen(&["--cgroup", path, "--dump-events", events.to_str().expect("a path")], |line| {
            if line.contains("Ctrl-C ends tracing") {
                group.put(&second);
                if let Some(mut first) = running.take() {
                    first.send("m");
                    drop(first);
                }
            } else if line.contains("came in later") {
                second.send("m");
                // Moved out again: it lives, but not there.
                let parent = group.0.parent().expect("a mount").join("cgroup.procs");
                fs::write(parent, second.client.0.id().to_string()).expect("it may be moved");
            }
            false
        });
    assert_eq!(audit.code(), Some(0), "{}", audit.stderr);
    let processes = audit.report().processes();
    assert_eq!(processes.len(), 2, "{}", audit.stderr);
    for process in processes {
        // What the first one mapped just before its end, no snapshot may have shown: the calls show it.
        let pid = format!("\"pid\":{},", process["pid"]);
        let calls = fs::read_to_string(&events).expect("events");
        let mapped = calls.lines().any(|line| line.contains(&pid) && line.contains("\"op\":\"mmap\""));
        assert!(mapped, "{} was traced: {calls}", process["pid"]);
        assert_eq!(number(&process["coverage"], "ledger_drift"), 0);
    }
    // Unharmed.
    second.send("m");
}
