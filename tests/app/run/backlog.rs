//! A process ends while vmaudit is far behind: it need not wait until its calls were taken in.

use crate::support::report::list;
use crate::support::{Guard, finished, program, run_command, skip_without_bpf};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

/// Until all of its threads have stopped.
fn stop(pid: Pid) {
    kill(pid, Signal::SIGSTOP).expect("it lives");
    let stopped = || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it lives").flatten();
        tasks
            .map(|task| fs::read_to_string(task.path().join("stat")).unwrap_or_default())
            .all(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
    };
    while !stopped() {
        std::thread::yield_now();
    }
}

/// Of a build: what was tried is deleted when it has ended, or, as here, before anything was known of it.
#[test]
fn a_program_that_is_gone_before_its_calls_are_taken_in() {
    if skip_without_bpf("a_program_that_is_gone_before_its_calls_are_taken_in") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name);
    fs::copy(program("many_calls"), path("tried")).expect("copied");
    let script = "echo READY; read go; \"$0\" 3000 4 50 0 >&2 & echo $!; read code; wait $!; exit $code";
    let command = ["sh".into(), "-c".into(), script.into(), path("tried")];
    let mut run = run_command(&path("report.json"), &["-v", "--min-virt", "0"], &command);
    run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut vmaudit = Guard(run.spawn().expect("vmaudit starts"));
    let mut lines = BufReader::new(vmaudit.0.stdout.take().expect("a pipe")).lines();
    let mut input = vmaudit.0.stdin.take().expect("a pipe");
    assert_eq!(lines.next().expect("a line").expect("text"), "READY");
    let own = Pid::from_raw(vmaudit.0.id() as i32);
    stop(own);
    input.write_all(b"\n").expect("the shell reads");
    let pid = lines.next().expect("a line").expect("text").parse::<u64>().expect("a number");
    let exit = format!("{} ", libc::SYS_exit_group);
    let of = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).expect("it is held");
    while !of("syscall").starts_with(&exit) {
        assert!(!of("stat").contains(") Z "), "it is held");
        std::thread::yield_now();
    }
    fs::remove_file(path("tried")).expect("it is there");
    kill(own, Signal::SIGCONT).expect("it lives");
    input.write_all(b"7\n").expect("the shell reads");
    let audit = finished(vmaudit.finish().expect("it ends"), &path("report.json"));
    assert_eq!(audit.code(), Some(7), "{}", audit.stderr);
    let early = format!("vmaudit: {pid} ends before all its calls were taken in");
    assert!(audit.stderr.contains(&early), "{}", audit.stderr);
    let report = audit.report();
    let process = report.process(pid).expect("in the report");
    assert_eq!((process["snapshot"].as_str(), report.event("lost")), (Some("exit"), 0));
    for wrong in ["ledger_drift", "unknown", "preexisting"] {
        assert_eq!(process["coverage"][wrong], 0, "{wrong}");
    }
    let stacks = list(&report.json, "stacks");
    let mut frames = stacks.iter().flat_map(|stack| list(stack, "frames"));
    assert!(frames.any(|frame| frame["module"] == "tried" && frame["symbol"] == "call"), "its functions");
}
