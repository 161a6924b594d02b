//! Files that are no whole recording: a clear error or the true content, never a panic, never a
//! silent half. A byte may be wrong without harm where SQLite keeps nothing (free space).

use crate::support::{skip, vmaudit};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use vmaudit::model::observation::{
    Observations, Residency, ResidencySource, SnapshotMoment, ThreadObservation,
};
use vmaudit::model::{
    Addr, AddrRange, Completeness, EventId, FileRef, Frame, FrameKind, FunctionName, Mapping, MmKey,
    ModuleInfo, Prot, Sharing, StackId, StackTable, Step, SymbolFrame, SymbolizedStacks, Task, VmEvent, VmOp,
};
use vmaudit::store::{Facts, HeapMoment, Recorder, Recording, RunMeta, StoreError};

const EVENTS: u64 = 300;

fn stacks() -> StackTable {
    let mut table = StackTable::default();
    let info = ModuleInfo { path: b"/bin/x".to_vec(), major: 8, minor: 1, inode: 77, build_id: None };
    let module = Some(table.intern_module(info));
    for depth in 1..20 {
        let frame = |at: u64| Frame { module, address: at * 16, kind: FrameKind::ReturnAddress };
        let frames: Vec<Frame> = (0..depth).map(frame).collect();
        table.intern_frames(&frames, Completeness::Complete);
    }
    table
}

fn names(stacks: &StackTable) -> SymbolizedStacks {
    let line = |frame: &Frame| SymbolFrame {
        frame: *frame,
        function: Some(FunctionName { name: "f".into(), linkage: "f".into(), offset: frame.address }),
        bounds: None,
        location: None,
        inlined: false,
    };
    let of = |id| (id, stacks.stack(id).frames.iter().map(line).map(Arc::new).collect());
    SymbolizedStacks { stacks: (0..stacks.len() as u32).map(StackId).map(of).collect() }
}

fn snapshot() -> Observations {
    let mapping = |n: u64| Mapping {
        range: AddrRange::from_len(Addr(n << 20), 4096),
        prot: Prot::RW,
        sharing: Sharing::Private,
        offset: 0,
        file: None,
        name: format!("[anon: {}]", n % 7).into_bytes(),
    };
    Observations {
        pid: 7,
        moment: SnapshotMoment::HeldAtExit,
        begun_ns: 1,
        ended_ns: 2,
        mappings: (1..60).map(mapping).collect(),
        residency: Residency {
            source: ResidencySource::PagemapScan,
            resident: (1..60).map(|n| AddrRange::from_len(Addr(n << 20), 4096)).collect(),
            ..Residency::default()
        },
        threads: vec![ThreadObservation { tid: 7, comm: b"x".to_vec(), stack_pointer: None }],
        comm: b"x".to_vec(),
        exe: b"/bin/x".to_vec(),
        cmdline: vec![b"x".to_vec()],
        aslr: true,
        ..Observations::default()
    }
}

fn event(id: u64) -> VmEvent {
    let file = FileRef { major: 8, minor: 1, inode: id % 9, path: b"/lib/y".to_vec(), deleted: false };
    VmEvent {
        id: EventId(id),
        time_ns: 1_000_000 + id * 1000,
        task: Task { pid: 7, tid: 7 + (id % 3) as i32, comm: b"worker".to_vec() },
        mm: MmKey(0xffff_8880_0000_0000),
        op: VmOp::Mmap {
            addr: Addr(0),
            len: id * 4096,
            prot: 3,
            flags: 0x22,
            fd: -1,
            offset: 0,
            file: id.is_multiple_of(5).then_some(file),
        },
        ret: 0x7f00_0000_0000 + (id << 20) as i64,
        stack: Ok(StackId((id % 19) as u32)),
        total_vm: Some(id << 20),
    }
}

/// A whole recording.
fn record(path: &Path) {
    let meta = RunMeta { version: "0".into(), backend: "bpf".into(), main: 7, ..RunMeta::default() };
    let mut recorder = Recorder::create(path, &meta, None).expect("a new file");
    let stacks = stacks();
    for id in 1..=EVENTS {
        recorder.event(&event(id), &stacks);
    }
    recorder.snapshot(&snapshot(), &stacks);
    recorder.names(&names(&stacks), &stacks);
    recorder.report_part("{\"schema\": 1}".into());
    for number in 1..4 {
        let text = |what: &str| format!("{{\"{what}\": {number}}}").repeat(9);
        let stacks = vec!["the same".to_owned(), text("stack")];
        recorder.heap(HeapMoment { time_ns: number, parts: vec![text("part"), text("more")], stacks });
    }
    recorder.finish(&Facts::default()).expect("written");
}

