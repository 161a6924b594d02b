//! The text of a comparison.

use vmaudit::compare::model::{Change, Comparison, Failure, NotTried};
use vmaudit::compare::{Run, SideRuns, compare};
use vmaudit::render::TextOptions;
use vmaudit::render::compare::*;
use vmaudit::render::text::WIDTH;
use vmaudit::report::Report;
use vmaudit::report::model::{CategoryRow, Process, Region, Resources, Totals};

fn report(arena: u64, rss: u64, wall_ms: u64) -> Report {
    let row = |id: &str, name: &str, virt| CategoryRow {
        id: id.into(),
        name: name.into(),
        virt,
        ..Default::default()
    };
    let region =
        |category: &str, virt, rss| Region { category: category.into(), virt, rss, ..Default::default() };
    let virt = arena + (30 << 20);
    let process = Process {
        exit_code: Some(0),
        totals: Totals { virt, rss, unused: virt - rss, vm_peak: virt, ..Totals::default() },
        categories: vec![
            row("glibc-arena", "glibc malloc arenas", arena),
            row("loader", "libraries", 30 << 20),
        ],
        regions: vec![region("glibc-arena", arena, 0), region("loader", 30 << 20, rss)],
        wall_ns: Some(wall_ms * 1_000_000),
        resources: Some(Resources { minor_faults: 1284, ..Resources::default() }),
        ..Process::default()
    };
    Report { processes: vec![process], ..Report::default() }
}

fn runs(reports: &[Report], first: u32) -> Vec<Run> {
    reports.iter().zip(first..).map(|(report, order)| Run::of(report, order)).collect()
}

fn sides(promised: Option<(u64, u64)>, label: &str) -> Vec<SideRuns> {
    let before = [report(128 << 20, 9 << 20, 20), report(128 << 20, 9 << 20, 22)];
    let after = [report(0, 9 << 20, 21), report(0, (9 << 20) + 4096, 30)];
    vec![
        SideRuns { label: "as it is".into(), runs: runs(&before, 1), ..SideRuns::default() },
        SideRuns { label: label.into(), runs: runs(&after, 3), promised, ..SideRuns::default() },
    ]
}

fn text(frame: Comparison, sides: Vec<SideRuns>) -> String {
    let text = to_text(&compare(frame, sides), TextOptions { top: 3, ..TextOptions::default() });
    for line in text.lines() {
        assert!(line.chars().count() <= WIDTH, "{} columns: {line}", line.chars().count());
        assert_eq!(line, line.trim_end(), "trailing blanks");
    }
    text
}

fn frame() -> Comparison {
    Comparison { command: vec!["prog".into(), "\x1b[31m".into()], runs: 2, ..Comparison::default() }
}

fn line<'a>(text: &'a str, start: &str) -> Vec<&'a str> {
    let line = text.lines().find(|line| line.trim_start().starts_with(start));
    line.unwrap_or_else(|| panic!("no line {start:?} in\n{text}")).split_whitespace().collect()
}

#[test]
fn a_change_by_figure_and_by_cause() {
    let text = text(frame(), sides(None, "MALLOC_ARENA_MAX=1"));
    assert_eq!(line(&text, "VIRT  ")[1..7], ["158.0", "MiB", "30.0", "MiB", "-128.0", "MiB"]);
    let time = line(&text, "run time").join(" ");
    assert_eq!(time, "run time 21.0 ms 25.5 ms +4.5 ms 20.0…22.0 ms 21.0…30.0 ms within the noise");
    assert_eq!(line(&text, "glibc malloc")[3..], ["128.0", "MiB", "0", "-128.0", "MiB", "0"]);
    assert_eq!(line(&text, "together")[1..], ["158.0", "MiB", "30.0", "MiB", "-128.0", "MiB", "0"]);
    assert!(!text.contains('\x1b'), "names cannot drive the terminal");
    assert!(text.contains("B  MALLOC_ARENA_MAX=1 · 2 runs, each exited 0"), "{text}");
    assert!(!text.contains("did not end alike"));
}

#[test]
fn advice_with_its_verdict_and_what_was_not_tried() {
    let not_tried =
        vec![NotTried { knob: "ask for less".into(), saves_virt: 5 << 20, ..NotTried::default() }];
    let shown =
        text(Comparison { not_tried: not_tried.clone(), ..frame() }, sides(Some((128 << 20, 0)), "A=1"));
    assert_eq!(
        line(&shown, "B  A=1  ")[2..],
        ["VIRT", "128.0", "MiB", "128.0", "MiB", "128.0", "MiB", "holds"]
    );
    assert!(shown.contains("     ask for less: up to 5.0 MiB of VIRT"), "{shown}");
    let long = "MALLOC_CONF=dirty_decay_ms:0,muzzy_decay_ms:0";
    let shown = text(frame(), sides(Some((500 << 20, 6 << 20)), long));
    assert_eq!(line(&shown, "VIRT  500")[6..], ["MiB", "less", "than", "promised"], "{shown}");
    assert!(line(&shown, "RSS   ").ends_with(&["no", "effect"]), "{shown}");
}

#[test]
fn failures_are_said() {
    let mut sides = sides(None, "PATH=/x");
    sides[1].runs.clear();
    sides[1].failure = Some(Failure { code: 127, message: "prog: command not found".into() });
    sides[1].change = Change::default();
    let text = text(frame(), sides);
    assert!(text.contains("no report (127): prog: command not found"), "{text}");
    assert!(text.contains("did not end alike"), "{text}");
}
