//! `-f html`: the page holds what the JSON report of the same process says, and goes where it should.

use crate::support::{Guard, program, skip_without_bpf, vmaudit};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The report in a page, as the script reads it.
fn data(page: &str) -> Value {
    assert!(page.starts_with("<!doctype html>"), "{}", page.get(..80).unwrap_or(page));
    let begin = "<script type=\"application/json\" id=\"data\">";
    let (_, rest) = page.split_once(begin).expect("the data");
    let (json, _) = rest.split_once("</script>").expect("its end");
    serde_json::from_str(json).expect("JSON")
}

fn run(arguments: &[&str]) -> Output {
    Command::new(vmaudit()).args(arguments).stdin(Stdio::null()).output().expect("vmaudit runs")
}

fn page_of(file: &Path) -> Value {
    data(&fs::read_to_string(file).expect("a page"))
}

/// A number for all rows, or one for each.
fn row(column: &Value, at: usize) -> u64 {
    column.as_u64().or_else(|| column[at].as_u64()).expect("a number")
}

/// Starts, ends and resident bytes of a page's regions.
fn regions(process: &Value) -> Vec<(u64, u64, u64)> {
    let regions = &process["regions"];
    let (unit, size_unit) = (regions["at"]["unit"].as_u64().unwrap(), regions["size_unit"].as_u64().unwrap());
    let mut last = 0;
    (0..regions["count"].as_u64().unwrap() as usize)
        .map(|at| {
            let start = last + row(&regions["at"]["gap"], at) * unit;
            last = start + row(&regions["at"]["length"], at) * unit;
            (start, last, row(&regions["rss"], at) * size_unit)
        })
        .collect()
}

#[test]
fn a_snapshot_says_what_its_json_says() {
    let mut command = Command::new(program("manymaps"));
    command.arg("300").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut target = Guard(command.spawn().expect("it starts"));
    let mut ready = [0; 6];
    let pipe = target.0.stdout.as_mut().expect("a pipe");
    std::io::Read::read_exact(pipe, &mut ready).expect("it is ready");
    let pid = target.0.id().to_string();
    let html = run(&["snapshot", "-p", &pid, "-f", "html"]);
    let json = run(&["snapshot", "-p", &pid, "-f", "json"]);
    assert_eq!((html.status.code(), json.status.code()), (Some(0), Some(0)));
    let page = data(&String::from_utf8(html.stdout).expect("UTF-8"));
    let json: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    let (shown, reported) = (&page["processes"][0], &json["processes"][0]);
    for field in ["pid", "totals", "categories", "cmdline", "residency"] {
        assert_eq!(shown[field], reported[field], "{field}");
    }
    let address = |text: &Value| u64::from_str_radix(&text.as_str().unwrap()[2..], 16).unwrap();
    let reported: Vec<(u64, u64, u64)> = reported["regions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| (address(&r["start"]), address(&r["end"]), r["rss"].as_u64().unwrap()))
        .collect();
    assert!(reported.len() > 300);
    assert_eq!(regions(shown), reported);
}

#[test]
fn a_run_and_its_recording_give_the_same_page() {
    if skip_without_bpf("a_run_and_its_recording_give_the_same_page") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let [first, again, recording] = ["first.html", "again.html", "rec"].map(|name| folder.path().join(name));
    let [first_arg, again_arg, recording_arg] =
        [&first, &again, &recording].map(|path| path.to_str().unwrap());
    let run_it =
        ["run", "--as-root", "-o", recording_arg, "-f", "html", "--report", first_arg, "--", "/bin/true"];
    assert_eq!(run(&run_it).status.code(), Some(0));
    assert_eq!(run(&["report", recording_arg, "-f", "html", "--report", again_arg]).status.code(), Some(0));
    assert_eq!(fs::read(&first).unwrap(), fs::read(&again).unwrap());
    let page = page_of(&first);
    let process = &page["processes"][0];
    assert!(process["zero_ns"].as_u64().unwrap() > 0, "what times count from");
    let bytes: u64 = regions(process).iter().map(|(start, end, _)| end - start).sum();
    assert_eq!(process["totals"]["virt"].as_u64(), Some(bytes));
    let growth = run(&["report", recording_arg, "-f", "html", "--growth", ".."]);
    assert_eq!(growth.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&growth.stderr).contains("-f html"));
}