/// Everything that can be read, as text.
fn read_all(path: &Path) -> Result<String, StoreError> {
    let recording = Recording::open(path)?;
    let stacks = recording.stacks()?;
    let names = recording.names(&stacks)?;
    let mut report = Vec::new();
    let mut part = |json: &[u8]| {
        report.push(String::from_utf8_lossy(json).into_owned());
        Ok(())
    };
    let whole = recording.report(&mut part)?;
    let mut text = format!("{:?} {:?} {whole} {report:?}\n", recording.meta(), recording.facts());
    for id in (0..stacks.len() as u32).map(StackId) {
        text += &format!("{:?} {:?}\n", stacks.stack(id), names.stack(id, &stacks));
    }
    text += &format!("{:?}\n", stacks.modules());
    for place in recording.heap_moments()? {
        let reported = std::cell::RefCell::new(Vec::new());
        let mut each = |json: &[u8]| {
            reported.borrow_mut().push(String::from_utf8_lossy(json).into_owned());
            Ok(())
        };
        recording.heap_report(place, &mut each.clone(), &mut each)?;
        text += &format!("{} {:?}\n", place.time_ns, reported.into_inner());
    }
    let mut each = |step: &Step| {
        text += &format!("{step:?}\n");
        ControlFlow::Continue(())
    };
    recording.steps(&mut each)?;
    Ok(text)
}

struct Sample {
    _folder: tempfile::TempDir,
    path: PathBuf,
    bytes: Vec<u8>,
}

fn sample() -> Sample {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("rec");
    record(&path);
    let bytes = fs::read(&path).expect("the recording");
    Sample { _folder: folder, path, bytes }
}

#[test]
fn every_truncation_is_reported() {
    let Sample { path, bytes, .. } = &sample();
    assert!(read_all(path).is_ok());
    let mut length = bytes.len() as u64;
    let file = File::options().write(true).open(path).expect("opens");
    while length > 0 {
        length -= length.min(if length < 300 { 1 } else { 389 });
        file.set_len(length).expect("truncated");
        match (length, read_all(path)) {
            (0..=15, Err(StoreError::NotARecording { .. })) => {}
            (16.., Err(StoreError::Truncated { .. })) => {}
            (length, other) => panic!("at {length}: {other:?}"),
        }
    }
}

#[test]
fn a_flipped_byte_is_reported_or_does_no_harm() {
    let Sample { path, bytes, .. } = &sample();
    let truth = read_all(path).expect("whole");
    let file = File::options().write(true).open(path).expect("opens");
    let (mut reported, mut harmless) = (0u32, 0u32);
    // No divisor of the page size: all kinds of places in a page occur.
    for (n, at) in (0..bytes.len()).step_by(83).enumerate() {
        let flip = [0x01, 0x80, 0xff][n % 3];
        let place = at as u64;
        file.write_all_at(&[bytes[at] ^ flip], place).expect("written");
        match read_all(path) {
            Ok(text) if text == truth => harmless += 1,
            Ok(_) => panic!("a byte at {at} flipped by {flip:#x} changes what is read, without an error"),
            Err(error) => {
                assert!(error.to_string().contains(&*path.to_string_lossy()), "{error}");
                reported += 1;
            }
        }
        file.write_all_at(&bytes[at..=at], place).expect("written");
    }
    assert!(reported > 100, "{reported} reported, {harmless} harmless");
}

#[test]
fn pages_of_noise_are_reported() {
    let Sample { path, bytes, .. } = &sample();
    let truth = read_all(path).expect("whole");
    let mut state = 1u64;
    let mut noise = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    for page in 0..bytes.len() / 4096 {
        let mut damaged = bytes.clone();
        for byte in &mut damaged[page * 4096 + if page == 0 { 100 } else { 0 }..(page + 1) * 4096] {
            *byte = noise();
        }
        fs::write(path, &damaged).expect("written");
        if let Ok(text) = read_all(path) {
            assert_eq!(text, truth, "page {page} is noise");
        }
    }
}

