//! A recording in which any values of any rows were replaced, with check sums that are right; or, where the input
//! begins as SQLite files do, any bytes as the file. Read whole, replayed, and reported.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use vmaudit::model::observation::{
    Block, BlockKind, HeapInfo, Residency, ResidencySource, SnapshotMoment, StatusFigures, ThreadBlocks,
    ThreadObservation,
};
use vmaudit::model::{
    Addr, AddrRange, CategorySize, CodeMarks, Completeness, EventId, FileMarks, FileRef, Frame, FrameKind,
    FunctionName, Limits, Mapping, MappingFile, MmKey, ModuleInfo, NoStack, Observations, Prot, Sharing,
    SizePoint, StackId, StackTable, Step, SymbolFrame, SymbolizedStacks, Task, VmEvent, VmFlags, VmOp,
    VmaDetail, VmaDetails,
};
use vmaudit::render::{TextOptions, to_text};
use vmaudit::session::replay::Replay;
use vmaudit::store::{Facts, Recorder, Recording, RunMeta};

const LIB: MappingFile = MappingFile { major: 8, minor: 1, inode: 77 };

fn mapping(start: u64, len: u64, name: &str, file: Option<MappingFile>) -> Mapping {
    Mapping {
        range: AddrRange::from_len(Addr(start), len),
        prot: Prot { read: true, write: file.is_none(), exec: file.is_some() },
        sharing: Sharing::Private,
        offset: 0,
        file,
        name: name.into(),
    }
}

fn mappings() -> Vec<Mapping> {
    vec![
        mapping(0x40_0000, 0x2000, "/fuzzed/program", Some(LIB)),
        mapping(0x50_0000, 0x21000, "[heap]", None),
        mapping(0x7f00_0000_0000, 0x400_0000, "", None),
        mapping(0x7fff_f000_0000, 0x21000, "[stack]", None),
    ]
}

fn ops() -> Vec<VmOp> {
    let (addr, len) = (Addr(0x7f00_0000_0000), 0x400_0000);
    let file = FileRef { major: 8, minor: 1, inode: 77, path: b"/fuzzed/program".into(), deleted: false };
    let anonymous =
        |len| VmOp::Mmap { addr: Addr(0), len, prot: 3, flags: 0x22, fd: -1, offset: 0, file: None };
    vec![
        VmOp::Exec {
            exe: Some(file.clone()),
            start_brk: Addr(0x50_0000),
            brk: Addr(0x50_0000),
            start_stack: Addr(0x7fff_f001_0000),
            compat: false,
            mappings: Some(vec![mappings().swap_remove(0)]),
        },
        VmOp::Brk { requested: Addr(0x52_1000), current: Some(Addr(0x52_1000)) },
        anonymous(len),
        VmOp::Mmap { addr, len: 0x2000, prot: 5, flags: 0x12, fd: 3, offset: 4096, file: Some(file) },
        VmOp::SetVmaName { addr, len: 0x2000, name: Some(b"a name".into()) },
        VmOp::Mprotect { addr, len: 0x1000, prot: 0, pkey: None },
        VmOp::Madvise { addr, len, advice: 4 },
        VmOp::Mremap { old: addr, old_len: len, new_len: 2 * len, flags: 1, new_addr: Addr(0) },
        VmOp::Shmat { shmid: 1, addr, flags: 0, mapped: Some(AddrRange::new(0x1000, 0x9000)) },
        VmOp::Shmdt { addr },
        VmOp::IoSetup { nr_events: 9, mapped: Some(AddrRange::new(0x10000, 0x19000)) },
        VmOp::RemapFilePages { addr, len: 0x1000, pgoff: 5, flags: 0 },
        VmOp::MapShadowStack { addr: Addr(0), len: 0x1000, flags: 0 },
        VmOp::SetMm { option: 7, value: 0x52_2000 },
        VmOp::ProcessMadvise { pidfd: 3, iovecs: 1, advice: 4 },
        VmOp::Munmap { addr, len: 0x3000 },
        VmOp::Fork {
            child_pid: 9,
            child_tid: 9,
            child_mm: MmKey(2),
            child_sp: addr,
            child_brk: Some(Addr(0x52_1000)),
            is_thread: false,
            mappings: Some(mappings()),
        },
        anonymous(0x1000),
        VmOp::Rename,
        VmOp::Exit { code: 0, group_dead: true },
    ]
}

