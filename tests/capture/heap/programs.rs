//! `vmaudit heap` on real programs that know what they hold: byte for byte, block for block.

use crate::support::report::{list, number};
use crate::support::{Guard, program, shared_object, skip_without_bpf, vmaudit};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// How uprobes are attached: the best that the kernel has, and what older ones have.
const WAYS: [&str; 3] = ["best", "multi", "single"];

struct Heap {
    report: Value,
    output: Output,
}

/// Watches a command; what it prints is in `output`.
fn heap(way: &str, options: &[&str], command: &[PathBuf]) -> Heap {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("report.json");
    let mut vmaudit = Command::new(vmaudit());
    vmaudit
        .args(["heap", "--method", "uprobes", "-f", "json", "--as-root", "--report"])
        .arg(&file)
        .args(options);
    let output =
        vmaudit.arg("--").args(command).env("VMAUDIT_UPROBES", way).output().expect("vmaudit starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    Heap { report: read(&file), output }
}

fn read(file: &Path) -> Value {
    let text = std::fs::read(file).expect("a report");
    serde_json::from_slice(&text).expect("JSON")
}

impl Heap {
    fn said(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }
}

/// The symbols of a row's stack, innermost first.
fn symbols<'a>(report: &'a Value, row: &Value) -> Vec<&'a str> {
    let Some(stack) = row["stack"].as_u64() else { return Vec::new() };
    let frames = list(&report["stacks"][stack as usize], "frames").iter();
    frames.map(|frame| frame["symbol"].as_str().unwrap_or_default()).collect()
}

/// Bytes and blocks of the rows that are taken.
fn held(report: &Value, process: &Value, taken: impl Fn(&[&str], &str) -> bool) -> (u64, u64) {
    let functions = list(report, "functions");
    let rows = list(process, "rows").iter().filter(|row| {
        let function = functions[number(row, "function") as usize]["name"].as_str().unwrap_or_default();
        taken(&symbols(report, row), function)
    });
    rows.fold((0, 0), |(bytes, blocks), row| (bytes + number(row, "bytes"), blocks + number(row, "blocks")))
}

fn process(report: &Value, pid: u64) -> &Value {
    let found = list(report, "processes").iter().find(|process| number(process, "pid") == pid);
    found.unwrap_or_else(|| panic!("no process {pid}"))
}

/// What the program's own functions request, and not libc for itself (threads, stdio, the loader).
fn by_program(stack: &[&str], _: &str) -> bool {
    matches!(stack, ["main", ..] | ["strdup" | "__strdup" | "__GI___strdup", "main", ..] | ["obey", ..])
}

/// Rows add up to what is shown, and that and what is left out to the total.
fn assert_sums(report: &Value) {
    for process in list(report, "processes") {
        let (bytes, blocks) = held(report, process, |_, _| true);
        let part = |name: &str, unit: &str| number(&process[name], unit);
        assert_eq!((bytes, blocks), (part("shown", "bytes"), part("shown", "blocks")));
        let totals = &process["totals"];
        assert_eq!(part("shown", "bytes") + part("left_out", "bytes"), number(totals, "outstanding_bytes"));
        assert_eq!(
            part("shown", "blocks") + part("left_out", "blocks"),
            number(totals, "outstanding_blocks")
        );
    }
}

#[test]
fn a_program_that_knows_what_it_holds_agrees_with_the_report() {
    if skip_without_bpf("heap_programs") {
        return;
    }
    for way in WAYS {
        let heap = heap(way, &[], &[program("heap_truth")]);
        let (report, said) = (&heap.report, heap.said());
        assert_sums(report);
        assert_eq!(number(&report["events"], "lost"), 0, "{way}");
        assert_eq!(number(&report["events"], "unwind_incomplete"), 0, "{way}: {report:#}");
        let mut lines = 0;
        for line in said.lines() {
            let words: Vec<u64> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
            let [pid, bytes, blocks] = words[..] else { panic!("{line}") };
            let process = process(report, pid);
            assert_eq!(held(report, process, by_program), (bytes, blocks), "{way}: {line}");
            let doubts = &process["doubts"];
            assert_eq!(number(doubts, "unseen_frees"), 0, "{way}: {line}");
            lines += 1;
        }
        assert_eq!(lines, 2, "{said}");
        let parent = &list(report, "processes")[0];
        assert_eq!(number(&parent["doubts"], "refused"), 3, "{way}");
    }
}

