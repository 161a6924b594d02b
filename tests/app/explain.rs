//! `vmaudit explain` on programs whose pages have a known life.

use crate::support::{Guard, program, shared_object, skip_without, skip_without_bpf, vmaudit};
use serde_json::Value;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn record(folder: &Path, command: &[OsString]) -> String {
    let file = folder.join("rec");
    let mut run = Command::new(vmaudit());
    run.args(["run", "--as-root", "--aslr", "off", "--report", "/dev/null", "-o"]).arg(&file).arg("--");
    let output = run.args(command).stdin(Stdio::null()).output().expect("vmaudit starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    file.to_str().expect("UTF-8").to_owned()
}

fn explain(args: &[&str]) -> Output {
    Command::new(vmaudit()).arg("explain").args(args).output().expect("vmaudit starts")
}

fn explained(args: &[&str]) -> Value {
    let output = explain(&[&["-f", "json"], args].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// `(change of each step, times)` of each entry.
fn story(explanation: &Value) -> Vec<(Vec<String>, u64)> {
    let entries = explanation["entries"].as_array().expect("entries").iter();
    let change = |step: &Value| step["change"].as_str().expect("a change").to_owned();
    entries
        .map(|entry| {
            let steps = entry["steps"].as_array().expect("steps").iter().map(change).collect();
            (steps, entry["times"].as_u64().expect("a number"))
        })
        .collect()
}

/// Functions of the stack of an entry's first step, innermost first.
fn functions(explanation: &Value, entry: usize) -> Vec<String> {
    let step = &explanation["entries"][entry]["steps"][0];
    let stack = step["stack"].as_u64().unwrap_or_else(|| panic!("no stack: {step}")) as usize;
    let frames = explanation["stacks"][stack]["frames"].as_array().expect("frames");
    frames.iter().filter_map(|frame| frame["symbol"].as_str().map(str::to_owned)).collect()
}

#[test]
fn a_page_with_a_known_life() {
    if skip_without_bpf("explain_programs") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let rec = record(folder.path(), &[program("address_life").into()]);
    let life = explained(&[&rec, "0x700000000000"]);
    let single = |change: &str| (vec![change.to_owned()], 1);
    assert_eq!(
        story(&life),
        [
            single("mapped"),
            single("protected"),
            (vec!["advised".to_owned()], 100),
            (vec!["unmapped".to_owned(), "mapped".to_owned()], 50),
            single("protected"),
            single("protected"),
            single("unmapped"),
            single("mapped"),
            single("refused"),
            single("moved-away"),
            single("moved-here"),
            single("ended"),
        ]
    );
    for (entry, caller) in [(0, "reserve"), (1, "use"), (2, "purge"), (4, "use"), (7, "main")] {
        assert!(
            functions(&life, entry).iter().any(|name| name == caller),
            "entry {entry} is not by {caller}"
        );
    }
    let text =
        |entry: usize| life["entries"][entry]["steps"][0]["text"].as_str().unwrap_or_default().to_owned();
    assert_eq!(text(1), "protection ---p -> rw-p");
    assert_eq!(text(5), "protection rw-p -> r-xp");
    assert!(text(8).contains("EEXIST"), "{}", text(8));
    assert_eq!(text(9), "moved by mremap to 0x700000100000");
    let now = &life["now"];
    assert_eq!((&now["mapped"], &now["moment"]), (&Value::from(true), &Value::from("exit")));
    assert_eq!(now["region"]["start"], "0x700000000000");
    assert_eq!(now["region"]["prot"], "r--p");

    // The child goes on from there.
    let child = life["other_pids"][0].to_string();
    let childs = explained(&[&rec, "700000000000", "--pid", &child]);
    let (all, own) = (story(&life), story(&childs));
    assert_eq!(own[..11], all[..11], "the past is its parent's");
    assert_eq!(own[11..], [single("inherited"), single("protected"), single("ended")]);
    assert_eq!(childs["now"]["region"]["prot"], "rw-p");
    let last = &childs["entries"][13]["steps"][0]["text"];
    assert_eq!(last, "the process exited 3, with the page still mapped");

    // In words, and within the width of a terminal.
    let output = explain(&[&rec, "700000000000"]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let flowing = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in ["100 times, until", "50 rounds of these 2 steps", "mmap refused: EEXIST", "at its exit:"] {
        assert!(flowing.contains(words), "no {words:?} in\n{text}");
    }
    let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 100).collect();
    assert!(long.is_empty(), "{long:#?}");

    // What it was before the last unmapping, and where it is no more.
    let gone = explained(&[&rec, "0x700000100000"]);
    assert_eq!(gone["now"]["mapped"], false);
    assert_eq!(story(&gone).last(), Some(&single("moved-away")));
    assert!(gone["now"]["below"]["region"].is_object() && gone["now"]["above"]["region"].is_object());
    let never = explain(&[&rec, "0x600000000000"]);
    assert_eq!(never.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&never.stdout).contains("no call ever mapped it"));
    assert_eq!(explain(&[&rec, "0x1000", "--pid", "1"]).status.code(), Some(2));
    assert_eq!(explain(&[&rec, "address"]).status.code(), Some(2));
}

/// The address that jemalloc mapped and at once unmapped, and that a shared object then got.
#[test]
fn an_address_that_jemalloc_had_and_a_library_got() {
    let jemalloc = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";
    if skip_without_bpf("explain_programs") || skip_without("explain_programs", jemalloc) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let preload = OsString::from(format!("LD_PRELOAD={jemalloc}"));
    let plugin = shared_object("dlplugin").into_os_string();
    let command =
        ["/usr/bin/env".into(), preload, program("dlcycle").into_os_string(), plugin.clone(), "1".into()];
    let rec = record(folder.path(), &command);
    let events = Command::new(vmaudit())
        .args(["events", &rec, "-f", "json", "--call", "munmap", "--stack", "libjemalloc"])
        .output()
        .expect("vmaudit starts");
    let text = String::from_utf8(events.stdout).expect("UTF-8");
    let first: Value = serde_json::from_str(text.lines().next().expect("jemalloc unmaps")).expect("JSON");
    let address = first["args"]["addr"].as_str().expect("an address");
    let life = explained(&[&rec, address]);
    let plugin = plugin.to_str().expect("UTF-8");
    let modules = |entry: &Value| {
        let stack = entry["steps"][0]["stack"].as_u64().map(|k| &life["stacks"][k as usize]["frames"]);
        let frames = stack.and_then(Value::as_array).cloned().unwrap_or_default();
        frames.iter().filter_map(|f| f["module"].as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    let entries = life["entries"].as_array().expect("entries");
    let by_jemalloc = |change: &str| {
        let own = |entry: &Value| modules(entry).iter().any(|module| module.starts_with("libjemalloc"));
        entries.iter().position(|entry| entry["steps"][0]["change"] == change && own(entry))
    };
    let (mapped, unmapped) = (by_jemalloc("mapped"), by_jemalloc("unmapped"));
    let library = entries.iter().position(|entry| {
        let step = &entry["steps"][0];
        step["change"] == "mapped" && step["path"].as_str() == Some(plugin)
            || step["change"] == "replaced" && step["path"].as_str() == Some(plugin)
    });
    assert!(mapped.is_some() && mapped < unmapped && unmapped < library, "{:#?}", story(&life));
    let library = library.map(|entry| modules(&entries[entry])).unwrap_or_default();
    assert!(library.iter().any(|module| module.starts_with("ld-linux")), "dlopen mapped it: {library:?}");
}

#[test]
fn a_living_process_has_no_past() {
    let mut sleeper = Command::new("sleep");
    let child = Guard(sleeper.arg("1000").stdin(Stdio::null()).spawn().expect("sleep starts"));
    let pid = child.0.id().to_string();
    // Until execve is through, it is still this test.
    let exe = || std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    while !exe().ends_with("sleep") {
        std::thread::yield_now();
    }
    let maps = loop {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
        if maps.contains("libc.so.6") && maps.contains("[heap]") {
            break maps;
        }
        std::thread::yield_now();
    };
    let line = maps.lines().find(|line| line.contains("r-xp") && line.contains("libc.so.6")).expect("libc");
    let (start, rest) = line.split_once('-').expect("a range");
    let life = explained(&["-p", &pid, start]);
    assert_eq!(life["traced"], false);
    assert_eq!(life["entries"], Value::Array(Vec::new()));
    assert_eq!(life["now"]["region"]["start"], format!("0x{start}"));
    assert_eq!(life["now"]["region"]["end"], format!("0x{}", rest.split(' ').next().expect("an end")));
    assert_eq!(life["now"]["page"], "resident", "its first page holds code that every program runs");
    let text = String::from_utf8(explain(&["-p", &pid, start]).stdout).expect("UTF-8");
    assert!(text.contains("its past is not known") && text.contains("libc.so.6"), "{text}");
    let nothing = explain(&["-p", &pid, "0x1000"]);
    assert_eq!(nothing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nothing.stdout).contains("nothing is mapped there"));
}

#[test]
fn unusable_command_lines() {
    for args in [&["0x1000"][..], &[], &["-p", "1", "what"], &["-p", "x", "0x1000"]] {
        assert_eq!(explain(args).status.code(), Some(2), "{args:?}");
    }
    assert_eq!(explain(&["/no/such/file", "0x1000"]).status.code(), Some(125));
}
