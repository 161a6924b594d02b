//! The functions of Python in the stacks of calls, against what the interpreter itself says at the same moment.

use crate::support::managed::{pythons_or_skip, waiting};
use crate::support::{audit, manifest_dir, vmaudit};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Frames that are copied at most.
const COPIED: usize = 128;
/// Bytes of a name that are copied at most.
const NAME: usize = 1024;

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

type Place = (String, String, u64);

fn place(file: &Value, name: &Value, line: &Value) -> Place {
    let name: String = match text(name) {
        name if name.len() > NAME => name[..NAME].chars().chain(['…']).collect(),
        name => name.to_owned(),
    };
    (text(file).to_owned(), name, line.as_u64().unwrap_or_default())
}

fn managed(stack: &Value) -> Vec<Place> {
    let managed = list(&stack["frames"]).iter().filter(|frame| frame["managed"] == true);
    managed.map(|frame| place(&frame["file"], &frame["symbol"], &frame["line"])).collect()
}

/// Behind the last function of each run comes the frame that evaluates it.
fn runs_are_evaluated_by(stack: &Value) -> Vec<&str> {
    let pairs = list(&stack["frames"]).windows(2);
    let ends = pairs.filter(|pair| pair[0]["managed"] == true && pair[1]["managed"] != true);
    ends.map(|pair| text(&pair[1]["module"])).collect()
}

/// The stacks of `mmap` by process and size.
fn stacks_of_mmaps(events: &Path) -> BTreeMap<(u64, u64), Value> {
    let events = fs::read_to_string(events).expect("events");
    let events = events.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let mmaps = events.filter(|event| event["op"] == "mmap");
    let of = |event: &Value| {
        let (pid, size) = (event["pid"].as_u64()?, event["args"]["length"].as_u64()?);
        Some(((pid, size), event["stack"].clone()))
    };
    mmaps.filter_map(|event| of(&event)).collect()
}

#[test]
fn each_call_has_the_functions_that_the_interpreter_names() {
    for python in pythons_or_skip("each_call_has_the_functions_that_the_interpreter_names") {
        let folder = tempfile::tempdir().expect("a folder");
        let (said, events) = (folder.path().join("said"), folder.path().join("events"));
        let program = manifest_dir().join("tests/programs/python_frames.py");
        let mut command = Command::new(vmaudit());
        command.args(["events", "-f", "json", "--report"]).arg(&events).arg("--").arg(&python);
        let output = command.arg(program).arg(&said).stdin(Stdio::null()).output().expect("vmaudit starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {stderr}", python.display());
        let stacks = stacks_of_mmaps(&events);
        let said = fs::read_to_string(&said).expect("what the program said");
        let mut kinds = BTreeMap::<String, usize>::new();
        for line in said.lines() {
            let said: Value = serde_json::from_str(line).expect("JSON");
            let key = (said["pid"].as_u64().expect("a number"), said["size"].as_u64().expect("a size"));
            let of = format!("{}: {line}", python.display());
            let stack = stacks.get(&key).unwrap_or_else(|| panic!("no such call: {of}"));
            let kind = text(&said["kind"]);
            *kinds.entry(kind.to_owned()).or_default() += 1;
            let expected: Vec<Place> =
                list(&said["frames"]).iter().map(|frame| place(&frame[0], &frame[1], &frame[2])).collect();
            let mut found = managed(stack);
            if kind == "deep" {
                assert_eq!(
                    found.pop().map(|cut| cut.1).as_deref(),
                    Some("[more frames, which were not copied]")
                );
                assert_eq!(found, expected[..COPIED], "{of}");
                continue;
            }
            assert_eq!(found, expected, "{of}");
            let evaluated = runs_are_evaluated_by(stack);
            let is_interpreter =
                |module: &&str| module.starts_with("python3") || module.starts_with("libpython3");
            assert!(evaluated.iter().all(is_interpreter), "{evaluated:?} {of}");
            // Each step through C is a run of its own.
            let least = if kind == "through C" { 2 } else { 1 };
            assert!(evaluated.len() >= least, "{evaluated:?} {of}");
        }
        assert_eq!(kinds.get("deep"), Some(&1), "{kinds:?}");
        assert!(kinds["through C"] >= 3 && kinds["child"] == 1 && kinds["long"] == 1, "{kinds:?}");
        assert!(kinds[""] > 40, "{kinds:?}");
    }
}

