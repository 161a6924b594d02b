//! The ledger against the kernel: 200 seeds of random address-space work by several threads and
//! their children. Each process writes its own /proc/self/maps just before it leaves; the report's
//! regions have to be that file, with nothing lost, unknown or in disagreement.

mod support;

use std::fs;
use std::path::Path;
use support::report::{Span, spans_of_maps, spans_of_regions};
use support::{audit, program, skip_without_bpf};

const SHARDS: u64 = 8;
const SEEDS: u64 = 200;

/// Every eighth seed each replaces the program by execve, from its first thread or from another.
fn mode(seed: u64) -> &'static str {
    match seed % 8 {
        5 => "exec",
        6 => "thread-exec",
        7 => "leaf",
        _ => "normal",
    }
}

/// Where two address spaces differ, for the message.
fn differences(ours: &[Span], theirs: &[Span]) -> String {
    let only = |a: &[Span], b: &[Span]| {
        let lines = a.iter().filter(|span| !b.contains(span));
        lines.take(8).map(|s| format!("    {:#x}-{:#x} {}\n", s.start, s.end, s.prot)).collect::<String>()
    };
    format!("  only in the report:\n{}  only in the maps file:\n{}", only(ours, theirs), only(theirs, ours))
}

/// What is wrong with one seed; empty when nothing is.
fn run_seed(seed: u64) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let prefix = folder.path().join("maps");
    let (churn, seed_text) = (program("churn"), seed.to_string());
    let words = [
        churn.as_os_str(),
        seed_text.as_ref(),
        "5".as_ref(),
        "150".as_ref(),
        prefix.as_os_str(),
        mode(seed).as_ref(),
    ];
    let audit = audit(&[], &words);
    if audit.code() != Some(0) {
        return vec![format!("{}: {}", audit.status, audit.stderr)];
    }
    let report = audit.report();
    let mut wrong = Vec::new();
    let lost = report.event("lost");
    if lost != 0 {
        wrong.push(format!("{lost} events lost"));
    }
    let files = maps_files(folder.path());
    let first = report.first()["pid"].as_u64().unwrap_or(0);
    if !files.iter().any(|(pid, _)| *pid == first) {
        wrong.push(format!("the first process, {first}, wrote no maps file"));
    }
    for (pid, maps) in files {
        let Some(process) = report.process(pid) else {
            wrong.push(format!("pid {pid} is not in the report"));
            continue;
        };
        for key in ["ledger_drift", "unknown", "preexisting"] {
            let bytes = process["coverage"][key].as_u64();
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

fn shard(index: u64) {
    if skip_without_bpf("run_churn") {
        return;
    }
    let failures: Vec<String> = (0..SEEDS)
        .filter(|seed| seed / 8 % SHARDS == index)
        .filter_map(|seed| {
            let wrong = run_seed(seed);
            (!wrong.is_empty()).then(|| format!("seed {seed} ({}): {}", mode(seed), wrong.join("\n")))
        })
        .collect();
    assert!(failures.is_empty(), "{} seeds failed\n{}", failures.len(), failures.join("\n"));
}

macro_rules! shards {
    ($($name:ident $index:literal),*) => {
        $(#[test] fn $name() { shard($index); })*
    };
}

shards!(seeds_0 0, seeds_1 1, seeds_2 2, seeds_3 3, seeds_4 4, seeds_5 5, seeds_6 6, seeds_7 7);

#[test]
fn a_difference_is_seen() {
    let maps = b"1000-3000 rw-p 00000000 00:00 0 \n3000-4000 rw-p 00000000 00:00 0  [heap]\n\
        ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n";
    let spans = spans_of_maps(maps);
    assert_eq!(spans, [Span { start: 0x1000, end: 0x4000, prot: "rw-p".into() }]);
    let other = [Span { start: 0x1000, end: 0x4000, prot: "r--p".into() }];
    assert!(differences(&spans, &other).contains("0x1000-0x4000 rw-p"));
}
