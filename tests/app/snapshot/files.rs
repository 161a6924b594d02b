//! `vmaudit snapshot --smaps FILE`: real captures, odd names, and files that are damaged or something
//! else altogether.

use crate::support::report::number;
use crate::support::{AuditReport, manifest_dir, vmaudit};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn snapshot(args: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(vmaudit());
    command.arg("snapshot").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("vmaudit starts");
    let mut pipe = child.stdin.take().expect("a pipe");
    std::thread::scope(|scope| {
        // vmaudit may end before it has read everything: that is no failure
        scope.spawn(move || pipe.write_all(input));
        child.wait_with_output().expect("vmaudit ends")
    })
}

fn of_bytes(input: &[u8]) -> Output {
    snapshot(&["--smaps", "-", "-f", "json"], input)
}

fn error_of(input: &[u8]) -> String {
    let output = of_bytes(input);
    assert_eq!(output.status.code(), Some(125), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).expect("text")
}

fn captures() -> Vec<std::path::PathBuf> {
    let folder = manifest_dir().join("tests/fixtures/captures");
    let files = std::fs::read_dir(folder).expect("fixtures").map(|entry| entry.expect("entry").path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|e| e == "smaps")).collect();
    files.sort();
    assert!(files.len() >= 15);
    files
}

/// Sum of a field over an smaps file, without vsyscall, in bytes.
fn sum_of(text: &str, field: &str) -> u64 {
    let (mut sum, mut counts) = (0, true);
    for line in text.lines() {
        if !line.starts_with(|c: char| c.is_ascii_uppercase()) {
            counts = !line.ends_with("[vsyscall]");
        } else if let Some(rest) = line.strip_prefix(field).filter(|_| counts) {
            sum += rest.trim().trim_end_matches(" kB").parse::<u64>().expect("kB") * 1024;
        }
    }
    sum
}

#[test]
fn totals_are_those_of_the_file() {
    for path in captures() {
        let text = std::fs::read_to_string(&path).expect("fixture");
        let output = snapshot(&["--smaps", &path.to_string_lossy(), "-f", "json"], b"");
        assert!(output.status.success(), "{}", path.display());
        let report = AuditReport::parse(&output.stdout);
        let [process] = report.processes() else { panic!("one process") };
        for (field, total) in [("Size:", "virt"), ("Rss:", "rss"), ("Swap:", "swap")] {
            assert_eq!(number(&process["totals"], total), sum_of(&text, field), "{} {field}", path.display());
        }
        let coverage = &process["coverage"];
        assert_eq!((number(coverage, "traced"), number(coverage, "unknown")), (0, 0));
        assert_eq!(number(coverage, "ledger_drift"), 0);
        assert_eq!(
            (report.json["backend"].as_str(), process["snapshot"].as_str()),
            (Some("snapshot"), Some("file"))
        );
        assert_eq!(process["source"].as_str(), path.to_str());
        assert!(report.stacks().is_empty());
    }
}

fn virt_of(output: &Output, category: &str) -> u64 {
    let report = AuditReport::parse(&output.stdout);
    let rows = report.processes()[0]["categories"].as_array().expect("rows").clone();
    rows.iter().find(|row| row["id"] == category).map_or(0, |row| number(row, "virt"))
}

#[test]
fn shapes_distinguish_arenas_and_stacks() {
    let path = manifest_dir().join("tests/fixtures/captures/arenas4.threads-up.smaps");
    let text = std::fs::read(path).expect("fixture");
    let smaps = of_bytes(&text);
    assert_eq!(virt_of(&smaps, "glibc-arena"), 4 * (64 << 20));
    assert_eq!(virt_of(&smaps, "thread-stack"), 4 * ((8 << 20) + 4096));
    // the same of its maps lines alone
    let maps: Vec<u8> = text
        .split_inclusive(|&b| b == b'\n')
        .filter(|line| !line[0].is_ascii_uppercase())
        .collect::<Vec<_>>()
        .concat();
    let maps = of_bytes(&maps);
    assert_eq!(virt_of(&maps, "glibc-arena"), 4 * (64 << 20));
    assert_eq!(AuditReport::parse(&maps.stdout).processes()[0]["residency"], "none");
}

