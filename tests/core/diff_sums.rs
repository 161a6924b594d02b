//! The changes of a comparison add up to the difference of the totals, byte for byte: over the
//! captures of real programs, and over random reports.

use crate::saved;
use proptest::prelude::*;
use std::path::Path;
use std::sync::Arc;
use vmaudit::diff::model::{Change, Width, Widths};
use vmaudit::diff::{By, Diff, Options, Pick, Side, compare};
use vmaudit::report::model::{
    CategoryRow, Coverage, Finding, Frame, Origin, Process, Range, Region, Stack, Totals,
};
use vmaudit::report::{Report, RunFacts};

const ALL: [By; 4] = [By::Category, By::Stack, By::Finding, By::Address];

fn diff(a: &Report, b: &Report, by: By) -> Diff {
    let side = |report, name| Side::new(report, (name, "report"), Pick::All).expect("a sound report");
    compare(&side(a, "A"), &side(b, "B"), Options { by })
}

fn sums<'a>(widths: impl Iterator<Item = &'a Widths>) -> [i128; 6] {
    let mut sums = [0; 6];
    for w in widths {
        let change = |width: Option<Width>| i128::from(width.map_or(0, |w| w.change));
        let row = [
            change(Some(w.virt)),
            change(w.rss),
            change(w.swap),
            change(w.unused),
            change(Some(w.writable)),
            change(Some(w.reserved)),
        ];
        for (sum, value) in sums.iter_mut().zip(row) {
            *sum += value;
        }
    }
    sums
}

fn check(a: &Report, b: &Report) {
    let total = |report: &Report, of: fn(&Totals) -> u64| -> i128 {
        report.processes.iter().map(|p| i128::from(of(&p.totals))).sum()
    };
    for by in ALL {
        let diff = diff(a, b, by);
        let expected = sums([&diff.totals].into_iter());
        assert_eq!(expected[0], total(b, |t| t.virt) - total(a, |t| t.virt));
        assert_eq!(expected[4], total(b, |t| t.writable) - total(a, |t| t.writable));
        if diff.totals.rss.is_some() {
            assert_eq!(expected[1], total(b, |t| t.rss) - total(a, |t| t.rss));
            assert_eq!(expected[3], total(b, |t| t.unused) - total(a, |t| t.unused));
        }
        assert_eq!(sums(diff.categories.iter().map(|c| &c.widths)), expected, "{by:?}: categories");
        if by != By::Category {
            assert_eq!(sums(diff.changes.iter().map(|c| &c.widths)), expected, "{by:?}: changes");
        }
        let weights: Vec<u64> = diff.changes.iter().map(|c| c.widths.weight()).collect();
        assert!(weights.is_sorted_by(|x, y| x >= y), "largest first");
        for k in diff.changes.iter().filter_map(|c| c.stack) {
            assert!((k as usize) < diff.stacks.len());
        }
    }
}

/// What a snapshot of the fixture says.
fn capture(name: &str) -> Report {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures");
    saved::capture(&folder.join(name), name, &RunFacts::default())
}

#[test]
fn every_pair_of_captures_adds_up() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures");
    let bytes = |name: &String| std::fs::read(folder.join(name)).expect("a fixture");
    let mut names: Vec<String> = std::fs::read_dir(&folder)
        .expect("fixtures")
        .map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".smaps"))
        .collect();
    names.sort();
    assert!(names.len() >= 15, "{names:?}");
    let reports: Vec<Report> = names.iter().map(|name| capture(name)).collect();
    for (i, a) in reports.iter().enumerate() {
        for (k, b) in reports.iter().enumerate() {
            check(a, b);
            // brk's two last phases are equal
            let same = i == k || bytes(&names[i]) == bytes(&names[k]);
            assert_eq!(diff(a, b, By::Stack).equal, same, "{} {}", names[i], names[k]);
        }
    }
}

#[test]
fn what_a_capture_gained_is_named() {
    let diff = diff(
        &capture("blog-prefix-fgets-shared.before.smaps"),
        &capture("blog-prefix-fgets-shared.thread.smaps"),
        By::Stack,
    );
    let first: &Change = &diff.changes[0];
    assert_eq!((first.category.as_str(), first.widths.virt.change), ("glibc-arena", 64 << 20));
    assert_eq!(diff.changes[1].category, "thread-stack");
}

const CATEGORIES: [&str; 5] = ["glibc-arena", "loader", "file", "unknown", "jemalloc"];
const PROTS: [&str; 4] = ["rw-p", "r--p", "---p", "rw-s"];
const PATHS: [Option<&str>; 4] = [None, Some("/lib/libc.so.6"), Some("/data/x (deleted)"), Some("[heap]")];

