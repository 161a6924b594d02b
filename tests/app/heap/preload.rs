//! `vmaudit heap -- CMD` by a preloaded library: what it counts is what the program knows, on every allocator,
//! and the program does not notice.

use crate::support::heap::{Obedient, Watching, assert_sums, first, frames, rows_of, sum};
use crate::support::report::{list, number};
use crate::support::unprivileged::{NOBODY, skip_without_root};
use crate::support::{program, program_built, shared_object, skip, static_program, vmaudit, watchdog};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Debian's; the program's own libc first.
const ALLOCATORS: [&str; 4] = ["", "libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libmimalloc.so.2.0"];

struct Heap {
    report: Value,
    output: Output,
}

fn heap_of(command: &mut Command) -> Heap {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("report.json");
    let mut words: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    let end = words.iter().position(|word| word == "--").expect("a command");
    words.splice(
        end..end,
        ["-f", "json", "--report"].map(Into::into).into_iter().chain([file.clone().into()]),
    );
    let mut vmaudit = Command::new(vmaudit());
    vmaudit.args(words);
    for (name, value) in command.get_envs() {
        vmaudit.env(name, value.expect("a value"));
    }
    let output = watchdog::output(&mut vmaudit);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let text = std::fs::read(&file).unwrap_or_else(|_| panic!("no report: {said}"));
    let report: Value = serde_json::from_slice(&text).expect("JSON");
    assert_eq!(report["backend"], "preload", "{said}");
    assert_sums(&report);
    Heap { report, output }
}

fn heap(options: &[&str], command: &[PathBuf]) -> Heap {
    heap_of(Command::new("heap").args(["heap", "--as-root"]).args(options).arg("--").args(command))
}

impl Heap {
    fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    fn processes(&self) -> &[Value] {
        list(&self.report, "processes")
    }

    fn process(&self, pid: u64) -> &Value {
        let found = self.processes().iter().find(|process| number(process, "pid") == pid);
        found.unwrap_or_else(|| panic!("no process {pid} in {}", self.report))
    }

    fn symbols(&self, row: &Value) -> Vec<&str> {
        frames(&self.report, row).iter().map(|frame| frame["symbol"].as_str().unwrap_or_default()).collect()
    }

    /// Bytes and blocks of the rows whose stack is taken.
    fn held(&self, process: &Value, taken: impl Fn(&[&str]) -> bool) -> (u64, u64) {
        let rows = list(process, "rows").iter().filter(|row| taken(&self.symbols(row)));
        rows.fold((0, 0), |(bytes, blocks), row| {
            (bytes + number(row, "bytes"), blocks + number(row, "blocks"))
        })
    }
}

/// What the program's own functions request, and not libc for itself.
fn by_program(stack: &[&str]) -> bool {
    matches!(stack, ["main", ..] | ["strdup" | "__strdup" | "__GI___strdup", "main", ..] | ["obey", ..])
}

fn words(line: &str) -> Vec<u64> {
    line.split_whitespace().map(|word| word.parse().unwrap_or_else(|_| panic!("{line}"))).collect()
}

/// Where it is installed; a line says where not.
fn preloaded(allocator: &str) -> Option<String> {
    let file = format!("/usr/lib/x86_64-linux-gnu/{allocator}");
    if !allocator.is_empty() && !Path::new(&file).exists() {
        skip("heap::preload", &format!("no {file}"));
        return None;
    }
    Some(if allocator.is_empty() { String::new() } else { file })
}

#[test]
fn every_allocator_is_counted_exactly() {
    for allocator in ALLOCATORS {
        // mimalloc's realloc to nothing is not what the program insists on.
        let Some(file) = preloaded(allocator).filter(|file| !file.contains("mimalloc")) else { continue };
        let mut command = Command::new("heap");
        command.args(["heap", "--as-root", "--"]).arg(program("heap_truth")).env("LD_PRELOAD", file);
        let heap = heap_of(&mut command);
        let said = heap.stdout();
        assert_eq!(number(&heap.report["events"], "unwind_incomplete"), 0, "{allocator}: {}", heap.report);
        let [child, parent] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
        let [pid, bytes, blocks] = words(parent)[..] else { panic!("{parent}") };
        let process = heap.process(pid);
        assert_eq!(heap.held(process, by_program), (bytes, blocks), "{allocator}: {process:#}");
        let doubts = &process["doubts"];
        assert_eq!(number(doubts, "unseen_frees"), 0, "{allocator}: {doubts}");
        assert_eq!(number(doubts, "lost_frees"), 0, "{allocator}: {doubts}");
        assert_eq!(number(doubts, "refused"), 3, "{allocator}: {doubts}");
        // What it has copied of its parent's is not in its figures, and said so.
        let child = heap.process(words(child)[0]);
        assert_eq!((heap.held(child, by_program), &child["forked"]), ((12_345, 1), &Value::Bool(true)));
    }
}

