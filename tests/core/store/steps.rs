//! What is recorded comes back: every kind of step, with the numbers at the ends of their ranges.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use vmaudit::model::observation::{
    Block, BlockKind, GivenStack, HeapInfo, Observations, Residency, ResidencySource, ResourceUse,
    SnapshotMoment, StackLists, StatusFigures, ThreadBlocks, ThreadObservation,
};
use vmaudit::model::{
    Addr, AddrRange, CodeMarks, Completeness, EventId, FileMarks, FileRef, Frame, FrameKind, FunctionName,
    Limits, Mapping, MappingFile, MmKey, ModuleInfo, NoStack, Prot, Sharing, SourceLine, StackId, StackTable,
    Step, SymbolFrame, SymbolizedStacks, Task, VmEvent, VmOp,
};
use vmaudit::session::replay::Replay;
use vmaudit::store::{Facts, Recorder, Recording, RunMeta};

fn meta() -> RunMeta {
    RunMeta {
        version: "0.0.0".into(),
        backend: "bpf".into(),
        command: vec!["a b".into(), "\"c\"".into()],
        timeline: true,
        touch: true,
        heap: None,
        main: 7,
        started_ns: 1_000_000,
        started_unix_ns: 1_700_000_000_000_000_000,
    }
}

fn file(path: &[u8]) -> FileRef {
    FileRef { major: 8, minor: u32::MAX, inode: u64::MAX, path: path.to_vec(), deleted: path.is_empty() }
}

fn mapping(start: u64, name: &[u8], file: Option<MappingFile>) -> Mapping {
    Mapping {
        range: AddrRange::from_len(Addr(start), 0x3000),
        prot: Prot { read: true, write: false, exec: true },
        sharing: Sharing::Shared,
        offset: 1 << 63,
        file,
        name: name.to_vec(),
    }
}

fn mappings() -> Vec<Mapping> {
    let inode = MappingFile { major: 0, minor: 5, inode: 1 << 63 };
    vec![
        mapping(0x1000, b"", None),
        mapping(0x7fff_0000_0000, b"/odd \xff\n name (deleted)", Some(inode)),
        mapping(0x5000, b"[anon: x]", None),
        // The lists' order is kept, whatever it is.
        mapping(0x4000, b"", Some(inode)),
    ]
}

fn ops() -> Vec<VmOp> {
    let (addr, len) = (Addr(u64::MAX - 4095), u64::MAX);
    vec![
        VmOp::Mmap { addr, len, prot: 3, flags: 1 << 63, fd: -1, offset: 0, file: None },
        VmOp::Mmap { addr, len, prot: 3, flags: 2, fd: 7, offset: 4096, file: Some(file(b"/x\xfe")) },
        VmOp::Mmap { addr, len, prot: 3, flags: 2, fd: 7, offset: 4096, file: Some(file(b"")) },
        VmOp::Munmap { addr, len },
        VmOp::Mremap { old: addr, old_len: 1, new_len: 2, flags: 3, new_addr: Addr(4) },
        VmOp::Brk { requested: addr, current: None },
        VmOp::Brk { requested: Addr(0), current: Some(Addr(0)) },
        VmOp::Mprotect { addr, len, prot: 1 << 40, pkey: None },
        VmOp::Mprotect { addr, len, prot: 0, pkey: Some(-1) },
        VmOp::Madvise { addr, len, advice: i32::MIN },
        VmOp::ProcessMadvise { pidfd: 3, iovecs: 9, advice: 4 },
        VmOp::Shmat { shmid: i32::MAX, addr, flags: 1, mapped: None },
        VmOp::Shmat { shmid: 0, addr, flags: 1, mapped: Some(AddrRange::new(0x1000, 0x9000)) },
        VmOp::Shmdt { addr },
        VmOp::RemapFilePages { addr, len, pgoff: 5, flags: 6 },
        VmOp::IoSetup { nr_events: u64::MAX, mapped: None },
        VmOp::IoSetup { nr_events: 1, mapped: Some(AddrRange::new(0x1000, 0x1000)) },
        VmOp::IoDestroy { ctx: addr },
        VmOp::MapShadowStack { addr, len, flags: 1 },
        VmOp::SetVmaName { addr, len, name: None },
        VmOp::SetVmaName { addr, len, name: Some(b"glibc: malloc\xff".to_vec()) },
        VmOp::SetMm { option: 7, value: u64::MAX },
        VmOp::SeccompListenerBusy,
        VmOp::Fork {
            child_pid: 9,
            child_tid: 9,
            child_mm: MmKey(3),
            child_sp: addr,
            child_brk: Some(addr),
            is_thread: false,
            mappings: Some(mappings()),
        },
        VmOp::Fork {
            child_pid: 7,
            child_tid: 10,
            child_mm: MmKey(1),
            child_sp: Addr(0),
            child_brk: None,
            is_thread: true,
            mappings: None,
        },
        VmOp::Exec {
            exe: Some(file(b"/bin/x")),
            start_brk: addr,
            brk: addr,
            start_stack: addr,
            compat: true,
            mappings: Some(Vec::new()),
        },
        VmOp::Exec {
            exe: None,
            start_brk: Addr(0),
            brk: Addr(0),
            start_stack: Addr(0),
            compat: false,
            mappings: None,
        },
        VmOp::Rename,
        VmOp::Exit { code: -1, group_dead: false },
        VmOp::Exit { code: 0x100, group_dead: true },
    ]
}

