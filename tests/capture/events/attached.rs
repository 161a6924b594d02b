//! `vmaudit events -p PID`: the calls of processes that run already, while they come; and names that
//! hold anything, through every command.

use crate::support::{Guard, program, skip_without_bpf, vmaudit};
use serde_json::Value;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

/// The name of the process, as it is shown.
const SHOWN: &str = "a b\\n\u{fffd}\\u{1b}[31m";

/// The target, and a byte of its input for each step.
struct Target {
    process: Guard,
    out: BufReader<ChildStdout>,
}

impl Target {
    fn new(folder: &Path) -> Target {
        let mut command = Command::new(program("oddly_named"));
        let child: Child = command
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut process = Guard(child);
        let out = BufReader::new(process.0.stdout.take().expect("a pipe"));
        let mut target = Target { process, out };
        target.ready();
        target
    }

    fn pid(&self) -> String {
        self.process.0.id().to_string()
    }

    /// Lets it go on until it waits again.
    fn step(&mut self) {
        self.go();
        self.ready();
    }

    fn go(&mut self) {
        self.process.0.stdin.as_mut().expect("a pipe").write_all(b"x").expect("it reads");
    }

    fn ready(&mut self) {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("it speaks");
        assert_eq!(line, "READY\n");
    }
}

/// Starts a command of vmaudit that traces, calls `when_tracing`, and waits for its end.
fn traced(args: &[&str], when_tracing: impl FnOnce(&Guard)) -> Output {
    let mut command = Command::new(vmaudit());
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut auditor = Guard(command.spawn().expect("vmaudit starts"));
    let mut stderr = BufReader::new(auditor.0.stderr.take().expect("a pipe"));
    let mut said = String::new();
    while !said.contains("Ctrl-C ends tracing") {
        assert!(stderr.read_line(&mut said).expect("UTF-8") > 0, "{said}");
    }
    when_tracing(&auditor);
    stderr.read_to_string(&mut said).expect("UTF-8");
    let mut output = auditor.finish().expect("it ends");
    output.stderr = said.into_bytes();
    output
}

fn said(args: &[&str]) -> String {
    let output = Command::new(vmaudit()).args(args).output().expect("vmaudit starts");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// No byte of a name reaches the terminal as a command for it.
fn assert_harmless(text: &str, what: &str) {
    let wild = |c: &char| c.is_control() && *c != '\n';
    assert_eq!(text.chars().find(wild), None, "{what}: {text:?}");
}

#[test]
fn calls_are_printed_while_they_come_and_children_are_followed() {
    if skip_without_bpf("events_attached") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut target = Target::new(folder.path());
    let pid = target.pid();
    let output = traced(&["events", "-f", "json", "-p", &pid], |_| {
        target.step();
        target.go();
    });
    assert_eq!(target.process.finish().expect("it ends").status.code(), Some(7), "unharmed");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((events[0]["op"].as_str(), events[0]["pid"].to_string()), (Some("found"), pid.clone()));
    let one = |op: &str, size: u64| {
        let mut of = events.iter().filter(|event| event["op"] == op && event["size"] == size);
        let found = of.next().unwrap_or_else(|| panic!("no {op} of {size}: {text}"));
        assert!(of.next().is_none(), "{text}");
        found
    };
    let (child, file) = (one("mmap", 3 << 20), one("mmap", 5 << 20));
    let number: u64 = pid.parse().expect("a number");
    let of_target = |event: &Value| event["pid"] == number;
    assert!(!of_target(child) && of_target(file));
    let fork = events.iter().find(|event| event["op"] == "clone").expect("a fork");
    assert_eq!(fork["args"]["child_pid"], child["pid"]);
    for event in [child, file] {
        let frames = event["stack"]["frames"].as_array().expect("frames");
        assert!(frames.iter().any(|frame| frame["symbol"] == "main"), "{event}");
    }
    let ends = events.iter().filter(|event| event["args"]["last_thread"] == true);
    let codes: Vec<_> = ends.map(|event| event["args"]["exit_code"].as_u64()).collect();
    assert_eq!(codes, [Some(0), Some(7)]);
}

#[test]
fn ctrl_c_ends_vmaudit_alone_and_head_ends_it_by_itself() {
    if skip_without_bpf("events_attached") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut target = Target::new(folder.path());
    let pid = target.pid();
    let output = traced(&["events", "-p", &pid], |auditor| auditor.signal(libc::SIGINT));
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0));
    assert!(text.starts_with(&format!("--- {pid} {SHOWN} was running already")), "{text}");
    let options = ["events", "--no-stacks", "--min-size", "5M", "--head", "1", "-p", &pid];
    let output = traced(&options, |_| target.step());
    let text = String::from_utf8_lossy(&output.stdout);
    // As strace -y.
    assert!(text.contains("late \\n\\377\\33[31m (deleted)>, 0) = 0x"), "{text}");
    assert_eq!((output.status.code(), text.lines().count()), (Some(0), 2), "{text}");
    target.go();
    assert_eq!(target.process.finish().expect("it ends").status.code(), Some(7), "unharmed");
}

#[test]
fn names_that_hold_anything_pass_through_every_command() {
    if skip_without_bpf("events_attached") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let (before, rec) = (path("before.json"), path("rec"));
    let mut target = Target::new(folder.path());
    let pid = target.pid();
    said(&["snapshot", "-p", &pid, "-f", "json", "--report", &before]);
    let output = traced(&["attach", "-p", &pid, "-o", &rec], |auditor| {
        target.step();
        auditor.signal(libc::SIGINT);
    });
    let [report, errors] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("UTF-8"));
    assert!(report.contains(SHOWN), "{report}");
    assert!(errors.contains("tracing a b\\n"), "{errors}");
    let snapshot = said(&["snapshot", "-p", &pid]);
    let smaps = path("smaps");
    std::fs::copy(format!("/proc/{pid}/smaps"), &smaps).expect("smaps");
    let events = said(&["events", &rec]);
    let json = said(&["events", &rec, "-f", "json", "--min-size", "5M"]);
    let event: Value = serde_json::from_str(json.lines().last().expect("an event")).expect("JSON");
    let file = event["path"].as_str().expect("a path");
    assert!(file.ends_with("/late \n\u{fffd}\u{1b}[31m (deleted)"), "{file:?}");
    let address = event["result"].as_str().expect("an address");
    let life = said(&["explain", &rec, address]);
    let now = said(&["explain", "-p", &pid, address]);
    let diff = said(&["diff", &before, &rec]);
    let saved = said(&["diff", &smaps, &rec]);
    // Whether the last word is the name's or the kernel's is not known.
    let shown = "late \\n\u{fffd}\\u{1b}[31m";
    for (what, text, has_file) in [
        ("attach", &report, false),
        ("messages", &errors, false),
        ("snapshot", &snapshot, false),
        ("events", &events, false),
        ("explain", &life, true),
        ("explain -p", &now, true),
        ("diff", &diff, true),
        ("diff of smaps", &saved, false),
    ] {
        assert_harmless(text, what);
        assert!(!has_file || text.contains(shown), "{what}: {text}");
    }
    let by_name = Command::new(vmaudit())
        .args(["events", &rec, "--no-stacks", "--head", "1", "--comm"])
        .arg(<OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"a b\n\xff\x1b[31m"))
        .output()
        .expect("vmaudit starts");
    assert!(String::from_utf8_lossy(&by_name.stdout).lines().count() > 1, "{by_name:?}");
}
