//! Flame graphs and profiles lose no byte: over the captures of real programs, and over random reports
//! with names that try to break each format.

use super::reports::{self, CATEGORIES, Decoded, Piece, decode, random_report, titles};
use proptest::prelude::*;
use std::collections::BTreeMap;
use vmaudit::render::{
    FlameOptions, FlameSide, FlameSides, Width, diff_to_folded, diff_to_svg, to_folded, to_pprof, to_svg,
};
use vmaudit::report::Report;
use vmaudit::report::model::Totals;

/// What of the totals a width is.
type Of = fn(&Totals) -> u64;

const WIDTHS: [(Width, Of); 4] = [
    (Width::Virt, |t| t.virt),
    (Width::Writable, |t| t.writable),
    (Width::Rss, |t| t.rss),
    (Width::Unused, |t| t.unused),
];

fn options(width: Width) -> FlameOptions {
    FlameOptions { width, ..FlameOptions::default() }
}

/// Of all processes of which it is known.
fn total(report: &Report, width: Width, of: Of) -> u64 {
    let known = |residency: &str| !width.needs_residency() || residency != "none";
    report.processes.iter().filter(|p| known(&p.residency)).map(|p| of(&p.totals)).sum()
}

/// The columns of each line, summed up; each line has a stack of frames that are not empty.
fn column_sums<const N: usize>(folded: &str) -> [u64; N] {
    let mut sums = [0; N];
    for line in folded.lines() {
        let mut rest = line;
        for sum in sums.iter_mut().rev() {
            let (head, number) = rest.rsplit_once(' ').expect("a column");
            *sum += number.parse::<u64>().unwrap_or_else(|e| panic!("{line}: {e}"));
            rest = head;
        }
        assert!(!rest.starts_with('#') && rest.split(';').all(|frame| !frame.trim().is_empty()), "{line}");
        // a tool that searches for a second column finds none
        let last = rest.rsplit_once(' ').map_or("", |(_, word)| word);
        assert!(!last.bytes().all(|b| b.is_ascii_digit()) || last.is_empty(), "{line}");
    }
    sums
}

fn check(report: &Report) {
    for (width, of) in WIDTHS {
        let expected = total(report, width, of);
        for how in [
            options(width),
            FlameOptions { reverse: true, threads: true, ..options(width) },
            FlameOptions { inverted: true, lines: true, ..options(width) },
        ] {
            assert_eq!(column_sums::<1>(&to_folded(report, how)), [expected], "{how:?}");
            match to_svg(report, how) {
                Ok(svg) => {
                    let titles = titles(&svg);
                    let all = titles.iter().find(|title| title.starts_with("all (")).expect("the root");
                    assert!(all.contains(&format!("{}, 100.00 %", width.name())), "{all}");
                    assert!(
                        !titles.iter().any(|title| title.contains(" bytes,")),
                        "a box that was not painted"
                    );
                }
                Err(error) => assert_eq!(expected, 0, "{error}"),
            }
        }
    }
    check_profile(report);
}

fn check_profile(report: &Report) {
    let Decoded { profile, types } = decode(&to_pprof(report, Width::Unused).expect("in memory"));
    let known = report.processes.iter().any(|p| p.residency != "none");
    let all = ["virt", "writable", "rss", "unused", "swap", "regions"];
    let expected: Vec<&str> = if known { all.to_vec() } else { vec!["virt", "writable", "regions"] };
    assert_eq!(types, expected);
    let mut by_category: BTreeMap<(String, String), Vec<i64>> = BTreeMap::new();
    for sample in &profile.sample {
        let label = |key: &str| {
            let found = sample.label.iter().find(|label| profile.string_table[label.key as usize] == key);
            found.map(|label| profile.string_table[label.str as usize].clone()).unwrap_or_default()
        };
        assert_eq!(sample.value.len(), types.len());
        let sums =
            by_category.entry((label("pid"), label("category"))).or_insert_with(|| vec![0; types.len()]);
        sums.iter_mut().zip(&sample.value).for_each(|(sum, value)| *sum += value);
    }
    for (at, name) in types.iter().enumerate() {
        for process in &report.processes {
            for id in CATEGORIES {
                let regions: Vec<_> = process.regions.iter().filter(|r| r.category == id).collect();
                let things: std::collections::HashSet<u64> = regions.iter().map(|r| r.instance).collect();
                let expected: u64 = match name.as_str() {
                    "virt" => regions.iter().map(|r| r.virt).sum(),
                    "writable" => regions.iter().filter(|r| r.prot.contains('w')).map(|r| r.virt).sum(),
                    "rss" => regions.iter().map(|r| r.rss).sum(),
                    "swap" => regions.iter().map(|r| r.swap).sum(),
                    "unused" => regions.iter().map(|r| r.virt - r.rss - r.swap).sum(),
                    _ => things.len() as u64,
                };
                let found = by_category.get(&(process.pid.to_string(), id.to_owned()));
                assert_eq!(found.map_or(0, |sums| sums[at]), expected as i64, "{name} of {id}");
            }
        }
    }
    let sum = |name: &str| -> i64 {
        let at = types.iter().position(|t| t == name).expect("a value type");
        profile.sample.iter().map(|sample| sample.value[at]).sum()
    };
    assert_eq!(sum("virt"), report.processes.iter().map(|p| p.totals.virt).sum::<u64>() as i64);
}

fn sides<'a>(a: &'a Report, b: &'a Report) -> FlameSides<'a> {
    FlameSides { a: FlameSide::whole(a, "A".into()), b: FlameSide::whole(b, "B".into()), same_pids: false }
}

