//! Every filter of `vmaudit events`, against all events of the same recording; the ways to print
//! them; and the life of the printer (pipes that close, commands that fail).

use crate::support::{self, program, skip_without_bpf, vmaudit};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// A shell that runs two programs, one of them with three threads.
fn recording() -> PathBuf {
    static RECORDING: OnceLock<PathBuf> = OnceLock::new();
    let make = || {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("events");
        std::fs::create_dir_all(&folder).expect("target/tmp is writable");
        let file = folder.join(format!("{}.rec", std::process::id()));
        let script = format!(
            "{}; {} 5 3 60 {}/maps leaf",
            program("oddcalls").display(),
            program("churn").display(),
            folder.display()
        );
        let mut run = Command::new(vmaudit());
        run.args(["run", "--as-root", "--report", "/dev/null", "-o"]).arg(&file);
        let output = run.args(["--", "/bin/sh", "-c", &script]).output().expect("vmaudit starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        file
    };
    RECORDING.get_or_init(make).clone()
}

fn run(options: &[&str]) -> Output {
    Command::new(vmaudit()).arg("events").arg(recording()).args(options).output().expect("vmaudit starts")
}

fn events(options: &[&str]) -> Vec<Value> {
    let output = run(&[&["-f", "json"], options].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn all() -> &'static [Value] {
    static ALL: OnceLock<Vec<Value>> = OnceLock::new();
    ALL.get_or_init(|| events(&[]))
}

/// The filter gives exactly the events that satisfy the condition: some, but not all.
fn check(options: &[&str], condition: impl Fn(&Value) -> bool) {
    let expected: Vec<&Value> = all().iter().filter(|event| condition(event)).collect();
    assert!(!expected.is_empty() && expected.len() < all().len(), "{options:?} shows nothing");
    let found = events(options);
    let numbers = |events: &[&Value]| events.iter().map(|e| e["event"].as_u64()).collect::<Vec<_>>();
    assert_eq!(numbers(&found.iter().collect::<Vec<_>>()), numbers(&expected), "{options:?}");
}

fn hex(value: &Value) -> u64 {
    let text = value.as_str().and_then(|text| text.strip_prefix("0x")).expect("an address");
    u64::from_str_radix(text, 16).expect("hexadecimal")
}

#[test]
fn by_task() {
    if skip_without_bpf("events_filters") {
        return;
    }
    let thread = all().iter().find(|event| event["tid"] != event["pid"]).expect("a thread");
    let (tid, pid) = (thread["tid"].to_string(), thread["pid"].to_string());
    check(&["--tid", &tid], |event| event["tid"] == thread["tid"]);
    check(&["--pid", &pid], |event| event["pid"] == thread["pid"]);
    check(&["--comm", "oddcalls"], |event| event["comm"] == "oddcalls");
    check(&["--comm", "sh,churn"], |event| event["comm"] == "sh" || event["comm"] == "churn");
    let main = all()[0]["tid"].to_string();
    check(&["--tid", &format!("{tid},{main}")], |event| {
        event["tid"] == thread["tid"] || event["tid"] == all()[0]["tid"]
    });
}

#[test]
fn by_call_and_class() {
    if skip_without_bpf("events_filters") {
        return;
    }
    let is = |names: &'static [&'static str]| {
        move |event: &Value| names.contains(&event["op"].as_str().expect("a name"))
    };
    check(&["--call", "mmap"], is(&["mmap"]));
    check(&["--call", "mmap,munmap"], is(&["mmap", "munmap"]));
    check(&["--call", "unmap"], is(&["munmap", "shmdt", "io_destroy"]));
    check(&["--call", "protect"], is(&["mprotect", "pkey_mprotect"]));
    check(&["--call", "advise"], is(&["madvise", "process_madvise"]));
    check(&["--call", "task"], is(&["clone", "execve", "exit", "rename"]));
    check(
        &["--call", "map,task"],
        is(&[
            "mmap",
            "mremap",
            "brk",
            "shmat",
            "remap_file_pages",
            "io_setup",
            "clone",
            "execve",
            "exit",
            "rename",
        ]),
    );
    let output = run(&["--call", "nonsense"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("munmap"), "what would do is listed");
}

#[test]
fn by_size_address_result_and_time() {
    if skip_without_bpf("events_filters") {
        return;
    }
    check(&["--min-size", "1M"], |event| event["size"].as_u64() >= Some(1 << 20));
    check(&["--max-size", "4K"], |event| event["size"].as_u64().is_some_and(|size| size <= 4096));
    check(&["--min-size", "4096", "--max-size", "0x2000"], |event| {
        event["size"].as_u64().is_some_and(|size| (4096..=8192).contains(&size))
    });
    let touches = |event: &Value, from: u64, to: u64| {
        let ranges = event["ranges"].as_array().expect("ranges");
        ranges.iter().any(|range| hex(&range["start"]) < to && from < hex(&range["end"]))
    };
    check(&["--addr", "0x10000123"], |event| touches(event, 0x1000_0123, 0x1000_0124));
    check(&["--addr", "10000000-10002000"], |event| touches(event, 0x1000_0000, 0x1000_2000));
    check(&["--failed"], |event| !event["error"].is_null());
    let middle = all()[all().len() / 2]["elapsed_ns"].as_u64().expect("a time");
    let seconds = format!("{:.9}", middle as f64 / 1e9);
    let near = |event: &Value| event["elapsed_ns"].as_u64().expect("a time").abs_diff(middle) <= 1;
    // seconds are a float: the event at the boundary itself may fall on either side
    let without_boundary = |events: Vec<Value>| events.into_iter().filter(|e| !near(e)).count();
    let later = all().iter().filter(|e| e["elapsed_ns"].as_u64() > Some(middle + 1)).count();
    let earlier = all().iter().filter(|e| e["elapsed_ns"].as_u64() < Some(middle - 1)).count();
    assert_eq!(without_boundary(events(&["--since", &seconds])), later);
    assert_eq!(without_boundary(events(&["--until", &seconds])), earlier);
}

#[test]
fn by_stack() {
    if skip_without_bpf("events_filters") {
        return;
    }
    let frames = |event: &Value| event["stack"]["frames"].as_array().cloned().unwrap_or_default();
    let text = |frame: &Value, key: &str| frame[key].as_str().unwrap_or_default().to_owned();
    check(&["--stack", "^segments$"], |event| frames(event).iter().any(|f| text(f, "symbol") == "segments"));
    check(&["--stack", "^ld-linux"], |event| {
        frames(event).iter().any(|f| text(f, "module").starts_with("ld-linux"))
    });
    // Lines have a budget of time, which a busy machine may use up.
    if all().iter().any(|event| frames(event).iter().any(|f| f["line"].is_u64())) {
        check(&["--stack", r"oddcalls\.c:\d+$"], |event| {
            frames(event).iter().any(|f| text(f, "file").ends_with("oddcalls.c") && f["line"].is_u64())
        });
    } else {
        support::skip("events_filters", "no source lines in time");
    }
    // also where the stacks themselves are not printed
    let silent = events(&["--stack", "^segments$", "--no-stacks"]);
    assert_eq!(silent.len(), events(&["--stack", "^segments$"]).len());
    assert!(silent.iter().all(|event| event.get("stack").is_none()));
    assert_eq!(run(&["--stack", "("]).status.code(), Some(2));
}

#[test]
fn filters_join_and_head_ends() {
    if skip_without_bpf("events_filters") {
        return;
    }
    check(&["--comm", "oddcalls", "--call", "madvise", "--failed"], |event| {
        event["comm"] == "oddcalls" && event["op"] == "madvise" && !event["error"].is_null()
    });
    let first: Vec<Value> = all().iter().filter(|e| e["op"] == "mmap").take(3).cloned().collect();
    assert_eq!(events(&["--call", "mmap", "--head", "3"]), first);
}

#[test]
fn text_has_the_same_events_and_every_stack() {
    if skip_without_bpf("events_filters") {
        return;
    }
    let text = String::from_utf8(run(&[]).stdout).expect("UTF-8");
    let heads = text.lines().filter(|line| !line.trim_start().starts_with('>')).count();
    assert_eq!(heads, all().len());
    let frames: usize = all().iter().map(|e| e["stack"]["frames"].as_array().map_or(0, Vec::len)).sum();
    // What a stack lacks has a line of its own, in brackets.
    let is_frame = |line: &&str| line.starts_with("     > ") && !line.starts_with("     > (");
    assert_eq!(text.lines().filter(is_frame).count(), frames);
    assert!(!text.contains('\u{1b}'), "colours without a terminal");
    for (style, begins) in [("monotonic", "."), ("clock", "Z ")] {
        let text =
            String::from_utf8(run(&["--time", style, "--head", "1", "--no-stacks"]).stdout).expect("UTF-8");
        assert!(text.contains(begins), "{style}: {text}");
    }
}

#[test]
fn a_closed_pipe_is_no_failure() {
    if skip_without_bpf("events_filters") {
        return;
    }
    let mut child = Command::new(vmaudit())
        .arg("events")
        .arg(recording())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("vmaudit starts");
    let mut first = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut first).expect("a line");
    assert!(first.starts_with("    0.000000"), "{first}");
    let mut errors = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut errors).expect("UTF-8");
    assert_eq!((child.wait().expect("ends").code(), errors.as_str()), (Some(0), ""));
}