/// In the kernel, by stack: the same figures. A child starts with nothing.
#[test]
fn counted_in_the_kernel_it_is_the_same() {
    if skip_without_bpf("heap_programs") {
        return;
    }
    for way in WAYS {
        let heap = heap(way, &["--combined", "-v"], &[program("heap_truth")]);
        let (report, said) = (&heap.report, heap.said());
        assert_eq!(report["combined"], true);
        assert_sums(report);
        assert_eq!(number(&report["events"], "lost"), 0, "{way}");
        assert_eq!(number(&report["events"], "unwind_incomplete"), 0, "{way}: {report:#}");
        let [child, parent] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
        let words: Vec<u64> = parent.split(' ').map(|word| word.parse().expect("a number")).collect();
        let [pid, bytes, blocks] = words[..] else { panic!("{parent}") };
        let program = process(report, pid);
        assert_eq!(held(report, program, by_program), (bytes, blocks), "{way}: {program:#}");
        assert_eq!(number(&program["doubts"], "unseen_frees"), 0, "{way}");
        assert_eq!(number(&program["doubts"], "lost_frees"), 0, "{way}");
        assert_eq!(number(&program["doubts"], "refused"), 3, "{way}");
        let of_child: u64 = child.split(' ').next().and_then(|pid| pid.parse().ok()).expect("a pid");
        let child = process(report, of_child);
        assert_eq!(held(report, child, by_program), (12345, 1), "{way}: {child:#}");
        assert!(counter(&heap, "counted") > 1000, "{way}");
        let exact = self::heap(way, &[], &[self::program("heap_truth")]);
        assert_eq!(
            by_line(report, program),
            by_line(&exact.report, &list(&exact.report, "processes")[0]),
            "{way}"
        );
    }
}

/// What main's lines hold, by function and line: bytes, blocks, allocations.
fn by_line(report: &Value, process: &Value) -> BTreeMap<(u64, u64), [u64; 3]> {
    let mut lines = BTreeMap::new();
    for row in list(process, "rows").iter().filter(|row| by_program(&symbols(report, row), "")) {
        let frames = list(&report["stacks"][number(row, "stack") as usize], "frames");
        let main = frames.iter().find(|frame| frame["symbol"] == "main").expect("main");
        let held: &mut [u64; 3] = lines.entry((number(row, "function"), number(main, "line"))).or_default();
        for (sum, name) in held.iter_mut().zip(["bytes", "blocks", "allocations"]) {
            *sum += number(row, name);
        }
    }
    lines
}

/// The number behind a word in -v's counters.
fn counter(heap: &Heap, name: &str) -> u64 {
    let said = String::from_utf8_lossy(&heap.output.stderr).into_owned();
    let rest = said.split(&format!("{name}: ")).last().unwrap_or_default().to_owned();
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no {name} in {said}"))
}

/// Of 200,000 calls few are sent to user space: those before their stacks' rules were published to the
/// kernel.
#[test]
fn counted_in_the_kernel_few_calls_are_sent() {
    if skip_without_bpf("heap_programs") {
        return;
    }
    let heap = heap("best", &["--combined", "-v"], &[program("heap_loop"), "200000".into()]);
    let process = &list(&heap.report, "processes")[0];
    let allocations = number(&process["totals"], "allocations");
    let counted = counter(&heap, "counted");
    assert!(allocations >= 200_000, "{allocations}");
    assert!(counted <= allocations && allocations - counted < 20_000, "{counted} of {allocations}");
    assert_eq!(number(&heap.report["events"], "lost"), 0);
    assert_sums(&heap.report);
}

