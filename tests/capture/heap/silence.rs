//! `vmaudit heap` of programs of which no allocation is seen: it says so, says why as far as that is proven,
//! and does not say that nothing is outstanding.

use crate::support::heap::Obedient;
use crate::support::report::{list, number};
use crate::support::{program, program_by, skip, skip_without_bpf, vmaudit, watchdog};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// What it said and reported.
struct Quiet {
    said: String,
    code: Option<i32>,
    report: Value,
}

fn output(options: &[&str], rest: &[&str], format: &str) -> Output {
    let mut command = Command::new(vmaudit());
    command.args(["heap", "--method", "uprobes", "-f", format]).args(options).args(rest).stdin(Stdio::null());
    watchdog::output(&mut command)
}

fn watch(options: &[&str], rest: &[&str]) -> Quiet {
    let output = output(options, rest, "json");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // Behind what the program printed.
    let bytes = output.stdout.iter().position(|&byte| byte == b'{').and_then(|at| output.stdout.get(at..));
    let report = bytes.map(serde_json::from_slice).transpose().expect("JSON");
    let report = report.unwrap_or_else(|| panic!("no report: {said}"));
    Quiet { said, code: output.status.code(), report }
}

/// The text of the same, in one line.
fn said(options: &[&str], rest: &[&str]) -> String {
    let text = String::from_utf8_lossy(&output(options, rest, "text").stdout).into_owned();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Quiet {
    fn nothing_seen(&self) -> &Value {
        let process = list(&self.report, "processes").first().expect("a process");
        assert_eq!(number(&process["totals"], "allocations"), 0);
        assert!(process["nothing_seen"].is_object(), "{process}");
        &process["nothing_seen"]
    }
}

fn command<'a>(program: &'a Path, arguments: &[&'a str]) -> Vec<&'a str> {
    [&["--", program.to_str().expect("UTF-8")], arguments].concat()
}

/// Its libc is there and probed, a test call says that the probes work: it is believed.
#[test]
fn a_program_that_never_allocates_keeps_its_status() {
    if skip_without_bpf("a_program_that_never_allocates_keeps_its_status") {
        return;
    }
    let program = program("never_allocates");
    let command = command(&program, &["abc"]);
    for options in [&[][..], &["--combined"], &["--sample", "1M"], &["--no-follow-forks"]] {
        let quiet = watch(options, &command);
        assert_eq!(quiet.code, Some(3), "{options:?}: {}", quiet.said);
        let nothing = quiet.nothing_seen();
        assert_eq!(nothing["reason"], "not-called", "{options:?}");
        let why = nothing["why"].as_str().unwrap_or_default();
        assert!(
            why.contains("libc.so.6") && why.contains("a test call") && why.contains("was seen"),
            "{why}"
        );
        assert_eq!((number(nothing, "frees"), number(nothing, "allocator_bytes")), (0, 0));
    }
    let text = said(&[], &command);
    assert!(text.contains("no allocation was seen why probes on"), "{text}");
    assert!(!text.contains("nothing is outstanding"), "{text}");
}

/// Each way of probing that works here is proven to work by the test call.
#[test]
fn a_test_call_is_seen_by_each_way_of_probing() {
    if skip_without_bpf("a_test_call_is_seen_by_each_way_of_probing") {
        return;
    }
    for way in ["best", "multi", "single"] {
        let mut command = Command::new(vmaudit());
        command.args(["heap", "--method", "uprobes", "-v", "--"]).arg(program("never_allocates")).arg("x");
        let output = watchdog::output(command.env("VMAUDIT_UPROBES", way));
        let (text, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if said.contains("cannot be probed here") {
            skip("a_test_call_is_seen_by_each_way_of_probing", &format!("{way}: {said}"));
            continue;
        }
        assert_eq!(output.status.code(), Some(1), "{way}: {text}{said}");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("a test call to a function that is probed alike was seen"), "{way}: {text}");
    }
}

#[test]
fn a_program_without_any_library_is_reported_as_such() {
    let name = "a_program_without_any_library_is_reported_as_such";
    if skip_without_bpf(name) {
        return;
    }
    let arguments = ["-nostdlib", "-nostartfiles", "-static", "-fno-stack-protector"];
    let program = match program_by(("no_library", "no_library"), "gcc", &arguments) {
        Ok(program) => program,
        Err(why) => return skip(name, &why),
    };
    let quiet = watch(&[], &command(&program, &[]));
    assert_eq!(quiet.code, Some(4), "{}", quiet.said);
    assert_eq!(quiet.nothing_seen()["reason"], "no-function");
}

/// It allocates, as its heap shows, and nothing of that was seen: the run has failed.
#[test]
fn allocations_of_a_stripped_program_are_an_error_with_its_reason() {
    let name = "allocations_of_a_stripped_program_are_an_error_with_its_reason";
    if skip_without_bpf(name) {
        return;
    }
    let program = match program_by(("native_alloc-stripped", "native_alloc"), "gcc", &["-static", "-s"]) {
        Ok(program) => program,
        Err(why) => return skip(name, &why),
    };
    let quiet = watch(&[], &command(&program, &[]));
    assert_eq!(quiet.code, Some(125), "{}", quiet.said);
    let nothing = quiet.nothing_seen();
    assert_eq!(nothing["reason"], "no-function");
    assert!(number(nothing, "allocator_bytes") > 0, "{nothing}");
    assert!(
        quiet.said.contains("no allocation was seen") && quiet.said.contains("so it did allocate"),
        "{}",
        quiet.said
    );
    let text = said(&[], &command(&program, &[]));
    assert!(!text.contains("freed but kept"), "nothing is known of what its mappings hold: {text}");
}

/// It calls functions that are not probed, and frees what they gave it by one that is.
#[test]
fn frees_of_what_nobody_saw_allocated_are_an_error_too() {
    if skip_without_bpf("frees_of_what_nobody_saw_allocated_are_an_error_too") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let only_free = folder.path().join("frees.toml");
    let text = "name = \"frees\"\nobjects = [\"libc.so*\"]\n\n[[function]]\nsymbols = [\"free\"]\ndoes = \"free\"\n\
                pointer = \"arg1\"\n\n[[function]]\nsymbols = [\"valloc\"]\ndoes = \"allocate\"\nsize = \"arg1\"\n";
    fs::write(&only_free, text).expect("written");
    let option = only_free.to_string_lossy().into_owned();
    let quiet = watch(&["--allocator", &option], &["--", "/bin/sh", "-c", "x=$(echo y); exit 3"]);
    assert_eq!(quiet.code, Some(125), "{}", quiet.said);
    let nothing = quiet.nothing_seen();
    assert_eq!(nothing["reason"], "other-functions", "{nothing}");
    assert!(number(nothing, "frees") > 0, "{nothing}");
}

#[test]
fn who_is_idle_while_it_is_watched_is_no_error() {
    if skip_without_bpf("who_is_idle_while_it_is_watched_is_no_error") {
        return;
    }
    let mut idle = Obedient::start(Path::new("/bin/cat"), &[]);
    // It has allocated what it needs, and waits.
    assert_eq!(idle.order("ready"), "ready");
    let pid = idle.program.0.id().to_string();
    let quiet = watch(&["--duration", "0.01"], &["-p", &pid]);
    assert_eq!(quiet.code, Some(0), "{}", quiet.said);
    assert_eq!(quiet.nothing_seen()["reason"], "not-called");
}