/// Runs `vmaudit report FILE`, which has to fail as vmaudit's own failure, with one message.
fn refusal(path: &Path) -> String {
    let output = Command::new(vmaudit()).arg("report").arg(path).output().expect("vmaudit starts");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{stderr}");
    assert!(output.stdout.is_empty());
    assert!(stderr.starts_with("vmaudit: ") && stderr.contains(&*path.to_string_lossy()), "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    stderr
}

#[test]
fn what_is_no_recording_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| folder.path().join(name);
    assert!(refusal(&at("missing")).contains("no such file"));
    assert!(refusal(folder.path()).contains("a directory"));
    fs::write(at("empty"), "").expect("written");
    assert!(refusal(&at("empty")).contains("an empty file"));
    fs::write(at("text"), "some text, longer than the header of a database ".repeat(9)).expect("written");
    assert!(refusal(&at("text")).contains("no SQLite file"));
    let other = Command::new("sqlite3").arg(at("other")).arg("CREATE TABLE event(id)").status();
    match other {
        Ok(status) if status.success() => {
            assert!(refusal(&at("other")).contains("a SQLite file of another program"));
        }
        _ => skip("a SQLite file of another program", "no sqlite3"),
    }
    let fifo = std::ffi::CString::new(at("fifo").as_os_str().as_encoded_bytes()).expect("a path");
    // SAFETY: a zero-terminated path that outlives the call.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    assert!(refusal(&at("fifo")).contains("not a regular file"));
    assert!(refusal(Path::new("/dev/null")).contains("not a regular file"));
}

#[test]
fn a_newer_version_is_named() {
    let Sample { path, .. } = &sample();
    let mut file = File::options().write(true).open(path).expect("opens");
    file.seek(SeekFrom::Start(60)).expect("seeks");
    file.write_all(&9u32.to_be_bytes()).expect("written");
    let message = refusal(path);
    assert!(message.contains("recording format 9") && message.contains("newer"), "{message}");
}

/// Before there were reports of heaps.
#[test]
fn an_older_version_is_read() {
    let Sample { path, .. } = &sample();
    let db = rusqlite::Connection::open(path).expect("a recording");
    db.execute_batch(
        "DROP TABLE heap_moment; DROP TABLE heap_part; DROP TABLE heap_stack; DELETE FROM meta WHERE key = 'heap_rows';
         PRAGMA user_version = 3",
    )
    .expect("changed");
    drop(db);
    let output = Command::new(vmaudit()).arg("report").arg(path).output().expect("vmaudit starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let moments = Recording::open(path).expect("readable").heap_moments();
    assert!(moments.expect("none are there").is_empty(), "and none are invented");
    let db = rusqlite::Connection::open(path).expect("a recording");
    db.execute_batch("PRAGMA user_version = 4").expect("changed");
    drop(db);
    assert!(refusal(path).contains("the table heap_moment is not as vmaudit makes it"));
}

#[test]
fn other_tables_under_the_same_names_are_refused() {
    let Sample { path, .. } = &sample();
    let sql = "DROP TABLE event; CREATE VIEW event AS WITH RECURSIVE e(id) AS \
               (SELECT 1 UNION ALL SELECT id + 1 FROM e) SELECT id FROM e";
    match Command::new("sqlite3").arg(path).arg(sql).status() {
        Ok(status) if status.success() => {
            assert!(refusal(path).contains("the table event is not as vmaudit makes it"));
        }
        _ => skip("other tables under the same names", "no sqlite3"),
    }
}

#[test]
fn what_may_not_be_read_is_refused() {
    // SAFETY: plain system call.
    if unsafe { libc::geteuid() } == 0 {
        return skip("what_may_not_be_read", "root may read everything");
    }
    let Sample { path, .. } = &sample();
    fs::set_permissions(path, fs::Permissions::from_mode(0o0)).expect("mode 0");
    assert!(refusal(path).contains("ermission denied"));
}

#[test]
fn nothing_but_a_recording_is_overwritten() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let meta = RunMeta::default();
    let precious = folder.path().join("precious");
    fs::write(&precious, "important").expect("written");
    let Err(error) = Recorder::create(&precious, &meta, None) else { panic!("overwritten") };
    assert!(error.to_string().contains("it is no recording"), "{error}");
    assert_eq!(fs::read(&precious).expect("still there"), b"important");
    for (path, why) in [(Path::new("/dev/null"), "not a regular file"), (folder.path(), "a directory")] {
        let Err(error) = Recorder::create(path, &meta, None) else { panic!("{} taken", path.display()) };
        assert!(error.to_string().contains(why), "{error}");
    }
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&precious, &link).expect("a link");
    assert!(Recorder::create(&link, &meta, None).is_err(), "a link is not followed");
    let nowhere = folder.path().join("no/such/folder/rec");
    let Err(error) = Recorder::create(&nowhere, &meta, None) else { panic!("created") };
    assert!(error.to_string().contains("No such file"), "{error}");
}

#[test]
fn a_recording_in_the_making_is_busy() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("rec");
    let recorder = Recorder::create(&path, &RunMeta::default(), None).expect("a new file");
    // Another process: locks are a process's own.
    assert!(refusal(&path).contains("still writing"));
    drop(recorder);
    let mut text = String::new();
    File::open(&path).expect("there").take(15).read_to_string(&mut text).expect("text");
    assert_eq!(text, "SQLite format 3");
}
