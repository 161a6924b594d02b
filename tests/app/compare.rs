//! `vmaudit compare` on a program whose effects are known, and on the demonstration program.

use crate::support::{Guard, demo_program, program, skip, skip_without_bpf, vmaudit};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const MIB: i64 = 1 << 20;

struct Compared {
    output: Output,
    json: Option<Value>,
}

impl Compared {
    fn json(&self) -> &Value {
        self.json.as_ref().unwrap_or_else(|| panic!("no comparison; {}", self.said()))
    }

    fn side(&self, number: usize) -> &Value {
        &self.json()["sides"][number]
    }

    fn code(&self) -> Option<i32> {
        self.output.status.code()
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }
}

fn command<S: AsRef<OsStr>>(report: &Path, options: &[&str], target: &[S]) -> Command {
    let mut compare = Command::new(vmaudit());
    compare.args(["compare", "--as-root", "-f", "json", "--report"]).arg(report);
    compare.args(options).arg("--").args(target).stdin(Stdio::null());
    compare
}

fn compare<S: AsRef<OsStr>>(options: &[&str], target: &[S]) -> Compared {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let report = folder.path().join("comparison.json");
    let output = command(&report, options, target).output().expect("vmaudit starts");
    let json = fs::read(&report).ok().map(|bytes| serde_json::from_slice(&bytes).expect("JSON"));
    Compared { output, json }
}

fn orders(side: &Value) -> Vec<u64> {
    let runs = side["runs"].as_array().expect("runs");
    runs.iter().map(|run| run["order"].as_u64().expect("a number")).collect()
}

fn change(row: &Value, what: &str) -> i64 {
    let of = |side: usize| row[what][side].as_i64().expect("bytes");
    of(1) - of(0)
}

fn category<'a>(effect: &'a Value, id: &str) -> &'a Value {
    let rows = effect["categories"].as_array().expect("categories");
    rows.iter().find(|row| row["id"] == id).unwrap_or_else(|| panic!("no {id} in {rows:?}"))
}

#[test]
fn a_variables_effect_is_found_and_attributed() {
    if skip_without_bpf("a_variables_effect_is_found_and_attributed") {
        return;
    }
    let target = [program("env_effect")];
    let done = compare(&["-n", "3", "--env", "RESERVE=64", "--env=TOUCH=512"], &target);
    assert_eq!(done.code(), Some(0), "{}", done.said());
    // balanced: neither side is always first
    assert_eq!((orders(done.side(0)), orders(done.side(1))), (vec![1, 4, 5], vec![2, 3, 6]));
    let effect = &done.side(1)["effect"];
    let row = category(effect, "app-mmap");
    assert_eq!(change(row, "virt"), 64 * MIB + 2 * MIB);
    assert_eq!(change(row, "rss"), 2 * MIB);
    // two calls of reserve in main, which differ in their call sites
    let causes = row["causes"].as_array().expect("causes");
    assert_eq!(causes.len(), 2, "{causes:?}");
    assert!(causes.iter().all(|cause| cause["title"] == "reserve < main"), "{causes:?}");
    assert_eq!(effect["changes"]["virt"]["verdict"], "differs");
    let faults = effect["changes"]["minor_faults"]["by"].as_i64().expect("faults");
    assert!((480..1000).contains(&faults), "{faults} faults more, for 512 pages");

    let rows = effect["categories"].as_array().expect("categories");
    for what in ["virt", "rss"] {
        let sum: i64 = rows.iter().map(|row| change(row, what)).sum();
        assert_eq!(sum, change(&effect["total"], what), "the categories' {what} adds up");
        for row in rows {
            let causes = row["causes"].as_array().expect("causes");
            let sum: i64 = causes.iter().map(|cause| change(cause, what)).sum();
            assert_eq!(sum, change(row, what), "the causes' {what} of {} adds up", row["id"]);
        }
    }
}

#[test]
fn nothing_changed_is_nothing_found() {
    if skip_without_bpf("nothing_changed_is_nothing_found") {
        return;
    }
    let done = compare(&["-n", "2", "--unset-env", "NO_SUCH_VARIABLE"], &[program("env_effect")]);
    assert_eq!(done.code(), Some(0), "{}", done.said());
    let effect = &done.side(1)["effect"];
    assert_eq!(effect["changes"]["virt"]["verdict"], "same", "{}", effect["changes"]);
    assert_eq!(change(&effect["total"], "virt"), 0);
}