/// jemalloc's and its likes' do not go through malloc.
#[test]
fn operators_of_the_allocators_are_counted_once_and_throw() {
    for allocator in ALLOCATORS {
        // mimalloc's ends the program where there is no memory.
        let Some(file) = preloaded(allocator).filter(|file| !file.contains("mimalloc")) else { continue };
        let mut command = Command::new("heap");
        command.args(["heap", "--as-root", "--"]).arg(program("heap_throws")).env("LD_PRELOAD", file);
        let heap = heap_of(&mut command);
        let by_main = |stack: &[&str]| stack.iter().any(|name| name.starts_with("main"));
        let (bytes, blocks) = heap.held(&heap.processes()[0], by_main);
        assert_eq!(format!("{bytes} {blocks}\n"), heap.stdout(), "{allocator}: {:#}", heap.report);
        assert_eq!(heap.output.status.code(), Some(0), "{allocator}");
    }
}

/// Blocks and bytes by path: rows, and paths of a program, may be of the same one.
fn summed(of: impl Iterator<Item = (String, (u64, u64))>) -> BTreeMap<String, (u64, u64)> {
    let mut sums = BTreeMap::<_, (u64, u64)>::new();
    for (path, (blocks, bytes)) in of {
        let sum = sums.entry(path).or_default();
        *sum = (sum.0 + blocks, sum.1 + bytes);
    }
    sums
}

/// What stacks have in common is kept once, and what rbp holds makes no stack another one: by the program itself, each
/// path's blocks.
#[test]
fn each_of_many_deep_stacks_has_its_own_blocks() {
    let compiler = ["gcc", "-O2", "-g", "-fomit-frame-pointer", "-fno-builtin"];
    let program = program_built("heap_paths.c", &compiler).expect("gcc");
    let mut own = Vec::new();
    // Paths, depth, calls, and calls that all paths begin with.
    for case in [[800, 60, 2500, 0], [800, 60, 2500, 52], [40, 20, 20_000, 0], [700, 7, 5000, 2]] {
        let arguments = case.map(|word| PathBuf::from(word.to_string()));
        let heap = heap(&[], &[std::slice::from_ref(&program), &arguments[..]].concat());
        let of_line = |line: &str| -> (String, (u64, u64)) {
            let (path, figures) = line.split_once(' ').expect("a path");
            let [blocks, bytes] = words(figures)[..] else { panic!("{line}") };
            (path.to_owned(), (blocks, bytes))
        };
        let expected = summed(heap.stdout().lines().map(of_line));
        let process = &heap.processes()[0];
        let of_row = |row: &Value| -> (String, (u64, u64)) {
            let letter = |symbol: &&str| match *symbol {
                "plain" => Some('p'),
                "sized" => Some('s'),
                "other" => Some('o'),
                _ => None,
            };
            let path = heap.symbols(row).iter().rev().filter_map(letter).collect();
            (path, (number(row, "blocks"), number(row, "bytes")))
        };
        let counted = summed(list(process, "rows").iter().map(of_row).filter(|(path, _)| !path.is_empty()));
        assert!(counted == expected, "{} and {} paths", counted.len(), expected.len());
        assert_eq!(number(&heap.report["events"], "unwind_incomplete"), 0, "{case:?}");
        own.push(number(&process["own"], "memory"));
    }
    assert!(own[0] - own[1] > 800 * 52 * 8 / 2, "in common: {own:?} bytes");
}