fn observations(pid: i32) -> Box<Observations> {
    let page = |n: u64| AddrRange::from_len(Addr(0x7f00_0000_0000 + n * 4096), 4096);
    let details = vec![VmaDetail {
        range: mappings()[2].range,
        flags: VmFlags::parse(b"rd wr mr mw me ac sd"),
        pss: 4096,
        page_size: 4096,
        hugetlb: 0,
    }];
    Box::new(Observations {
        pid,
        ended_ns: 50_000,
        mappings: mappings(),
        residency: Residency {
            source: ResidencySource::Pagemap,
            resident: vec![page(0), page(9)],
            swapped: vec![page(3)],
            per_vma: vec![(mappings()[2].range, 8192, 4096)],
        },
        details: VmaDetails { vmas: details, guards: vec![page(7)] },
        thread_blocks: ThreadBlocks {
            living: vec![(7, Addr(0x7f00_0000_1000))],
            ended: vec![Addr(0x7f00_0000_9000)],
            searched: pid == 7,
        },
        threads: vec![ThreadObservation {
            tid: pid,
            comm: b"main".into(),
            stack_pointer: Some(Addr(0x7fff_f001_0000)),
        }],
        heap_infos: vec![HeapInfo {
            at: Addr(0x7f00_0000_0000),
            ar_ptr: Addr(0x7f00_0000_0030),
            prev: Addr(0),
            size: 0x21000,
            mprotect_size: 0x21000,
            pagesize: 4096,
        }],
        comm: b"main".into(),
        exe: b"/fuzzed/program".into(),
        cmdline: vec![b"program".into()],
        blocks: vec![Block {
            range: AddrRange::from_len(Addr(0x50_0000), 0x3000),
            kind: BlockKind::PoolArena,
        }],
        gaps: vec!["a gap".into()],
        moment: SnapshotMoment::HeldAtExit,
        begun_ns: 40_000,
        status: StatusFigures { vm_size: 1 << 26, vm_rss: 8192, threads: 1, ..StatusFigures::default() },
        stack_limit: Some(8 << 20),
        limits: Limits { known: true, data: Some(1 << 40), cpus: Some(2), ..Limits::default() },
        code: CodeMarks {
            loader_data: Some(vec![Addr(0x7f00_0000_3000)]),
            bss: vec![AddrRange::new(0x7f00_0000_2000, 0x7f00_0000_6000)],
            files: vec![FileMarks {
                file: LIB,
                marks: vec!["glibc".into()],
                setting: None,
                version: Some((2, 36)),
            }],
            libc_malloc: Some(Addr(0x40_1000)),
            variables: vec!["MALLOC_ARENA_MAX=1".into()],
            complete: true,
        },
        aslr: true,
    })
}