fn event(id: u64, op: VmOp) -> VmEvent {
    VmEvent {
        id: EventId(id),
        time_ns: id * 1000,
        task: Task { pid: 7, tid: 7 + (id % 3) as i32, comm: vec![b'a', 0xff, (id % 5) as u8] },
        mm: MmKey((id + 1) % 2 + 1),
        op,
        ret: if id.is_multiple_of(4) { -12 } else { i64::MIN },
        stack: match id % 4 {
            0 => Err(NoStack::Lost),
            1 => Ok(StackId((id % 2) as u32)),
            2 => Err(NoStack::NotTaken),
            _ => Err(NoStack::Unreadable),
        },
        total_vm: id.is_multiple_of(2).then_some(u64::MAX),
    }
}

fn observations(pid: i32, source: ResidencySource) -> Box<Observations> {
    Box::new(Observations {
        pid,
        moment: if pid == 7 { SnapshotMoment::HeldAtExit } else { SnapshotMoment::Live },
        begun_ns: 5,
        ended_ns: u64::MAX,
        mappings: mappings(),
        residency: Residency {
            source,
            resident: vec![AddrRange::new(0x1000, 0x2000), AddrRange::new(0x3000, 0x9000)],
            swapped: vec![AddrRange::new(0x9000, 0xa000)],
            per_vma: vec![(AddrRange::new(0x1000, 0x2000), u64::MAX, 1)],
        },
        details: vmaudit::model::VmaDetails::default(),
        thread_blocks: ThreadBlocks {
            living: vec![(7, Addr(0x7f00_0000_1000))],
            ended: vec![Addr(0x7f00_0000_9000)],
            searched: pid == 7,
            lists: (pid == 7).then(|| StackLists {
                given: vec![
                    GivenStack {
                        tid: Some(8),
                        block: Addr(0x7f00_0000_2700),
                        stack: Some(AddrRange::new(0x7f00_0000_2000, 0x7f00_0000_3000)),
                    },
                    GivenStack { tid: None, block: Addr(u64::MAX), stack: None },
                ],
                unjoined: vec![Addr(0x7f00_0000_9000)],
                cached: Vec::new(),
            }),
        },
        threads: vec![
            ThreadObservation { tid: 7, comm: b"\xff".to_vec(), stack_pointer: None },
            ThreadObservation { tid: 8, comm: Vec::new(), stack_pointer: Some(Addr(u64::MAX)) },
        ],
        heap_infos: vec![HeapInfo {
            at: Addr(1 << 26),
            ar_ptr: Addr(1),
            prev: Addr(2),
            size: 3,
            mprotect_size: 4,
            pagesize: 5,
        }],
        status: StatusFigures {
            vm_size: 1,
            vm_peak: 2,
            vm_rss: 3,
            vm_swap: 4,
            vm_hwm: 5,
            threads: 6,
            resources: Some(ResourceUse {
                minor_faults: 7,
                major_faults: 8,
                cpu_ns: u64::MAX,
                user_ns: 9,
                system_ns: 10,
            }),
        },
        comm: b"name".to_vec(),
        exe: b"/bin/\xfe".to_vec(),
        cmdline: vec![b"a".to_vec(), Vec::new(), b"\xff b".to_vec()],
        stack_limit: Some(u64::MAX),
        limits: Limits { known: true, data: Some(u64::MAX >> 1), cpus: Some(2), ..Limits::default() },
        blocks: vec![
            Block { range: AddrRange::from_len(Addr(0x7000), 0x3000), kind: BlockKind::PoolArena },
            Block { range: AddrRange::from_len(Addr(0xa000), 0x1000), kind: BlockKind::GroupTable },
            Block { range: AddrRange::from_len(Addr(0xc000), 0x2000), kind: BlockKind::Group },
            Block { range: AddrRange::from_len(Addr(0x10000), 0x10000), kind: BlockKind::ObjectPage },
            Block { range: AddrRange::from_len(Addr(0x20000), 0x10000), kind: BlockKind::ChainedArena },
            Block { range: AddrRange::from_len(Addr(0x30000), 0x10000), kind: BlockKind::Bookkeeping },
        ],
        code: CodeMarks {
            bss: vec![AddrRange::new(0x7f00_0000_2000, 0x7f00_0000_6000)],
            files: vec![FileMarks {
                file: MappingFile { major: 1, minor: 2, inode: u64::MAX },
                marks: vec!["glibc".into(), "of a later version".into()],
                setting: Some("_RJEM_MALLOC_CONF".into()),
                version: Some((2, 36)),
            }],
            loader_data: (pid == 7).then(|| vec![Addr(0x7f00_0000_1000), Addr(u64::MAX)]),
            libc_malloc: Some(Addr(u64::MAX)),
            variables: vec!["MALLOC_ARENA_MAX=1".into(), "NODE_OPTIONS=a=b \u{fffd}".into()],
            complete: pid == 7,
        },
        aslr: pid == 7,
        gaps: vec!["one".into(), "two".into()],
    })
}

