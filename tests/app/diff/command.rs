//! `vmaudit diff` on files: every kind of input in any mix, exit codes, processes, what is refused.

use crate::support::{manifest_dir, vmaudit};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn capture(name: &str) -> PathBuf {
    manifest_dir().join("tests/fixtures/captures").join(name)
}

fn diff(args: &[&str], files: [&Path; 2]) -> Output {
    Command::new(vmaudit()).arg("diff").args(args).args(files).output().expect("vmaudit starts")
}

fn json(args: &[&str], files: [&Path; 2]) -> Value {
    let output = diff(&[args, &["-f", "json"]].concat(), files);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn notes(diff: &Value) -> String {
    diff["notes"]
        .as_array()
        .expect("notes")
        .iter()
        .map(|n| n.as_str().expect("text"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// A JSON report of a saved file.
fn report_of(smaps: &Path, folder: &Path) -> PathBuf {
    let file = folder.join(smaps.with_extension("json").file_name().expect("a name"));
    let mut command = Command::new(vmaudit());
    command.args(["snapshot", "-f", "json", "--smaps"]).arg(smaps).arg("--report").arg(&file);
    assert!(command.status().expect("vmaudit starts").success());
    file
}

const BEFORE: &str = "blog-prefix-fgets-shared.before.smaps";
const THREAD: &str = "blog-prefix-fgets-shared.thread.smaps";

#[test]
fn reports_smaps_and_maps_in_any_mix() {
    let folder = tempfile::tempdir().expect("a folder");
    let (before, thread) = (capture(BEFORE), capture(THREAD));
    let smaps = json(&[], [&before, &thread]);
    assert_eq!(smaps["changes"][0]["category"], "glibc-arena");
    assert_eq!(smaps["changes"][0]["virt"]["change"], 64 << 20);
    assert_eq!(smaps["changes"][0]["kind"], "new");
    assert_eq!(smaps["equal"], false);
    let report = report_of(&thread, folder.path());
    let mut mixed = json(&[], [&before, &report]);
    assert_eq!((&mixed["a"]["kind"], &mixed["b"]["kind"]), (&json!("smaps"), &json!("report")));
    for key in ["totals", "categories", "changes", "notes", "equal"] {
        assert_eq!(mixed[key].take(), smaps[key], "{key}: a report says what its file says");
    }
    // what is in memory is known on one side only
    let maps = folder.path().join("maps");
    let text = std::fs::read_to_string(&before).expect("fixture");
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with(char::is_uppercase)).collect();
    std::fs::write(&maps, lines.join("\n")).expect("a file");
    let without = json(&[], [&maps, &thread]);
    assert_eq!(without["totals"]["rss"], Value::Null);
    assert_eq!(without["totals"]["virt"], smaps["totals"]["virt"]);
    assert!(notes(&without).contains("A does not say what is in memory"), "{}", notes(&without));
}

#[test]
fn standard_input_and_exit_codes() {
    let (before, thread) = (capture(BEFORE), capture(THREAD));
    let mut child = Command::new(vmaudit())
        .args(["diff", "--exit-code", "-"])
        .arg(&before)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("vmaudit starts");
    let text = std::fs::read(&before).expect("fixture");
    child.stdin.take().expect("a pipe").write_all(&text).expect("written");
    let output = child.wait_with_output().expect("its end");
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stdout).contains("no difference"));
    assert_eq!(diff(&["--exit-code"], [&before, &thread]).status.code(), Some(1));
    assert_eq!(diff(&[], [&before, &thread]).status.code(), Some(0));
    assert_eq!(diff(&[], [Path::new("-"), Path::new("-")]).status.code(), Some(125));
    assert_eq!(diff(&["--pid", "x"], [&before, &thread]).status.code(), Some(2));
    assert_eq!(diff(&["--pid", "1", "--all"], [&before, &thread]).status.code(), Some(2));
}

#[test]
fn randomised_addresses_are_warned_of() {
    let other = capture("arenas4.threads-up.smaps");
    let diff = json(&["--by", "address"], [&capture(BEFORE), &other]);
    assert!(notes(&diff).contains("addresses were randomised in A and B"), "{}", notes(&diff));
    assert!(notes(&diff).contains("--aslr off"));
    // one process seen twice: randomised once, so comparable
    let same = json(&["--by", "address"], [&capture(BEFORE), &capture(THREAD)]);
    assert!(!notes(&same).contains("randomised"), "{}", notes(&same));
    assert_eq!(same["changes"][0]["ranges_b"][0]["end"], "0x7f865c000000");
}

#[test]
fn text_is_narrow_and_says_what_is_compared() {
    let names = ["go.100MB", "alloc-je.large", "stacks4.threads-up", "arenas4.threads-up", "freeonly.thread"];
    for a in names {
        for b in names {
            for by in ["category", "stack", "finding", "address"] {
                let files = [capture(&format!("{a}.smaps")), capture(&format!("{b}.smaps"))];
                let output = diff(&["--by", by], [&files[0], &files[1]]);
                let text = String::from_utf8(output.stdout).expect("text");
                assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
                assert_eq!(text.contains("no difference"), a == b, "{text}");
            }
        }
    }
}

/// Two processes of a report, with one region each.
fn two_processes(sizes: [(i32, &str, u64); 2]) -> Value {
    let process = |(pid, comm, pages): (i32, &str, u64)| {
        let virt = pages * 4096;
        json!({
            "pid": pid, "comm": comm, "exe": format!("/bin/{comm}"), "residency": "pagemap",
            "totals": {"virt": virt, "writable": virt, "unused": virt},
            "regions": [{"start": "0x1000", "end": format!("{:#x}", 0x1000 + virt), "prot": "rw-p",
                         "category": "unknown", "virt": virt}],
        })
    };
    json!({"schema": 1, "backend": "bpf", "processes": sizes.map(process)})
}

#[test]
fn processes_are_picked_or_paired() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, value: Value| {
        let path = folder.path().join(name);
        std::fs::write(&path, value.to_string()).expect("a file");
        path
    };
    let a = write("a", two_processes([(10, "sh", 1), (11, "server", 5)]));
    let b = write("b", two_processes([(20, "server", 9), (21, "sh", 1)]));
    let change =
        |args: &[&str]| json(args, [&a, &b])["totals"]["virt"]["change"].as_i64().expect("a number") / 4096;
    assert_eq!(change(&[]), 8, "the first of each");
    assert_eq!(change(&["--pid", "11:"]), 4);
    assert_eq!(change(&["--pid", "11:21"]), -4);
    assert_eq!(change(&["--all"]), 4);
    let main = notes(&json(&[], [&a, &b]));
    assert!(main.contains("A has 2 processes; this is sh (pid 10)"), "{main}");
    let all = json(&["--all"], [&a, &b]);
    let pairs = all["processes"].as_array().expect("pairs");
    assert_eq!((&pairs[0]["pid_a"], &pairs[0]["pid_b"]), (&json!(11), &json!(20)), "by name and program");
    assert_eq!((&pairs[1]["pid_a"], &pairs[1]["pid_b"]), (&json!(10), &json!(21)));
    let none = diff(&["--pid", "99:"], [&a, &b]);
    assert_eq!(none.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&none.stderr).contains("it has 10 (sh), 11 (server)"));
}

