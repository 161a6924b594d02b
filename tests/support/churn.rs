//! Random work in address spaces by several threads and their children (tests/programs/churn.c), held
//! against the maps file that each process writes just before it leaves.

use super::report::{Span, spans_of_maps, spans_of_regions};
use super::{Audit, audit, program};
use std::ffi::OsString;
use std::fs;
use std::path::Path;

/// Every eighth seed each replaces the program by execve, from its first thread or from another.
pub fn mode(seed: u64) -> &'static str {
    match seed % 8 {
        5 => "exec",
        6 => "thread-exec",
        7 => "leaf",
        _ => "normal",
    }
}

/// Where two address spaces differ, for the message.
pub fn differences(ours: &[Span], theirs: &[Span]) -> String {
    let only = |a: &[Span], b: &[Span]| {
        let lines = a.iter().filter(|span| !b.contains(span));
        lines.take(8).map(|s| format!("    {:#x}-{:#x} {}\n", s.start, s.end, s.prot)).collect::<String>()
    };
    format!("  only in the report:\n{}  only in the maps file:\n{}", only(ours, theirs), only(theirs, ours))
}

/// The command of one seed, whose processes leave their maps files in `folder`.
pub fn command_of(seed: u64, folder: &Path) -> [OsString; 6] {
    let (seed_text, prefix) = (seed.to_string(), folder.join("maps"));
    [program("churn").into(), seed_text.into(), "5".into(), "150".into(), prefix.into(), mode(seed).into()]
}

/// What is wrong with one seed, audited with these options; empty when nothing is.
pub fn run_seed(seed: u64, options: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let words = command_of(seed, folder.path());
    let words = words.each_ref().map(|word| word.as_os_str());
    what_is_wrong(&audit(options, &words), folder.path(), &["ledger_drift", "unknown", "preexisting"])
}

/// The same of calls that fail, in part or as a whole (tests/programs/turmoil.c).
pub fn run_turmoil(seed: u64, threads: u64, mode: &str, options: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (seed, threads) = (seed.to_string(), threads.to_string());
    let (turmoil, prefix) = (program("turmoil"), folder.path().join("maps"));
    let words = [
        turmoil.as_os_str(),
        seed.as_ref(),
        threads.as_ref(),
        "150".as_ref(),
        prefix.as_os_str(),
        mode.as_ref(),
    ];
    what_is_wrong(&audit(options, &words), folder.path(), &["ledger_drift", "unknown", "preexisting"])
}

/// Where a report differs from the maps files in `folder`, and which of the bytes that there must not be there are.
pub fn what_is_wrong(audit: &Audit, folder: &Path, none_of: &[&str]) -> Vec<String> {
    if audit.code() != Some(0) {
        return vec![format!("{}: {}", audit.status, audit.stderr)];
    }
    let report = audit.report();
    let mut wrong = Vec::new();
    let lost = report.event("lost");
    if lost != 0 {
        wrong.push(format!("{lost} events lost"));
    }
    let files = maps_files(folder);
    let first = report.first()["pid"].as_u64().unwrap_or(0);
    if !files.iter().any(|(pid, _)| *pid == first) {
        wrong.push(format!("the first process, {first}, wrote no maps file"));
    }
    for (pid, maps) in files {
        let Some(process) = report.process(pid) else {
            wrong.push(format!("pid {pid} is not in the report"));
            continue;
        };
        for key in none_of {
            let bytes = process["coverage"][*key].as_u64();
            if bytes != Some(0) {
                wrong.push(format!("pid {pid}: {key} is {bytes:?}"));
            }
        }
        let (ours, theirs) = (spans_of_regions(process), spans_of_maps(&maps));
        if ours != theirs {
            wrong.push(format!("pid {pid} differs\n{}", differences(&ours, &theirs)));
        }
    }
    wrong
}

/// `maps.PID` files: (pid, content).
fn maps_files(folder: &Path) -> Vec<(u64, Vec<u8>)> {
    let entries = fs::read_dir(folder).expect("the temporary folder").flatten();
    entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.strip_prefix("maps.")?.parse().ok()?;
            Some((pid, fs::read(entry.path()).ok()?))
        })
        .collect()
}