/// What a report says of a program that keeps one mapping of its own.
#[track_caller]
fn names_the_line(report: &Value, python: &Path) {
    let stacks = list(&report["stacks"]);
    let finding = list(&report["processes"][0]["findings"])
        .iter()
        .find(|finding| finding["category"] == "shared-anon")
        .unwrap_or_else(|| panic!("{}: {report}", python.display()));
    let stack = &stacks[finding["stack"].as_u64().expect("a stack") as usize];
    let caller = &list(&stack["frames"])[stack["caller"].as_u64().expect("a caller") as usize];
    assert_eq!(
        (text(&caller["symbol"]), &caller["line"]),
        ("Keeper.keep", &Value::from(4)),
        "{}",
        python.display()
    );
}

const KEEPER: &str = "import mmap, sys\n\
                      class Keeper:\n\
                      \x20def keep(self):\n\
                      \x20 self.kept = mmap.mmap(-1, 64 << 20)\n\
                      ";

#[test]
fn a_finding_names_the_users_line() {
    for python in pythons_or_skip("a_finding_names_the_users_line") {
        let folder = tempfile::tempdir().expect("a folder");
        let script = folder.path().join("keeper.py");
        fs::write(&script, format!("{KEEPER}keeper = Keeper()\nkeeper.keep()\nimport os\nos._exit(0)\n"))
            .expect("written");
        let audited = audit(&[], &[python.as_os_str(), script.as_os_str()]);
        names_the_line(&audited.report().json, &python);
    }
}

/// The interpreter was mapped before anything was traced.
#[test]
fn a_process_that_runs_already_has_its_functions() {
    for python in pythons_or_skip("a_process_that_runs_already_has_its_functions") {
        let folder = tempfile::tempdir().expect("a folder");
        let script = folder.path().join("keeper.py");
        let rest = "keeper = Keeper()\nprint('READY', flush=True)\nsys.stdin.readline()\nkeeper.keep()\n\
                    print('KEPT', flush=True)\nsys.stdin.read()\n";
        fs::write(&script, format!("{KEEPER}{rest}")).expect("written");
        let mut program = waiting(Command::new(&python).arg(&script));
        let report = folder.path().join("report");
        let mut command = Command::new(vmaudit());
        command.args(["attach", "-f", "json", "-p", &program.0.id().to_string(), "--report"]).arg(&report);
        let mut auditor =
            crate::support::Guard(command.stderr(Stdio::piped()).spawn().expect("vmaudit starts"));
        let mut stderr = std::io::BufReader::new(auditor.0.stderr.take().expect("a pipe"));
        let mut said = String::new();
        while !said.contains("Ctrl-C ends tracing") {
            assert!(std::io::BufRead::read_line(&mut stderr, &mut said).expect("UTF-8") > 0, "{said}");
        }
        let mut stdin = program.0.stdin.take().expect("a pipe");
        std::io::Write::write_all(&mut stdin, b"go\n").expect("it reads");
        drop(stdin);
        program.0.wait().expect("it ends");
        std::io::Read::read_to_string(&mut stderr, &mut said).expect("UTF-8");
        auditor.0.wait().expect("it ends");
        let report = serde_json::from_slice(&fs::read(&report).expect("a report")).expect("JSON");
        let has_named = list(&Value::clone(&report)["stacks"])
            .iter()
            .any(|stack| managed(stack).iter().any(|place| place.1 == "Keeper.keep" && place.2 == 4));
        assert!(has_named, "{}: {said} {report}", python.display());
    }
}