fn record(path: &std::path::Path) {
    let meta = RunMeta {
        version: "0".into(),
        backend: "bpf".into(),
        command: vec!["program".into()],
        timeline: true,
        touch: false,
        main: 7,
        heap: None,
        started_ns: 1,
        started_unix_ns: 2,
    };
    let mut stacks = StackTable::default();
    let info = ModuleInfo {
        path: b"/fuzzed/program".into(),
        major: 8,
        minor: 1,
        inode: 77,
        build_id: Some("ab".into()),
    };
    let module = Some(stacks.intern_module(info));
    let frame = |address, kind| Frame { module, address, kind };
    let frames = [frame(1, FrameKind::InstructionPointer), frame(9, FrameKind::ReturnAddress)];
    let stack = stacks.intern_frames(&frames, Completeness::Complete);
    let mut recorder = Recorder::create(path, &meta, None).expect("a new file");
    recorder.step(&Step::Found { mm: MmKey(3), seen: observations(8) }, &stacks);
    for (op, id) in ops().into_iter().zip(1..) {
        let ret = if matches!(op, VmOp::Mmap { .. } | VmOp::Mremap { .. }) { 0x7f00_0000_0000 } else { 0 };
        recorder.event(
            &VmEvent {
                id: EventId(id),
                time_ns: id * 1000,
                task: Task { pid: 7, tid: 7, comm: b"main".into() },
                mm: MmKey(1),
                ret: if matches!(op, VmOp::Brk { .. }) { 0x52_1000 } else { ret },
                op,
                stack: if id % 2 == 0 { Err(NoStack::NotTaken) } else { Ok(StackId(stack.0)) },
                total_vm: Some(1 << 20),
            },
            &stacks,
        );
        if id == 12 {
            recorder.step(&Step::Lost { time_ns: 12_500 }, &stacks);
            recorder.step(&Step::Resync(observations(7)), &stacks);
            recorder.step(&Step::Snapshot(observations(8)), &stacks);
        }
    }
    recorder.point(&SizePoint {
        pid: 7,
        number: 1,
        time_ns: 15_000,
        rss_known: true,
        categories: vec![CategorySize { category: "heap".into(), virt: 8192, rss: 4096 }],
    });
    recorder.step(&Step::Snapshot(observations(7)), &stacks);
    let line = |frame| SymbolFrame {
        frame,
        function: Some(FunctionName { name: "mmap".into(), linkage: "mmap".into(), offset: 1 }),
        bounds: None,
        location: None,
        inlined: false,
    };
    let lines = frames.map(|frame| Arc::new(line(frame)));
    recorder.names(&SymbolizedStacks { stacks: [(stack, lines.to_vec())].into_iter().collect() }, &stacks);
    recorder.report_part("{\"schema\":1}".into());
    recorder
        .finish(&Facts { events: 20, ended_ns: 60_000, exit_code: Some(0), ..Facts::default() })
        .expect("written");
}

type Rows = Vec<Vec<Value>>;

/// A recording, as a file and as its tables.
struct Template {
    folder: PathBuf,
    file: Vec<u8>,
    tables: BTreeMap<String, Rows>,
}

fn template() -> &'static Template {
    static TEMPLATE: OnceLock<Template> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let shm = PathBuf::from("/dev/shm");
        let parent = if shm.is_dir() { shm } else { std::env::temp_dir() };
        let folder = tempfile::tempdir_in(parent).expect("a folder").keep();
        let path = folder.join("template");
        record(&path);
        let db = Connection::open(&path).expect("a recording");
        let sql = "SELECT m.name FROM sqlite_schema m, pragma_table_info(m.name) c \
                   WHERE m.type = 'table' AND c.name = 'sum' ORDER BY 1";
        let mut query = db.prepare(sql).expect("a query");
        let names = query.query_map([], |row| row.get(0)).expect("rows").collect::<Result<Vec<String>, _>>();
        let rows = |table: &String| {
            let mut query = db.prepare(&format!("SELECT * FROM {table}")).expect("a query");
            let columns = query.column_count();
            let rows = query.query_map([], |row| (0..columns).map(|column| row.get(column)).collect());
            rows.expect("rows").collect::<Result<Rows, _>>().expect("values")
        };
        let tables = names.expect("names").into_iter().map(|name| (name.clone(), rows(&name))).collect();
        Template { file: std::fs::read(&path).expect("a file"), folder, tables }
    })
}

/// The check sum of a row, as `store::sum` has it.
fn sum(values: &[Value]) -> i64 {
    let mut sum = 0x243f_6a88_85a3_08d3u64;
    let mut word = |word: u64| sum = (sum.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    for value in values {
        let bytes = match value {
            Value::Null => {
                word(0x9e37_79b9_7f4a_7c15);
                continue;
            }
            Value::Integer(value) => {
                word(*value as u64);
                continue;
            }
            Value::Real(value) => {
                word(value.to_bits());
                continue;
            }
            Value::Text(text) => text.as_bytes(),
            Value::Blob(bytes) => bytes,
        };
        word(!(bytes.len() as u64));
        let folded = |chunk: &[u8]| chunk.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
        let chunks = bytes.chunks_exact(8);
        let rest = folded(chunks.remainder());
        chunks.for_each(|chunk| word(folded(chunk)));
        word(rest);
    }
    word(0);
    (sum >> 32) as i64
}

struct Edits<'a>(&'a [u8]);

