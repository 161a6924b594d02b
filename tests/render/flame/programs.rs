//! Flame graphs and profiles of real runs: what they add up to, what `pprof` and a browser make of them,
//! and what is refused.

use super::reports::{decode, titles};
use crate::support::{manifest_dir, program, skip, skip_without_bpf, vmaudit};
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn run(args: &[&str]) -> Output {
    Command::new(vmaudit()).args(args).stdin(Stdio::null()).output().expect("vmaudit starts")
}

fn text(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn sum(folded: &str) -> u64 {
    folded.lines().map(|line| line.rsplit(' ').next().expect("a value").parse::<u64>().expect("bytes")).sum()
}

/// One run, all formats: they have the totals of the JSON report, and name the requesting function.
#[test]
fn all_formats_of_a_run_add_up_to_its_report() {
    const TEST: &str = "all_formats_of_a_run_add_up_to_its_report";
    if skip_without_bpf(TEST) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let (recording, program) = (path("peaks.rec"), program("peaks"));
    let program = program.to_str().expect("UTF-8");
    let svg = path("peaks.svg");
    text(&["run", "--as-root", "-f", "svg", "--report", &svg, "-o", &recording, "--", program]);
    let report: serde_json::Value =
        serde_json::from_str(&text(&["report", &recording, "-f", "json"])).expect("JSON");
    let totals = &report["processes"][0]["totals"];
    for width in ["virt", "writable", "rss", "unused"] {
        for more in [&[][..], &["--reverse", "--threads", "--lines"]] {
            let args = [&["report", &recording, "-f", "folded", "--width", width][..], more].concat();
            assert_eq!(sum(&text(&args)), totals[width].as_u64().expect("bytes"), "{args:?}");
        }
    }
    let drawn = fs::read_to_string(&svg).expect("a picture");
    let titles = titles(&drawn);
    assert!(titles.iter().any(|title| title.starts_with("main (peaks) (")), "{titles:#?}");
    // the same from the recording
    assert_eq!(text(&["report", &recording, "-f", "svg"]), drawn);
    let moment = text(&["report", &recording, "--at", "peak", "-f", "folded"]);
    let then: serde_json::Value =
        serde_json::from_str(&text(&["report", &recording, "--at", "peak", "-f", "json"])).expect("JSON");
    let peak = then["processes"][0]["totals"]["virt"].as_u64().expect("bytes");
    assert_eq!(sum(&moment), peak, "the peak's VIRT, for residency is not known then");
    let profile = path("peaks.pb.gz");
    text(&["report", &recording, "-f", "pprof", "--width", "virt", "--report", &profile]);
    let decoded = decode(&fs::read(&profile).expect("a profile"));
    assert_eq!(decoded.types, ["virt", "writable", "rss", "unused", "swap", "regions"]);
    let builds: Vec<&str> = decoded
        .profile
        .mapping
        .iter()
        .map(|m| decoded.profile.string_table[m.build_id as usize].as_str())
        .collect();
    assert!(builds.iter().all(|id| id.len() == 40), "{builds:?}");
    pprof_reads(TEST, &profile, totals["unused"].as_u64().expect("bytes"));
    chromium_draws(TEST, Path::new(&svg), &titles);
}

/// pprof's own sum, in bytes, is the report's.
fn pprof_reads(test: &str, profile: &str, unused: u64) {
    let mut pprof = Command::new("go");
    pprof.args(["tool", "pprof", "-top", "-unit=B", "-sample_index=unused", profile]).env("HOME", "/tmp");
    let Ok(output) = pprof.output() else {
        return skip(test, "the rest of it: go is not installed (apt-get install golang-go)");
    };
    let (shown, reported) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{reported}");
    assert!(
        shown.contains("Type: unused") && shown.contains(&format!("of {unused}B total")),
        "{shown}{reported}"
    );
    assert!(shown.contains(" main\n"), "{shown}");
}

/// A browser has the document, runs its script without an error, and gives each box its text.
fn chromium_draws(test: &str, svg: &Path, titles: &[String]) {
    let profile = tempfile::tempdir().expect("a folder");
    let mut chromium = Command::new("chromium");
    chromium.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=2000",
        "--dump-dom",
    ]);
    chromium.arg(format!("--user-data-dir={}", profile.path().display()));
    let Ok(output) = chromium.arg(format!("file://{}", svg.display())).output() else {
        return skip(test, "the rest of it: chromium is not installed");
    };
    let dom = String::from_utf8_lossy(&output.stdout);
    assert_eq!(dom.matches("<title>").count(), titles.len(), "{}", dom.chars().take(300).collect::<String>());
    assert!(!dom.contains("parsererror"), "not well-formed");
    // The script takes the width away to fill the window, and writes texts anew.
    let root = dom.split_once("<svg").and_then(|(_, rest)| rest.split_once('>')).map(|(root, _)| root);
    assert!(root.is_some_and(|root| !root.contains(" width=")), "the script did not run: {root:?}");
}

