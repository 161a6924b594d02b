//! The functions of Python in the stacks of a heap, and its figures, against what the interpreter and tracemalloc say.

use crate::support::heap::{Obedient, Watching, assert_sums, first, frames, sum};
use crate::support::managed::{pythons, pythons_or_skip};
use crate::support::report::{list, number};
use crate::support::{manifest_dir, skip, skip_without_bpf, vmaudit, watchdog};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program's own blocks: what tracemalloc allocates for itself at the same lines is of other sizes.
const OWN: [&str; 4] = ["--min-size", "20000", "--max-size", "30000"];
/// Frames that are taken at most.
const TAKEN: usize = 128;
const CUT: &str = "[more frames, which were not copied]";

fn program() -> PathBuf {
    manifest_dir().join("tests/programs/python_heap.py")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

type Place = (String, String, u64);

fn place(file: &Value, name: &Value, line: &Value) -> Place {
    (text(file).to_owned(), text(name).to_owned(), line.as_u64().unwrap_or_default())
}

fn managed(report: &Value, row: &Value) -> Vec<Place> {
    let managed = frames(report, row).iter().filter(|frame| frame["managed"] == true);
    managed.map(|frame| place(&frame["file"], &frame["symbol"], &frame["line"])).collect()
}

/// Behind the last function of each run comes the frame that evaluates it.
fn runs_are_evaluated_by_the_interpreter(report: &Value, row: &Value) -> usize {
    let pairs = frames(report, row).windows(2);
    let ends: Vec<&str> = pairs
        .filter(|pair| pair[0]["managed"] == true && pair[1]["managed"] != true)
        .map(|pair| text(&pair[1]["module"]))
        .collect();
    let is_interpreter = |module: &&str| module.starts_with("python3") || module.starts_with("libpython3");
    assert!(ends.iter().all(is_interpreter), "{ends:?} {:?}", managed(report, row));
    ends.len()
}

/// What the program said: blocks by the functions that hold them, and the sums of lines.
struct Said {
    held: BTreeMap<Vec<Place>, (String, u64, u64)>,
    lines: BTreeMap<u64, (u64, u64)>,
}

fn said(file: &Path) -> Said {
    let mut said = Said { held: BTreeMap::new(), lines: BTreeMap::new() };
    for line in fs::read_to_string(file).expect("what the program said").lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let bytes = number(&line, "bytes");
        if line["kind"] == "line" {
            said.lines.insert(number(&line, "line"), (bytes, number(&line, "blocks")));
            continue;
        }
        let places: Vec<Place> =
            list(&line, "frames").iter().map(|frame| place(&frame[0], &frame[1], &frame[2])).collect();
        let traced: Vec<(String, u64)> = list(&line, "traced")
            .iter()
            .map(|frame| (text(&frame[0]).to_owned(), frame[1].as_u64().unwrap_or_default()))
            .collect();
        let own: Vec<(String, u64)> = places.iter().map(|(file, _, line)| (file.clone(), *line)).collect();
        if !traced.is_empty() {
            assert_eq!(own, traced, "tracemalloc says the same");
        }
        let held = said.held.entry(places).or_insert((text(&line["kind"]).to_owned(), 0, 0));
        (held.1, held.2) = (held.1 + bytes, held.2 + 1);
    }
    said
}

/// Each block is held by the functions that the program names; each line of `many` has what tracemalloc counted.
#[track_caller]
fn is_as_said(report: &Value, said: &Said, of: &str) {
    let mut found: BTreeMap<Vec<Place>, Vec<&Value>> = BTreeMap::new();
    for row in list(first(report), "rows") {
        found.entry(managed(report, row)).or_default().push(row);
    }
    for (places, (kind, bytes, blocks)) in &said.held {
        let mut expected = places.clone();
        if places.len() > TAKEN {
            expected.truncate(TAKEN);
            expected.push((String::new(), CUT.to_owned(), 0));
        }
        let rows = found.get(&expected).unwrap_or_else(|| panic!("{of}: nothing is held by {expected:?}"));
        assert_eq!((sum(rows, "bytes"), sum(rows, "blocks")), (*bytes, *blocks), "{of}: {expected:?}");
        let least = if kind == "through C" { 2 } else { 1 };
        for row in rows {
            let runs = runs_are_evaluated_by_the_interpreter(report, row);
            assert!(runs >= least, "{of}: {expected:?}");
        }
    }
    assert!(said.held.len() > 40, "{of}: {}", said.held.len());
    for (line, counted) in &said.lines {
        let innermost = |places: &&Vec<Place>| {
            places.first().is_some_and(|(file, name, at)| {
                file.ends_with("python_heap.py") && name == "many" && at == line
            })
        };
        let rows: Vec<&Value> =
            found.iter().filter(|(places, _)| innermost(places)).flat_map(|(_, rows)| rows.clone()).collect();
        assert_eq!((sum(&rows, "bytes"), sum(&rows, "blocks")), *counted, "{of}: line {line}");
    }
}

/// What a report says of functions that are missing.
fn of_interpreter(report: &Value) -> Vec<&str> {
    let gaps = list(first(report), "gaps").iter().map(text);
    gaps.filter(|gap| gap.contains("the interpreter's")).collect()
}

