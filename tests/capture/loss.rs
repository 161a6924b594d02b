//! Forced loss: with rings far too small for the program and a reader that is stopped for half of its
//! calls, the report has to say how much was lost and which regions are doubtful, and to be right about
//! all others.
//!
//! What is right is known from a second run of the same single-threaded program, without
//! address randomisation and with rings that lose nothing.

use crate::perf::skip_without_perf;
use crate::support::report::{AuditReport, spans_of_maps, spans_of_regions};
use crate::support::{Audit, Guard, finished, program, run_command, skip, skip_without_bpf, vmaudit};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The reader while the program does a quarter of its calls.
#[derive(Clone, Copy, PartialEq)]
enum Reader {
    Runs,
    /// Nothing is read: the rings fill up, and what comes then is lost.
    Stopped,
}

use Reader::{Runs, Stopped};

/// One thread of the churn program, at the same addresses each time.
fn churn(options: &[&str], folder: &Path, quarters: [Reader; 4]) -> Audit {
    churn_step_by_step(options, folder, quarters, |_| {})
}

/// `at_step` is called with the number of each quarter (4: what comes after the last one), while the program
/// waits.
fn churn_step_by_step(
    options: &[&str],
    folder: &Path,
    quarters: [Reader; 4],
    at_step: impl Fn(usize),
) -> Audit {
    let (churn, out, report) = (program("churn"), folder.join("maps"), folder.join("report.json"));
    // More than the smallest rings of perf hold.
    let turns = if options.contains(&"perf") { "4000" } else { "900" };
    let words =
        [churn.as_os_str(), "11".as_ref(), "1".as_ref(), turns.as_ref(), out.as_os_str(), "steps".as_ref()];
    let mut run = run_command(&report, &[&["--aslr", "off"], options].concat(), &words);
    run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut vmaudit = Guard(run.spawn().expect("vmaudit starts"));
    let mut go = vmaudit.0.stdin.take().expect("piped");
    let mut steps = BufReader::new(vmaudit.0.stdout.take().expect("piped")).lines();
    // After the last quarter it waits once more.
    for (step, reader) in quarters.into_iter().chain([Runs]).enumerate() {
        assert_eq!(steps.next().expect("a step").expect("text"), "STEP");
        at_step(step);
        match reader {
            Runs => vmaudit.signal(libc::SIGCONT),
            Stopped => vmaudit.stop(),
        }
        go.write_all(b"\n").expect("it reads");
    }
    let audit = finished(vmaudit.finish().expect("vmaudit ends"), &report);
    assert_eq!(audit.code(), Some(0), "{}", audit.stderr);
    audit
}

/// The same program when nothing is lost: what is right about the others.
fn undisturbed(options: &[&str], folder: &Path) -> Audit {
    let audit = churn(options, folder, [Runs; 4]);
    let report = audit.report();
    assert_eq!(report.event("lost"), 0, "{}", audit.stderr);
    assert_true_map(&audit, folder);
    assert_eq!(report.first()["coverage"]["unknown"], 0);
    audit
}

/// The regions are what the program read from its own maps.
fn assert_true_map(audit: &Audit, folder: &Path) {
    let first = audit.report().first();
    let text = std::fs::read(folder.join(format!("maps.{}", first["pid"]))).expect("the program's own maps");
    assert_eq!(spans_of_regions(first), spans_of_maps(&text));
    assert_eq!(first["coverage"]["ledger_drift"], 0);
}

fn regions(report: &AuditReport) -> &[Value] {
    report.first()["regions"].as_array().map_or(&[], Vec::as_slice)
}

fn address(region: &Value, which: &str) -> u64 {
    let text = region[which].as_str().unwrap_or_default();
    u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("an address")
}

/// Call and category of what made a region.
fn cause(region: &Value) -> (&Value, &Value) {
    (&region["origin"]["op"], &region["category"])
}

fn stack<'r>(report: &'r AuditReport, region: &Value) -> Option<&'r Value> {
    region["origin"]["stack"].as_u64().map(|n| &report.json["stacks"][n as usize])
}

fn frames(stack: Option<&Value>) -> &[Value] {
    stack.and_then(|stack| stack["frames"].as_array()).map_or(&[], Vec::as_slice)
}

