//! `vmaudit diff` of two heaps: what changed is what the program did otherwise.

use crate::support::report::list;
use crate::support::{program, skip_without_bpf, vmaudit, watchdog};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// As a recording or a report, by what the file is called.
fn heap(file: &Path, options: &[&str], arguments: [&str; 3]) -> PathBuf {
    let mut vmaudit = Command::new(vmaudit());
    vmaudit.args(["heap", "--as-root"]).args(options);
    match file.extension().is_some_and(|extension| extension == "rec") {
        true => vmaudit.arg("-o").arg(file),
        false => vmaudit.args(["-f", "json", "--report"]).arg(file),
    };
    let output = watchdog::output(vmaudit.arg("--").arg(program("heap_grow")).args(arguments));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    file.to_owned()
}

fn diff(options: &[&str], files: [&Path; 2]) -> Output {
    watchdog::output(Command::new(vmaudit()).arg("diff").args(options).args(files))
}

fn compared(options: &[&str], files: [&Path; 2]) -> Value {
    let output = diff(&[options, &["-f", "json"]].concat(), files);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The change of the stack that has the function.
fn change<'a>(diff: &'a Value, function: &str) -> Option<&'a Value> {
    let has = |stack: &Value| list(stack, "frames").iter().any(|frame| frame["symbol"] == function);
    list(diff, "changes")
        .iter()
        .find(|change| change["stack"].as_u64().is_some_and(|at| has(&diff["stacks"][at as usize])))
}

fn width(a: u64, b: u64) -> Value {
    json!({ "a": a, "b": b, "change": b as i64 - a as i64 })
}

#[test]
fn what_changed_is_what_the_program_did() {
    let folder = tempfile::tempdir().expect("a folder");
    let a = heap(&folder.path().join("a.rec"), &[], ["10", "50", "7"]);
    let b = heap(&folder.path().join("b.json"), &[], ["40", "0", "9"]);
    let diff = compared(&[], [&a, &b]);
    assert_eq!((&diff["a"]["kind"], &diff["b"]["kind"]), (&json!("recording"), &json!("report")));
    assert_eq!(diff["equal"], false);
    assert_eq!(diff["totals"]["outstanding"], width(300_000, 300_000));
    assert_eq!(diff["totals"]["allocations"], width(167, 149));
    assert!(change(&diff, "steady").is_none(), "{diff:#}");
    for (function, kind, size, [a, b], is_kept) in [
        ("growing", "grown", 5000, [10, 40], true),
        ("gone", "gone", 3000, [50, 0], true),
        ("brief", "changed", 2000, [7, 9], false),
    ] {
        let change = change(&diff, function).unwrap_or_else(|| panic!("{function}: {diff:#}"));
        assert_eq!((&change["kind"], &change["function"]), (&json!(kind), &json!("malloc")), "{function}");
        let outstanding = if is_kept { width(a * size, b * size) } else { width(0, 0) };
        assert_eq!(change["outstanding"], outstanding, "{function}");
        assert_eq!(change["allocated"], width(a * size, b * size), "{function}");
        assert_eq!(change["allocations"], width(a, b), "{function}");
        // The last block before the end of the last phase is the peak's.
        let peak = if is_kept { outstanding } else { width(size, size) };
        assert_eq!(change["peak"], peak, "{function}");
        assert_eq!((&change["standard_error"], &change["within_error"]), (&Value::Null, &json!(false)));
    }
    let sum: i64 = list(&diff, "changes").iter().filter_map(|c| c["blocks"]["change"].as_i64()).sum();
    assert_eq!(Some(sum), diff["totals"]["blocks"]["change"].as_i64());
}

#[test]
fn the_way_of_counting_makes_no_difference() {
    let folder = tempfile::tempdir().expect("a folder");
    let a = heap(&folder.path().join("a.rec"), &[], ["3", "4", "5"]);
    assert_eq!(diff(&["--exit-code"], [&a, &a]).status.code(), Some(0));
    if skip_without_bpf("diff_heaps") {
        return;
    }
    let b = heap(&folder.path().join("b.rec"), &["--method", "uprobes"], ["3", "4", "5"]);
    let same = diff(&["--exit-code"], [&a, &b]);
    assert_eq!(same.status.code(), Some(0), "{}", String::from_utf8_lossy(&same.stdout));
    assert!(String::from_utf8_lossy(&same.stdout).contains("no difference"));
    let c = heap(&folder.path().join("c.rec"), &["--method", "uprobes"], ["3", "4", "6"]);
    assert_eq!(diff(&["--exit-code"], [&a, &c]).status.code(), Some(1));
}