/// More threads than can have a place of their own to count in, and others after they have ended.
#[test]
fn threads_that_come_and_go_are_counted_exactly() {
    for allocator in ALLOCATORS {
        let Some(file) = preloaded(allocator) else { continue };
        let mut command = Command::new("heap");
        command.args(["heap", "--as-root", "--"]).arg(program("heap_threads")).args(["150", "3", "1001"]);
        let heap = heap_of(command.env("LD_PRELOAD", file));
        let process = &heap.processes()[0];
        let by_thread = |stack: &[&str]| stack.first() == Some(&"grab");
        let (bytes, blocks) = heap.held(process, by_thread);
        assert_eq!(format!("{bytes} {blocks}\n"), heap.stdout(), "{allocator}");
        let made: u64 = list(process, "rows").iter().map(|row| number(row, "allocations")).sum();
        assert!(made >= 150 * 3 * 1001, "{allocator}: {made}");
        assert_eq!(number(&process["doubts"], "lost_frees"), 0, "{allocator}");
    }
}

#[test]
fn what_a_killed_program_had_counted_is_all_there() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("report.json");
    let mut vmaudit = Command::new(vmaudit());
    vmaudit.args(["heap", "--as-root", "-f", "json", "--report"]).arg(&file).arg("--");
    let mut program = Obedient::spawn(vmaudit.arg(program("heap_truth")).arg("obey"));
    let child = program.answer();
    let mut answer = program.answer();
    for size in [1, 1000, 300 << 20, 1 << 30] {
        answer = program.order(&format!("a {size}"));
    }
    answer = format!("{answer}\n{}", program.order("f")).lines().last().expect("a line").to_owned();
    let [pid, bytes, blocks] = words(&answer)[..] else { panic!("{answer}") };
    // SAFETY: kill has no preconditions; the process is our child's child, and lives.
    assert_eq!(unsafe { libc::kill(pid as i32, libc::SIGKILL) }, 0, "after {child}");
    let status = program.program.0.wait().expect("waits");
    assert_eq!(status.code(), Some(128 + libc::SIGKILL));
    let report: Value = serde_json::from_slice(&std::fs::read(&file).expect("a report")).expect("JSON");
    let heap = Heap { report, output: Output { status, stdout: Vec::new(), stderr: Vec::new() } };
    assert_sums(&heap.report);
    let process = heap.process(pid);
    let (held, count) = heap.held(process, by_program);
    // What was freed last stays in the program's sum of bytes.
    assert_eq!((held, count), (bytes - (1 << 30), blocks), "{process:#}");
    assert_eq!(process["signal"], libc::SIGKILL);
}

/// It waits for an answer once, and never again.
#[test]
fn a_killed_vmaudit_harms_no_program() {
    let mut vmaudit = Command::new(vmaudit());
    vmaudit.args(["heap", "--as-root", "--report", "/dev/null", "--"]);
    let mut program = Obedient::spawn(vmaudit.arg(program("heap_truth")).arg("obey"));
    program.answer();
    let before = words(&program.answer());
    // `wait` closes what the program reads.
    let input = program.program.0.stdin.take();
    program.program.0.kill().expect("it lives");
    program.program.0.wait().expect("waits");
    program.program.0.stdin = input;
    let after = words(&program.order("a 5000"));
    assert_eq!(after, [before[0], before[1] + 5000, before[2] + 1]);
    let after = words(&program.order("f"));
    assert_eq!(after[2], before[2]);
    drop(program.program.0.stdin.take());
    // Its answers end with it.
    assert!(program.answers.next().is_none());
}

/// Two libraries in turn at one place, with the same return addresses.
#[test]
fn code_that_is_replaced_is_distinguished() {
    let plugins = [shared_object("heap_reload_a"), shared_object("heap_reload_b")];
    let heap = heap(&[], &[program("heap_reload"), plugins[0].clone(), plugins[1].clone()]);
    let said = heap.stdout();
    let places: BTreeSet<&str> = said.lines().collect();
    assert_eq!(places.len(), 1, "not at one place: {places:?}");
    for (name, size) in [("heap_reload_a", 10), ("heap_reload_b", 11)] {
        let (mut bytes, mut blocks) = (0, 0);
        for row in list(&heap.processes()[0], "rows") {
            let innermost = frames(&heap.report, row).first().map(|frame| frame["module"].to_string());
            if innermost.is_some_and(|module| module.contains(name)) {
                bytes += number(row, "bytes");
                blocks += number(row, "blocks");
            }
        }
        assert_eq!((bytes, blocks), (100_000 * size, 100_000), "{name}: {:#}", heap.report);
    }
}

