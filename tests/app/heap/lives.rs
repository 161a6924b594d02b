//! Before main, in signal handlers, in threads that come and go, in children: each way of counting, each view
//! and each format has what the program did.

use crate::support::{program, skip_without_bpf, vmaudit, watchdog};
use std::collections::BTreeMap;
use std::process::Command;
use vmaudit::heap::HeapBy;
use vmaudit::heap::report::{HeapProcess, HeapReport};
use vmaudit::render::{HeapView, heap_to_folded};

/// Of the parent: bytes that stay, blocks, calls, temporary ones.
const PARENT: [(&str, [u64; 4]); 5] = [
    ("before_main", [1221, 11, 11, 0]),
    ("in_handler", [1998, 6, 6, 0]),
    ("in_thread", [31_080, 40, 40, 0]),
    ("brief", [0, 0, 2000, 2000]),
    ("in_parent", [17_069, 13, 13, 0]),
];
const CHILD: [(&str, [u64; 4]); 2] = [("in_child", [40_400, 20, 20, 0]), ("brief", [0, 0, 30, 30])];

fn report_by(method: &str) -> HeapReport {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("report.json");
    let mut command = Command::new(vmaudit());
    command.args(["heap", "--as-root", "--method", method, "-f", "json", "--report"]).arg(&file);
    let output = watchdog::output(command.arg("--").arg(program("heap_lives")));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    HeapReport::from_json(&std::fs::read(file).expect("a report")).expect("JSON")
}

fn has(report: &HeapReport, stack: Option<u64>, function: &str) -> bool {
    let stack = stack.and_then(|at| report.stacks.get(at as usize));
    stack.is_some_and(|stack| stack.frames.iter().any(|frame| frame.symbol.as_deref() == Some(function)))
}

fn counted(report: &HeapReport, process: &HeapProcess, function: &str) -> [u64; 4] {
    let rows = process.rows.iter().filter(|row| has(report, row.stack, function));
    let (bytes, blocks) = rows.fold((0, 0), |(a, b), row| (a + row.amount.bytes, b + row.amount.blocks));
    let sites = process.sites.iter().filter(|site| has(report, site.stack, function));
    let known = |site: &vmaudit::heap::report::HeapSite| site.temporary.expect("known");
    let (calls, brief) = sites.fold((0, 0), |(a, b), site| (a + site.allocations, b + known(site)));
    [bytes, blocks, calls, brief]
}

/// The values of a folded graph by the program's functions.
fn folded(report: &HeapReport, by: HeapBy, pid: i32) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    let process = format!("({pid});");
    for line in heap_to_folded(report, HeapView { by, reverse: false }).lines() {
        let (frames, value) = line.rsplit_once(' ').expect("a value");
        let Some((_, frames)) = frames.split_once(&process) else { continue };
        let own = frames.split(';').find(|name| PARENT.iter().chain(&CHILD).any(|(known, _)| known == name));
        *sums.entry(own.unwrap_or("others").to_owned()).or_default() +=
            value.parse::<u64>().expect("a number");
    }
    sums
}

#[test]
fn nothing_is_missed_in_the_lives_of_a_program() {
    let mut methods = vec!["preload"];
    if !skip_without_bpf("heap_lives") {
        methods.push("uprobes");
    }
    for method in methods {
        let report = report_by(method);
        let [parent, child] = report.processes.as_slice() else {
            panic!("{method}: {:#?}", report.processes)
        };
        for (process, truth) in [(parent, &PARENT[..]), (child, &CHILD)] {
            for (function, expected) in truth {
                let found = counted(&report, process, function);
                assert_eq!(found, *expected, "{method} {function} of {}", process.pid);
            }
            for (at, by) in [(0, HeapBy::Outstanding), (2, HeapBy::Allocations), (3, HeapBy::Temporary)] {
                let graph = folded(&report, by, process.pid);
                for (function, expected) in truth {
                    let drawn = graph.get(*function).copied().unwrap_or(0);
                    assert_eq!(drawn, expected[at], "{method} {by:?} {function}");
                }
            }
            let all: u64 = process.sites.iter().map(|site| site.allocations).sum();
            assert_eq!(all, process.totals.allocations, "{method}");
        }
        // What the child has a copy of is the library's in no figure, and the probes' as inherited.
        let inherited = counted(&report, child, "before_main");
        assert_eq!(inherited, if method == "preload" { [0; 4] } else { [1221, 11, 0, 0] }, "{method}");
    }
}
