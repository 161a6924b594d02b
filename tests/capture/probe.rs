//! `vmaudit probe` against a program that calls its functions a known number of times, and against
//! libraries all of whose functions are probed.

use crate::support::{program, skip, skip_without, skip_without_bpf, vmaudit};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

fn probe(options: &[&str], command: &[&str]) -> (Value, Option<i32>) {
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report.json");
    let mut run = Command::new(vmaudit());
    run.args(["probe", "-f", "json", "--report"]).arg(&report).args(options);
    if !command.is_empty() {
        run.arg("--").args(command);
    }
    let done = run.output().expect("vmaudit starts");
    let text = std::fs::read_to_string(&report)
        .unwrap_or_else(|_| panic!("no report: {}", String::from_utf8_lossy(&done.stderr)));
    (serde_json::from_str(&text).expect("JSON"), done.status.code())
}

/// Calls by function; each row once, and their sum is the total.
fn calls(report: &Value) -> BTreeMap<String, u64> {
    let rows = report["functions"].as_array().expect("functions");
    let calls: BTreeMap<String, u64> = rows
        .iter()
        .map(|row| (row["name"].as_str().expect("a name").into(), row["calls"].as_u64().expect("calls")))
        .collect();
    let sum: u64 = rows.iter().filter_map(|row| row["calls"].as_u64()).sum();
    assert_eq!(Some(sum), report["calls"].as_u64(), "rows add up to the total");
    calls
}

fn expected(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
    pairs.iter().map(|&(name, calls)| (name.to_owned(), calls)).collect()
}

/// Linux 6.18 and later execute nops of several bytes themselves.
fn executes_nops() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("it has a version");
    let mut numbers = release.split('.').map_while(|part| part.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(18))
}

/// Behind its entry a function is probed only where that counts its calls, and nothing else.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_probe_behind_the_entry_counts_calls() {
    let probed = program("probe_sites");
    let path = probed.to_str().expect("UTF-8");
    // Bytes after the entry, and whether the kernel executes the instruction itself.
    let sites = [
        ("pushes", 0, true),
        ("tests", 3, true),
        ("writes_an_argument", 6, true),
        ("moves_the_stack", 0, false),
        ("loops", 0, false),
        ("entered", 0, false),
        ("enters", 0, true),
        ("nops", 0, executes_nops()),
    ];
    let pattern = format!("^({})$", sites.map(|(name, _, _)| name).join("|"));
    let listed = Command::new(vmaudit()).args(["symbols", "-f", "json", "--match", &pattern, path]).output();
    let listed: Value = serde_json::from_slice(&listed.expect("vmaudit starts").stdout).expect("JSON");
    for (name, after_entry, emulated) in sites {
        let functions = listed["files"][0]["functions"].as_array().expect("functions");
        let row = functions.iter().find(|row| row["name"] == name).expect("each is listed");
        let cost = if emulated { "emulated" } else { "single-stepped" };
        assert_eq!(row["site"], serde_json::json!({"after_entry": after_entry, "cost": cost}), "{name}");
    }
    if skip_without_bpf("a_probe_behind_the_entry_counts_calls") {
        return;
    }
    for way in ["multi", "single"] {
        let (report, _) = probe(&["--lib", path, "--match", &pattern, "--way", way], &[path]);
        assert_eq!(calls(&report), expected(&sites.map(|(name, _, _)| (name, 100))), "{way}");
    }
}

const FUNCTIONS: &str = "^(leaf|one|other_name_of_two|two|never|_start)$";

#[test]
fn every_call_of_a_command_and_its_child_is_counted_once() {
    if skip_without_bpf("probe_counts") {
        return;
    }
    let probed = program("probed");
    let path = probed.to_str().expect("UTF-8");
    for way in ["multi", "single"] {
        let (report, code) = probe(&["--lib", path, "--match", FUNCTIONS, "--way", way], &[path]);
        assert_eq!(code, Some(3), "the command's own");
        let all = [("leaf", 1001), ("one", 700), ("other_name_of_two", 301), ("never", 0), ("_start", 1)];
        assert_eq!(calls(&report), expected(&all), "{way}");
        assert_eq!(report["skipped"]["alias"], 1, "two is probed by its other name");
    }
    let (report, _) = probe(&["--lib", path, "--match", "^leaf$", "--no-follow-forks"], &[path]);
    assert_eq!(calls(&report), expected(&[("leaf", 1000)]), "without the child's");
}

#[test]
fn stacks_name_callers_and_add_up_to_the_counts() {
    if skip_without_bpf("probe_stacks") {
        return;
    }
    let probed = program("probed");
    let path = probed.to_str().expect("UTF-8");
    let (report, _) = probe(&["--stacks", "--lib", path, "--match", "^leaf$"], &[path]);
    assert_eq!(calls(&report), expected(&[("leaf", 1001)]));
    assert_eq!(report["stacks"]["lost"], 0);
    let mut callers: BTreeMap<String, u64> = BTreeMap::new();
    for row in report["stacks"]["distinct"].as_array().expect("stacks") {
        let frames = row["stack"]["frames"].as_array().expect("frames");
        let caller = frames.get(1).and_then(|frame| frame["symbol"].as_str()).unwrap_or("?");
        *callers.entry(caller.to_owned()).or_default() += row["calls"].as_u64().expect("calls");
        assert_eq!(frames.last().and_then(|frame| frame["symbol"].as_str()), Some("_start"), "{row}");
    }
    assert_eq!(callers, expected(&[("one", 700), ("other_name_of_two", 301)]));
}