#[test]
fn arguments_are_appended_on_the_changed_side() {
    if skip_without_bpf("arguments_are_appended_on_the_changed_side") {
        return;
    }
    let target = [program("env_effect").into_os_string(), "8".into()];
    let done = compare(&["-n", "1", "--arg", "16", "--arg", "1"], &target);
    assert_eq!(done.code(), Some(0), "{}", done.said());
    let effect = &done.side(1)["effect"];
    assert_eq!(change(category(effect, "app-mmap"), "virt"), 17 * MIB);
    assert_eq!(effect["changes"]["virt"]["verdict"], "single-run");
}

#[test]
fn runs_that_end_differently_are_said() {
    if skip_without_bpf("runs_that_end_differently_are_said") {
        return;
    }
    let target = [program("env_effect")];
    let failing = compare(&["-n", "1", "--env", "STATUS=3"], &target);
    assert_eq!(failing.code(), Some(1));
    assert_eq!(failing.side(1)["runs"][0]["outcome"], "exited 3");
    assert!(failing.side(1)["effect"]["changes"]["virt"].is_object(), "figures are shown all the same");

    let killed = compare(&["-n", "1", "--env", "CRASH=1"], &target);
    assert_eq!(killed.code(), Some(1));
    assert_eq!(killed.side(1)["runs"][0]["outcome"], "killed by signal 6");

    let mut alike = command(Path::new("/dev/stdout"), &["-n", "1", "--env", "X=1"], &target);
    let alike = alike.env("STATUS", "3").output().expect("vmaudit starts");
    assert_eq!(alike.status.code(), Some(0), "a status that both sides share is no difference");
}

#[test]
fn a_command_that_cannot_run_has_its_exit_code() {
    if skip_without_bpf("a_command_that_cannot_run_has_its_exit_code") {
        return;
    }
    let missing = compare(&["--env", "A=1"], &["/no/such/program"]);
    assert_eq!((missing.code(), missing.json.is_none()), (Some(127), true));
    assert!(missing.said().contains("/no/such/program: command not found"), "{}", missing.said());

    let changed = compare(&["-n", "2", "--env", "PATH=/nonexistent"], &["true"]);
    assert_eq!(changed.code(), Some(1));
    assert_eq!(changed.side(1)["failure"]["code"], 127);
    assert_eq!(orders(changed.side(0)).len(), 2, "the other side goes on");
}

#[test]
fn a_change_is_required() {
    for options in [&[][..], &["--env", "A"], &["--env", "=1"], &["-n", "0"]] {
        let done = compare(options, &["true"]);
        assert_eq!(done.code(), Some(2), "{options:?}: {}", done.said());
    }
}

/// True when there is no such process.
fn is_gone(pid: i32) -> bool {
    // SAFETY: signal 0 only checks.
    let result = unsafe { libc::kill(pid, 0) };
    result != 0
}

fn pids(file: &Path) -> Vec<i32> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().map(|line| line.parse().expect("a pid")).collect()
}

#[test]
fn servers_are_examined_and_ended() {
    if skip_without_bpf("servers_are_examined_and_ended") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, report) = (folder.path().join("pids"), folder.path().join("report"));
    let options = ["-n", "2", "--duration", "0.3", "--env", "RESERVE=8"];
    let mut run = command(&report, &options, &[program("env_effect")]);
    let output = run.env("SERVE", "1").env("PIDFILE", &file).output().expect("vmaudit starts");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let json: Value = serde_json::from_slice(&fs::read(&report).expect("a report")).expect("JSON");
    assert_eq!(json["sides"][1]["runs"][1]["outcome"], "running");
    assert_eq!(json["ended_by"], "duration");
    assert_eq!(change(category(&json["sides"][1]["effect"], "app-mmap"), "virt"), 8 * MIB);
    let pids = pids(&file);
    assert_eq!(pids.len(), 4);
    assert!(pids.into_iter().all(is_gone), "all four were ended");
}