/// Of 45,000,000 bytes in 450,000 blocks, sampled every 64 KiB: within five standard errors, which is exceeded
/// once in two million times.
#[test]
fn a_sample_estimates_what_is_outstanding() {
    let heap =
        heap(&["--sample", "64k"], &[program("heap_threads"), "9".into(), "1".into(), "100000".into()]);
    let [bytes, blocks] = words(&heap.stdout())[..] else { panic!("{}", heap.stdout()) };
    let process = &heap.processes()[0];
    let shown = &process["shown"];
    let error = number(shown, "standard_error") as f64;
    let off = number(shown, "bytes") as f64 - bytes as f64;
    assert!(off.abs() < 5.0 * error, "{shown} of {bytes}");
    // sqrt(bytes · 64 KiB), as theory has it of small blocks
    let theory = (bytes as f64 * 65536.0).sqrt();
    assert!((0.8..1.25).contains(&(error / theory)), "{error}, not {theory}");
    let ratio = number(shown, "blocks") as f64 / blocks as f64;
    assert!((0.8..1.2).contains(&ratio), "{shown} of {blocks}");
    let made = number(&process["totals"], "allocations") as f64;
    assert!((0.8..1.2).contains(&(made / 900_000.0)), "{made}");
}

#[test]
fn neither_root_nor_bpf_is_needed() {
    if skip_without_root("neither_root_nor_bpf_is_needed") {
        return;
    }
    let bench = crate::support::unprivileged::Bench::new();
    let truth = bench.path("heap_truth");
    std::fs::copy(program("heap_truth"), &truth).expect("a copy");
    let mut command = bench.with(&[]);
    command.args(["heap", "-f", "json", "--report"]).arg(bench.path("report.json")).arg("--").arg(&truth);
    let output = watchdog::output(&mut command);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let text = std::fs::read(bench.path("report.json")).expect("a report");
    let heap = Heap { report: serde_json::from_slice(&text).expect("JSON"), output };
    let said = heap.stdout();
    let [pid, bytes, blocks] = words(said.lines().last().expect("a line"))[..] else { panic!("{said}") };
    assert_eq!(heap.held(heap.process(pid), by_program), (bytes, blocks));
}

/// As in a container that allows no filters, perf events or BPF programs: the calls are not seen, and need
/// not be.
#[test]
fn no_backend_is_needed() {
    if skip_without_root("no_backend_is_needed") {
        return;
    }
    let bench = crate::support::unprivileged::Bench::new();
    let (truth, denied) = (bench.path("heap_truth"), bench.path("denied"));
    std::fs::copy(program("heap_truth"), &truth).expect("a copy");
    std::fs::copy(program("denied"), &denied).expect("a copy");
    let mut command = crate::support::unprivileged::as_nobody(&[]);
    command.arg(denied).arg(bench.path("vmaudit")).current_dir(bench.path("."));
    command.args(["heap", "-f", "json", "--report"]).arg(bench.path("report.json")).arg("--").arg(&truth);
    let output = watchdog::output(&mut command);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let text = std::fs::read(bench.path("report.json")).expect("a report");
    let heap = Heap { report: serde_json::from_slice(&text).expect("JSON"), output };
    let said = heap.stdout();
    let [pid, bytes, blocks] = words(said.lines().last().expect("a line"))[..] else { panic!("{said}") };
    assert_eq!(heap.held(heap.process(pid), by_program), (bytes, blocks));
}

/// Behind sudo the command is another user's, and cannot inspect vmaudit: it inherits the library.
#[test]
fn behind_sudo_the_library_is_inherited() {
    if skip_without_root("behind_sudo_the_library_is_inherited") {
        return;
    }
    let bench = crate::support::unprivileged::Bench::new();
    let truth = bench.path("heap_truth");
    std::fs::copy(program("heap_truth"), &truth).expect("a copy");
    let mut command = Command::new("heap");
    command.args(["heap", "--"]).arg(&truth).env("SUDO_UID", NOBODY).env("SUDO_GID", NOBODY);
    let heap = heap_of(&mut command);
    let said = heap.stdout();
    let [pid, bytes, blocks] = words(said.lines().last().expect("a line"))[..] else { panic!("{said}") };
    assert_eq!(heap.held(heap.process(pid), by_program), (bytes, blocks));
}