#[test]
fn a_running_process_is_counted_from_now_on_and_others_are_not() {
    if skip_without_bpf("probe_attached") {
        return;
    }
    let probed = program("probed");
    let path = probed.to_str().expect("UTF-8");
    let start = || {
        let mut command = Command::new(path);
        let child = command.arg("wait").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("the program starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("ready");
        child
    };
    // Without breakpoints in all processes, the child of a running one has probes some time after it began.
    for (options, least) in [(&["--all-processes"][..], 1001), (&[], 1000)] {
        let (counted, said) = counted_while_it_runs(start(), start(), options);
        assert!((least..=1001).contains(&counted["leaf"]), "{options:?}: {counted:?}: {said}");
    }
}

/// Calls of the first, which is watched, while both run.
fn counted_while_it_runs(
    mut target: Child,
    mut other: Child,
    options: &[&str],
) -> (BTreeMap<String, u64>, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report.json");
    let mut run = Command::new(vmaudit());
    run.args(["probe", "-f", "json", "--lib", "probed", "--match", "^leaf$", "--report"]).arg(&report);
    let mut run = run.args(options).args(["-p", &target.id().to_string()]).stderr(Stdio::piped()).spawn();
    let run = run.as_mut().expect("vmaudit starts");
    // It says when the probes are there.
    let mut said = String::new();
    let mut lines = BufReader::new(run.stderr.take().expect("piped"));
    while !said.contains("Ctrl-C ends") {
        assert_ne!(lines.read_line(&mut said).expect("text"), 0, "{said}");
    }
    for child in [&mut other, &mut target] {
        let reported = child.stdin.take().map(|mut stdin| stdin.write_all(b"\n"));
        let code = child.wait().expect("ends").code();
        assert!(reported.is_some_and(|reported| reported.is_ok()) && code == Some(3), "{code:?}");
    }
    assert!(run.wait().expect("vmaudit ends").success(), "{said}");
    let report: Value =
        serde_json::from_str(&std::fs::read_to_string(&report).expect("a report")).expect("JSON");
    (calls(&report), said)
}

/// Story C5.
#[test]
fn every_function_of_tcmalloc_is_probed_at_once() {
    let library = "/usr/lib/x86_64-linux-gnu/libtcmalloc.so.4";
    if skip_without_bpf("probe_tcmalloc") || skip_without("probe_tcmalloc", library) {
        return;
    }
    let preload = format!("LD_PRELOAD={library}");
    let (report, code) =
        probe(&["--lib", "libtcmalloc.so.4", "--match", "."], &["env", &preload, "/bin/ls", "/"]);
    assert_eq!(code, Some(0));
    let calls = calls(&report);
    assert!(calls.len() > 400, "{}", calls.len());
    assert!(calls.get("tc_malloc").is_some_and(|&calls| calls > 0), "malloc is one of its names: {report}");
    let skipped = report["skipped"].as_object().expect("reasons");
    let sum: u64 = skipped.values().filter_map(Value::as_u64).sum();
    let refused = report["refused"].as_array().expect("refused").len() as u64;
    assert_eq!(
        report["placed"]["matching"].as_u64(),
        report["placed"]["probed"].as_u64().map(|probed| probed + sum + refused),
        "each symbol is probed, skipped for a reason, or refused"
    );
}

/// On a copy, so that no other process on this machine has the probes.
#[test]
fn every_function_of_libc_is_probed_and_programs_still_work() {
    let libc = "/lib/x86_64-linux-gnu/libc.so.6";
    if skip_without_bpf("probe_libc") || skip_without("probe_libc", libc) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("libc.so.6");
    std::fs::copy(libc, &copy).expect("copied");
    let path = format!("LD_LIBRARY_PATH={}", folder.path().display());
    let out = folder.path().join("out");
    let script = format!("printf '%s|%5d|%s\\n' one 2 three > {}", out.display());
    let options = ["--lib", copy.to_str().expect("UTF-8"), "--match", "."];
    let (report, code) = probe(&options, &["env", &path, "/bin/sh", "-c", &script]);
    assert_eq!(code, Some(0));
    assert_eq!(std::fs::read_to_string(&out).expect("written"), "one|    2|three\n");
    let calls = calls(&report);
    assert!(calls.len() > 1500 && calls.values().any(|&calls| calls > 10), "{}", calls.len());
}

#[test]
fn what_cannot_be_is_reported() {
    let fails = |arguments: &[&str], code: i32, words: &str| {
        let done = Command::new(vmaudit()).arg("probe").args(arguments).output().expect("vmaudit starts");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
    };
    fails(&["--lib", "libnothing-of-the-kind.so.9", "--match", "."], 125, "no library or program");
    fails(&["--lib", "libc.so.6", "--match", "("], 2, "--match");
    fails(&["--lib", "libc.so.6", "--match", "^no such function$", "--", "true"], 2, "no function matches");
    fails(&["--lib", "libc.so.6", "--match", "malloc", "--stacks"], 2, "needs a process");
    fails(&["--lib", "libc.so.6", "--match", "malloc"], 2, "name a process (-p PID) or a command");
    if Path::new("/proc/self/exe").exists() {
        fails(&["--lib", "/etc/passwd", "--match", ".", "--", "true"], 125, "not an ELF file, but text");
    } else {
        skip("probe_errors", "no /proc");
    }
}
