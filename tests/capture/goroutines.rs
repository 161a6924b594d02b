//! Stacks of Go programs through the runtime's own stack: each call is its own goroutine's, and no other's.

use crate::support::managed::waiting;
use crate::support::{Guard, audit, go_program_of, program, skip, skip_without_bpf, vmaudit};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const MIB: u64 = 1 << 20;
/// `goroutines.go`: each maps as many times, with sizes of its own.
const TURNS: u64 = 8;

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A function's name as Go says it: without the mark of the assembler's calling convention, and what a generic one is
/// made for.
pub fn plain(name: &str) -> String {
    let name = name.strip_suffix(".abi0").unwrap_or(name);
    match name.split_once('[') {
        Some((before, rest)) => {
            format!("{before}[...]{}", rest.rsplit_once(']').map_or("", |(_, behind)| behind))
        }
        None => name.to_owned(),
    }
}

/// The functions of a stack, innermost first.
fn functions(stack: &Value) -> Vec<String> {
    list(&stack["frames"]).iter().map(|frame| plain(text(&frame["symbol"]))).collect()
}

/// All calls of a program that changed its address space.
fn calls(program: &Path) -> Vec<Value> {
    let folder = tempfile::tempdir().expect("a folder");
    let events = folder.path().join("events");
    let mut command = Command::new(vmaudit());
    command.args(["events", "-f", "json", "--report"]).arg(&events).arg("--").arg(program);
    let output = command.stdin(Stdio::null()).output().expect("vmaudit starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let events = fs::read_to_string(&events).expect("events");
    events.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")).collect()
}

const STRIPPED: &str = "-ldflags=-s -w";

/// The program as it is built by default, position independent, and both stripped, also by a C linker. Empty where it
/// cannot be.
fn built(test: &str, name: &str) -> Vec<PathBuf> {
    if skip_without_bpf(test) {
        return Vec::new();
    }
    let found: Vec<PathBuf> = [
        ("go", &[][..]),
        ("go-stripped", &[STRIPPED]),
        ("pie", &["-buildmode=pie"]),
        ("pie-stripped", &["-buildmode=pie", STRIPPED]),
        ("pie-linked-stripped", &["-buildmode=pie", "-ldflags=-s -w -linkmode=external"]),
    ]
    .into_iter()
    .filter_map(|(kind, flags)| go_program_of(name, kind, flags))
    .collect();
    if found.is_empty() {
        skip(test, "no go");
    }
    found
}

/// Four goroutines take turns on two threads.
#[test]
fn no_call_has_another_goroutines_functions() {
    for program in built("no_call_has_another_goroutines_functions", "goroutines") {
        let mut seen = BTreeSet::new();
        let mut moved = 0;
        for call in calls(&program) {
            let functions = functions(&call["stack"]);
            let mapper = functions.iter().position(|name| name.starts_with("main.map"));
            let of = format!("{}: {functions:#?}", program.display());
            if let Some(at) = mapper {
                let number = functions[at].strip_prefix("main.map").expect("a number");
                let worker = format!("main.work{number}");
                assert_eq!(functions[at + 1..], [&worker, "main.main.func1", "runtime.goexit"], "{of}");
                let goes_through = |name: &String| name.starts_with("runtime.systemstack");
                assert!(functions[..at].iter().any(goes_through), "{of}");
                let number: u64 = number.parse().expect("a number");
                // That the block may have part of what the heap grew by before, and the heap grows by whole arenas.
                let size = call["size"].as_u64().unwrap_or_default();
                if call["op"] == "mmap" && size >= 64 * MIB {
                    seen.insert((number, call["pid"].as_u64(), size));
                }
            }
            if let Some(at) = functions.iter().position(|name| name.starts_with("runtime.morestack"))
                && call["op"] == "mmap"
            {
                let next = functions.get(at + 1).map(String::as_str);
                // One that is preempted there was given away before another thread is started for it.
                if functions.iter().any(|name| name == "runtime.gopreempt_m") {
                    assert_eq!(next, None, "{of}");
                } else {
                    assert_eq!(next, Some("main.deep"), "{of}");
                    moved += 1;
                }
            }
        }
        let mappers: BTreeSet<u64> = seen.iter().map(|(number, ..)| *number).collect();
        assert_eq!(mappers, BTreeSet::from([0, 1, 2, 3]), "{seen:?}");
        assert!(seen.len() as u64 > TURNS, "{seen:?}");
        assert!(moved > 0, "{}", program.display());
    }
}

#[test]
fn c_code_and_what_it_calls_are_the_goroutines() {
    for program in built("c_code_and_what_it_calls_are_the_goroutines", "goroutines_cgo") {
        let calls = calls(&program);
        let stacks = || calls.iter().filter(|call| call["op"] == "mmap").map(|call| &call["stack"]);
        let with = |name: &str| -> Vec<Vec<String>> {
            stacks().map(functions).filter(|functions| functions.iter().any(|found| found == name)).collect()
        };
        // The runtime calls C on a stack that it has aligned.
        for stack in stacks() {
            assert!(list(&stack["frames"]).iter().all(|frame| frame["module"] != "[unknown]"), "{stack:#?}");
        }
        let follow = |functions: &[String], expected: &[&str]| {
            let mut left = functions.iter();
            expected.iter().all(|name| left.any(|found| found.starts_with(name)))
        };
        let end = ["main.main.func1", "runtime.goexit"];
        for (innermost, between) in [
            ("c_map", &["runtime.asmcgocall", "runtime.cgocall", "main.intoC"][..]),
            (
                "main.mapBack",
                &["main.goBack", "runtime.cgocallback", "runtime.systemstack_switch", "main.intoC"],
            ),
            ("main.mapHere", &[]),
        ] {
            // The C function's name is gone with the symbols.
            let stripped = innermost == "c_map" && program.to_string_lossy().ends_with("stripped");
            let found: Vec<_> = match stripped {
                true => with("main.intoC")
                    .into_iter()
                    .filter(|f| !f.contains(&"main.goBack".to_owned()))
                    .collect(),
                false => with(innermost),
            };
            let innermost = if stripped { "" } else { innermost };
            assert!(!found.is_empty(), "{}: nothing of {innermost}", program.display());
            for functions in found {
                assert!(follow(&functions, &[&[innermost], between, &end].concat()), "{functions:#?}");
            }
        }
    }
}

/// The heap's growth is reported by requesting stack.
#[test]
fn a_finding_names_who_made_the_heap_grow() {
    for program in built("a_finding_names_who_made_the_heap_grow", "goroutines") {
        let audited = audit(&[], &[program.as_os_str()]);
        let report = &audited.report().json;
        let stacks = list(&report["stacks"]);
        let named: BTreeSet<&str> = list(&report["processes"][0]["findings"])
            .iter()
            .filter(|finding| finding["category"] == "go-heap")
            .filter_map(|finding| {
                let stack = &stacks[finding["stack"].as_u64()? as usize];
                Some(text(&list(&stack["frames"])[stack["caller"].as_u64()? as usize]["symbol"]))
            })
            .collect();
        for number in 0..4 {
            let name = format!("main.map{number}");
            assert!(named.contains(&*name), "{}: {named:?}", program.display());
        }
    }
}

/// What Go itself says of each call's stack: functions, also those that were compiled into others, files and lines.
#[test]
fn names_and_lines_are_those_that_the_program_says() {
    for program in built("names_and_lines_are_those_that_the_program_says", "go_frames") {
        let folder = tempfile::tempdir().expect("a folder");
        let events = folder.path().join("events");
        let mut command = Command::new(vmaudit());
        command.args(["events", "-f", "json", "--report"]).arg(&events).arg("--").arg(&program);
        let output = command.stdin(Stdio::null()).output().expect("vmaudit starts");
        let said = String::from_utf8(output.stdout).expect("UTF-8");
        let calls = fs::read_to_string(&events).expect("events");
        let calls: Vec<Value> = calls.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert!(said.lines().count() > 8, "{said}");
        for line in said.lines() {
            let mut words = line.split('\t');
            let size: u64 = words.next().and_then(|size| size.parse().ok()).expect("a size");
            let words: Vec<&str> = words.collect();
            let expected: Vec<(String, &str, Option<u64>)> = words
                .chunks_exact(3)
                .map(|frame| (plain(frame[0]), frame[1], frame[2].parse().ok()))
                .collect();
            let call = calls.iter().find(|call| call["op"] == "mmap" && call["size"].as_u64() == Some(size));
            let call = call.unwrap_or_else(|| panic!("{}: no call of {size}", program.display()));
            let found: Vec<(String, &str, Option<u64>)> = list(&call["stack"]["frames"])
                .iter()
                .map(|frame| (plain(text(&frame["symbol"])), text(&frame["file"]), frame["line"].as_u64()))
                .skip_while(|(name, ..)| name != "main.mapped")
                .skip(1)
                .collect();
            assert_eq!(found, expected, "{}", program.display());
            assert_eq!(call["stack"]["completeness"], "complete", "{}: {call:#}", program.display());
        }
    }
}

/// Starts tracing the calls of a process, lets it go on with a line, and waits for the end of both.
fn calls_of(mut process: Guard) -> Vec<Value> {
    let folder = tempfile::tempdir().expect("a folder");
    let events = folder.path().join("events");
    let mut command = Command::new(vmaudit());
    command.args(["events", "-f", "json", "--report"]).arg(&events);
    command.args(["-p", &process.0.id().to_string()]).stdin(Stdio::null()).stderr(Stdio::piped());
    let mut auditor = Guard(command.spawn().expect("vmaudit starts"));
    let mut stderr = BufReader::new(auditor.0.stderr.take().expect("a pipe"));
    let mut said = String::new();
    while !said.contains("Ctrl-C ends tracing") {
        assert!(stderr.read_line(&mut said).expect("UTF-8") > 0, "{said}");
    }
    process.0.stdin.as_mut().expect("a pipe").write_all(b"\n").expect("it reads");
    stderr.read_to_string(&mut said).expect("UTF-8");
    assert!(auditor.finish().expect("it ends").status.success(), "{said}");
    let events = fs::read_to_string(&events).expect("events");
    events.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// A library finds its thread's goroutine by a word that the loader writes, as programs do that others link to
/// (Debian's dockerd).
#[test]
fn a_stripped_library_of_c() {
    const TEST: &str = "a_stripped_library_of_c";
    if skip_without_bpf(TEST) {
        return;
    }
    let library = go_program_of("go_shared", "stripped-library", &["-buildmode=c-shared", STRIPPED]);
    let Some(library) = library else { return skip(TEST, "no go") };
    let calls = calls_of(waiting(Command::new(program("go_shared")).arg(library)));
    let grown = |size: u64| -> BTreeSet<(Vec<String>, String)> {
        let of_size = |call: &&Value| call["op"] == "mmap" && call["size"].as_u64() == Some(size * MIB);
        let stacks = calls.iter().filter(of_size).map(|call| &call["stack"]);
        let behind = |stack: &Value| {
            let functions = functions(stack).into_iter();
            let from = functions.skip_while(|name| !name.starts_with("runtime.systemstack"));
            let from = from.skip_while(|name| name != "main.grow").skip(1);
            let kept = from.filter(|name| name.starts_with("main.") || name == "runtime.goexit");
            (kept.collect(), text(&stack["completeness"]).to_owned())
        };
        stacks.map(behind).collect()
    };
    let of = |names: [&str; 2], completeness: &str| {
        BTreeSet::from([(names.map(str::to_owned).to_vec(), completeness.to_owned())])
    };
    // What C did before is on the thread's own stack, which is not gone back to.
    let (from_c, alone) = (
        of(["main.Grow", "runtime.goexit"], "incomplete"),
        of(["main.Grow.func1", "runtime.goexit"], "complete"),
    );
    let sizes: BTreeSet<u64> = calls.iter().filter_map(|call| Some(call["size"].as_u64()? / MIB)).collect();
    // The heap grows by whole arenas, and a block may have part of what it grew by before.
    assert!((64..512).any(|size| grown(size) == from_c), "{sizes:?}: {calls:#?}");
    assert!((64..512).any(|size| grown(size) == alone), "{sizes:?}: {calls:#?}");
}
