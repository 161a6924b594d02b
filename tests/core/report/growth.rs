//! `report::growth`.

use std::sync::Arc;
use vmaudit::report::growth::StackGrowth;
use vmaudit::report::growth::growth;
use vmaudit::report::model::Frame;
use vmaudit::report::model::Origin;
use vmaudit::report::model::Process;
use vmaudit::report::model::Region;
use vmaudit::report::model::Report;
use vmaudit::report::model::Stack;
use vmaudit::report::model::Totals;

fn frame(offset: &str) -> Frame {
    Frame { module: "a".to_owned(), offset: offset.to_owned(), ..Frame::default() }
}

fn report(stacks: &[&str], regions: &[(u64, Option<u64>)]) -> Report {
    let region = |&(virt, stack): &(u64, Option<u64>)| Region {
        virt,
        category: "app-mmap".to_owned(),
        origin: stack.map(|k| Origin { op: "mmap".to_owned(), stack: Some(k), ..Origin::default() }),
        ..Region::default()
    };
    let virt = regions.iter().map(|(virt, _)| virt).sum();
    let process = Process {
        pid: 7,
        totals: Totals { virt, ..Totals::default() },
        regions: regions.iter().map(region).collect(),
        ..Process::default()
    };
    let stack = |offset: &&str| Stack { frames: vec![Arc::new(frame(offset))], ..Stack::default() };
    Report { processes: vec![process], stacks: stacks.iter().map(stack).collect(), ..Report::default() }
}

#[test]
fn stacks_are_the_same_by_their_frames_and_sums_are_exact() {
    let before = report(&["0x1", "0x2"], &[(100, Some(0)), (50, Some(1)), (7, None), (20, Some(0))]);
    let after = report(&["0x3", "0x2", "0x1"], &[(50, Some(1)), (30, Some(2)), (9, None), (1000, Some(0))]);
    let found = growth((&before, 1), (&after, 2));
    let process = &found.processes[0];
    assert_eq!((process.from, process.to, process.unchanged), (Some(177), Some(1089), 50));
    let rows: Vec<(i64, Option<&str>)> = process
        .by_stack
        .iter()
        .map(|row| (row.change(), row.stack.map(|k| found.stacks[k as usize].frames[0].offset.as_str())))
        .collect();
    assert_eq!(rows, [(1000, Some("0x3")), (-90, Some("0x1")), (2, None)]);
    let sum: i64 = process.by_stack.iter().map(StackGrowth::change).sum();
    assert_eq!(sum, 1089 - 177);
}

#[test]
fn processes_that_were_there_only_once() {
    let (one, mut other) = (report(&[], &[(8, None)]), report(&[], &[(9, None)]));
    other.processes[0].pid = 8;
    let found = growth((&one, 0), (&other, 1));
    let sizes: Vec<_> = found.processes.iter().map(|p| (p.pid, p.from, p.to)).collect();
    assert_eq!(sizes, [(7, Some(8), None), (8, None, Some(9))]);
}