/// What nothing can be preloaded into is said, and probed where that is allowed.
#[test]
fn what_cannot_be_preloaded_is_said() {
    let cases: [(Vec<&str>, PathBuf, &str); 3] = [
        (vec!["--method", "preload"], static_program("heap_truth"), "statically linked"),
        (vec!["--method", "preload", "--combined"], "/bin/true".into(), "--combined counts in the kernel"),
        (vec!["--method", "preload", "--allocator", "postgres"], "/bin/true".into(), "functions of postgres"),
    ];
    for (options, command, why) in cases {
        let mut vmaudit = Command::new(vmaudit());
        let output = watchdog::output(vmaudit.arg("heap").args(&options).arg("--").arg(&command));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{options:?}: {said}");
        assert!(said.contains("--method preload: ") && said.contains(why), "{options:?}: {said}");
    }
}

/// A program that is started without the environment, or is static: it is named.
#[test]
fn processes_without_the_library_are_named() {
    let program = static_program("heap_truth");
    let script = format!("env -i {} >/dev/null; true", program.display());
    let heap = heap(&[], &["/bin/sh".into(), "-c".into(), script.into()]);
    let said = heap.stderr();
    assert!(said.contains("heap_truth-static was not counted"), "{said}");
}

/// Descriptors, output and exit codes are those of a run without.
#[test]
fn a_program_does_not_notice() {
    let scripts = [
        "ls /proc/self/fd; exec 3</dev/null; ls /proc/self/fd; exit 7",
        "for i in 1 2 3; do (exit $i); echo $?; done | cat; ulimit -a; exit 0",
        "sh -c 'kill -TERM $$'; echo $?; trap 'echo bye' EXIT; exit 3",
    ];
    for script in scripts {
        let alone = watchdog::output(Command::new("/bin/sh").args(["-c", script]));
        let heap = heap(&[], &["/bin/sh".into(), "-c".into(), script.into()]);
        assert_eq!(heap.stdout(), String::from_utf8_lossy(&alone.stdout), "{script}");
        assert_eq!(heap.output.status.code(), alone.status.code(), "{script}");
    }
}

/// The library reads a stack no further than it goes by now.
#[test]
fn a_stack_that_has_become_shorter_is_read_to_its_end() {
    let heap = heap(&[], &[program("heap_neighbours")]);
    assert_eq!(heap.output.status.code(), Some(0), "{}", heap.stderr());
    let by_thread = |stack: &[&str]| stack.first().is_some_and(|name| name.starts_with("grab"));
    let (bytes, blocks) = heap.held(&heap.processes()[0], by_thread);
    assert_eq!((format!("{bytes}\n"), blocks), (heap.stdout(), 4));
}

/// A process is watched from its execve on, and its peak lies in that time.
#[test]
fn times_are_those_of_the_process() {
    let script = format!("read x < /dev/null; {0} >/dev/null; exec {0}", program("heap_truth").display());
    let heap = heap(&[], &["/bin/sh".into(), "-c".into(), script.into()]);
    assert!(heap.processes().len() >= 2, "{:#}", heap.report);
    for process in heap.processes() {
        let (peak, watched) = (number(&process["totals"], "peak_ns"), number(process, "watched_ns"));
        assert!(peak <= watched, "peak at {peak}, watched for {watched}");
        assert_eq!(process["comm"], "heap_truth", "what a process was before execve is in no figure");
    }
}

/// Each report of an interval adds up while the program runs.
#[test]
fn intervals_add_up() {
    let mut vmaudit = Command::new(vmaudit());
    vmaudit.args(["heap", "--as-root", "-f", "json", "--interval", "0.05", "--"]);
    let script = format!("exec {} 4 20 20000 >/dev/null", program("heap_threads").display());
    let output = watchdog::output(vmaudit.args(["/bin/sh", "-c", &script]));
    let reports = serde_json::Deserializer::from_slice(&output.stdout).into_iter();
    let reports: Vec<Value> = reports.collect::<Result<_, _>>().expect("JSON");
    assert!(!reports.is_empty());
    reports.iter().for_each(assert_sums);
}

/// A process' sites whose stack has the function.
fn sites_of<'a>(heap: &'a Heap, process: &'a Value, function: &str) -> Vec<&'a Value> {
    list(process, "sites").iter().filter(|site| heap.symbols(site).contains(&function)).collect()
}

