//! `heap -f …`: what other programs read is what the JSON report says.

use crate::support::{program, skip, vmaudit, watchdog};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use vmaudit::heap::report::{HeapReport, HeapSite};
use vmaudit::render::heap_to_heaptrack;

/// Of `heap_peak`: each allocates, with sizes of its own.
const FUNCTIONS: [&str; 3] = ["first", "second", "third"];

fn report_of(arguments: &[&str]) -> HeapReport {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("report.json");
    let mut command = Command::new(vmaudit());
    command.args(["heap", "--as-root", "-f", "json", "--report"]).arg(&file).arg("--");
    let output = watchdog::output(command.arg(program("heap_peak")).args(arguments));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&std::fs::read(file).expect("a report")).expect("JSON")
}

/// A figure of heaptrack's by function, from the stacks that it prints for flame graphs.
fn reported(file: &Path, cost: &str) -> BTreeMap<String, u64> {
    let stacks = file.with_extension(cost);
    let mut command = Command::new("heaptrack_print");
    command.args(["--flamegraph-cost-type", cost, "-F"]).arg(&stacks).arg(file);
    let output = watchdog::output(&mut command);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && !said.contains("failed to parse"), "{said}");
    let mut sums = BTreeMap::new();
    for line in std::fs::read_to_string(stacks).expect("stacks").lines() {
        let (frames, cost) = line.rsplit_once(' ').expect("a value");
        // "first (heap_peak.c)"
        let names = frames.split(';').map(|frame| frame.split(" (").next().unwrap_or(frame));
        let own = names.rev().find(|name| FUNCTIONS.contains(name));
        *sums.entry(own.unwrap_or("others").to_owned()).or_default() +=
            cost.parse::<u64>().expect("a number");
    }
    sums
}

type Figure = fn(&HeapSite) -> u64;

#[test]
fn heaptrack_reads_the_same() {
    match Command::new("heaptrack_print").arg("--help").output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return skip("heaptrack_reads_the_same", "heaptrack_print is not installed");
        }
        other => drop(other.expect("heaptrack_print")),
    }
    let report = report_of(&[]);
    let process = &report.processes[0];
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("heap.zst");
    std::fs::write(&file, heap_to_heaptrack(&report, process).expect("a file")).expect("written");
    let of = |name: &str, value: fn(&HeapSite) -> u64| -> u64 {
        let is_meant = |site: &&HeapSite| {
            let stack = site.stack.map(|at| &report.stacks[at as usize]);
            stack.is_some_and(|stack| stack.frames.iter().any(|frame| frame.symbol.as_deref() == Some(name)))
        };
        process.sites.iter().filter(is_meant).map(value).sum()
    };
    let figures: [(&str, Figure); 4] = [
        ("allocations", |site| site.allocations),
        ("temporary", |site| site.temporary.expect("known")),
        ("leaked", |site| site.allocated_bytes - site.freed_bytes),
        ("peak", |site| site.peak_bytes.expect("known")),
    ];
    for (cost, value) in figures {
        let found = reported(&file, cost);
        for name in FUNCTIONS {
            let expected = of(name, value);
            assert!(expected > 0, "{cost} {name}");
            assert_eq!(found.get(name).copied().unwrap_or(0), expected, "{cost} {name}");
        }
        let all: u64 = process.sites.iter().map(value).sum();
        assert_eq!(found.values().sum::<u64>(), all, "{cost}");
    }
}

#[test]
fn documents_are_written_once() {
    let folder = tempfile::tempdir().expect("a folder");
    for (format, begin) in [
        ("svg", &b"<?xml"[..]),
        ("html", b"<!doctype html>"),
        ("pprof", &[0x1f, 0x8b]),
        ("heaptrack", &[0x28, 0xb5, 0x2f, 0xfd]),
    ] {
        let file = folder.path().join(format);
        let mut command = Command::new(vmaudit());
        command.args(["heap", "--as-root", "--interval", "0.01", "-f", format, "--report"]).arg(&file);
        let output = watchdog::output(command.arg("--").arg(program("heap_peak")));
        assert!(output.status.success(), "{format}: {}", String::from_utf8_lossy(&output.stderr));
        let bytes = std::fs::read(&file).expect("a report");
        assert!(bytes.starts_with(begin), "{format}");
        let again = bytes.windows(begin.len()).skip(1).filter(|window| *window == begin);
        assert!(begin.len() < 4 || again.count() == 0, "{format}");
    }
}

#[test]
fn what_does_not_go_together_is_said() {
    for (arguments, why) in [
        (["-f", "heaptrack", "--by", "peak"], "-f heaptrack has all of them: leave --by peak out"),
        (["-f", "html", "--by", "size"], "-f html has all of them: leave --by size out"),
        (["-f", "svg", "--by", "module"], "-f svg is about stacks: --by module shows none"),
        (["-f", "pprof", "--reverse", "-v"], "-f pprof is turned round by the program that shows it"),
    ] {
        let output =
            watchdog::output(Command::new(vmaudit()).arg("heap").args(arguments).args(["--", "/bin/true"]));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(why), "{arguments:?}: {said}");
    }
}