impl Edits<'_> {
    fn byte(&mut self) -> Option<u8> {
        self.0.split_off_first().copied()
    }

    fn value(&mut self) -> Option<Value> {
        Some(match self.byte()? {
            0 => Value::Null,
            kind @ 1..=0x3f => {
                let (text, rest) = self.0.split_at_checked(usize::from(kind) - 1)?;
                self.0 = rest;
                match std::str::from_utf8(text) {
                    Ok(text) => Value::Text(text.to_owned()),
                    Err(_) => Value::Blob(text.to_vec()),
                }
            }
            0x40..=0x7f => Value::Integer(i64::from(self.byte()? as i8)),
            0x80..=0xbf => {
                let (number, rest) = self.0.split_first_chunk()?;
                self.0 = rest;
                Value::Integer(i64::from_le_bytes(*number))
            }
            0xc0..=0xdf => Value::Integer(i64::from(self.byte()? as i8) << (self.byte()? & 63)),
            _ => Value::Integer(i64::MIN.wrapping_add(i64::from(self.byte()? as i8))),
        })
    }

    /// Which table, which row, what of it: a column gets a value, in the row or in a copy of it; or it goes.
    fn apply(&mut self, tables: &mut BTreeMap<String, Rows>) -> Option<String> {
        let at = usize::from(self.byte()?) % tables.len();
        let (name, rows) = tables.iter_mut().nth(at)?;
        let row = usize::from(self.byte()?) % rows.len().max(1);
        let (what, column) = (self.byte()?, usize::from(self.byte()?));
        if what >= 0xf0 && row < rows.len() {
            rows.remove(row);
            return Some(name.clone());
        }
        let mut changed = rows.get(row)?.clone();
        let last = changed.len() - 1;
        changed[column % last] = self.value()?;
        changed[last] = Value::Integer(sum(&changed[..last]));
        match what {
            0..0xc0 => rows[row] = changed,
            _ => rows.push(changed),
        }
        Some(name.clone())
    }
}

fuzz_target!(|bytes: &[u8]| {
    let template = template();
    let path = template.folder.join(std::process::id().to_string());
    if bytes.starts_with(b"SQLite") {
        std::fs::write(&path, bytes).expect("written");
    } else {
        std::fs::write(&path, &template.file).expect("written");
        let (mut edits, mut tables, mut touched) = (Edits(bytes), template.tables.clone(), BTreeSet::new());
        while let Some(table) = edits.apply(&mut tables) {
            touched.insert(table);
        }
        let db = Connection::open(&path).expect("a recording");
        db.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN")
            .expect("a transaction");
        for table in touched {
            db.execute(&format!("DELETE FROM {table}"), []).expect("deleted");
            for row in &tables[&table] {
                let places = vec!["?"; row.len()].join(", ");
                let sql = format!("INSERT OR IGNORE INTO {table} VALUES({places})");
                // Not all values fit all columns.
                let _ = db.prepare_cached(&sql).expect("a statement").execute(params_from_iter(row));
            }
        }
        db.execute_batch("COMMIT").expect("written");
    }
    let Ok(recording) = Recording::open(&path) else { return };
    let _ = recording.report(&mut |_| Ok(()));
    let _ = recording.heap_moments();
    let _ = recording.newest_snapshots();
    let Ok(mut replay) = Replay::of(recording) else { return };
    if replay.run(&mut |_, _| ControlFlow::Continue(())).is_err() {
        return;
    }
    // Without an end there are no names in it, and the files that it names would be read for them.
    if replay.ended_ns().is_some() {
        let (report, _) = replay.report();
        to_text(&report, TextOptions::default());
    }
});