#[test]
fn what_contradicts_itself_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let good = folder.path().join("good");
    let sound = two_processes([(1, "x", 2), (2, "y", 3)]);
    std::fs::write(&good, sound.to_string()).expect("a file");
    let refused = |text: &str| {
        let bad = folder.path().join("bad");
        std::fs::write(&bad, text).expect("a file");
        let output = diff(&[], [&good, &bad]);
        assert_eq!(output.status.code(), Some(125), "{text}");
        assert!(output.stdout.is_empty());
        String::from_utf8(output.stderr).expect("text")
    };
    let with = |pointer: &str, value: Value| {
        let mut changed = sound.clone();
        *changed.pointer_mut(pointer).expect("a place") = value;
        changed.to_string()
    };
    assert!(refused(&with("/schema", json!(9))).contains("schema 9"));
    assert!(refused(&with("/processes", json!([]))).contains("no process"));
    assert!(refused(&with("/processes/0/totals/virt", json!(1))).contains("add up to 8192 bytes of VIRT"));
    assert!(refused(&with("/processes/0/regions/0/end", json!("0x1"))).contains("makes no sense"));
    assert!(refused(&with("/processes/0/regions/0/start", json!("zzz"))).contains("makes no sense"));
    assert!(refused(&with("/processes/0/totals/virt", json!(-1))).contains("not a report"));
    assert!(refused("{\"schema\": 1, ").contains("line 1"));
    assert!(refused("{}").contains("no \"schema\""));
    assert!(refused("[1]").contains("line 1: no line of smaps"));
    assert!(refused("").contains("empty"));
    assert!(refused(&"{\"a\":".repeat(100_000)).contains("not a report"));
    let missing = diff(&[], [&good, Path::new("/nonexistent/file")]);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("/nonexistent/file: No such file"));
}
