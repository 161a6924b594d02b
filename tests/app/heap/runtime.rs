//! `vmaudit heap -p PID --runtime`: what it reads in a process' memory is what the runtime writes itself.

use crate::support::heap::Obedient;
use crate::support::{go_program, program, skip_this, vmaudit, watchdog};
use flate2::read::GzDecoder;
use prost::Message;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::process::Command;
use vmaudit::heap::report::{HeapReport, HeapRow};
use vmaudit::render::pprof::proto::Profile;

/// Names and lines of a stack, innermost first; allocations, their bytes, blocks in use, their bytes.
type Sites = BTreeMap<Vec<(String, i64)>, [u64; 4]>;

fn runtime(pid: u32, options: &[&str]) -> Vec<u8> {
    let mut command = Command::new(vmaudit());
    let output = watchdog::output(command.args(["heap", "--runtime", "-p", &pid.to_string()]).args(options));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn add(sites: &mut Sites, mut stack: Vec<(String, i64)>, values: [u64; 4]) {
    // What it writes itself does not have the function that all stacks begin with.
    stack.retain(|(name, _)| name != "runtime.goexit");
    let sums = sites.entry(stack).or_default();
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

/// The program's own profile.
fn written(compressed: &[u8]) -> (Sites, i64) {
    let mut bytes = Vec::new();
    GzDecoder::new(compressed).read_to_end(&mut bytes).expect("gzip");
    let profile = Profile::decode(bytes.as_slice()).expect("profile.proto");
    let mut sites = Sites::new();
    for sample in &profile.sample {
        let mut stack = Vec::new();
        for id in &sample.location_id {
            let location = profile.location.iter().find(|location| location.id == *id).expect("it is there");
            for line in &location.line {
                let function =
                    profile.function.iter().find(|f| f.id == line.function_id).expect("it is there");
                stack.push((profile.string_table[function.name as usize].clone(), line.line));
            }
        }
        // Go searches for the first function that is not the runtime's, too, but takes a return address for
        // the innermost one that was inlined there (runtime.FuncForPC): of a timer it then shows all.
        let first = stack.iter().position(|(name, _)| !name.starts_with("runtime."));
        stack.drain(..first.unwrap_or_default());
        let values = sample.value.iter().map(|&value| value as u64).collect::<Vec<_>>();
        add(&mut sites, stack, values.try_into().expect("four values"));
    }
    (sites, profile.period)
}

fn read(report: &HeapReport) -> Sites {
    let process = &report.processes[0];
    let mut sites = Sites::new();
    let stack = |at: Option<u64>| {
        let frames = &report.stacks[at.expect("a stack") as usize].frames;
        let named = |frame: &vmaudit::report::model::Frame| {
            (frame.symbol.clone().expect("a name"), i64::from(frame.line.expect("a line")))
        };
        frames.iter().map(|frame| named(frame)).collect::<Vec<_>>()
    };
    for site in &process.sites {
        add(&mut sites, stack(site.stack), [site.allocations, site.allocated_bytes, 0, 0]);
    }
    for row in &process.rows {
        add(&mut sites, stack(row.stack), [0, 0, row.amount.blocks, row.amount.bytes]);
    }
    sites
}

/// Blocks and bytes in use that a function allocated itself.
fn held(report: &HeapReport, function: &str) -> (u64, u64) {
    let in_it = |row: &&HeapRow| {
        let stack = &report.stacks[row.stack.expect("a stack") as usize].frames;
        stack.first().is_some_and(|frame| frame.symbol.as_deref() == Some(function))
    };
    let rows = report.processes[0].rows.iter().filter(in_it);
    rows.fold((0, 0), |sum, row| (sum.0 + row.amount.blocks, sum.1 + row.amount.bytes))
}

/// Reads it from outside, has the program write it, and compares. Returns the report.
fn agrees(flags: &[&str], arguments: &[&str], environment: &[(&str, &str)]) -> Option<HeapReport> {
    let Some(path) = go_program("heap_own", flags) else {
        skip_this("no go");
        return None;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("heap.pb.gz");
    let mut command = Command::new(path);
    let mut target = Obedient::spawn(command.args(arguments).envs(environment.iter().copied()));
    let rate = target.answer().strip_prefix("ready ").expect("ready").to_owned();
    let report: HeapReport =
        serde_json::from_slice(&runtime(target.program.0.id(), &["-f", "json"])).expect("JSON");
    assert_eq!(target.order(file.to_str().expect("UTF-8")), "written <nil>");
    let (mut expected, period) = written(&std::fs::read(&file).expect("a profile"));
    expected.retain(|_, values| *values != [0; 4]);
    assert_eq!(period.to_string(), rate);
    assert!(expected.len() >= 3, "{expected:?}");
    assert_eq!(read(&report), expected);
    let process = &report.processes[0];
    assert_eq!(process.runtimes[0].sampling_bytes, Some(period as u64));
    let sum = |of: fn(&[u64; 4]) -> u64| expected.values().map(of).sum::<u64>();
    let totals = &process.totals;
    assert_eq!((totals.outstanding_blocks, totals.outstanding_bytes), (sum(|v| v[2]), sum(|v| v[3])));
    assert_eq!((totals.allocations, totals.allocated_bytes), (sum(|v| v[0]), sum(|v| v[1])));
    Some(report)
}

#[test]
fn the_profile_is_what_the_program_writes_itself() {
    let Some(report) = agrees(&[], &[], &[]) else { return };
    let process = &report.processes[0];
    // Of 5,000 blocks of 4 KiB and 2,000 of 8,000 bytes, sampled every 512 KiB: within five standard errors.
    let truth = 5000 * 4096 + 2000 * 8192;
    let error = process.shown.standard_error;
    assert!(process.totals.outstanding_bytes.abs_diff(truth) < 5 * error + (4 << 20), "{:?}", process.totals);
}

#[test]
fn of_a_stripped_program() {
    let Some(report) = agrees(&["-ldflags=-s -w"], &["65536"], &[]) else { return };
    assert!(report.processes[0].gaps.is_empty(), "{:?}", report.processes[0].gaps);
}

/// Each allocation is sampled: bytes and blocks are exact, and stacks are those of the source.
#[test]
fn where_every_allocation_is_sampled() {
    let Some(report) = agrees(&[], &["1"], &[]) else { return };
    let process = &report.processes[0];
    assert_eq!((report.sampling_bytes, process.shown.standard_error), (None, 0));
    // What a goroutine waits with that has to help the collector is allocated there, too, now and then.
    let (blocks, bytes) = held(&report, "main.inner");
    assert!(blocks >= 2000 && bytes - 2000 * 8192 <= (blocks - 2000) * 96, "{blocks} {bytes}");
    let row = process.rows.iter().find(|row| row.amount.blocks == 2000 && row.amount.bytes == 2000 * 8192);
    let stack = &report.stacks[row.expect("a row").stack.expect("a stack") as usize];
    let names: Vec<_> =
        stack.frames.iter().map(|f| (f.symbol.as_deref().unwrap_or_default(), f.inlined)).collect();
    let expected = [("main.inner", true), ("main.outer", true), ("main.grow", false), ("main.main", false)];
    assert_eq!(names[..4], expected);
}

#[test]
fn before_the_first_collection() {
    let Some(path) = go_program("heap_own", &[]) else { return skip_this("no go") };
    let mut target = Obedient::spawn(Command::new(path).args(["1", "never"]).env("GOGC", "off"));
    assert_eq!(target.answer(), "ready 1");
    let report = serde_json::from_slice(&runtime(target.program.0.id(), &["-f", "json"])).expect("JSON");
    assert_eq!(held(&report, "main.inner"), (2500, 2500 * 8192));
    assert!(held(&report, "main.hold").0 >= 8000);
    let what = report.processes[0].runtimes[0].what.clone().expect("a record");
    assert!(what.ends_with("no garbage collection is in it yet"), "{what}");
}

/// The linker turns the profile off where nothing in the program uses it.
#[test]
fn a_program_without_a_profile_says_so() {
    let Some(path) = go_program("waits", &[]) else { return skip_this("no go") };
    let mut target = Obedient::start(&path, &[]);
    target.answer();
    let text = String::from_utf8(runtime(target.program.0.id(), &[])).expect("UTF-8");
    assert!(text.contains("keeps no memory profile") && text.contains("net/http/pprof"), "{text}");
    let mut other = Obedient::start(&program("arenas"), &["0", "10"]);
    assert_eq!(other.answer(), "ready");
    let text = String::from_utf8(runtime(other.program.0.id(), &[])).expect("UTF-8");
    assert!(text.contains("no runtime was found"), "{text}");
}

/// Pages of the program's file that were not in memory are not brought there.
#[test]
fn reading_changes_nothing_in_the_process() {
    let Some(path) = go_program("heap_own", &["-ldflags=-s -w"]) else { return skip_this("no go") };
    let mut target = Obedient::start(&path, &[]);
    assert!(target.answer().starts_with("ready"));
    let pid = target.program.0.id();
    let in_file = || {
        let rollup = std::fs::read_to_string(Path::new(&format!("/proc/{pid}/status"))).expect("it lives");
        rollup.lines().find(|line| line.starts_with("RssFile:")).expect("a line").to_owned()
    };
    let before = in_file();
    runtime(pid, &[]);
    assert_eq!(in_file(), before);
}