fn check_pair(a: &Report, b: &Report) {
    for (width, of) in WIDTHS {
        let (of_a, of_b) = (total(a, width, of), total(b, width, of));
        let folded = diff_to_folded(&sides(a, b), options(width));
        assert_eq!(column_sums_of_two(&folded), [of_a, of_b]);
        match diff_to_svg(&sides(a, b), options(width)) {
            Ok(svg) => assert!(titles(&svg).iter().any(|title| title.starts_with("all ("))),
            Err(error) => assert_eq!((of_a, of_b), (0, 0), "{error}"),
        }
    }
}

fn column_sums_of_two(folded: &str) -> [u64; 2] {
    let mut sums = [0; 2];
    for line in folded.lines() {
        let mut columns = line.rsplitn(3, ' ');
        for at in [1, 0] {
            sums[at] += columns.next().expect("a column").parse::<u64>().expect("a number");
        }
    }
    sums
}

#[test]
fn every_capture_adds_up() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures");
    let mut reports = Vec::new();
    for entry in std::fs::read_dir(folder).expect("fixtures") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|e| e == "smaps") {
            reports.push(reports::capture(&path));
        }
    }
    assert!(reports.len() >= 15, "{}", reports.len());
    for report in &reports {
        for (width, of) in WIDTHS {
            let folded = to_folded(report, options(width));
            assert_eq!(column_sums::<1>(&folded), [total(report, width, of)]);
        }
        check_profile_total(report);
    }
    for pair in reports.windows(2) {
        check_pair(&pair[0], &pair[1]);
    }
}

fn check_profile_total(report: &Report) {
    let Decoded { profile, types } = decode(&to_pprof(report, Width::Virt).expect("in memory"));
    for (at, name) in types.iter().enumerate() {
        let sum: i64 = profile.sample.iter().map(|sample| sample.value[at]).sum();
        let totals = report.processes[0].totals;
        let expected = match name.as_str() {
            "virt" => totals.virt,
            "writable" => totals.writable,
            "rss" => totals.rss,
            "unused" => totals.unused,
            "swap" => totals.swap,
            _ => report.processes[0].categories.iter().map(|row| row.regions).sum(),
        };
        assert_eq!(sum, expected as i64, "{name}");
    }
}

#[test]
fn what_has_no_stack_says_why() {
    let piece = |stack| -> Piece { (0, 4, 0, 0, 0, 0, stack, 0) };
    let mut report = random_report(&[vec![piece(None), piece(None), piece(None), piece(None)]], 1, 0);
    for (region, why) in report.processes[0].regions.iter_mut().zip([
        Some("preexisting"),
        Some("kernel"),
        Some("unknown"),
        None,
    ]) {
        region.without_call = why.map(str::to_owned);
        region.part = "arena reserved part".into();
    }
    let folded = to_folded(&report, options(Width::Virt));
    for why in [
        "mapped before tracing",
        "mapped by the kernel",
        "no call was seen that mapped it",
        "mapped without a call",
    ] {
        assert!(folded.contains(&format!(";[{why}];[")), "{why}: {folded}");
    }
    assert!(folded.contains(";[arena reserved part]"), "{folded}");
    report.backend = "snapshot".into();
    let folded = to_folded(&report, options(Width::Virt));
    assert_eq!(folded.lines().count(), 1, "nothing is said of calls where none was traced: {folded}");
}

#[test]
fn reversed_stacks_begin_with_what_it_is() {
    let report = random_report(&[vec![(0, 4, 0, 0, 0, 0, Some(7), 1)]], 1, 0);
    let straight = to_folded(&report, options(Width::Virt));
    let reversed = to_folded(&report, FlameOptions { reverse: true, ..options(Width::Virt) });
    let frames = |line: &str| {
        line.trim_end().rsplit_once(' ').expect("a value").0.split(';').map(str::to_owned).collect::<Vec<_>>()
    };
    let (straight, reversed) = (frames(&straight), frames(&reversed));
    let what = straight.len() - 2;
    assert!(what > 2, "{straight:?}");
    let expected: Vec<String> =
        straight[what..].iter().chain(straight[..what].iter().rev()).cloned().collect();
    assert_eq!(reversed, expected);
}

#[test]
fn what_is_gone_is_drawn_and_what_stayed_is_grey() {
    let piece = |category, pages| -> Piece { (0, pages, 0, 0, 0, category, None, 0) };
    let before = random_report(&[vec![piece(0, 8), piece(1, 4)]], 1, 0);
    let after = random_report(&[vec![piece(1, 4), piece(2, 16)]], 1, 0);
    let folded = diff_to_folded(&sides(&before, &after), options(Width::Virt));
    let columns: Vec<&str> =
        folded.lines().map(|line| line.splitn(2, "] ").last().unwrap_or_default()).collect();
    assert_eq!(columns.len(), 3, "{folded}");
    assert!(
        folded.contains(" 32768 0\n") && folded.contains(" 16384 16384\n") && folded.contains(" 0 65536\n"),
        "{folded}"
    );
    let svg = diff_to_svg(&sides(&before, &after), options(Width::Virt)).expect("a picture");
    let titles = titles(&svg);
    for words in ["(gone, 32 KiB)", "(16 KiB on both sides)", "(new, 64 KiB)", "(48 KiB → 80 KiB, +32 KiB)"]
    {
        assert!(titles.iter().any(|title| title.contains(words)), "{words}: {titles:#?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn random_reports_add_up(a in reports::processes(), b in reports::processes(), pids in (1..20i32, 1..20i32)) {
        let (a, b) = (random_report(&a, pids.0, 0), random_report(&b, pids.1, 1));
        check(&a);
        check_pair(&a, &b);
    }
}