/// Two libraries alternating at one place, with the same return addresses: the first one's rules in the
/// kernel are void when it is unmapped.
#[test]
fn counted_in_the_kernel_code_that_is_replaced_is_distinguished() {
    if skip_without_bpf("heap_programs") {
        return;
    }
    let plugins = [shared_object("heap_reload_a"), shared_object("heap_reload_b")];
    let command = [program("heap_reload"), plugins[0].clone(), plugins[1].clone()];
    let heap = heap("best", &["--combined", "-v"], &command);
    let places: BTreeSet<String> = heap.said().lines().map(str::to_owned).collect();
    assert_eq!(places.len(), 1, "not at one place: {places:?}");
    let report = &heap.report;
    assert_sums(report);
    for (name, size) in [("heap_reload_a", 10), ("heap_reload_b", 11)] {
        let (mut bytes, mut blocks) = (0, 0);
        for row in list(&list(report, "processes")[0], "rows") {
            let Some(stack) = row["stack"].as_u64() else { continue };
            let module = list(&report["stacks"][stack as usize], "frames")[0]["module"].to_string();
            if module.contains(name) {
                bytes += number(row, "bytes");
                blocks += number(row, "blocks");
            }
        }
        assert_eq!((bytes, blocks), (100_000 * size, 100_000), "{name}: {report:#}");
    }
    assert!(counter(&heap, "counted") > 0, "nothing was counted in the kernel");
}

#[test]
fn longjmp_other_stacks_and_late_libraries() {
    if skip_without_bpf("heap_programs") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let description = folder.path().join("pool.toml");
    let text = "name = \"pool\"\n\
                [[function]]\nsymbols = [\"pool_alloc\"]\ndoes = \"allocate\"\nsize = \"arg1\"\n\
                [[function]]\nsymbols = [\"pool_free\"]\ndoes = \"free\"\npointer = \"arg1\"\n";
    std::fs::write(&description, text).expect("written");
    let own = ["--allocator", description.to_str().expect("text")];
    let command = [program("heap_odd"), shared_object("heap_plugin")];
    for way in WAYS {
        let seen = heap(way, &own, &command);
        let pool = &list(&seen.report, "processes")[0];
        assert_eq!(held(&seen.report, pool, |_, _| true), (2000, 20), "{way}: {}", seen.said());
        assert_eq!(number(&pool["doubts"], "unseen_frees"), 0, "{way}");

        let seen = heap(way, &[], &command);
        let said = seen.said();
        let process = &list(&seen.report, "processes")[0];
        let libc = held(&seen.report, process, |stack, function| {
            function == "malloc" && matches!(stack, ["keep" | "work" | "interrupted", ..])
        });
        assert!(said.contains(&format!("libc {} {}\n", libc.0, libc.1)), "{way}: {libc:?} of {said}");
        let plugin = held(&seen.report, process, |_, function| function == "je_malloc");
        assert!(said.contains(&format!("plugin {} {}\n", plugin.0, plugin.1)), "{way}: {plugin:?} of {said}");
    }
}

#[test]
fn exceptions_find_their_way_and_new_is_counted_once() {
    if skip_without_bpf("heap_programs") {
        return;
    }
    for way in WAYS {
        let seen = heap(way, &[], &[program("heap_throws")]);
        let process = &list(&seen.report, "processes")[0];
        let (bytes, blocks) = held(&seen.report, process, |stack, _| {
            // gcc may have moved a part of main away (main.cold)
            stack.iter().any(|name| name.starts_with("operator new"))
                && stack.iter().any(|name| name.starts_with("main"))
        });
        assert_eq!(format!("{bytes} {blocks}\n"), seen.said(), "{way}");
    }
}