fn heap_of(python: &Path, options: &[&str], words: &[&str]) -> (Value, Said, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, report) = (folder.path().join("said"), folder.path().join("report"));
    let mut command = Command::new(vmaudit());
    command.args(["heap", "-f", "json"]).args(options).arg("--report").arg(&report).arg("--").arg(python);
    let output = watchdog::output(command.arg(program()).arg(&file).args(words));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}: {stderr}", python.display());
    let report: Value = serde_json::from_slice(&fs::read(&report).expect("a report")).expect("JSON");
    assert_eq!(number(&report["events"], "lost"), 0, "{stderr}");
    assert_sums(&report);
    (report, said(&file), stderr)
}

#[test]
fn by_uprobes_each_block_has_the_functions_that_the_interpreter_names() {
    for python in pythons_or_skip("by_uprobes_each_block_has_the_functions_that_the_interpreter_names") {
        let uprobes = ["--method", "uprobes"];
        let (report, said, stderr) = heap_of(&python, &[&uprobes[..], &OWN].concat(), &[]);
        assert_eq!(said.lines.len(), 2);
        is_as_said(&report, &said, &format!("{} {stderr}", python.display()));
        assert!(of_interpreter(&report).is_empty(), "{:?}", of_interpreter(&report));
    }
}

#[test]
fn a_report_of_combined_says_that_it_has_native_stacks_alone() {
    for python in pythons_or_skip("a_report_of_combined_says_that_it_has_native_stacks_alone") {
        let (report, said, stderr) = heap_of(&python, &["--method", "uprobes", "--combined"], &["alone"]);
        assert_eq!(
            of_interpreter(&report),
            ["stacks are without the interpreter's functions: --combined does not read them"],
            "{stderr}"
        );
        let stacks = list(&report, "stacks").iter();
        assert!(stacks.flat_map(|stack| list(stack, "frames")).all(|frame| frame["managed"] != true));
        let held: u64 = said.held.values().map(|(_, bytes, _)| bytes).sum();
        assert!(number(&first(&report)["totals"], "outstanding_bytes") > held, "{stderr}");
    }
}

/// Versions that keep their frames elsewhere.
#[test]
fn a_report_says_which_interpreter_has_frames_that_are_not_read() {
    let test = "a_report_says_which_interpreter_has_frames_that_are_not_read";
    let older = if skip_without_bpf(test) { Vec::new() } else { pythons(6..=10) };
    if older.is_empty() {
        skip(test, "no python3.6 to python3.10 in $VMAUDIT_PYTHONS");
    }
    for python in older {
        for method in ["uprobes", "preload"] {
            let mut command = Command::new(vmaudit());
            command.args(["heap", "-f", "json", "--as-root", "--method", method, "--"]);
            let output = watchdog::output(command.arg(&python).args(["-c", "kept = bytes(30000)"]));
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            let said = list(first(&report), "gaps").iter().map(text);
            let said: Vec<&str> = said.filter(|gap| gap.contains("frames of Python")).collect();
            assert_eq!(
                said,
                ["frames of Python before 3.11 are not read"],
                "{method} of {}",
                python.display()
            );
        }
    }
}

#[test]
fn by_the_library_each_block_has_the_functions_that_the_interpreter_names() {
    for python in pythons_or_skip("by_the_library_each_block_has_the_functions_that_the_interpreter_names") {
        let (report, said, stderr) =
            heap_of(&python, &[&OWN[..], &["--as-root", "--method", "preload"]].concat(), &[]);
        assert_eq!(said.lines.len(), 2);
        is_as_said(&report, &said, &format!("{} {stderr}", python.display()));
        assert!(of_interpreter(&report).is_empty(), "{:?}", of_interpreter(&report));
    }
}

/// The interpreter was mapped before anything was counted.
#[test]
fn a_process_that_runs_already_has_its_functions() {
    for python in pythons_or_skip("heap::python::a_process_that_runs_already_has_its_functions") {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("said");
        let mut command = Command::new(&python);
        command.arg(program()).arg(&file).arg("wait");
        let mut program = Obedient::spawn(&mut command);
        assert_eq!(program.answer(), "READY");
        let watching = Watching::of(program.program.0.id(), &OWN);
        assert_eq!(program.order(""), "DONE");
        let report = watching.stop();
        is_as_said(&report, &said(&file), &python.display().to_string());
    }
}

/// What Python does not request of malloc is in no figure, and the report says so.
#[test]
fn a_report_says_what_python_keeps_in_arenas_of_its_own() {
    const KEEP: &str = "kept = [str(i) for i in range(100000)]\nimport os\nos._exit(0)";
    let gaps = |python: &Path, allocator: &str| {
        let mut command = Command::new(vmaudit());
        command.args(["heap", "-f", "json", "--"]).arg(python).args(["-S", "-c", KEEP]);
        let output = watchdog::output(command.env("PYTHONMALLOC", allocator));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let process = first(&report);
        let said = list(process, "gaps").iter().map(|gap| text(gap).to_owned());
        let said: Vec<String> = said.filter(|gap| gap.contains("PYTHONMALLOC")).collect();
        (said, number(&process["totals"], "outstanding_blocks"))
    };
    for python in pythons_or_skip("a_report_says_what_python_keeps_in_arenas_of_its_own") {
        let ((said, blocks), (nothing, counted)) = (gaps(&python, "pymalloc"), gaps(&python, "malloc"));
        let [gap] = &said[..] else { panic!("{}: {said:?}", python.display()) };
        assert!(gap.starts_with("Python keeps objects of up to 512 bytes in arenas of its own"), "{gap}");
        assert!(nothing.is_empty(), "{nothing:?}");
        // With the advice, each of the texts is a block.
        assert!(counted > blocks + 90_000, "{blocks} {counted}");
    }
}