fn stacks() -> StackTable {
    let mut table = StackTable::default();
    let info = |path: &[u8], build_id: Option<&str>| ModuleInfo {
        path: path.to_vec(),
        major: 1,
        minor: 2,
        inode: u64::MAX,
        build_id: build_id.map(str::to_owned),
    };
    let (a, b) =
        (table.intern_module(info(b"/a\xff", Some("00ff"))), table.intern_module(info(b"[vdso]", None)));
    let frame = |module, address, kind| Frame { module, address, kind };
    let top = frame(Some(b), u64::MAX, FrameKind::InstructionPointer);
    let caller = frame(Some(a), 16, FrameKind::ReturnAddress);
    table.intern_frames(&[top, caller], Completeness::Complete);
    table.intern_frames(&[caller, frame(None, 3, FrameKind::Guess)], Completeness::Truncated);
    table.intern_frames(&[], Completeness::Incomplete);
    table
}

fn steps() -> Vec<Step> {
    let mut steps = vec![Step::Found { mm: MmKey(1), seen: observations(8, ResidencySource::None) }];
    let mut ops = ops().into_iter().enumerate().map(|(i, op)| Step::Event(event(i as u64 + 1, op)));
    steps.extend(ops.by_ref().take(5));
    steps.push(Step::Lost { time_ns: u64::MAX });
    steps.push(Step::Resync(observations(9, ResidencySource::Pagemap)));
    steps.push(Step::Snapshot(observations(8, ResidencySource::SmapsProportion)));
    steps.extend(ops);
    steps.push(Step::Snapshot(observations(7, ResidencySource::PagemapScan)));
    steps
}

