//! Timelines of processes that ran before, and moments of their recordings.

use crate::support::report::{list, number};
use crate::support::{Guard, finished, skip_without, skip_without_bpf, vmaudit};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

const PYTHON: &str = "/usr/bin/python3";
/// Threads with stacks and arenas of their own; what it reads is what it does.
const PROGRAM: &str = "
import sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
threading.Thread(target=lambda: [bytearray(100000) for _ in range(9)] and threading.Event().wait(),
                 daemon=True).start()
for line in sys.stdin: exec(line); print('done', flush=True)";

fn report_of(recording: &Path, options: &[&str]) -> Value {
    let run = Command::new(vmaudit()).args(["report", "-f", "json"]).arg(recording).args(options).output();
    let output = run.expect("vmaudit starts");
    assert!(output.status.success(), "{options:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn by_category(process: &Value) -> BTreeMap<String, u64> {
    let rows = list(process, "categories").iter();
    rows.map(|row| (row["id"].as_str().expect("an id").to_owned(), number(row, "virt"))).collect()
}

#[test]
fn the_moment_of_attaching_is_what_the_first_snapshot_showed() {
    if skip_without_bpf("attach_moment") || skip_without("attach_moment", PYTHON) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, recording) = (folder.path().join("report.json"), folder.path().join("rec"));
    let mut python = Command::new(PYTHON);
    python.args(["-u", "-c", PROGRAM]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut python = Guard(python.spawn().expect("python starts"));
    let mut orders = python.0.stdin.take().expect("piped");
    let mut answers = BufReader::new(python.0.stdout.take().expect("piped")).lines();
    let mut order = |line: &str| {
        writeln!(orders, "{line}").expect("python reads");
        assert_eq!(answers.next().expect("a line").expect("text"), "done");
    };
    order("while threading.active_count() < 3: pass");

    let mut attach = Command::new(vmaudit());
    attach.args(["attach", "-f", "json", "--interval", "0.05", "--report"]).arg(&file).arg("-o");
    attach.arg(&recording).args(["-p", &python.0.id().to_string()]).stderr(Stdio::piped());
    let mut attach = Guard(attach.spawn().expect("vmaudit starts"));
    let mut said = BufReader::new(attach.0.stderr.take().expect("piped")).lines();
    let tracing = |line: &String| line.contains("Ctrl-C ends tracing");
    said.by_ref().map(|line| line.expect("text")).find(tracing).expect("it traces");
    order("a = bytearray(50 << 20)");
    order("a = None; b = bytearray(20 << 20)");
    drop(orders);
    said.for_each(drop);
    let live = finished(attach.finish().expect("vmaudit ends"), &file);
    let process = live.report().first();
    let coverage = &process["coverage"];
    assert_eq!((number(coverage, "ledger_drift"), number(coverage, "unknown")), (0, 0), "{coverage}");

    // Time begins when tracing does, and ends with the process.
    let points = list(process, "timeline");
    let (first, last) = (&points[0], &points[points.len() - 1]);
    assert!(number(first, "t_ns") > 0);
    assert!(number(last, "t_ns") <= number(process, "wall_ns"), "it was not held at its exit");

    let begin = report_of(&recording, &["--at", "0"]);
    let shown = first["by_category"].as_object().expect("categories");
    let shown = shown.iter().map(|(id, bytes)| (id.clone(), bytes.as_u64().expect("bytes")));
    assert_eq!(by_category(&list(&begin, "processes")[0]), shown.collect(), "nothing was called between");

    let peak = &process["peak"];
    assert!(number(peak, "virt") >= number(first, "virt") + (50 << 20), "{peak}");
    let then = report_of(&recording, &["--at", "peak"]);
    assert_eq!(number(&list(&then, "processes")[0]["totals"], "virt"), number(peak, "virt"));
    let growth = report_of(&recording, &["--growth", ".."]);
    let change = &list(&growth, "processes")[0];
    assert_eq!(number(change, "from"), number(first, "virt"));
    let grown: Vec<&Value> =
        list(change, "by_stack").iter().filter(|row| number(row, "to") > number(row, "from")).collect();
    let [row] = grown.as_slice() else { panic!("one thing has grown: {grown:?}") };
    assert_eq!((&row["op"], &row["name"]), (&"mmap".into(), &"glibc large blocks (mmap)".into()));
    assert_eq!((number(row, "from"), number(row, "to") >> 20), (0, 20));
}
