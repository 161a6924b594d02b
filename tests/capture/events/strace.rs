//! The calls that `vmaudit events` prints are those that `strace` prints, with the same arguments in
//! the same words: run with equal addresses under both.

use crate::support::{program, skip, skip_without, skip_without_bpf, vmaudit};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

const CALLS: &str = "mmap,munmap,mremap,brk,mprotect,pkey_mprotect,madvise,process_madvise,shmat,shmdt,\
                     remap_file_pages,io_setup,io_destroy,prctl";

/// Calls of each thread, threads in order of appearance.
type Calls = Vec<Vec<String>>;

/// True where strace cannot run.
fn skip_without_strace(test: &str) -> bool {
    if skip_without(test, "/usr/bin/strace") || skip_without(test, "/usr/bin/setarch") {
        return true;
    }
    let works = Command::new("strace").args(["-o", "/dev/null", "/bin/true"]).status();
    let works = works.is_ok_and(|status| status.success());
    if !works {
        skip(test, "strace may not trace here");
    }
    !works
}

fn by_thread(lines: impl Iterator<Item = (i64, String)>) -> Calls {
    let mut order: Vec<i64> = Vec::new();
    let mut calls: BTreeMap<i64, Vec<String>> = BTreeMap::new();
    for (tid, line) in lines {
        if !order.contains(&tid) {
            order.push(tid);
        }
        calls.entry(tid).or_default().push(line);
    }
    order.iter().filter_map(|tid| calls.remove(tid)).collect()
}

/// What depends on the run: numbers of shared memory segments.
fn comparable(line: &str) -> String {
    match line.strip_prefix("shmat(").and_then(|rest| rest.split_once(", ")) {
        Some((_, rest)) => format!("shmat(ID, {rest}"),
        None => line.to_owned(),
    }
}

fn strace(command: &[OsString]) -> Calls {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let log = folder.path().join("log");
    let mut run = Command::new("setarch");
    run.args(["-R", "strace", "-f", "-qq", "-e", "signal=none", "-e", &format!("trace={CALLS}"), "-o"]);
    run.arg(&log).args(command).env("PYTHONHASHSEED", "0").stdin(Stdio::null()).stdout(Stdio::null());
    assert!(run.status().expect("strace starts").success());
    let text = std::fs::read_to_string(&log).expect("strace's log");
    by_thread(text.lines().filter_map(|line| {
        let (tid, call) = line.split_once(char::is_whitespace)?;
        let call = call.trim_start();
        assert!(!call.contains("<unfinished"), "{call}");
        let (call, result) = call.rsplit_once(" = ")?;
        let other_prctl = call.starts_with("prctl(") && !call.starts_with("prctl(PR_SET_VMA");
        let other_prctl = other_prctl && !call.starts_with("prctl(PR_SET_MM");
        (!other_prctl)
            .then(|| (tid.parse().expect("a tid"), comparable(&format!("{} = {result}", call.trim_end()))))
    }))
}

fn events(command: &[OsString]) -> Calls {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let log = folder.path().join("log");
    let mut run = Command::new(vmaudit());
    run.args([
        "events",
        "--as-root",
        "--aslr",
        "off",
        "-f",
        "json",
        "--no-stacks",
        "--call",
        CALLS,
        "--report",
    ]);
    run.arg(&log)
        .arg("--")
        .args(command)
        .env("PYTHONHASHSEED", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    assert!(run.status().expect("vmaudit starts").success());
    let text = std::fs::read_to_string(&log).expect("vmaudit's events");
    by_thread(text.lines().map(|line| {
        let event: serde_json::Value = serde_json::from_str(line).expect("a JSON object a line");
        let word = |key: &str| event[key].as_str().unwrap_or_else(|| panic!("no {key}: {line}")).to_owned();
        (event["tid"].as_i64().expect("a tid"), comparable(&format!("{} = {}", word("call"), word("result"))))
    }))
}

/// Ours may say `...` where the record has no such argument, and may know a constant that this strace
/// does not know yet.
fn reads_alike(ours: &str, theirs: &str) -> bool {
    if theirs.contains("_???") && !ours.contains("_???") {
        return ours.split('(').next() == theirs.split('(').next();
    }
    let mut rest = theirs;
    let mut parts = ours.split("...").peekable();
    let Some(first) = parts.next() else { return false };
    let Some(after) = rest.strip_prefix(first) else { return false };
    rest = after;
    while let Some(part) = parts.next() {
        let found = if parts.peek().is_none() { rest.rfind(part) } else { rest.find(part) };
        let Some(at) = found else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.is_empty()
}

fn compare(command: &[OsString], at_least: usize) {
    let (theirs, ours) = (strace(command), events(command));
    assert_eq!(ours.len(), theirs.len(), "threads");
    let total: usize = ours.iter().map(Vec::len).sum();
    assert!(total >= at_least, "only {total} calls");
    for (ours, theirs) in ours.iter().zip(&theirs) {
        for (i, (our, their)) in ours.iter().zip(theirs).enumerate() {
            let before = &ours[i.saturating_sub(2)..i];
            assert!(reads_alike(our, their), "call {i} after {before:#?}\nvmaudit {our}\nstrace  {their}");
        }
        assert_eq!(ours.len(), theirs.len(), "one of them has more calls");
    }
}

fn words(program: &Path, args: &[&str]) -> Vec<OsString> {
    let mut words = vec![program.as_os_str().to_owned()];
    words.extend(args.iter().map(OsString::from));
    words
}

#[test]
fn every_flag_reads_as_straces() {
    if skip_without_bpf("events_strace") || skip_without_strace("events_strace") {
        return;
    }
    compare(&words(&program("oddcalls"), &[]), 80);
}

#[test]
fn random_calls_read_as_straces() {
    if skip_without_bpf("events_strace") || skip_without_strace("events_strace") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("maps");
    let out = out.to_str().expect("UTF-8");
    for seed in ["1", "2", "3"] {
        compare(&words(&program("churn"), &[seed, "1", "400", out, "leaf"]), 300);
    }
}

#[test]
fn python_reads_as_straces() {
    let python = "/usr/bin/python3";
    if skip_without_bpf("events_strace")
        || skip_without_strace("events_strace")
        || skip_without("events_strace", python)
    {
        return;
    }
    let script = "import json, re; x = [bytearray(1 << 20) for _ in range(8)]; del x; print(json.dumps([1]))";
    compare(&words(Path::new(python), &["-c", script]), 60);
}

#[test]
fn the_comparison_can_fail() {
    assert!(reads_alike("f(1, ...) = 0", "f(1, {x=2}) = 0"));
    assert!(reads_alike("f([...], 2, ...) = 0", "f([{a, b}], 2, 0) = 0"));
    assert!(!reads_alike("f(1, ...) = 0", "f(2, {x=2}) = 0"));
    assert!(!reads_alike("f(1) = 0", "f(1) = -1 EINVAL (Invalid argument)"));
    assert!(reads_alike("madvise(0x1, 2, MADV_NEW) = 0", "madvise(0x1, 2, 0x66 /* MADV_??? */) = 0"));
}
