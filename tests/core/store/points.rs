//! Points of a timeline come back as they were, also where a snapshot was taken back, and where there
//! were more of them than a recording keeps.

use std::ops::ControlFlow;
use std::path::Path;
use vmaudit::model::{
    CategorySize, EventId, MmKey, NoStack, SizePoint, StackTable, Step, Task, VmEvent, VmOp,
};
use vmaudit::report::Timeline;
use vmaudit::store::{Facts, Recorder, Recording, RunMeta};

fn point(pid: i32, number: u64) -> SizePoint {
    let size = |category: &'static str, virt, rss| CategorySize { category: category.into(), virt, rss };
    SizePoint {
        pid,
        number,
        time_ns: u64::MAX - number,
        rss_known: number.is_multiple_of(2),
        categories: vec![size("glibc-arena", u64::MAX, number), size("loader", 1, 0)],
    }
}

fn call(id: u64) -> Step {
    Step::Event(VmEvent {
        id: EventId(id),
        time_ns: id,
        task: Task { pid: 7, tid: 7, comm: b"x".to_vec() },
        mm: MmKey(1),
        op: VmOp::Rename,
        ret: 0,
        stack: Err(NoStack::NotTaken),
        total_vm: None,
    })
}

fn step(pid: i32, number: u64) -> Step {
    Step::Point(Box::new(point(pid, number)))
}

fn recorder(path: &Path) -> Recorder {
    let meta = RunMeta { version: "0".into(), backend: "bpf".into(), timeline: true, ..RunMeta::default() };
    Recorder::create(path, &meta, None).expect("a new file")
}

fn read(path: &Path) -> Vec<Step> {
    let mut found = Vec::new();
    let mut each = |step: &Step| {
        found.push(step.clone());
        ControlFlow::Continue(())
    };
    Recording::open(path).expect("a recording").steps(&mut each).expect("a whole file");
    found
}

#[test]
fn points_come_back_where_they_were() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("rec");
    let bare = Step::Point(Box::new(SizePoint { categories: Vec::new(), ..point(9, 1) }));
    let all = [call(1), step(7, 1), bare, call(2), call(3), step(7, 2), call(4), step(7, 3), step(7, 4)];
    let mut recorder = recorder(&path);
    all.iter().for_each(|step| recorder.step(step, &StackTable::default()));
    recorder.finish(&Facts::default()).expect("written");
    assert_eq!(read(&path), all);
}

#[test]
fn the_newest_point_goes_with_its_snapshot() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("rec");
    let mut recorder = recorder(&path);
    for step in [step(7, 1), step(8, 1), step(7, 2), step(8, 2)] {
        recorder.step(&step, &StackTable::default());
    }
    recorder.discard_snapshot(7);
    // A process that was never examined.
    recorder.discard_snapshot(99);
    recorder.step(&step(7, 2), &StackTable::default());
    recorder.discard_snapshot(8);
    recorder.finish(&Facts::default()).expect("written");
    assert_eq!(read(&path), [step(7, 1), step(8, 1), step(7, 2)]);
}

#[test]
fn more_points_than_a_recording_keeps() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("rec");
    let mut recorder = recorder(&path);
    let mut live = Timeline::default();
    let last = 33_003;
    for number in 1..=last + 1 {
        recorder.step(&step(7, number), &StackTable::default());
        live.add(point(7, number));
    }
    recorder.discard_snapshot(7);
    live.discard_newest();
    recorder.finish(&Facts::default()).expect("written");
    let found = read(&path);
    assert!((8_192..=16_385).contains(&found.len()), "{}", found.len());
    let mut again = Timeline::default();
    for step in found {
        let Step::Point(found) = step else { panic!("{step:?}") };
        assert_eq!(*found, point(7, found.number));
        again.add(*found);
    }
    assert_eq!((again.every(), again.next_number()), (live.every(), last + 1));
    assert!(again.shows_the_same(&live));
}