#[test]
fn graphs_have_both_sides() {
    let folder = tempfile::tempdir().expect("a folder");
    let a = heap(&folder.path().join("a.rec"), &[], ["10", "50", "7"]);
    let b = heap(&folder.path().join("b.rec"), &[], ["40", "0", "9"]);
    let text = |options: &[&str]| {
        let output = diff(options, [&a, &b]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let folded = text(&["-f", "folded"]);
    let ends = |lines: &str, end: &str| lines.lines().any(|line| line.ends_with(end));
    for end in
        ["main;steady;malloc 100000 100000", "main;growing;malloc 50000 200000", "main;gone;malloc 150000 0"]
    {
        assert!(ends(&folded, end), "{folded}");
    }
    assert!(!folded.contains("brief"), "{folded}");
    let reverse = text(&["-f", "folded", "--reverse"]);
    assert!(reverse.lines().all(|line| line.starts_with("malloc;")), "{reverse}");
    let svg = text(&["-f", "svg"]);
    for words in
        ["change in outstanding heap", "gone (gone, 146.5 KiB)", "growing (48.8 KiB → 195.3 KiB, +146.5 KiB)"]
    {
        assert!(svg.contains(words), "{words}");
    }
    let page = text(&["-f", "html"]);
    assert!(
        page.contains("heap_grow: ") || page.contains("heap_grow · change of the heap"),
        "{}",
        &page[..400]
    );
    assert!(page.contains("growing") && page.contains("Content-Security-Policy"));
    let said = text(&["--top", "1"]);
    assert!(said.contains("146.5 KiB outstanding · ") && said.contains("2 smaller changes"), "{said}");
}

#[test]
fn of_samples_the_error_is_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let a = heap(&folder.path().join("a.json"), &["--sample", "1k"], ["100", "100", "0"]);
    let b = heap(&folder.path().join("b.json"), &[], ["2000", "100", "0"]);
    let reported = compared(&[], [&a, &b]);
    let growing = change(&reported, "growing").expect("it grew");
    // 9.5 MB ± some 5 KB.
    assert_eq!((&growing["kind"], &growing["within_error"]), (&json!("grown"), &json!(false)), "{growing:#}");
    assert!(growing["standard_error"].as_u64() > Some(0), "{growing:#}");
    let notes = reported["notes"].to_string();
    assert!(notes.contains("A saw a sample every 1 KiB, B every allocation"), "{notes}");
    for change in list(&reported, "changes") {
        let (change_of, error) =
            (change["outstanding"]["change"].as_i64(), change["standard_error"].as_u64());
        let (change_of, error) = (change_of.expect("a change").unsigned_abs(), error.expect("an error"));
        assert_eq!(change["within_error"], change_of > 0 && change_of <= 2 * error, "{change:#}");
    }
    let text = String::from_utf8(diff(&[], [&a, &b]).stdout).expect("text");
    assert!(text.contains(" outstanding ± "), "{text}");
}

#[test]
fn heaps_and_mappings_are_not_mixed() {
    let folder = tempfile::tempdir().expect("a folder");
    let a = heap(&folder.path().join("a.rec"), &[], ["1", "1", "1"]);
    let (mappings, maps) = (folder.path().join("m.json"), folder.path().join("maps"));
    let pid = std::process::id().to_string();
    let mut snapshot = Command::new(vmaudit());
    snapshot.args(["snapshot", "-f", "json", "-p", &pid, "--report"]).arg(&mappings);
    assert!(watchdog::output(&mut snapshot).status.success());
    std::fs::copy("/proc/self/maps", &maps).expect("copied");
    for other in [&mappings, &maps] {
        for files in [[&*a, other], [other, &*a]] {
            let output = diff(&[], files);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(125), "{said}");
            assert!(said.contains("a.rec is of a heap and") && said.contains("cannot be compared"), "{said}");
        }
    }
    for (options, why) in [
        (&["--by", "category"][..], "two heaps are compared by stack"),
        (&["-f", "svg", "--width", "rss"], "--width is about what is mapped"),
        (&["-f", "svg", "--threads"], "--threads is about what is mapped"),
        (&["-f", "html", "--reverse"], "--reverse"),
    ] {
        let output = diff(options, [&a, &a]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(why), "{options:?}: {said}");
    }
    let output = diff(&["--pid", "1:1"], [&a, &a]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(125) && said.contains("it has no process 1"), "{said}");
}

/// A report written by hand.
#[test]
fn what_contradicts_itself_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let a = heap(&folder.path().join("a.json"), &[], ["1", "1", "1"]);
    let report: Value = serde_json::from_slice(&std::fs::read(&a).expect("a report")).expect("JSON");
    let changed = |path: &str, value: Value, why: &str| {
        let mut report = report.clone();
        *report.pointer_mut(path).unwrap_or_else(|| panic!("{path}")) = value;
        let b = folder.path().join("b.json");
        std::fs::write(&b, report.to_string()).expect("written");
        let output = diff(&[], [&a, &b]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(125), "{path}: {said}");
        assert!(said.contains("b.json: ") && said.contains(why), "{path}: {said}");
    };
    changed("/schema", json!(2), "knows schema 1");
    changed("/processes/0/rows/0/bytes", json!(1), "its rows add up to");
    changed("/processes/0/rows/0/stack", json!(99), "a row has stack 99");
    changed("/processes/0/sites/0/function", json!(99), "a row has function 99");
    changed("/processes/0/sites/0/allocated_bytes", json!(u64::MAX), "larger than any address space");
    changed("/processes", json!([]), "it has no process at all");
    changed("/processes/0/rows", json!(7), "not a report of vmaudit");
}
