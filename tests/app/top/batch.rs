//! `vmaudit top -b`: plain text, for scripts; and what is refused.

use crate::support::container::Talk;
use crate::support::report::number;
use crate::support::{AuditReport, Guard, program, vmaudit, watchdog};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};
use vmaudit::report::units::size;

fn top(args: &[&str]) -> Output {
    watchdog::output(Command::new(vmaudit()).arg("top").args(args).stdin(Stdio::null()))
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn app() -> Talk {
    Talk::start(&mut Command::new(program("container_app"))).expect("it starts")
}

#[test]
fn totals_and_categories_are_those_of_snapshot() {
    let mut app = app();
    app.send("m");
    app.send("t");
    app.client.signal(libc::SIGSTOP);
    let pid = app.client.0.id().to_string();
    let stat = || std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    while !stat().contains(") T ") {
        std::thread::yield_now();
    }
    let shown = top(&["-b", "-n", "1", "-p", &pid]);
    let snapshot =
        Command::new(vmaudit()).args(["snapshot", "-f", "json", "-p", &pid]).output().expect("it runs");
    app.client.signal(libc::SIGCONT);
    assert_eq!(shown.status.code(), Some(0));
    let shown = text(&shown);
    let report = AuditReport::parse(&snapshot.stdout);
    let process = &report.processes()[0];
    let figure = |of: &serde_json::Value, name: &str| size(number(of, name));
    let totals = &process["totals"];
    let line = format!(
        "VIRT {}   RSS {}   unused {} ",
        figure(totals, "virt"),
        figure(totals, "rss"),
        figure(totals, "unused")
    );
    assert!(shown.contains(&line), "{line}\nis not in\n{shown}");
    let rows = process["categories"].as_array().expect("rows");
    assert!(rows.len() > 5);
    for row in rows {
        let name = row["name"].as_str().expect("a name");
        let found = shown.lines().find(|line| line.trim_start().starts_with(name));
        let words: String = found.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        let expected = ["virt", "writable", "rss", "unused"].map(|name| figure(row, name)).join(" ");
        let expected = format!("{name} {expected} {} 0", number(row, "regions"));
        assert_eq!(words, expected, "{shown}");
    }
}

/// The line with the sums of an open process ends with its growth.
fn growth(line: &str) -> Option<&str> {
    line.split_once("   growth ").map(|part| part.1).filter(|rest| !rest.trim().is_empty())
}

#[test]
fn growth_shows_in_one_of_the_next_frames_and_a_signal_ends_it() {
    let mut app = app();
    let pid = app.client.0.id().to_string();
    let mut command = Command::new(vmaudit());
    command.args(["top", "-b", "-i", "0.1", "-p", &pid]).stdout(Stdio::piped());
    let mut running = Guard(command.spawn().expect("it starts"));
    let mut lines = BufReader::new(running.0.stdout.take().expect("a pipe")).lines();
    let mut next =
        || lines.by_ref().map(|line| line.expect("text")).find_map(|l| growth(&l).map(str::to_owned));
    assert_eq!(next().as_deref(), Some("0"));
    app.send("m");
    while let Some(shown) = next() {
        if shown != "0" {
            assert_eq!(shown, "+3.0 MiB");
            break;
        }
    }
    running.signal(libc::SIGTERM);
    assert_eq!(running.0.wait().expect("it ends").code(), Some(0));
}

#[test]
fn as_many_frames_as_requested() {
    let app = app();
    let shown = top(&["-b", "-n", "3", "-i", "0.05", "-p", &app.client.0.id().to_string()]);
    assert_eq!(shown.status.code(), Some(0));
    let shown = text(&shown);
    assert_eq!(shown.lines().filter_map(growth).collect::<Vec<_>>(), ["0"; 3], "{shown}");
}

#[test]
fn the_machine_has_all_processes_once() {
    let app = app();
    let pid = app.client.0.id().to_string();
    let shown = text(&top(&["-b", "-n", "1", "-s", "name"]));
    let mut lines = shown.lines();
    assert!(lines.next().is_some_and(|line| line.starts_with("vmaudit top · ")), "{shown}");
    let pids: Vec<&str> = lines.skip(2).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(pids.iter().filter(|found| **found == pid).count(), 1, "{shown}");
    let row = shown.lines().find(|line| line.split_whitespace().next() == Some(&pid)).expect("a row");
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).expect("it lives");
    let pages: Vec<u64> = statm.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(row.contains(&size(pages[0] * 4096)) && row.contains(&size(pages[1] * 4096)), "{row}\n{statm}");
    assert!(!shown.contains('\x1b') && !shown.contains('▶'), "{shown}");
}

#[test]
fn odd_names_do_no_harm() {
    // The name of a process is the file's that is executed.
    let folder = tempfile::tempdir().expect("a folder");
    let odd = std::ffi::OsStr::new("\x1b[2J\n漢\u{202e}x");
    let file = folder.path().join(odd);
    std::fs::copy("/bin/sh", &file).expect("copied");
    let mut shell = Command::new(&file);
    let talk = Talk::start(shell.args(["-c", "echo READY; read line"])).expect("it starts");
    let pid = talk.client.0.id().to_string();
    for args in
        [&["-b", "-n", "1", "-p", &pid][..], &["-b", "-n", "1", "-p", &pid, &std::process::id().to_string()]]
    {
        let shown = text(&top(args));
        assert!(shown.contains("\\u{1b}[2J"), "{shown}");
        assert!(!shown.contains('\x1b') && !shown.contains('\u{202e}'), "{shown}");
    }
}

#[test]
fn it_ends_with_the_given_processes() {
    let app = app();
    let pid = app.client.0.id().to_string();
    let mut command = Command::new(vmaudit());
    command.args(["top", "-b", "-i", "0.1", "-p", &pid]).stdout(Stdio::piped());
    let mut running = Guard(command.spawn().expect("it starts"));
    let mut first = [0; 64];
    running.0.stdout.as_mut().expect("a pipe").read_exact(&mut first).expect("a frame");
    drop(app);
    let output = running.finish().expect("it ends");
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stdout).contains("has ended; this is its last state"));
}

#[test]
fn what_cannot_be_is_refused_with_the_reason() {
    let own = std::process::id().to_string();
    for (args, code, words) in [
        (&["-p", &own][..], 2, "vmaudit top -b"),
        (&["-b", "-t"], 2, "--pid"),
        (&["-b", "-p", "2147483647"], 125, "no process 2147483647"),
        (&["-b", "--cgroup", "/nowhere/at/all"], 125, "/nowhere/at/all"),
        (&["-b", "--container", "no-such-container-here"], 125, "no-such-container-here"),
        (&["-b", "-t", "--backend", "perf", "-p", &own], 2, "--backend bpf"),
        (&["-b", "-n", "0"], 2, "iterations"),
    ] {
        let output = top(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {said}");
        assert!(output.stdout.is_empty());
    }
    // Of several, those that are there are shown.
    let output = top(&["-b", "-n", "1", "-p", &own, "2147483647"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no process 2147483647"));
}