fn record(path: &Path, steps: &[Step]) -> Recorder {
    let mut recorder = Recorder::create(path, &meta(), None).expect("a new file");
    let table = stacks();
    for step in steps {
        recorder.step(step, &table);
    }
    recorder
}

fn read(recording: &Recording) -> Vec<Step> {
    let mut found = Vec::new();
    let mut each = |step: &Step| {
        found.push(step.clone());
        ControlFlow::Continue(())
    };
    recording.steps(&mut each).expect("a whole file");
    found
}

#[test]
fn every_step_comes_back() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("rec");
    let facts = Facts { events: u64::MAX, dropped: 1, exit_code: Some(255), ..Facts::default() };
    let mut recorder = record(&path, &steps());
    let parts = ["{}", "{\"regions\":[]}", ""].map(str::to_owned);
    parts.iter().for_each(|part| recorder.report_part(part.clone()));
    recorder.finish(&facts).expect("written");
    let recording = Recording::open(&path).expect("a recording");
    assert_eq!(recording.meta(), &meta());
    assert_eq!(recording.facts(), Some(&facts));
    let mut found = Vec::new();
    let mut each = |part: &[u8]| {
        found.push(String::from_utf8_lossy(part).into_owned());
        Ok(())
    };
    assert!(recording.report(&mut each).expect("readable"));
    assert_eq!(found, parts);
    let refuse = |part: &[u8]| if part.is_empty() { Err("no JSON".to_owned()) } else { Ok(()) };
    let error = recording.report(&mut { refuse }).expect_err("refused").to_string();
    assert!(error.ends_with("damaged: part 3 of the report: no JSON"), "{error}");
    let (found, expected) = (read(&recording), steps());
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len());
    let (found, expected) = (recording.stacks().expect("stacks"), stacks());
    assert_eq!((found.modules(), found.frames(), found.len()), (expected.modules(), expected.frames(), 3));
    for id in (0..3).map(StackId) {
        assert_eq!(found.stack(id), expected.stack(id));
    }
}

#[test]
fn the_steps_stop_on_request() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("rec");
    record(&path, &steps()).finish(&Facts::default()).expect("written");
    let recording = Recording::open(&path).expect("a recording");
    let mut seen = 0;
    let mut each = |_: &Step| {
        seen += 1;
        if seen == 4 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    recording.steps(&mut each).expect("a whole file");
    assert_eq!(seen, 4);
}

#[test]
fn only_the_newest_snapshot_of_a_process_is_kept() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("rec");
    let snapshot = |pid, source| Step::Snapshot(observations(pid, source));
    let (old, new) = (snapshot(8, ResidencySource::None), snapshot(8, ResidencySource::Pagemap));
    let gone = snapshot(10, ResidencySource::Pagemap);
    let call = |id| Step::Event(event(id, VmOp::Rename));
    let all = [call(1), old, call(2), new.clone(), gone, call(3)];
    let mut recorder = record(&path, &all);
    recorder.discard_snapshot(10);
    recorder.finish(&Facts::default()).expect("written");
    let recording = Recording::open(&path).expect("a recording");
    assert_eq!(read(&recording), [call(1), call(2), new, call(3)]);
}

#[test]
fn names_come_back_by_stack() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("rec");
    let table = stacks();
    let line = |frame, name: &str, inlined| SymbolFrame {
        frame,
        function: Some(FunctionName { name: name.into(), linkage: format!("_Z{name}"), offset: u64::MAX }),
        bounds: None,
        location: Some(SourceLine { file: "a.c".into(), line: u32::MAX }),
        inlined,
    };
    let frames = table.stack(StackId(0)).frames;
    let bare = SymbolFrame {
        frame: frames[1],
        function: None,
        bounds: Some((1, u64::MAX)),
        location: None,
        inlined: false,
    };
    let named =
        [line(frames[0], "inner", true), line(frames[0], "outer", false), bare].map(Arc::new).to_vec();
    let names = SymbolizedStacks { stacks: [(StackId(0), named.clone())].into_iter().collect() };
    let mut recorder = record(&path, &[]);
    recorder.names(&names, &table);
    recorder.finish(&Facts::default()).expect("written");
    let recording = Recording::open(&path).expect("a recording");
    let found = recording.names(&recording.stacks().expect("stacks")).expect("names");
    assert_eq!(found.stack(StackId(0), &table), Some(named));
    assert_eq!(found.stack(StackId(1), &table), None, "one of its frames has no name");
    assert_eq!(found.stack(StackId(2), &table), Some(Vec::new()));
    assert_eq!(found.stack(StackId(9), &table), None);
}

