//! Stacks through code that runtimes make while they run, held against the stacks that the programs print themselves.

use crate::support::managed::installed;
use crate::support::{manifest_dir, run_command, skip, skip_without_bpf, vmaudit, watchdog};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// What the programs reserve, bytes.
const RESERVED: u64 = 96 << 20;

struct Traced {
    /// What the program printed.
    printed: String,
    events: Vec<Value>,
    _folder: tempfile::TempDir,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn trace(command: &[&str]) -> Traced {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let recording = folder.path().join("of.rec");
    let options = ["-o", recording.to_str().expect("UTF-8")];
    let mut run = run_command(&folder.path().join("report.json"), &options, command);
    // V8 writes a log of its own where it is started.
    let run = watchdog::output(run.current_dir(folder.path()));
    assert!(run.status.success(), "{}", text(&run.stderr));
    let listed = watchdog::output(Command::new(vmaudit()).args(["events", "-f", "json"]).arg(&recording));
    assert!(listed.status.success(), "{}", text(&listed.stderr));
    let events = text(&listed.stdout);
    let events = events.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    Traced { printed: text(&run.stdout), events, _folder: folder }
}

impl Traced {
    fn stacks(&self) -> impl Iterator<Item = &Value> {
        self.events.iter().map(|event| &event["stack"]).filter(|stack| !stack.is_null())
    }

    /// Of the call that reserved what the program says.
    fn of_reservation(&self) -> &Value {
        let is_it = |event: &&Value| {
            event["op"] == "mmap"
                && event["size"].as_u64().is_some_and(|size| (RESERVED..RESERVED * 2).contains(&size))
        };
        let with_program = |stack: &&Value| frames(stack).any(|frame| frame["managed"] == true);
        let mut stacks = self.events.iter().filter(is_it).map(|event| &event["stack"]);
        stacks.rfind(with_program).unwrap_or_else(|| panic!("no stack with the program's functions"))
    }

    fn complete(&self) -> (usize, usize) {
        let complete = self.stacks().filter(|stack| stack["completeness"] == "complete").count();
        (complete, self.stacks().count())
    }
}

fn frames(stack: &Value) -> impl Iterator<Item = &Value> {
    stack["frames"].as_array().into_iter().flatten()
}

fn is_guess(frame: &Value) -> bool {
    frame["guess"] == true
}

/// Names of the program's own functions, the innermost first; with the line where `lines`.
fn functions(stack: &Value, is_own: impl Fn(&Value) -> bool, lines: bool) -> Vec<String> {
    let own = frames(stack).filter(|frame| is_own(frame));
    own.map(|frame| {
        let name = frame["symbol"].as_str().expect("a name");
        match (lines, frame["line"].as_u64()) {
            (true, Some(line)) => format!("{name} {line}"),
            _ => name.to_owned(),
        }
    })
    .collect()
}

fn caller(stack: &Value) -> &str {
    let at = stack["caller"].as_u64().expect("a caller") as usize;
    frames(stack).nth(at).and_then(|frame| frame["symbol"].as_str()).unwrap_or_default()
}

fn program(name: &str) -> PathBuf {
    manifest_dir().join("tests/programs").join(name)
}

#[test]
fn functions_of_node_have_the_names_that_it_gives_them() {
    const TEST: &str = "functions_of_node_have_the_names_that_it_gives_them";
    let Some(node) = installed("node") else { return skip(TEST, "no node") };
    if skip_without_bpf(TEST) {
        return;
    }
    let (node, script) = (text(node.as_os_str().as_encoded_bytes()), program("frames.js"));
    let script = script.to_str().expect("UTF-8");
    let plain = trace(&[&node, script]);
    let (complete, all) = plain.complete();
    assert!(complete * 100 >= all * 99, "{complete} of {all}");

    let named = trace(&[&node, "--perf-basic-prof", "--interpreted-frames-native-stack", script]);
    let (complete, all) = named.complete();
    assert!(complete * 100 >= all * 99, "{complete} of {all}");
    let pid = named.events[0]["pid"].as_u64().expect("a number");
    std::fs::remove_file(format!("/tmp/perf-{pid}.map")).expect("its perf map");
    let stack = named.of_reservation();
    assert!(!frames(stack).any(is_guess), "{stack}");
    // `at nested (/srv/frames.js:15:19)`; `at Array.forEach (<anonymous>)` is V8's own.
    let printed: Vec<String> = named
        .printed
        .lines()
        .filter_map(|line| {
            line.strip_prefix("at ")?.split_once(" (").filter(|(_, at)| at.starts_with(script))
        })
        .map(|(name, _)| name.rsplit('.').next().expect("a part").to_owned())
        .collect();
    let expected = ["reserve", "nested", "nested", "nested", "nested", "grow"];
    assert_eq!(printed[..6], expected, "{}", named.printed);
    let found = functions(stack, |frame| frame["file"] == script, false);
    assert_eq!(found[..6], expected);
    assert_eq!((found.len(), found[6].as_str()), (7, "(top level)"));
    assert_eq!(caller(stack), "reserve");
}

fn javac(folder: &Path) -> Option<PathBuf> {
    let javac = installed("javac")?;
    let source = program("Frames.java");
    let made = watchdog::output(Command::new(javac).arg("-d").arg(folder).arg(source).stdin(Stdio::null()));
    assert!(made.status.success(), "{}", text(&made.stderr));
    Some(folder.join("Frames.class"))
}

#[test]
fn methods_of_a_jvm_are_those_of_its_own_stack_trace() {
    const TEST: &str = "methods_of_a_jvm_are_those_of_its_own_stack_trace";
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (Some(java), Some(_)) = (installed("java"), javac(folder.path())) else {
        return skip(TEST, "no java and javac");
    };
    if skip_without_bpf(TEST) {
        return;
    }
    let (java, classes) = (text(java.as_os_str().as_encoded_bytes()), folder.path().to_str().expect("UTF-8"));
    // As it comes, with nothing compiled, and with all of it compiled at once.
    for options in [&[][..], &["-Xint"], &["-Xcomp", "-XX:TieredStopAtLevel=1"]] {
        let command: Vec<&str> =
            [java.as_str()].iter().chain(options).chain(&["-cp", classes, "Frames"]).copied().collect();
        let traced = trace(&command);
        let (complete, all) = traced.complete();
        assert!(complete * 100 >= all * 97, "{options:?}: {complete} of {all}");
        let stack = traced.of_reservation();
        assert!(!frames(stack).any(is_guess), "{options:?}: {stack}");
        assert_eq!(stack["completeness"], "complete");
        let interpreted = options == ["-Xint"];
        // `Frames.reserve Frames.java 18`
        let expected: Vec<String> = traced
            .printed
            .lines()
            .filter(|line| line.starts_with("Frames."))
            .map(|line| {
                let words: Vec<&str> = line.split(' ').collect();
                match interpreted && words[0] != "Frames.reserve" {
                    true => format!("{} {}", words[0], words[2]),
                    false => words[0].to_owned(),
                }
            })
            .collect();
        assert!(expected.len() >= 6, "{}", traced.printed);
        let is_own = |frame: &Value| frame["symbol"].as_str().is_some_and(|name| name.starts_with("Frames."));
        let mut found = functions(stack, is_own, interpreted);
        // The trace is printed from another line than the one that reserves.
        found[0] = found[0].split(' ').next().expect("a name").to_owned();
        // Classes that the JVM makes for lambdas are hidden in its own traces.
        found.retain(|name| !name.contains("$$Lambda"));
        if options.is_empty() || interpreted {
            assert_eq!(found, expected, "{options:?}");
        }
        assert_eq!(caller(stack), "Frames.reserve", "{options:?}");
    }
}

fn runtime(pid: u32) -> (Output, Value) {
    let output = watchdog::output(Command::new(vmaudit()).args([
        "heap",
        "--runtime",
        "-f",
        "json",
        "-p",
        &pid.to_string(),
    ]));
    let report = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output, report)
}

