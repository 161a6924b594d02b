//! `vmaudit report REC` is, byte for byte, what the run printed: the report that it kept, and the
//! one made anew from the recorded calls.

use crate::support::redis::{REDIS, free_port, load_and_stop, redis_command, until_ready};
use crate::support::{
    Guard, demo_program, finished, program, run_command, skip, skip_without, skip_without_bpf, vmaudit,
};
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};
use vmaudit::render::{Color, TextOptions, to_text};

/// What `vmaudit report REC OPTIONS` writes.
fn report(recording: &Path, options: &[&str]) -> Vec<u8> {
    let output =
        Command::new(vmaudit()).arg("report").arg(recording).args(options).output().expect("vmaudit starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*stderr), (Some(0), ""), "{options:?}");
    output.stdout
}

/// The line in which two reports differ first.
fn first_difference(found: &[u8], expected: &[u8]) -> String {
    let (found, expected) = (String::from_utf8_lossy(found), String::from_utf8_lossy(expected));
    let mut lines = found.lines().zip(expected.lines()).enumerate();
    match lines.find(|(_, (a, b))| a != b) {
        Some((n, (a, b))) => format!("line {}: {a:?} instead of {b:?}", n + 1),
        None => format!("{} bytes instead of {}", found.len(), expected.len()),
    }
}

fn assert_same(found: &[u8], expected: &[u8], what: &str) {
    assert!(found == expected, "{what}: {}", first_difference(found, expected));
}

/// Compares everything that can be queried of `recording` with the live run's JSON report.
fn assert_equal_reports(recording: &Path, live: &Path) {
    let live = std::fs::read(live).expect("the live report");
    let model: vmaudit::report::Report = serde_json::from_slice(&live).expect("a report");
    for top in ["10", "1"] {
        let options = TextOptions { color: Color::Never, top: top.parse().expect("a number") };
        let text = to_text(&model, options);
        assert_same(&report(recording, &["--top", top]), text.as_bytes(), "text");
        assert_same(&report(recording, &["--top", top, "--replay"]), text.as_bytes(), "text, replayed");
    }
    assert_same(&report(recording, &["-f", "json"]), &live, "JSON");
    assert_same(&report(recording, &["-f", "json", "--replay"]), &live, "JSON, replayed");
}

/// Runs a command to its end and compares.
fn check<S: AsRef<OsStr>>(options: &[&str], command: &[S]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (live, recording) = (folder.path().join("live.json"), folder.path().join("rec"));
    let mut run = run_command(&live, options, &[] as &[&str]);
    run = with_output(run, &recording, command);
    let audit = finished(run.stdin(Stdio::null()).output().expect("vmaudit starts"), &live);
    assert_eq!(audit.code(), Some(0), "{}", audit.stderr);
    assert_equal_reports(&recording, &live);
}

/// `run OPTIONS -o RECORDING -- COMMAND`, from a `run OPTIONS --`.
fn with_output<S: AsRef<OsStr>>(run: Command, recording: &Path, command: &[S]) -> Command {
    let mut words: Vec<_> = run.get_args().map(OsStr::to_owned).collect();
    let end = words.pop();
    assert_eq!(end.as_deref(), Some(OsStr::new("--")));
    let mut whole = Command::new(run.get_program());
    whole.args(words).arg("-o").arg(recording).arg("--").args(command);
    whole
}

#[test]
fn redis_under_load() {
    if skip_without_bpf("recording_same") || skip_without("redis_under_load", REDIS) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (live, recording) = (folder.path().join("live.json"), folder.path().join("rec"));
    let port = free_port();
    let run = run_command(&live, &["--interval", "0.1"], &[] as &[&str]);
    let mut run = with_output(run, &recording, &redis_command(port, folder.path()));
    let mut server =
        Guard(run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("vmaudit starts"));
    until_ready(&mut server);
    load_and_stop(port);
    let audit = finished(server.finish().expect("output"), &live);
    assert_eq!(audit.code(), Some(0), "{}", audit.stderr);
    assert_equal_reports(&recording, &live);
}

/// Page faults are no steps: they are in the report of the run, and a replay says that it has none.
#[test]
fn who_touched() {
    if skip_without_bpf("recording_same") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (live, recording) = (folder.path().join("live.json"), folder.path().join("rec"));
    let run = run_command(&live, &["--touch"], &[] as &[&str]);
    let mut run = with_output(run, &recording, &["/bin/sh", "-c", "true"]);
    let audit = finished(run.stdin(Stdio::null()).output().expect("vmaudit starts"), &live);
    assert_eq!(audit.code(), Some(0), "{}", audit.stderr);
    if audit.stderr.contains("page_fault") {
        return skip("who_touched", &audit.stderr);
    }
    let live = std::fs::read(live).expect("the live report");
    assert!(String::from_utf8_lossy(&live).contains("\"touch\""), "page faults were reported");
    assert_same(&report(&recording, &["-f", "json"]), &live, "JSON");
    let replayed = Command::new(vmaudit()).arg("report").arg("--replay").arg(&recording).output();
    let replayed = replayed.expect("vmaudit starts");
    assert_eq!(replayed.status.code(), Some(0));
    let said = String::from_utf8_lossy(&replayed.stderr);
    assert!(said.contains("the page faults of --touch are in the report of the run only"), "{said}");
}

#[test]
fn threads_and_children_at_random() {
    if skip_without_bpf("recording_same") {
        return;
    }
    for (seed, mode) in [("3", "normal"), ("5", "exec"), ("6", "thread-exec"), ("7", "leaf")] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (churn, maps) = (program("churn"), folder.path().join("maps"));
        let words =
            [churn.as_os_str(), seed.as_ref(), "5".as_ref(), "300".as_ref(), maps.as_os_str(), mode.as_ref()];
        check(&[], &words);
    }
}

#[test]
fn events_that_were_lost() {
    if skip_without_bpf("recording_same") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (churn, maps) = (program("churn"), folder.path().join("maps"));
    let words =
        [churn.as_os_str(), "11".as_ref(), "1".as_ref(), "900".as_ref(), maps.as_os_str(), "leaf".as_ref()];
    check(&["--ring-bytes", "16384", "--spill-bytes", "4096"], &words);
}

#[test]
fn ends_that_were_not_held() {
    if skip_without_bpf("recording_same") {
        return;
    }
    check(&["--no-exit-hold"], &["/bin/sh", "-c", "sleep 0.4; /bin/true & wait"]);
}

#[test]
fn two_allocators_in_one_process() {
    if skip_without_bpf("recording_same") {
        return;
    }
    let demo = match demo_program() {
        Ok(path) => path,
        Err(why) => return skip("two_allocators_in_one_process", &why),
    };
    check(&[], &[&demo]);
    // As a user sees it, without JSON between.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let recording = folder.path().join("rec");
    let mut run = Command::new(vmaudit());
    run.args(["run", "--as-root", "-o"]).arg(&recording).arg("--").arg(&demo);
    let output = run.output().expect("vmaudit starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let from =
        output.stdout.windows(demo.as_os_str().len()).position(|w| w == demo.as_os_str().as_encoded_bytes());
    let printed = output.stdout.get(from.unwrap_or(0)..).unwrap_or_default();
    let again = report(&recording, &[]);
    assert!(printed.ends_with(&again), "{}", first_difference(&again, printed));
}
