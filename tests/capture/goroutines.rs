//! Stacks of Go programs through the runtime's own stack: each call is its own goroutine's, and no other's.

use crate::support::{audit, go_program, go_program_of, skip, skip_without_bpf, vmaudit};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
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

/// The functions of a stack, innermost first.
fn functions(stack: &Value) -> Vec<&str> {
    list(&stack["frames"]).iter().map(|frame| text(&frame["symbol"])).collect()
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

/// The program as it is built by default, and position independent. Empty where it cannot be.
fn built(test: &str, name: &str) -> Vec<std::path::PathBuf> {
    if skip_without_bpf(test) {
        return Vec::new();
    }
    let built = [go_program(name, &[]), go_program_of(name, "pie", &["-buildmode=pie"])];
    let found: Vec<_> = built.into_iter().flatten().collect();
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
                assert_eq!(functions[at + 1..], [&worker, "main.main.func1", "runtime.goexit.abi0"], "{of}");
                let goes_through = |name: &&str| name.starts_with("runtime.systemstack");
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
                assert_eq!(functions.get(at + 1), Some(&"main.deep"), "{of}");
                moved += 1;
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
        let with = |name: &str| -> Vec<Vec<&str>> {
            stacks().map(functions).filter(|functions| functions.contains(&name)).collect()
        };
        // The runtime calls C on a stack that it has aligned.
        for stack in stacks() {
            assert!(list(&stack["frames"]).iter().all(|frame| frame["module"] != "[unknown]"), "{stack:#?}");
        }
        let follow = |functions: &[&str], expected: &[&str]| {
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
            let found = with(innermost);
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

/// Without symbols nothing is named, but each stack ends where its goroutine does.
#[test]
fn stacks_of_stripped_programs_are_complete() {
    const TEST: &str = "stacks_of_stripped_programs_are_complete";
    if skip_without_bpf(TEST) {
        return;
    }
    let Some(program) = go_program("goroutines", &["-ldflags=-s -w"]) else { return skip(TEST, "no go") };
    let large = |call: &Value| call["op"] == "mmap" && call["size"].as_u64() >= Some(64 * MIB);
    // The tables that the runtime reserves before there is a goroutine are larger.
    let grown = |call: &Value| large(call) && call["size"].as_u64() < Some(256 * MIB);
    let calls = calls(&program);
    let grown: Vec<&Value> = calls.iter().filter(|call| grown(call)).collect();
    let complete = |call: &&&Value| call["stack"]["completeness"] == "complete";
    let found = grown.iter().filter(complete).count();
    assert!(grown.len() as u64 > TURNS, "{grown:#?}");
    assert!(found as u64 > TURNS, "{found} of {}: {grown:#?}", grown.len());
}