#[test]
fn a_jvm_is_queried_for_its_memory_where_it_answers() {
    const TEST: &str = "a_jvm_is_queried_for_its_memory_where_it_answers";
    use crate::support::managed::serving_jvm;
    let Some(java) = installed("java") else { return skip(TEST, "no java") };
    let answering = serving_jvm(&java, &["-XX:NativeMemoryTracking=summary", "-Xmx64m"]);
    for _ in 0..2 {
        let (output, report) = runtime(answering.0.id());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let record = &report["processes"][0]["runtimes"][0];
        let budget = &record["budget"];
        let parts = budget["parts"].as_array().unwrap_or_else(|| panic!("{report}"));
        let heap = parts.iter().find(|part| part["name"] == "Java Heap").expect("a heap");
        assert_eq!(heap["reserved"], 64 << 20);
        let sum = |of: &str| parts.iter().map(|part| part[of].as_u64().expect("bytes")).sum::<u64>();
        assert_eq!(
            (Some(sum("reserved")), Some(sum("committed"))),
            (budget["reserved"].as_u64(), budget["committed"].as_u64())
        );
        assert!(record["what"].as_str().expect("a sentence").contains("vmaudit measured none of it"));
    }
    for (options, why) in [
        (&["-XX:NativeMemoryTracking=off"][..], "-XX:NativeMemoryTracking=summary"),
        (&["-XX:NativeMemoryTracking=summary", "-XX:+DisableAttachMechanism"], "DisableAttachMechanism"),
    ] {
        let silent = serving_jvm(&java, options);
        let (output, report) = runtime(silent.0.id());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let record = &report["processes"][0]["runtimes"][0];
        assert!(record["why"].as_str().is_some_and(|said| said.contains(why)), "{report}");
        assert!(record["budget"].is_null());
    }
    // Not the JVM's signal: others would end by it.
    let mut other = crate::support::Guard(Command::new("sleep").arg("100").spawn().expect("sleep"));
    let (_, report) = runtime(other.0.id());
    assert!(report["processes"][0]["runtimes"].is_null(), "{report}");
    assert_eq!(other.0.try_wait().expect("a child"), None, "it lives");
}