#[test]
fn a_load_ends_its_run() {
    if skip_without_bpf("a_load_ends_its_run") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, report) = (folder.path().join("pids"), folder.path().join("report"));
    let with_load = |script: &str| {
        let _ = fs::remove_file(&file);
        let script = script.replace("FILE", &file.display().to_string());
        let options = ["-n", "1", "--load", &script, "--env", "RESERVE=8"];
        let mut run = command(&report, &options, &[program("env_effect")]);
        let output = run.env("SERVE", "1").env("PIDFILE", &file).output().expect("vmaudit starts");
        let json: Value = serde_json::from_slice(&fs::read(&report).expect("a report")).expect("JSON");
        assert!(pids(&file).into_iter().all(is_gone));
        (output.status.code(), json)
    };
    // it sees the process that it drives
    let (code, json) = with_load("until grep -qx $VMAUDIT_PID FILE; do :; done; kill -0 $VMAUDIT_PID");
    assert_eq!(code, Some(0), "{json}");
    assert_eq!(json["sides"][0]["runs"][0]["load_code"], 0);
    let (code, json) = with_load("until test -s FILE; do :; done; exit 7");
    assert_eq!((code, &json["sides"][1]["runs"][0]["load_code"]), (Some(1), &Value::from(7)));
}

#[test]
fn an_interrupt_ends_the_run_and_reports_the_complete_ones() {
    if skip_without_bpf("an_interrupt_ends_the_run_and_reports_the_complete_ones") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, report) = (folder.path().join("pids"), folder.path().join("report"));
    // the changed side waits for ever
    let mut run = command(&report, &["-n", "2", "--env", "SERVE=1"], &[program("env_effect")]);
    run.env("PIDFILE", &file).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = Guard(run.spawn().expect("vmaudit starts"));
    while pids(&file).len() < 2 {
        assert!(child.0.try_wait().expect("a child").is_none(), "it ended by itself");
        std::thread::yield_now();
    }
    child.signal(libc::SIGINT);
    let output = child.finish().expect("its end");
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(pids(&file).into_iter().all(is_gone), "the waiting command was ended");
    let json: Value = serde_json::from_slice(&fs::read(&report).expect("a report")).expect("JSON");
    assert_eq!(json["interrupted"], true);
    assert_eq!(json["sides"][0]["runs"].as_array().map(Vec::len), Some(1));
    assert_eq!(json["sides"][1]["runs"].as_array().map(Vec::len), Some(0));
}

#[test]
fn what_does_other_work_has_saved_nothing() {
    if skip_without_bpf("what_does_other_work_has_saved_nothing") {
        return;
    }
    let void = |change: &str, script: &str| {
        let done = compare(&["-n", "1", "--env", change], &["sh", "-c", script]);
        let void = done.side(1)["void"].as_array().expect("reasons").clone();
        assert_eq!(done.code(), Some(i32::from(!void.is_empty())), "{}", done.said());
        assert_eq!(done.json()["notes"], Value::Array(vec![]));
        void.iter().map(|why| why.as_str().expect("words").to_owned()).collect::<Vec<_>>().join("; ")
    };
    assert_eq!(void("HOW=two", "echo took $$ ms"), "");
    let why = void("HOW=two", "echo ${HOW:-one}");
    assert_eq!(why, "its output differs (4 bytes, too)");
    assert_eq!(void("STATUS=3", "exit ${STATUS:-0}"), "it exited 3 (as it is: exited 0)");
    let why = void("STATUS=3", "sh -c 'exit ${STATUS:-0}'; exit 0");
    assert_eq!(why, "a process of it failed: sh exited 3");
}