/// The time for reading DWARF is limited: two lookups of a frame may know of different lines.
#[test]
fn all_lines_of_a_frame_come_from_one_lookup() {
    let table = stacks();
    let line = |frame: Frame, name: &str, inlined| SymbolFrame {
        frame,
        function: Some(FunctionName { name: name.into(), linkage: name.into(), offset: 1 }),
        bounds: None,
        location: None,
        inlined,
    };
    let frames = table.stack(StackId(0)).frames;
    let short = [line(frames[0], "own", false), line(frames[1], "caller", false)].map(Arc::new).to_vec();
    let long = [
        line(frames[0], "inner", true),
        line(frames[0], "own", false),
        line(frames[1], "inlined", true),
        line(frames[1], "caller", false),
    ];
    let long = long.map(Arc::new).to_vec();
    let one = |lines: &[Arc<SymbolFrame>]| SymbolizedStacks { stacks: [(StackId(0), lines.to_vec())].into() };
    for (first, second) in [(&short, &long), (&long, &short)] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("rec");
        let mut recorder = record(&path, &[]);
        recorder.names(&one(first), &table);
        // Frame by frame, as at the end of a run.
        let (alone, ids) = table.frame_by_frame();
        let of_frame = |id: StackId| {
            let frame = alone.stack(id).frames[0];
            (id, second.iter().filter(|line| line.frame == frame).cloned().collect())
        };
        let stacks = ids.into_iter().map(of_frame).collect();
        recorder.frame_names(&SymbolizedStacks { stacks }, &alone);
        recorder.finish(&Facts::default()).expect("written");
        let recording = Recording::open(&path).expect("a recording");
        let found = recording.names(&recording.stacks().expect("stacks")).expect("names");
        assert_eq!(found.stack(StackId(0), &table).as_ref(), Some(first));
    }
}

#[test]
fn a_recording_that_was_not_finished_opens() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("rec");
    drop(record(&path, &steps()));
    let recording = Recording::open(&path).expect("a recording");
    assert_eq!(recording.facts(), None);
    assert_eq!(read(&recording), steps());
}

#[test]
fn an_older_recording_is_kept_under_another_name() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("rec");
    for n in 1..=3u64 {
        let facts = Facts { events: n, ..Facts::default() };
        record(&path, &[]).finish(&facts).expect("written");
    }
    let events = |path: &Path| Recording::open(path).expect("a recording").facts().map(|f| f.events);
    assert_eq!(events(&path), Some(3));
    assert_eq!(events(&folder.path().join("rec.old")), Some(2));
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("readable").flatten().collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn more_lost_events_than_can_be_counted_are_the_most() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("rec");
    let facts = Facts { dropped: u64::MAX, ..Facts::default() };
    record(&path, &steps()).finish(&facts).expect("written");
    let mut replay = Replay::open(&path).expect("a recording");
    replay.run(&mut |_, _| ControlFlow::Continue(())).expect("a whole file");
    let events = replay.report().0.events;
    assert_eq!((events.seen, events.lost), (u64::MAX, u64::MAX));
}

#[test]
fn ranges_beyond_user_space_are_damage() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("rec");
    let mut beyond = observations(7, ResidencySource::None);
    beyond.mappings.push(mapping(1 << 56, b"", None));
    record(&path, &[Step::Snapshot(beyond)]).finish(&Facts::default()).expect("written");
    let recording = Recording::open(&path).expect("a recording");
    let error = recording.steps(&mut |_| ControlFlow::Continue(())).expect_err("no kernel has that");
    assert!(error.to_string().contains("0x100000000000000"), "{error}");
}
