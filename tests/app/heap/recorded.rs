//! `heap -o REC`: `report REC` prints what the run printed, and each format of it.

use crate::support::{program, skip_without_bpf, vmaudit, watchdog};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use vmaudit::heap::HeapBy;
use vmaudit::heap::report::HeapReport;
use vmaudit::render::{
    HeapView, TextOptions, heap_to_folded, heap_to_heaptrack, heap_to_html, heap_to_pprof, heap_to_svg,
    heap_to_text, to_json,
};
use vmaudit::store::{HeapPlace, Recording};

fn heap(options: &[&str], recording: &Path, command: &[PathBuf]) -> Output {
    let mut vmaudit = Command::new(vmaudit());
    vmaudit.args(["heap", "--as-root", "-o"]).arg(recording).args(options).arg("--").args(command);
    let output = watchdog::output(&mut vmaudit);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// With its exit code.
fn report(recording: &Path, options: &[&str]) -> (Option<i32>, Vec<u8>, String) {
    let output = watchdog::output(Command::new(vmaudit()).arg("report").args(options).arg(recording));
    (output.status.code(), output.stdout, String::from_utf8_lossy(&output.stderr).into_owned())
}

fn printed(recording: &Path, options: &[&str]) -> Vec<u8> {
    let (code, report, said) = report(recording, options);
    assert_eq!(code, Some(0), "{options:?}: {said}");
    report
}

#[test]
fn it_prints_what_the_run_printed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (recording, file) = (folder.path().join("rec"), folder.path().join("report"));
    let to = file.to_str().expect("a path");
    let script = format!("{0} >/dev/null; exec {0} >/dev/null", program("heap_truth").display());
    let command = ["/bin/sh".into(), "-c".into(), script.into()];
    let mut ways = vec![
        ("preload", &[][..]),
        ("preload", &["--reverse"]),
        ("preload", &["--by", "module", "-f", "json"]),
    ];
    if !skip_without_bpf("heap_recorded") {
        ways.push(("uprobes", &["--by", "peak", "--top", "2"]));
    }
    for (way, view) in ways {
        let options = [&["--method", way, "--report", to], view].concat();
        heap(&options, &recording, &command);
        let ran = std::fs::read(&file).expect("a report");
        let format = if view.contains(&"json") { "json" } else { "text" };
        assert!(printed(&recording, &["-f", format]) == ran, "{way} {view:?}");
    }
}

#[test]
fn it_has_every_format_and_every_view() {
    let folder = tempfile::tempdir().expect("a folder");
    let recording = folder.path().join("rec");
    heap(&["--by", "size"], &recording, &[program("heap_peak")]);
    let json = printed(&recording, &["-f", "json"]);
    let reported = HeapReport::from_json(&json).expect("a report");
    assert_eq!(to_json(&reported).expect("JSON").into_bytes(), json);
    for (name, by) in [
        ("outstanding", HeapBy::Outstanding),
        ("peak", HeapBy::Peak),
        ("allocations", HeapBy::Allocations),
        ("temporary", HeapBy::Temporary),
        ("module", HeapBy::Module),
        ("thread", HeapBy::Thread),
        ("size", HeapBy::Size),
    ] {
        let view = HeapView { by, reverse: false };
        let text = heap_to_text(&reported, view, TextOptions::default()).into_bytes();
        assert!(printed(&recording, &["--by", name]) == text, "{name}");
        if matches!(by, HeapBy::Module | HeapBy::Thread | HeapBy::Size) {
            let (code, _, said) = report(&recording, &["-f", "folded", "--by", name]);
            assert!(code == Some(2) && said.contains("is about stacks"), "{name}: {said}");
            continue;
        }
        let folded = heap_to_folded(&reported, view).into_bytes();
        assert!(
            !folded.is_empty() && printed(&recording, &["-f", "folded", "--by", name]) == folded,
            "{name}"
        );
        let svg = heap_to_svg(&reported, view).expect("a graph").into_bytes();
        assert!(printed(&recording, &["-f", "svg", "--by", name]) == svg, "{name}");
        let profile = heap_to_pprof(&reported, by).expect("a profile");
        assert!(printed(&recording, &["-f", "pprof", "--by", name]) == profile, "{name}");
    }
    // The run's own --by has no stacks.
    let view = HeapView { by: HeapBy::Outstanding, reverse: true };
    assert!(
        printed(&recording, &["-f", "folded", "--reverse"]) == heap_to_folded(&reported, view).into_bytes()
    );
    assert!(printed(&recording, &["-f", "html"]) == heap_to_html(&reported).expect("a page").into_bytes());
    let data = heap_to_heaptrack(&reported, &reported.processes[0]).expect("a file");
    assert!(printed(&recording, &["-f", "heaptrack"]) == data);
}

#[test]
fn intervals_are_moments() {
    let folder = tempfile::tempdir().expect("a folder");
    let (recording, file) = (folder.path().join("rec"), folder.path().join("report.svg"));
    // Also where only the last one is printed.
    let options = ["--interval", "0.02", "-f", "svg", "--report", file.to_str().expect("a path")];
    heap(&options, &recording, &[program("heap_threads"), "4".into(), "20".into(), "20000".into()]);
    let opened = Recording::open(&recording).expect("a recording");
    let zero = opened.meta().started_ns;
    let places = opened.heap_moments().expect("moments");
    assert!(places.len() >= 2, "{places:?}");
    let mut before = 0;
    for place in &places {
        let at = format!("{:.6}", (place.time_ns - zero) as f64 / 1e9);
        let reported =
            HeapReport::from_json(&printed(&recording, &["-f", "json", "--at", &at])).expect("a report");
        let totals = reported.processes.first().map(|process| process.totals).unwrap_or_default();
        assert!(totals.allocations >= before, "{at}");
        before = totals.allocations;
    }
    assert!(printed(&recording, &["-f", "svg"]) == std::fs::read(&file).expect("a graph"));
    let (code, _, said) = report(&recording, &["--at", "86400"]);
    assert!(code == Some(125) && said.contains("the recording ends after"), "{said}");
    let (code, _, said) = report(&recording, &["--at", "0"]);
    assert!(code == Some(125) && said.contains("the first report of a heap"), "{said}");
}

