//! Timelines, and moments of recordings, compared with what the kernel showed at those moments.

use crate::support::report::{list, number};
use crate::support::{AuditReport, Guard, finished, run_command, skip_without, skip_without_bpf, vmaudit};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{ChildStderr, Command, Stdio};

const PYTHON: &str = "/usr/bin/python3";
/// What the program does between the moments at which it holds still.
const PHASES: &[&str] = &[
    "a = [bytearray(8 << 20) for _ in range(5)]",
    "b = [object() for _ in range(500000)]",
    "del a[1:]",
    "b = None; c = bytearray(30 << 20)",
    "a = c = None",
];

/// VmSize and the sum of smaps' Rss while the process holds still.
fn sizes(pid: u64) -> (u64, u64) {
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).expect("smaps of a living process");
    let sum = |key: &str| {
        let lines = smaps.split('\n').filter_map(|line| line.strip_prefix(key));
        let kib = lines.map(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().expect("a number"));
        kib.sum::<u64>() * 1024
    };
    // vsyscall is no part of VmSize.
    let vsyscall = if smaps.contains("[vsyscall]") { 4096 } else { 0 };
    (sum("Size:") - vsyscall, sum("Rss:"))
}

fn report_of(recording: &Path, options: &[&str]) -> Value {
    let run = Command::new(vmaudit()).args(["report", "-f", "json"]).arg(recording).args(options).output();
    let output = run.expect("vmaudit starts");
    assert!(output.status.success(), "{options:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Reads away what was said until now: snapshots of the time before.
fn forget_said(said: &mut BufReader<ChildStderr>) {
    let waiting = said.buffer().len();
    said.consume(waiting);
    let fd = said.get_ref().as_raw_fd();
    // SAFETY: fcntl on a descriptor that `said` holds.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: as above.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) }, 0);
    let mut scratch = [0; 4096];
    while said.get_mut().read(&mut scratch).is_ok_and(|read| read > 0) {}
    // SAFETY: as above.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFL, flags) }, 0);
}

/// Python does each phase and holds still until the next; meanwhile, vmaudit takes at least two snapshots.
#[test]
fn points_of_a_timeline_are_what_the_kernel_shows() {
    if skip_without_bpf("run_moment") || skip_without("run_moment", PYTHON) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, recording) = (folder.path().join("report.json"), folder.path().join("run.vmaudit"));
    let recording_word = recording.to_str().expect("UTF-8");
    let program = "import os, sys\nprint(os.getpid(), flush=True)\n\
                   for line in sys.stdin:\n exec(line); print('done', flush=True)";
    let options = ["--interval", "0.05", "-v", "-o", recording_word];
    let mut run = run_command(&file, &options, &[PYTHON, "-u", "-c", program]);
    run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = Guard(run.spawn().expect("vmaudit starts"));
    let mut orders = run.0.stdin.take().expect("piped");
    let mut answers = BufReader::new(run.0.stdout.take().expect("piped")).lines();
    let mut said = BufReader::new(run.0.stderr.take().expect("piped"));
    let pid: u64 = answers.next().expect("a line").expect("text").parse().expect("a pid");
    let mut held = Vec::new();
    for phase in PHASES {
        writeln!(orders, "{phase}").expect("python reads");
        assert_eq!(answers.next().expect("a line").expect("text"), "done");
        let first = sizes(pid);
        forget_said(&mut said);
        // The first snapshot may have begun before the phase was over; the third has not.
        for _ in 0..3 {
            let is_snapshot = |line: &String| line.contains("Live of ");
            let mut lines = said.by_ref().lines().map(|line| line.expect("text"));
            lines.find(is_snapshot).expect("vmaudit goes on taking snapshots");
        }
        // Pages may be taken away meanwhile (reclaim), and python is back in read only now.
        held.push((first, sizes(pid)));
    }
    drop(orders);
    said.lines().for_each(drop);
    let output = run.finish().expect("vmaudit ends");
    assert!(output.status.success());
    let live = finished(output, &file);
    live.report().assert_exact();
    let process = live.report().first();
    let timeline = list(process, "timeline");

    // Each held state is among the points, in order; RSS, too.
    let mut points = timeline.iter();
    for (phase, &((virt, before), (virt_after, after))) in PHASES.iter().zip(&held) {
        let rss = before.min(after)..=before.max(after);
        let same = |p: &Value| {
            [virt, virt_after].contains(&number(p, "virt"))
                && p["rss"].as_u64().is_some_and(|r| rss.contains(&r))
        };
        assert!(points.any(same), "no point with VIRT {virt} and RSS {rss:?} after: {phase}");
    }
    // The last point is the report itself.
    let last = timeline.last().expect("points");
    for row in list(process, "categories") {
        let id = row["id"].as_str().expect("id");
        assert_eq!(last["by_category"][id].as_u64(), Some(number(row, "virt")), "{id}");
    }
    assert!(timeline.iter().all(|p| number(p, "virt") <= number(&process["peak"], "virt")));

    // The ledger, at the moments of snapshots while nothing happened, agrees with what they show.
    let same = |three: &&[Value]| three.iter().all(|p| number(p, "virt") == number(&three[0], "virt"));
    let still: Vec<&Value> = timeline.windows(3).filter(same).map(|three| &three[1]).collect();
    for point in still.iter().step_by(still.len().div_ceil(12)) {
        let at = format!("{:.9}", number(point, "t_ns") as f64 / 1e9);
        let then = report_of(&recording, &["--at", &at]);
        let then = AuditReport::parse(then.to_string().as_bytes());
        assert_eq!(number(&then.first()["totals"], "virt"), number(point, "virt"), "at {at}");
        assert_eq!(then.first()["residency"], "none", "there is no snapshot of just that moment");
        assert_eq!(list(then.first(), "categories").len(), then_categories(point), "at {at}");
    }
    growth_adds_up(&recording, still[0], still[still.len() - 1]);
}

fn then_categories(point: &Value) -> usize {
    point["by_category"].as_object().expect("categories").len()
}

fn growth_adds_up(recording: &Path, first: &Value, last: &Value) {
    let seconds = |point: &Value| number(point, "t_ns") as f64 / 1e9;
    let span = format!("{:.9}..{:.9}", seconds(first), seconds(last));
    let growth = report_of(recording, &["--growth", &span]);
    let process = &list(&growth, "processes")[0];
    assert_eq!(
        (number(process, "from"), number(process, "to")),
        (number(first, "virt"), number(last, "virt"))
    );
    for side in ["from", "to"] {
        let rows: u64 = list(process, "by_stack").iter().map(|row| number(row, side)).sum();
        assert_eq!(rows + number(process, "unchanged"), number(process, side), "{side}");
    }
    for wrong in [&["--at", "100000"][..], &["--growth", "5..2"], &["--growth", "x.."], &["--at", "-1"]] {
        let run = Command::new(vmaudit()).arg("report").arg(recording).args(wrong).output();
        let output = run.expect("vmaudit starts");
        let code = if wrong[1] == "100000" { 125 } else { 2 };
        assert_eq!(output.status.code(), Some(code), "{wrong:?}");
        assert!(!output.stderr.is_empty() && output.stdout.is_empty(), "{wrong:?}");
    }
}

/// The shell starts a child and another one, then becomes the program: one zero for all of it.
#[test]
fn times_count_from_the_start_of_the_command() {
    if skip_without_bpf("run_moment") || skip_without("run_moment", PYTHON) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, recording) = (folder.path().join("report.json"), folder.path().join("run.vmaudit"));
    let recording_word = recording.to_str().expect("UTF-8");
    let script = format!("/bin/true; /bin/true; exec {PYTHON} -c 'a = bytearray(64 << 20); a = None'");
    let options = ["--interval", "0.2", "-o", recording_word];
    let output = run_command(&file, &options, &["/bin/sh", "-c", &script]).output().expect("vmaudit starts");
    let live = finished(output, &file);
    let process = live.report().first();
    let main = number(process, "pid");

    let events = Command::new(vmaudit()).args(["events", "-f", "json"]).arg(&recording).output();
    let events = String::from_utf8(events.expect("vmaudit starts").stdout).expect("UTF-8");
    let events: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |pid: u64, op: &str| {
        let mut found = events.iter().filter(|e| number(e, "pid") == pid && e["op"] == op);
        found.next().map(|first| (number(first, "time_ns"), found.count() + 1)).expect(op)
    };
    let (zero, programs) = of(main, "execve");
    assert_eq!(programs, 2, "sh and python");
    for event in &events {
        assert_eq!(number(event, "elapsed_ns"), number(event, "time_ns").saturating_sub(zero), "{event}");
    }
    let wall_ns = number(process, "wall_ns");
    let last_call = events.iter().rfind(|e| number(e, "pid") == main && e["op"] != "exit").expect("calls");
    let ended = number(last_call, "elapsed_ns")..=of(main, "exit").0 - zero;
    assert!(ended.contains(&wall_ns), "{wall_ns} is not in {ended:?}");
    let last = list(process, "timeline").last().expect("points");
    assert_eq!(number(last, "t_ns"), wall_ns, "where it expected to end, not when vmaudit let it");
    let children: Vec<&Value> = list(&live.report().json, "processes").iter().skip(1).collect();
    assert_eq!(children.len(), 2);
    for child in children {
        let pid = number(child, "pid");
        let fork = events.iter().find(|e| e["op"] == "clone" && e["ret"].as_u64() == Some(pid));
        let life = of(pid, "exit").0 - number(fork.expect("its fork"), "time_ns");
        let until_exec = of(pid, "execve").0 - number(fork.expect("its fork"), "time_ns");
        assert!((until_exec..=life).contains(&number(child, "wall_ns")), "from its fork to its exit");
    }

    let peak = &process["peak"];
    let reached = |e: &&Value| e["virt"].as_u64() == Some(number(peak, "virt"));
    let call = events.iter().find(reached).expect("the call that reached the peak");
    assert_eq!(number(peak, "t_ns"), number(call, "elapsed_ns"));
    let then = report_of(&recording, &["--at", "peak"]);
    assert_eq!(number(&then, "at_ns"), number(peak, "t_ns"));
    assert_eq!(number(&list(&then, "processes")[0]["totals"], "virt"), number(peak, "virt"));
    let since = report_of(&recording, &["--growth", "peak.."]);
    let (end, change) = (&process["totals"], &list(&since, "processes")[0]);
    assert_eq!((number(change, "from"), number(change, "to")), (number(peak, "virt"), number(end, "virt")));
}

/// A moment after the end is refused with the end that the report's head has, not with that of vmaudit's own work.
#[test]
fn a_moment_after_the_end_is_an_error_with_the_time_of_the_end() {
    if skip_without_bpf("run_moment_after_end") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, recording) = (folder.path().join("report.json"), folder.path().join("run.vmaudit"));
    let mut run = run_command(&file, &["-o", recording.to_str().expect("UTF-8")], &["true"]);
    let audit = finished(run.output().expect("vmaudit starts"), &file);
    let took = number(audit.report().first(), "wall_ns");
    for moment in ["3600", "0.9"] {
        let output = Command::new(vmaudit()).arg("report").arg(&recording).args(["--at", moment]).output();
        let output = output.expect("vmaudit starts");
        let said = String::from_utf8_lossy(&output.stderr);
        let end = format!(
            "no process was alive at {moment} s: the last one until then ended after {:.3} s",
            took as f64 / 1e9
        );
        assert!(output.status.code() == Some(125) && said.contains(&end), "{said}, instead of: {end}");
    }
}