/// The same frames; a stack that says that it ends early (the record of the module that comes next was lost)
/// has the first of them, and then the address that it could not resolve.
fn assert_true_stack(found: Option<&Value>, truth: Option<&Value>, at: &Value) {
    let (shown, whole) = (frames(found), frames(truth));
    match found.filter(|stack| stack["completeness"] == "incomplete").and(shown.split_last()) {
        Some((last, known)) if last["module"] == "[unknown]" => {
            assert_eq!(known, &whole[..known.len().min(whole.len())], "{at}");
        }
        _ => assert_eq!(shown, whole, "{at}"),
    }
}

/// The complete report's region that covers a byte.
fn covering(complete: &AuditReport, at: u64) -> &Value {
    let holds = |r: &&Value| address(r, "start") <= at && at < address(r, "end");
    regions(complete).iter().find(holds).expect("mapped in both runs")
}

/// `large`: options for rings that all of the program's calls fit into; `small`: for those that they do not.
fn what_is_not_doubtful_is_right(backend: &[&str], large: &[&str], small: &[&str]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let complete = undisturbed(&[backend, large].concat(), folder.path());
    let lossy = churn(&[backend, small].concat(), folder.path(), [Runs, Stopped, Runs, Stopped]);
    let report = lossy.report();
    assert!(report.event("lost") > 0, "nothing was lost");
    assert_true_map(&lossy, folder.path());
    let doubtful: u64 = regions(report)
        .iter()
        .filter(|r| r["doubt"] == "events-lost")
        .filter_map(|r| r["virt"].as_u64())
        .sum();
    assert!(doubtful > 0, "no call was lost, only stacks");
    assert_eq!(report.first()["coverage"]["doubtful"], doubtful);
    for region in regions(report).iter().filter(|r| r["doubt"].is_null() && r["category"] != "unknown") {
        let truth = covering(complete.report(), address(region, "start"));
        assert_eq!(cause(region), cause(truth), "{}", region["start"]);
        let stacks = (stack(report, region), stack(complete.report(), truth));
        assert_true_stack(stacks.0, stacks.1, &region["start"]);
    }
}

#[test]
fn what_is_not_doubtful_is_right_with_bpf() {
    if skip_without_bpf("loss") {
        return;
    }
    let small = ["--ring-bytes", "16384", "--spill-bytes", "4096"];
    what_is_not_doubtful_is_right(&["--backend", "bpf"], &[], &small);
}

#[test]
fn what_is_not_doubtful_is_right_with_perf() {
    if skip_without_perf("loss, perf") {
        return;
    }
    // Some 3,100 calls. In rings of the default size there is space for 128 stacks, which a reader that waits
    // for a processor is too late for.
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let (stacks, calls) = ((cpus * (16 << 20)).to_string(), (cpus * (2 << 20)).to_string());
    let large = ["--stack-bytes", "4096", "--ring-bytes", &stacks, "--spill-bytes", &calls];
    what_is_not_doubtful_is_right(&["--backend", "perf"], &large, &SMALLEST_PERF);
}

/// Its rings are 64 KiB for each CPU at least.
const SMALLEST_PERF: [&str; 4] = ["--ring-bytes", "4096", "--spill-bytes", "4096"];

/// The kernel reports a loss with the next record of that CPU's ring. Here none comes: the program does the
/// calls that are lost on one CPU, and the rest of its life on another one.
#[test]
fn a_loss_that_no_later_record_reports_is_counted() {
    if skip_without_perf("late loss, perf") {
        return;
    }
    let allowed = sched_getaffinity(Pid::from_raw(0)).expect("its CPUs");
    let mut cpus = (0..CpuSet::count()).filter(|&cpu| allowed.is_set(cpu).unwrap_or(false));
    let (Some(first), Some(second)) = (cpus.next(), cpus.next()) else {
        return skip("late loss, perf", "there is one CPU");
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let on = |step: usize| pin(folder.path(), if step < 4 { first } else { second });
    let options = [&["--backend", "perf"][..], &SMALLEST_PERF].concat();
    let lossy = churn_step_by_step(&options, folder.path(), [Runs, Runs, Runs, Stopped], on);
    assert_true_map(&lossy, folder.path());
    let doubtful = lossy.report().first()["coverage"]["doubtful"].as_u64();
    assert!(doubtful.is_some_and(|bytes| bytes > 0), "nothing is doubtful");
}

/// Keeps all threads of the program whose files are in `folder` on one CPU.
fn pin(folder: &Path, cpu: usize) {
    let marker = folder.join("maps");
    let is_ours = |pid: &i32| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = words.split(|&byte| byte == 0);
        words.next() == Some(program("churn").as_os_str().as_encoded_bytes())
            && words.any(|word| word == marker.as_os_str().as_encoded_bytes())
    };
    let pid = numbers("/proc").into_iter().find(is_ours).expect("the program");
    let mut set = CpuSet::new();
    set.set(cpu).expect("a CPU");
    for tid in numbers(&format!("/proc/{pid}/task")) {
        sched_setaffinity(Pid::from_raw(tid), &set).expect("its threads wait");
    }
}