/// Between two intervals, and since the beginning.
#[test]
fn growth_is_the_difference_of_two_reports() {
    let folder = tempfile::tempdir().expect("a folder");
    let recording = folder.path().join("rec");
    let file = folder.path().join("report.json");
    let options = ["--interval", "0.02", "-f", "json", "--report", file.to_str().expect("a path")];
    heap(&options, &recording, &[program("heap_threads"), "4".into(), "20".into(), "20000".into()]);
    let opened = Recording::open(&recording).expect("a recording");
    let zero = opened.meta().started_ns;
    let places = opened.heap_moments().expect("moments");
    let at = |place: &HeapPlace| format!("{:.6}", (place.time_ns - zero) as f64 / 1e9);
    let reported = |at: &str| {
        let report = HeapReport::from_json(&printed(&recording, &["-f", "json", "--at", at])).expect("JSON");
        report.processes.iter().map(|process| process.totals).fold((0, 0), |(bytes, calls), totals| {
            (bytes + totals.outstanding_bytes, calls + totals.allocations)
        })
    };
    let (first, last) = (at(places.first().expect("a moment")), at(places.last().expect("a moment")));
    for (from, to) in [("", ""), ("0", last.as_str()), (first.as_str(), "")] {
        let span = format!("{from}..{to}");
        let growth: Value =
            serde_json::from_slice(&printed(&recording, &["-f", "json", "--growth", &span])).expect("JSON");
        let before = if from == first { reported(&first) } else { (0, 0) };
        let after = reported(&last);
        let totals = &growth["totals"];
        assert_eq!(
            (&totals["outstanding"]["a"], &totals["outstanding"]["b"]),
            (&before.0.into(), &after.0.into())
        );
        assert_eq!(
            (&totals["allocations"]["a"], &totals["allocations"]["b"]),
            (&before.1.into(), &after.1.into())
        );
        let changes = growth["changes"].as_array().expect("changes");
        let sum: i64 = changes.iter().filter_map(|change| change["outstanding"]["change"].as_i64()).sum();
        assert_eq!(Some(sum), totals["outstanding"]["change"].as_i64(), "{span}");
        assert!(growth["b"]["source"].as_str().is_some_and(|name| name.ends_with(" s")), "{growth}");
    }
    let text = String::from_utf8(printed(&recording, &["--growth", ".."])).expect("text");
    assert!(text.contains("A  0.000 s") && text.contains("outstanding"), "{text}");
    for format in ["folded", "html"] {
        assert!(!printed(&recording, &["-f", format, "--growth", ".."]).is_empty(), "{format}");
    }
    let (code, _, said) = report(&recording, &["--growth", "1..86400"]);
    assert!(code == Some(125) && said.contains("the recording ends after"), "{said}");
}

#[test]
fn what_a_heap_does_not_have_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let recording = folder.path().join("rec");
    heap(&[], &recording, &[program("heap_peak")]);
    for (options, why) in [
        (&["--growth", "peak.."][..], "--by peak shows it"),
        (&["--growth", "..", "-f", "pprof"], "write one of each moment"),
        (&["--growth", "..", "--by", "size"], "leave --by out"),
        (&["--growth", "..", "--lines"], "--lines is about what is mapped"),
        (&["--at", "peak"], "--by peak shows the peak of a heap"),
        (&["--width", "rss"], "--width is about what is mapped"),
        (&["--by", "thread", "--reverse"], "--reverse merges stacks"),
    ] {
        let (code, _, said) = report(&recording, options);
        assert!(code == Some(2) && said.contains(why), "{options:?}: {said}");
    }
    let name = recording.to_str().expect("a path");
    for words in [&["events", name][..], &["explain", name, "0x1000"], &["report", "--replay", name]] {
        let output = watchdog::output(Command::new(vmaudit()).args(words));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(125) && said.contains("the recording of a heap"),
            "{words:?}: {said}"
        );
    }
}

/// As with other recordings: an older one is kept, and is back where nothing came of the new one.
#[test]
fn nothing_but_a_recording_is_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let recording = folder.path().join("rec");
    heap(&[], &recording, &[program("heap_peak")]);
    let first = std::fs::read(&recording).expect("a recording");
    let run = |file: &Path, command: &Path| {
        let mut vmaudit = Command::new(vmaudit());
        watchdog::output(vmaudit.args(["heap", "--as-root", "-o"]).arg(file).arg("--").arg(command))
    };
    assert_ne!(run(&recording, Path::new("/no/such/program")).status.code(), Some(0));
    assert!(std::fs::read(&recording).expect("a recording") == first);
    heap(&[], &recording, &[program("heap_peak")]);
    assert!(std::fs::read(folder.path().join("rec.old")).expect("the older one") == first);
    let precious = folder.path().join("precious");
    std::fs::write(&precious, "important").expect("written");
    let refused = run(&precious, &program("heap_peak"));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(125) && said.contains("it is no recording"), "{said}");
    assert!(refused.stdout.is_empty(), "nothing has run");
    assert_eq!(std::fs::read(&precious).expect("still there"), b"important");
}