#[test]
fn the_peak_is_known_by_stack_and_what_is_temporary() {
    const FUNCTIONS: [&str; 3] = ["first", "second", "third"];
    for allocator in ALLOCATORS {
        let Some(file) = preloaded(allocator) else { continue };
        let mut command = Command::new("heap");
        command.args(["heap", "--as-root", "--"]).arg(program("heap_peak")).env("LD_PRELOAD", file);
        let heap = heap_of(&mut command);
        let truth = words(heap.stdout().trim());
        let [pid, peak, all @ .., rounding] = &truth[..] else { panic!("{truth:?}") };
        let process = heap.process(*pid);
        for (function, known) in FUNCTIONS.iter().zip(all.chunks(4)) {
            let sites = sites_of(&heap, process, function);
            let sum = |key: &str| sites.iter().map(|site| number(site, key)).sum::<u64>();
            let found = [sum("peak_bytes"), sum("peak_blocks"), sum("temporary"), sum("allocations")];
            assert_eq!(found, known, "{allocator} {function}: {process:#}");
        }
        let sites = FUNCTIONS.iter().flat_map(|name| sites_of(&heap, process, name));
        let own: u64 = sites.map(|site| number(site, "peak_bytes")).sum();
        assert_eq!(own, *peak, "{allocator}");
        assert!(number(&process["totals"], "peak_bytes") >= *peak, "{allocator}");
        let classes = list(process, "sizes");
        let given: u64 = classes.iter().map(|class| number(class, "rounding")).sum();
        // What libraries request themselves has its part, too (libstdc++ one block of 72,704 bytes, of which
        // some allocators make 80 KiB); and some blocks get more than such a size needs.
        assert!(given > rounding / 2 && given < rounding + 16_384, "{allocator}: {given} of {rounding}");
        let held: u64 = classes.iter().map(|class| number(class, "bytes")).sum();
        assert_eq!(held, number(&process["totals"], "outstanding_bytes"), "{allocator}");
    }
}

/// A block of 1 MiB takes the library less than 256 bytes, and what cannot be met is neither temporary nor a sum that wraps.
#[test]
fn large_blocks_cost_little_and_what_is_refused_is_nothing_else() {
    const COUNT: u64 = 20_000;
    let heap = heap(&[], &[program("heap_large"), COUNT.to_string().into(), (1 << 20).to_string().into()]);
    let [pid, bytes, blocks] = words(heap.stdout().trim())[..] else { panic!("{}", heap.stdout()) };
    let process = heap.process(pid);
    assert_eq!(heap.held(process, |stack| stack.contains(&"large")), (bytes, blocks), "{process:#}");
    let own = number(&process["own"], "memory");
    assert!(own < COUNT * 256, "{own} bytes of memory");
    let refused = sites_of(&heap, process, "refused");
    assert_eq!(refused.iter().map(|site| number(site, "temporary")).sum::<u64>(), 0, "{refused:?}");
    let doubts = &process["doubts"];
    assert_eq!((number(doubts, "refused"), number(doubts, "refused_bytes")), (32, u64::MAX), "{doubts}");
}

#[test]
fn the_peak_of_several_threads_is_known_to_64_kib_each() {
    let heap = heap(&[], &[program("heap_peak"), "8".into()]);
    let truth = words(heap.stdout().trim());
    let [pid, first, second] = truth[..] else { panic!("{truth:?}") };
    let process = heap.process(pid);
    for (function, known) in [("first", first), ("second", second)] {
        let sites = sites_of(&heap, process, function);
        let peak: u64 = sites.iter().map(|site| number(site, "peak_bytes")).sum();
        assert!(known.abs_diff(peak) <= 9 * (64 << 10), "{function}: {peak} of {known}");
    }
    // All hold everything at once.
    let peak = number(&process["totals"], "peak_bytes");
    assert!(peak.abs_diff(first + second) <= (1 << 20), "{peak}");
}

#[test]
fn other_views_show_their_own() {
    let shown = |by: &str| {
        let mut command = Command::new(vmaudit());
        command.args(["heap", "--as-root", "--by", by, "--"]).arg(program("heap_peak"));
        let output = watchdog::output(&mut command);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        text
    };
    for (by, first) in [
        ("peak", "at the peak       blocks  outstanding  by stack"),
        ("allocations", "calls    allocated   bytes each  by stack"),
        ("temporary", "temporary     of calls   bytes each  by stack"),
        ("module", "by module that called the allocator"),
        ("thread", "by where the thread began"),
        ("size", "by what the allocator gives for a block"),
    ] {
        let text = shown(by);
        assert!(text.contains(first), "{by}: {text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{by}: {text}");
    }
    assert!(shown("thread").contains("main (heap_peak)"));
}