/// The entries of a folder of /proc that are numbers.
fn numbers(folder: &str) -> Vec<i32> {
    let entries = std::fs::read_dir(folder).expect("a folder of /proc");
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

#[test]
fn a_full_ring_costs_stacks_and_not_the_ledger() {
    if skip_without_bpf("loss") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let complete = undisturbed(&[], folder.path());
    let lossy = churn(&["--ring-bytes", "4096"], folder.path(), [Runs, Stopped, Runs, Stopped]);
    let report = lossy.report();
    assert!(report.event("without_stack") > 0, "there was space for all");
    assert_eq!(report.event("lost"), 0);
    assert_true_map(&lossy, folder.path());
    assert_eq!(report.first()["coverage"]["unknown"], 0);
    for region in regions(report) {
        let truth = covering(complete.report(), address(region, "start"));
        assert_eq!(region["origin"]["op"], truth["origin"]["op"], "{}", region["start"]);
    }
}

/// A session that waits, for who reads its events, from some hundred calls on until the program has made all of
/// them: how many it wrote then, and how many it said were lost.
fn events_of_a_session_that_waits(rings: &[&str]) -> (usize, usize) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (fifo, out) = (folder.path().join("events"), folder.path().join("maps"));
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    let mut events =
        File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&fifo).expect("its reader");
    let mut command = Command::new(vmaudit());
    command.args(["events", "--as-root", "--backend", "bpf", "-f", "json", "--aslr", "off", "--report"]);
    command.arg(&fifo).args(rings).arg("--").arg(program("churn")).args(["11", "1", "4000"]).arg(&out);
    command.arg("steps").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut session = Guard(command.spawn().expect("vmaudit starts"));
    let mut go = session.0.stdin.take().expect("piped");
    let mut steps = BufReader::new(session.0.stdout.take().expect("piped")).lines();
    for step in 0..5 {
        assert_eq!(steps.next().expect("a step").expect("text"), "STEP");
        if step == 4 {
            // All calls are made. From here on it is read.
            nix::fcntl::fcntl(&events, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::empty()))
                .expect("waits");
        }
        go.write_all(b"\n").expect("it reads");
    }
    let mut text = Vec::new();
    events.read_to_end(&mut text).expect("until its end");
    let output = session.finish().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let lines = text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    let ops = lines.map(|line| serde_json::from_slice::<Value>(line).expect("JSON")["op"].clone());
    let lost = said.lines().find_map(|line| line.strip_prefix("vmaudit: ")?.split_once(" events were lost"));
    let lost = lost.map_or(0, |(count, _)| count.parse().expect("a number"));
    (ops.filter(|op| op != "lost" && op != "resync").count(), lost)
}

/// Without a reader a third of the calls finds no space. Filled in some 5 ms: a hypervisor may take a
/// processor away for one or two.
const NARROW: [&str; 4] = ["--ring-bytes", "262144", "--spill-bytes", "262144"];

#[test]
fn while_the_session_waits_the_rings_are_emptied() {
    if skip_without_bpf("loss") {
        return;
    }
    let whole = events_of_a_session_that_waits(&[]);
    assert_eq!(whole.1, 0);
    assert_eq!(events_of_a_session_that_waits(&NARROW), whole);
}

#[test]
fn what_has_no_space_in_the_queue_is_counted() {
    if skip_without_bpf("loss") {
        return;
    }
    let (whole, _) = events_of_a_session_that_waits(&[]);
    let (some, lost) = events_of_a_session_that_waits(&[&NARROW[..], &["--queue-bytes", "65536"]].concat());
    assert!(lost > 0, "there was space for all");
    assert_eq!(some + lost, whole);
}