#[test]
fn live_events_are_the_commands_and_so_is_the_exit_status() {
    if skip_without_bpf("events_filters") {
        return;
    }
    let script = "echo out; exit 7";
    let live = |options: &[&str]| {
        let mut run = Command::new(vmaudit());
        run.args(["events", "--as-root"]).args(options);
        run.args(["--", "/bin/sh", "-c", script]).output().expect("vmaudit starts")
    };
    let output = live(&["--no-stacks"]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(output.stdout, b"out\n", "standard output is the command's");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("execve(\"/") && text.contains("+++ exited with 7 +++"), "{text}");
    let output = live(&["-f", "json", "--call", "exit", "--report", "-"]);
    let text = String::from_utf8_lossy(&output.stdout);
    let json = text.lines().find(|line| line.starts_with('{')).expect("an event");
    let event: Value = serde_json::from_str(json).expect("JSON");
    assert_eq!(event["args"]["exit_code"], 7);
    let missing =
        Command::new(vmaudit()).args(["events", "--", "/no/such/program"]).output().expect("starts");
    assert_eq!(missing.status.code(), Some(127));
}

#[test]
fn live_stacks_have_names() {
    if skip_without_bpf("events_filters") {
        return;
    }
    let mut run = Command::new(vmaudit());
    run.args([
        "events",
        "--as-root",
        "-f",
        "json",
        "--report",
        "-",
        "--stack",
        "^segments$",
        "--call",
        "shmat",
    ]);
    let output = run.arg("--").arg(program("oddcalls")).output().expect("vmaudit starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 3, "{text}");
    for event in &lines {
        let frames = event["stack"]["frames"].as_array().expect("frames");
        let frame = frames.iter().find(|frame| frame["symbol"] == "segments").expect("the caller");
        // null where the budget of time for source lines was used up
        assert!(frame["file"].as_str().is_none_or(|file| file.ends_with("oddcalls.c")), "{frame}");
        assert_eq!(event["stack"]["completeness"], "complete");
    }
}

#[test]
fn unusable_command_lines() {
    for args in [&["events"][..], &["events", "a.rec", "--", "true"], &["events", "x", "--min-size", "lots"]]
    {
        let output = Command::new(vmaudit()).args(args).output().expect("vmaudit starts");
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
    let output = Command::new(vmaudit()).args(["events", "/no/such/file"]).output().expect("vmaudit starts");
    assert_eq!(output.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/no/such/file"));
}