#[test]
fn what_cannot_be_is_refused_before_anything_starts() {
    let smaps = manifest_dir().join("tests/fixtures/captures/blog-prefix-fgets-shared.thread.smaps");
    let folder = tempfile::tempdir().expect("a folder");
    let text = fs::read_to_string(&smaps).expect("fixture");
    let maps: Vec<&str> = text.lines().filter(|line| !line.starts_with(char::is_uppercase)).collect();
    let file = folder.path().join("maps");
    fs::write(&file, maps.join("\n")).expect("a file");
    let (smaps, maps) = (smaps.to_str().expect("UTF-8"), file.to_str().expect("UTF-8"));
    for (args, words) in [
        (vec!["snapshot", "--smaps", smaps, "--width", "rss"], "--width means nothing with -f text"),
        (vec!["snapshot", "--smaps", smaps, "-f", "folded", "--inverted"], "it is for -f svg"),
        (
            vec!["snapshot", "--smaps", smaps, "-f", "pprof", "--reverse"],
            "--reverse means nothing with -f pprof",
        ),
        (vec!["snapshot", "--smaps", maps, "-f", "svg", "--width", "rss"], "use --width virt or writable"),
        (vec!["diff", smaps, maps, "-f", "folded", "--width", "unused"], "not known what is in memory"),
        (vec!["diff", smaps, smaps, "-f", "pprof"], "[possible values: text, json, folded, svg, html]"),
        (vec!["doctor", "-f", "svg"], "[possible values: text, json]"),
        (vec!["run", "-f", "json", "--lines", "--", "/nonexistent"], "--lines means nothing with -f json"),
    ] {
        let output = run(&args);
        let reported = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {reported}");
        assert!(reported.contains(words) && output.stdout.is_empty(), "{args:?}: {reported}");
    }
    let output = run(&["snapshot", "--smaps", maps, "-f", "folded"]);
    assert!(output.status.success());
    let reported = String::from_utf8_lossy(&output.stderr);
    assert!(reported.contains("stacks are as wide as their VIRT"), "{reported}");
}

#[test]
fn a_comparison_is_drawn_and_folded() {
    let capture = |name: &str| {
        let path = manifest_dir().join("tests/fixtures/captures").join(name);
        path.to_str().expect("UTF-8").to_owned()
    };
    let (before, thread) =
        (capture("blog-prefix-fgets-shared.before.smaps"), capture("blog-prefix-fgets-shared.thread.smaps"));
    let folded = text(&["diff", &before, &thread, "-f", "folded", "--width", "virt"]);
    let arena = folded.lines().find(|line| line.contains("[arena reserved part]")).expect("an arena");
    let columns: Vec<&str> = arena.rsplitn(3, ' ').collect();
    assert_eq!(columns[1], "0", "{arena}");
    let svg = text(&["diff", &before, &thread, "-f", "svg", "--width", "virt"]);
    let titles = titles(&svg);
    assert!(titles.iter().any(|title| title == "[glibc malloc arenas] (new, 64.0 MiB)"), "{titles:#?}");
}
