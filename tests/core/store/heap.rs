//! Reports of a heap come back as they were; of many, some are kept.

use std::cell::RefCell;
use std::path::Path;
use vmaudit::store::{Facts, HeapMoment, Recorder, Recording, RunMeta};

fn moment(number: u64) -> HeapMoment {
    HeapMoment {
        time_ns: u64::MAX - 10_000 + number,
        parts: (0..=number % 3).map(|part| format!("{{\"part\": {part}, \"of\": {number}}}")).collect(),
        stacks: vec!["[]".to_owned(), format!("[{}]", number % 5), "[]".to_owned()],
    }
}

fn record(path: &Path, count: u64) {
    let meta = RunMeta { heap: Some("{}".into()), ..RunMeta::default() };
    let mut recorder = Recorder::create(path, &meta, None).expect("a new file");
    (1..=count).for_each(|number| recorder.heap(moment(number)));
    recorder.finish(&Facts::default()).expect("written");
}

fn read(path: &Path) -> Vec<HeapMoment> {
    let recording = Recording::open(path).expect("a recording");
    assert_eq!(recording.meta().heap.as_deref(), Some("{}"));
    assert!(recording.has_steps().is_err());
    let places = recording.heap_moments().expect("readable");
    let text = |json: &[u8]| String::from_utf8_lossy(json).into_owned();
    let one = |place: vmaudit::store::HeapPlace| {
        let (parts, stacks) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
        let mut part = |json: &[u8]| {
            parts.borrow_mut().push(text(json));
            Ok(())
        };
        let mut stack = |json: &[u8]| {
            stacks.borrow_mut().push(text(json));
            Ok(())
        };
        recording.heap_report(place, &mut part, &mut stack).expect("readable");
        HeapMoment { time_ns: place.time_ns, parts: parts.into_inner(), stacks: stacks.into_inner() }
    };
    places.into_iter().map(one).collect()
}

#[test]
fn reports_come_back_as_they_were() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("rec");
    record(&path, 7);
    assert_eq!(read(&path), (1..=7).map(moment).collect::<Vec<_>>());
}

#[test]
fn more_reports_than_a_recording_keeps() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (count, every) in [(256, 1), (257, 2), (258, 2), (512, 2), (513, 4), (1030, 8)] {
        let path = folder.path().join(count.to_string());
        record(&path, count);
        let kept: Vec<HeapMoment> =
            (1..=count).filter(|number| number % every == 0 || *number == count).map(moment).collect();
        assert!(read(&path) == kept, "{count}");
    }
}
