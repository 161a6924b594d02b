//! Programs that make more calls than can be read as they come.

use crate::support::report::{spans_of_maps, spans_of_regions};
use crate::support::stacks::calls_of;
use crate::support::{Guard, audit, program, program_built, skip_without_bpf, vmaudit};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn busy_threads_lose_no_call() {
    if skip_without_bpf("busy") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let maps = folder.path().join("maps");
    let words = ["16".as_ref(), "3000".as_ref(), maps.as_os_str(), "mixed".as_ref()];
    let audit = audit(&[], &[&[program("storm").as_os_str()][..], &words].concat());
    assert_eq!(audit.code(), Some(0), "{}", audit.stderr);
    let report = audit.report();
    assert_eq!(report.event("lost"), 0, "{}", audit.stderr);
    let text = std::fs::read(&maps).expect("the program's own maps");
    assert_eq!(spans_of_regions(report.first()), spans_of_maps(&text));
    assert_eq!(report.first()["coverage"]["ledger_drift"], 0);
}

const CALLS: usize = 3000;

/// The calls of one thread, with their stacks. It makes the second half of them when most of the first half
/// have been read.
fn calls_of_storm(
    storm: &Path,
    backend: &str,
) -> (Vec<(String, Vec<crate::support::stacks::Frame>)>, String) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (fifo, maps) = (folder.path().join("events"), folder.path().join("maps"));
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    // For writing, too: opening it does not wait then, nor does it end before vmaudit has opened it.
    let ours = File::options().read(true).write(true).open(&fifo).expect("its reader");
    let mut run = Command::new(vmaudit());
    run.args(["events", "--as-root", "-v", "--backend", backend, "-f", "json", "--aslr", "off", "--report"]);
    run.arg(&fifo).arg("--").arg(storm).args(["1", &CALLS.to_string()]).arg(&maps);
    run.args(["mixed", "wait"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut session = Guard(run.spawn().expect("vmaudit starts"));
    let mut go = session.0.stdin.take().expect("piped");
    let mut events = BufReader::new(File::open(&fifo).expect("its reader"));
    let of_thread = |event: &Value| event["pid"] != event["tid"] && !event["stack"]["frames"].is_null();
    let (mut text, mut read) = (String::new(), 0);
    while read < CALLS / 3 {
        let from = text.len();
        events.read_line(&mut text).expect("an event");
        read += usize::from(of_thread(&serde_json::from_str(&text[from..]).expect("JSON")));
    }
    go.write_all(b"\n").expect("it reads");
    drop(ours);
    events.read_to_string(&mut text).expect("until its end");
    let output = session.finish().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let mut calls = calls_of(&text, of_thread);
    assert_eq!(calls.len(), 1, "one thread is not the first");
    (calls.pop_first().map(|(_, calls)| calls).unwrap_or_default(), said)
}

/// The kernel uses the address of an mm_struct again, and without randomised addresses the next process has the same
/// stacks: what is known of the one that has ended is not taken for the next one's.
#[test]
fn short_processes_have_all_their_stacks() {
    if skip_without_bpf("busy") {
        return;
    }
    let script = "i=0; while [ $i -lt 100 ]; do /bin/true; i=$((i + 1)); done";
    let audit = audit(&["--aslr", "off", "--min-virt", "0"], &["sh", "-c", script]);
    assert_eq!(audit.code(), Some(0), "{}", audit.stderr);
    let report = audit.report();
    assert!(report.event("seen") > 1000, "{}", audit.stderr);
    assert_eq!(report.event("lost"), 0, "{}", audit.stderr);
    assert_eq!(report.json["events"].get("without_stack"), None, "{}", audit.stderr);
}

/// What the kernel's side sends as the number of a stack is that stack: with notify, each is copied and
/// unwound.
#[test]
fn stacks_that_were_known_already_are_the_same() {
    if skip_without_bpf("busy") {
        return;
    }
    known_stacks_are_the_same(&program("storm"));
}

/// Their frames are found by what they have saved.
#[test]
fn so_are_those_of_programs_with_frame_pointers() {
    if skip_without_bpf("busy") {
        return;
    }
    let flags = ["gcc", "-O0", "-g", "-fno-omit-frame-pointer", "-fno-builtin", "-pthread"];
    known_stacks_are_the_same(&program_built("storm.c", &flags).expect("it compiles"));
}

/// There, a call of this very function proves each frame.
#[test]
fn so_are_those_of_programs_without_unwind_tables() {
    if skip_without_bpf("busy") {
        return;
    }
    let flags =
        ["gcc", "-O0", "-g", "-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables", "-pthread"];
    known_stacks_are_the_same(&program_built("storm.c", &flags).expect("it compiles"));
}

fn known_stacks_are_the_same(storm: &Path) {
    let (sent, said) = calls_of_storm(storm, "bpf");
    let (unwound, _) = calls_of_storm(storm, "notify");
    assert!(sent.len() > CALLS * 3 / 4, "{}", sent.len());
    assert_eq!(sent.len(), unwound.len());
    for ((call, sent), (other, unwound)) in sent.iter().zip(&unwound) {
        let place = |(module, offset, _): &(String, String, bool)| (module.clone(), offset.clone());
        let places = [sent, unwound].map(|frames| frames.iter().map(place).collect::<Vec<_>>());
        assert_eq!((call, &places[0]), (other, &places[1]));
        // Notify has no registers but two: what an earlier call has left on the stack, which differs between
        // processors, may leave it with a guess where the kernel's side knows.
        let surer = sent.iter().zip(unwound).all(|(sent, unwound)| sent.2 <= unwound.2);
        assert!(surer, "{call}: {sent:?} {unwound:?}");
    }
    let known =
        said.lines().find_map(|line| line.split_once(" stacks were copied, ")?.1.split_once(" were known"));
    let known: usize = known.expect("it says so").0.parse().expect("a number");
    assert!(known > CALLS / 4, "{said}");
}