/// heap_truth obeying orders, and vmaudit watching it from the moment that it is ready.
struct Watched {
    program: Guard,
    answers: std::io::Lines<BufReader<std::process::ChildStdout>>,
    vmaudit: Guard,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

impl Watched {
    fn start(options: &[&str]) -> Watched {
        let mut truth = Command::new(program("heap_truth"));
        truth.arg("obey").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = Guard(truth.spawn().expect("it starts"));
        let mut answers = BufReader::new(program.0.stdout.take().expect("piped")).lines();
        for _ in ["child", "parent"] {
            answers.next().expect("a line").expect("text");
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("report.json");
        let mut command = Command::new(vmaudit());
        command.args(["heap", "-f", "json", "-p", &program.0.id().to_string(), "--report"]).arg(&file);
        let mut vmaudit =
            Guard(command.args(options).stderr(Stdio::piped()).spawn().expect("vmaudit starts"));
        let said = BufReader::new(vmaudit.0.stderr.take().expect("piped")).lines();
        let ready = |line: &String| line.contains("Ctrl-C ends watching");
        said.map(|line| line.expect("text")).find(ready).expect("it watches");
        Watched { program, answers, vmaudit, file, _folder: folder }
    }

    fn order(&mut self, line: &str) {
        let mut input = self.program.0.stdin.as_ref().expect("piped");
        // In one piece: the program takes each read as an order.
        input.write_all(format!("{line}\n").as_bytes()).expect("it reads");
        self.answers.next().expect("a line").expect("text");
    }

    fn report(mut self) -> Value {
        self.vmaudit.signal(libc::SIGINT);
        let status = self.vmaudit.0.wait().expect("waits");
        assert_eq!(status.code(), Some(0));
        // The target goes on.
        self.order("a 1");
        read(&self.file)
    }
}

#[test]
fn of_a_running_process_what_comes_from_now_on() {
    if skip_without_bpf("heap_programs") {
        return;
    }
    for options in [&[][..], &["--no-follow-forks"]] {
        let mut watched = Watched::start(options);
        for size in [100, 200, 300] {
            watched.order(&format!("a {size}"));
        }
        watched.order("f");
        for _ in 0..3 {
            // What is freed now was allocated before.
            watched.order("f");
        }
        watched.order("a 4000");
        let report = watched.report();
        assert_sums(&report);
        let process = &list(&report, "processes")[0];
        assert_eq!(held(&report, process, by_program), (4000, 1), "{options:?}: {report:#}");
        assert_eq!(number(&process["doubts"], "unseen_frees"), 1, "{options:?}");
        assert_eq!(number(&process["totals"], "allocations"), 4, "{options:?}");
    }
}

#[test]
fn a_watcher_that_is_killed_leaves_the_target_as_it_was() {
    if skip_without_bpf("heap_programs") {
        return;
    }
    let mut watched = Watched::start(&[]);
    watched.order("a 100");
    watched.vmaudit.0.kill().expect("killed");
    watched.vmaudit.0.wait().expect("reaped");
    for _ in 0..100 {
        watched.order("a 100");
    }
    drop(watched.program.0.stdin.take());
    assert!(watched.program.0.wait().expect("waits").success());
}

/// A process is watched from its execve on, and its peak lies in that time: what ran before it took longer.
#[test]
fn times_are_those_of_the_process() {
    if skip_without_bpf("heap_programs") {
        return;
    }
    let program = program("heap_truth");
    let script =
        format!("{0}; {0}; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; exec {0}", program.display());
    let seen = heap("best", &[], &["/bin/sh".into(), "-c".into(), script.into()]);
    let processes = list(&seen.report, "processes");
    assert!(processes.len() >= 3, "{:#}", seen.report);
    for process in processes {
        let (peak, watched) = (number(&process["totals"], "peak_ns"), number(process, "watched_ns"));
        assert!(peak <= watched, "peak at {peak}, watched for {watched}");
    }
}

#[test]
fn samples_are_estimates_without_bias() {
    if skip_without_bpf("heap_programs") {
        return;
    }
    // 2.2 MiB in 2,704 blocks; the largest one is nearly half of it.
    let seen = heap("best", &["--sample", "4k"], &[program("heap_truth")]);
    assert_sums(&seen.report);
    let process = &list(&seen.report, "processes")[0];
    let shown = &process["shown"];
    let (estimate, error) = (number(shown, "bytes") as f64, number(shown, "standard_error") as f64);
    let truth: f64 =
        seen.said().lines().last().and_then(|l| l.split(' ').nth(1)?.parse().ok()).expect("a sum");
    assert!(error > 0.0 && error < truth / 5.0, "{error}");
    // A right estimate is further away once in two million runs.
    assert!((estimate - truth).abs() < 5.0 * error + 1000.0, "{estimate} ± {error}, in truth {truth}");
    assert!(number(shown, "samples") < 2000, "{shown}");
}