/// (pages before it, pages, resident, swapped, prot, category, stack, path)
type Piece = (u64, u64, u64, u64, usize, usize, Option<u64>, usize);

fn process(pid: i32, pieces: &[Piece]) -> Process {
    let mut at = 0x10_0000u64;
    let mut totals = Totals::default();
    let mut regions = Vec::new();
    let mut findings: Vec<Finding> = Vec::new();
    for (i, &(gap, pages, rss, swap, prot, category, stack, path)) in pieces.iter().enumerate() {
        let start = at + gap * 4096;
        let virt = pages * 4096;
        let rss = rss.min(pages) * 4096;
        let swap = (swap * 4096).min(virt - rss);
        at = start + virt;
        let (prot, category) = (PROTS[prot], CATEGORIES[category]);
        totals.virt += virt;
        totals.rss += rss;
        totals.swap += swap;
        totals.writable += if prot.contains('w') { virt } else { 0 };
        totals.reserved += if prot == "---p" { virt } else { 0 };
        let range = Range { start: format!("{start:#x}"), end: format!("{at:#x}") };
        if i % 3 != 0 {
            findings.push(Finding {
                category: category.to_owned(),
                stack,
                caller: Some(i as u64 % 4),
                ranges: vec![range.clone()],
                ..Finding::default()
            });
        }
        regions.push(Region {
            start: range.start,
            end: range.end,
            prot: prot.to_owned(),
            category: category.to_owned(),
            virt,
            rss,
            swap,
            path: PATHS[path].map(str::to_owned),
            origin: stack.map(|k| Origin { stack: Some(k), comm: format!("t{k}"), ..Origin::default() }),
            instance: i as u64 / 2,
            ..Region::default()
        });
    }
    totals.unused = totals.virt - totals.rss - totals.swap;
    Process {
        pid,
        comm: format!("p{}", pid % 3),
        aslr: pid % 2 == 0,
        totals,
        regions,
        findings,
        categories: vec![CategoryRow {
            id: "file".into(),
            name: "mapped files".into(),
            ..CategoryRow::default()
        }],
        coverage: Coverage::default(),
        residency: if pid % 7 == 0 { "none".into() } else { "pagemap".into() },
        ..Process::default()
    }
}

fn report(processes: &[Vec<Piece>], first_pid: i32, build: u8) -> Report {
    let frame = |module: &str, offset: u64| Frame {
        module: module.to_owned(),
        build_id: (build < 3).then(|| format!("{build}")),
        offset: format!("{offset:#x}"),
        symbol: offset.is_multiple_of(2).then(|| format!("f{offset}")),
        inlined: offset.is_multiple_of(5),
        ..Frame::default()
    };
    let stack = |k: u64| Stack {
        frames: (0..k % 5)
            .map(|i| frame(["a", "b", "[unknown]"][i as usize % 3], i * k))
            .map(Arc::new)
            .collect(),
        ..Stack::default()
    };
    Report {
        schema: 1,
        backend: "bpf".to_owned(),
        processes: processes.iter().zip(first_pid..).map(|(pieces, pid)| process(pid, pieces)).collect(),
        stacks: (0..8).map(stack).collect(),
        ..Report::default()
    }
}

fn processes() -> impl Strategy<Value = Vec<Vec<Piece>>> {
    let piece = (
        0..3u64,
        1..200u64,
        0..100u64,
        0..50u64,
        0..PROTS.len(),
        0..CATEGORIES.len(),
        proptest::option::of(0..8u64),
        0..PATHS.len(),
    );
    prop::collection::vec(prop::collection::vec(piece, 0..30), 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn random_reports_add_up(
        a in processes(), b in processes(), pids in (1..20i32, 1..20i32), builds in (0..4u8, 0..4u8),
    ) {
        let (a, b) = (report(&a, pids.0, builds.0), report(&b, pids.1, builds.1));
        check(&a, &b);
        for by in ALL {
            let (there, back) = (diff(&a, &b, by), diff(&b, &a, by));
            prop_assert_eq!(there.changes.len(), back.changes.len());
            prop_assert_eq!(there.totals.virt.change, -back.totals.virt.change);
            prop_assert_eq!(there.equal, back.equal);
        }
    }

    #[test]
    fn a_report_equals_itself(a in processes(), pid in 1..20i32) {
        let a = report(&a, pid, 0);
        for by in ALL {
            let diff = diff(&a, &a, by);
            prop_assert!(diff.equal && diff.changes.is_empty());
        }
    }
}