/// What `--arm` prints, as a variable of the environment.
fn armed(folder: &Path) -> (String, String) {
    let output =
        watchdog::output(Command::new(vmaudit()).arg("heap").arg(format!("--arm={}", folder.display())));
    let line = String::from_utf8(output.stdout).expect("text");
    let (name, value) = line.trim().split_once('=').expect("a variable");
    assert_eq!(name, "LD_PRELOAD");
    (name.to_owned(), value.to_owned())
}

#[test]
fn an_armed_program_is_counted_on_request() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (name, library) = armed(folder.path());
    let mut program = Obedient::spawn(Command::new(program("heap_truth")).arg("obey").env(name, library));
    program.answer();
    let [pid, ..] = words(&program.answer())[..] else { panic!("no line") };
    let (mut held, mut unseen) = (0, 0);
    for (round, options) in [&["--method", "preload"][..], &[], &["--sample", "2"]].into_iter().enumerate() {
        // This one is not counted.
        program.order("a 111");
        let watching = Watching::of(pid as u32, options);
        for _ in 0..5 {
            program.order("a 1000");
        }
        program.order("f");
        let report = watching.stop();
        assert_eq!(report["backend"], "preload");
        let process = first(&report);
        assert_eq!((&process["attached"], number(process, "pid")), (&Value::Bool(true), pid), "{round}");
        let rows = rows_of(&report, "obey");
        assert_eq!((sum(&rows, "bytes"), sum(&rows, "blocks")), (4000, 4), "{round}: {process:#}");
        (held, unseen) = (held + 4, unseen + 1);
    }
    // It was only watched: it still knows what it holds, seen or not.
    let [_, _, blocks] = words(&program.order("a 1"))[..] else { panic!("no line") };
    assert!(blocks > held + unseen, "{blocks}");
}

/// Nor does anybody see the calls there.
#[test]
fn an_ordinary_user_counts_in_a_program_that_was_armed() {
    let test = "an_ordinary_user_counts_in_a_program_that_was_armed";
    if skip_without_root(test) {
        return;
    }
    if std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").is_ok_and(|scope| scope.trim() != "0") {
        return skip(test, "kernel.yama.ptrace_scope lets nobody but root write to others");
    }
    let bench = crate::support::unprivileged::Bench::new();
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("chmod");
    let (name, library) = armed(folder.path());
    let truth = bench.path("heap_truth");
    std::fs::copy(program("heap_truth"), &truth).expect("a copy");
    let mut command = crate::support::unprivileged::as_nobody(&[]);
    let mut program = Obedient::spawn(command.arg(&truth).arg("obey").env(name, library));
    program.answer();
    let [pid, ..] = words(&program.answer())[..] else { panic!("no line") };
    let watching = Watching::by(&mut bench.with(&[]), pid as u32, &[]);
    program.order("a 1000");
    let report = watching.stop();
    let rows = rows_of(&report, "obey");
    assert_eq!((sum(&rows, "bytes"), sum(&rows, "blocks")), (1000, 1));
}

#[test]
fn a_killed_vmaudit_leaves_an_armed_program_to_the_next() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (name, library) = armed(folder.path());
    let mut program = Obedient::spawn(Command::new(program("heap_truth")).arg("obey").env(name, library));
    program.answer();
    let [pid, ..] = words(&program.answer())[..] else { panic!("no line") };
    let first_one = Watching::of(pid as u32, &[]);
    program.order("a 1000");
    first_one.kill();
    program.order("a 1000");
    let mut watching = Watching::of(pid as u32, &["--interval", "0.1"]);
    // Its first call ends what it did for the former one; it is called again then.
    let mut ordered = 0;
    while ordered == 0
        || !list(&watching.next(), "processes").iter().any(|process| number(process, "pid") == pid)
    {
        program.order("a 1000");
        ordered += 1;
    }
    program.order("a 1000");
    let report = watching.stop();
    let blocks = sum(&rows_of(&report, "obey"), "blocks");
    assert!((1..=ordered + 1).contains(&blocks), "{blocks} of {ordered}");
}

#[test]
fn a_program_that_was_not_armed_is_an_error() {
    let program = Obedient::start(&program("heap_truth"), &["obey"]);
    let mut command = Command::new(vmaudit());
    command.args(["heap", "--method", "preload", "-p", &program.program.0.id().to_string()]);
    let output = watchdog::output(&mut command);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("was not started with the library (vmaudit heap --arm)"), "{said}");
}