#[test]
fn text_speaks_of_no_events_and_says_what_is_missing() {
    for path in captures() {
        let output = snapshot(&["--smaps", &path.to_string_lossy()], b"");
        let text = String::from_utf8(output.stdout).expect("text");
        for word in [" events", "· backend", " lost", "before tracing"] {
            assert!(!text.contains(word), "{word} in\n{text}");
        }
        let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for words in ["not traced", "read from", "no call stacks", "vmaudit run -- CMD", "ASLR on"] {
            assert!(joined.contains(words), "{words} is not in\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }
}

#[test]
fn names_may_be_anything() {
    let text = b"1000-2000 r-xp 00000000 08:01 7    /opt/a b\\012c \xff\x1b[31m (deleted)\nRss: 4 kB\n\
        2000-3000 rw-p 00000000 00:00 0    [anon:x y]\nRss: 0 kB\n\
        3000-4000 rw-s 00000000 00:01 9    /memfd:e\xcc\x81 (deleted)\nRss: 0 kB\n\
        7ffffffde000-7ffffffff000 rw-p 00000000 00:00 0    [stack]\nRss: 8 kB\nSwap: 4 kB\n";
    let report = AuditReport::parse(&of_bytes(text).stdout);
    let process = &report.processes()[0];
    assert_eq!(process["regions"][0]["path"], "/opt/a b\nc \u{fffd}\u{1b}[31m (deleted)");
    assert_eq!(process["comm"], "a b\nc \u{fffd}\u{1b}[31m");
    assert_eq!(process["aslr"], false, "the stack ends where it does without randomisation");
    let shown = snapshot(&["--smaps", "-"], text);
    assert!(!shown.stdout.contains(&0x1b), "names cannot drive the terminal");
    assert!(String::from_utf8_lossy(&shown.stdout).contains("ASLR off"));
}

#[test]
fn what_is_no_smaps_is_refused_with_the_line() {
    assert!(error_of(b"").contains("standard input: it is empty"));
    assert!(error_of(b"Name:\tbash\nUmask:\t0022\n").contains("line 1: "));
    assert!(error_of(b"\x7fELF\x02\x01\x01\0\0\0").contains("line 1: "));
    assert!(error_of(b"1000-2000 rw-p 0 0:0 0\nRss: 99 kB\n").contains("line 2: Rss"));
    assert!(error_of(b"1000-2000 rw-p 0 0:0 0\nSwap: 18446744073709551615 kB\n").contains("line 2: Swap"));
    let twice = std::fs::read(&captures()[0]).expect("fixture").repeat(2);
    assert!(error_of(&twice).contains("several files joined"));
    let rollup = b"1000-7ff000 ---p 00000000 00:00 0 [rollup]\nRss: 4 kB\n";
    assert!(error_of(rollup).contains("smaps_rollup"));
    let missing = snapshot(&["--smaps", "/nonexistent/smaps"], b"");
    assert_eq!(missing.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("/nonexistent/smaps: No such file"));
    let folder = snapshot(&["--smaps", "/"], b"");
    assert_eq!(folder.status.code(), Some(125));
}

#[test]
fn a_file_cut_anywhere_is_read_or_refused() {
    let text = std::fs::read(Path::new(&captures()[2])).expect("fixture");
    for len in (0..text.len()).step_by(text.len() / 23) {
        let output = of_bytes(&text[..len]);
        match output.status.code() {
            Some(0) => drop(AuditReport::parse(&output.stdout)),
            Some(125) => assert!(!output.stderr.is_empty()),
            other => panic!("{other:?} at {len}: {}", String::from_utf8_lossy(&output.stderr)),
        }
    }
}

#[test]
fn the_command_line_needs_one_source() {
    assert_eq!(snapshot(&[], b"").status.code(), Some(2));
    assert_eq!(snapshot(&["-p", "1", "--smaps", "-"], b"").status.code(), Some(2));
    assert_eq!(snapshot(&["-p", "0"], b"").status.code(), Some(2));
    assert_eq!(snapshot(&["-p", "x"], b"").status.code(), Some(2));
}
