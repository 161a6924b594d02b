//! vmaudit and its keeper killed by one kill(1): the command ends as it would have, with every backend.

use crate::support::{Guard, program, run_command, skip_without_bpf};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

const KILLS: usize = 20;

/// The child of `pid` that has this name.
fn child_named(pid: u32, name: &str) -> Option<String> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("children");
    let named = |child: &&str| {
        fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|comm| comm.trim_end() == name)
    };
    children.split_whitespace().find(named).map(str::to_owned)
}

/// Threads of the command live and end, one in each step. After step `step` both are killed.
fn kill_both_after(step: usize, backend: &str) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let modes = program("target_modes");
    let script = "\"$0\" steps 13; echo \"status $?\"";
    let command = ["sh".into(), "-c".into(), script.into(), modes.into_os_string()];
    let mut run = run_command(&folder.path().join("report.json"), &["--backend", backend], &command);
    run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut tracer = Guard(run.spawn().expect("vmaudit starts"));
    let mut lines = BufReader::new(tracer.0.stdout.take().expect("a pipe")).lines();
    let mut input = tracer.0.stdin.take().expect("a pipe");
    // Some steps more than are waited for: it is at work when it happens.
    input.write_all(&vec![b'w'; step + 4]).expect("the command reads");
    for _ in 0..=step {
        lines.next().expect("the command runs").expect("a line");
    }
    let keeper = child_named(tracer.0.id(), "exit-keeper").expect("a keeper");
    let killed = Command::new("/bin/kill").arg("-9").arg(tracer.0.id().to_string()).arg(keeper).status();
    assert!(killed.expect("kill(1) runs").success());
    tracer.0.wait().expect("waited");
    // At the end of its input it goes on to its end.
    drop(input);
    // The pipe's end is the last process's end.
    let last = lines.map(|line| line.expect("a line")).last();
    assert_eq!(last.as_deref(), Some("status 13"), "{backend}, killed after step {step}");
}

fn kill_both_often(backend: &str) {
    for round in 0..KILLS {
        kill_both_after(round * 3 / 2, backend);
    }
}

#[test]
fn with_bpf() {
    if !skip_without_bpf("double_kill") {
        kill_both_often("bpf");
    }
}

#[test]
fn with_perf() {
    kill_both_often("perf");
}

#[test]
fn with_notify() {
    kill_both_often("notify");
}