/// A child that is traced by another process stays a zombie until the tracer waits for it.
#[test]
fn a_process_that_cannot_be_ended_does_not_end_the_comparison() {
    if skip_without_bpf("a_process_that_cannot_be_ended_does_not_end_the_comparison") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, report) = (folder.path().join("pids"), folder.path().join("report"));
    let wait = folder.path().join("go");
    let fifo = std::ffi::CString::new(wait.as_os_str().as_encoded_bytes()).expect("a path");
    // SAFETY: a path that ends with a zero byte.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    // the first run waits for the test, and the second finds no pipe to wait for
    let script = format!(
        "\"{0}\" & test -p {1} && cat {1} >/dev/null; rm -f {1}",
        program("env_effect").display(),
        wait.display()
    );
    let options = ["-n", "1", "--env", "RESERVE=8"];
    let mut run = command(&report, &options, &["sh", "-c", &script]);
    run.env("SERVE", "1").env("PIDFILE", &file).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = Guard(run.spawn().expect("vmaudit starts"));
    while pids(&file).is_empty() {
        assert!(child.0.try_wait().expect("a child").is_none(), "it ended by itself");
        std::thread::yield_now();
    }
    let server = pids(&file)[0];
    // SAFETY: no memory is passed.
    let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, server, 0, 0) };
    assert_eq!(seized, 0, "{}", std::io::Error::last_os_error());
    fs::write(&wait, "go").expect("the script reads it");
    let output = child.finish().expect("its end");
    let json: Value = serde_json::from_slice(&fs::read(&report).expect("a report")).expect("JSON");
    // SAFETY: the status is not requested.
    assert_eq!(unsafe { libc::waitpid(server, std::ptr::null_mut(), libc::__WALL) }, server);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(json["sides"][1]["runs"].as_array().map(Vec::len), Some(1), "the second side was run");
    let note = format!("not ended by SIGKILL in time, and left: env_effect ({server})");
    let notes = json["notes"].as_array().expect("notes");
    assert!(notes.iter().any(|each| each == &Value::from(note.clone())), "{note:?} is not among {notes:?}");
}

#[test]
fn advice_is_compared_with_the_command_as_given() {
    let test = "advice_is_compared_with_the_command_as_given";
    if skip_without_bpf(test) {
        return;
    }
    let demo = match demo_program() {
        Ok(demo) => demo,
        Err(why) => return skip(test, &why),
    };
    let done = compare(&["-n", "1", "--advice", "--env", "MALLOC_ARENA_MAX=1"], &[&demo]);
    assert_eq!(done.code(), Some(0), "{}", done.said());
    let sides = done.json()["sides"].as_array().expect("sides");
    assert_eq!(sides[0]["label"], "MALLOC_ARENA_MAX=1");
    assert!(sides.len() > 1);
    assert!(sides.iter().all(|side| side["change"]["env"]["MALLOC_ARENA_MAX"] == "1"));
    assert!(sides.iter().skip(1).all(|side| side["label"] != "MALLOC_ARENA_MAX=1"), "it is there already");
}

#[test]
fn advice_on_the_demonstration_program_holds() {
    let test = "advice_on_the_demonstration_program_holds";
    if skip_without_bpf(test) {
        return;
    }
    let demo = match demo_program() {
        Ok(demo) => demo,
        Err(why) => return skip(test, &why),
    };
    let done = compare(&["-n", "2", "--advice"], &[&demo]);
    assert_eq!(done.code(), Some(0), "{}", done.said());
    let sides = done.json()["sides"].as_array().expect("sides");
    let side = |label: &str| {
        let found = sides.iter().find(|side| side["label"] == label);
        found.unwrap_or_else(|| panic!("{label} was not tried: {:?}", done.json()["not_tried"]))
    };
    let arenas = &side("MALLOC_ARENA_MAX=1")["effect"];
    assert_eq!(arenas["promise"]["virt_verdict"], "holds", "{}", arenas["promise"]);
    assert_eq!(change(category(arenas, "glibc-arena"), "virt"), -128 * MIB);
    let stacks = &side("ulimit -s 1024")["effect"];
    assert_eq!(stacks["promise"]["virt_verdict"], "holds", "{}", stacks["promise"]);
    assert_eq!(change(category(stacks, "thread-stack"), "virt"), -21 * MIB);
    assert_eq!(side("all of them together")["effect"]["promise"]["virt_verdict"], "holds");
    // each is run as often as the command as it is, and in an order that is turned round
    assert!(sides.iter().all(|side| side["runs"].as_array().map(Vec::len) == Some(2)));
    let last = sides.len() as u64;
    assert_eq!(orders(&sides[0]), [1, 2 * last]);
}
