//! Complete strace traces of real programs through the ledger, compared with the same programs'
//! smaps, byte for byte.
//!
//! `tests/fixtures/captures/NAME.strace` goes on to the program's end; `NAME.PHASE.smaps` was
//! read somewhere before. So the map has to agree at some point of the trace.

use crate::captures::strace_log::{self, StraceLog};
use crate::ledger::rules::observed;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use vmaudit::ledger::{AddressSpaces, Origin};
use vmaudit::model::{
    Addr, AddrRange, EventId, Mapping, MappingFile, NoStack, Prot, Sharing, Task, VmEvent, VmOp,
};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures")
}

/// Header lines of smaps, without vsyscall: `start-end perms offset major:minor inode  name`.
fn mappings_of(smaps: &str) -> Vec<Mapping> {
    let mut mappings = Vec::new();
    for line in smaps.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let Some((start, end)) = words.first().and_then(|w| w.split_once('-')) else { continue };
        let hex = |text: &str| u64::from_str_radix(text, 16).expect("hexadecimal");
        let perms = words[1].as_bytes();
        let inode: u64 = words[4].parse().expect("inode");
        let (major, minor) = words[3].split_once(':').expect("device");
        let (major, minor) = (hex(major) as u32, hex(minor) as u32);
        let name = words[5..].join(" ").into_bytes();
        if name == b"[vsyscall]" {
            continue;
        }
        mappings.push(Mapping {
            range: AddrRange::new(hex(start), hex(end)),
            prot: Prot { read: perms[0] == b'r', write: perms[1] == b'w', exec: perms[2] == b'x' },
            sharing: if perms[3] == b's' { Sharing::Shared } else { Sharing::Private },
            offset: hex(words[2]),
            file: (inode != 0).then_some(MappingFile { major, minor, inode }),
            name,
        });
    }
    mappings
}

/// Every byte that some call of the trace maps, as ranges.
fn made_by_calls(log: &StraceLog) -> Vec<AddrRange> {
    let mut ranges = Vec::new();
    let mut brk: Option<Addr> = None;
    for event in log.events.iter().filter(|e| !e.failed()) {
        let ret = Addr(event.ret as u64);
        match &event.op {
            VmOp::Mmap { len, .. } => {
                ranges.push(AddrRange::new(ret.0, ret.saturating_add(*len).page_up().0))
            }
            VmOp::Mremap { new_len, .. } => {
                ranges.push(AddrRange::new(ret.0, ret.saturating_add(*new_len).page_up().0));
            }
            VmOp::Brk { .. } => {
                let first = *brk.get_or_insert(ret);
                ranges.push(AddrRange::new(first.page_up().0, ret.page_up().0));
            }
            _ => {}
        }
    }
    ranges
}

fn without(range: AddrRange, holes: &[AddrRange]) -> Vec<AddrRange> {
    let mut parts = vec![range];
    for hole in holes.iter().filter(|h| h.overlaps(range)) {
        parts = parts
            .into_iter()
            .flat_map(|p| {
                let below = AddrRange::new(p.start.0, hole.start.0.clamp(p.start.0, p.end.0));
                let above = AddrRange::new(hole.end.0.clamp(p.start.0, p.end.0), p.end.0);
                [below, above]
            })
            .filter(|p| !p.is_empty())
            .collect();
    }
    parts
}

/// What execve mapped itself: what no call ever did.
fn mapped_by_execve(mappings: &[Mapping], log: &StraceLog) -> Vec<Mapping> {
    let made = made_by_calls(log);
    let mut initial: Vec<Mapping> = Vec::new();
    for mapping in mappings {
        for range in without(mapping.range, &made) {
            let after_image =
                initial.last().is_some_and(|m: &Mapping| m.range.end == range.start && m.name != b"[vdso]");
            let is_image = mapping.file.is_some();
            let special = mapping.name.starts_with(b"[");
            assert!(is_image || special || after_image, "{range} is explained by nothing");
            let offset = mapping.offset + (range.start.0 - mapping.range.start.0);
            initial.push(Mapping { range, offset, ..mapping.clone() });
        }
    }
    initial
}

fn begin(log: &StraceLog, initial: Vec<Mapping>) -> AddressSpaces {
    let first = log.events.first().expect("a trace has events");
    let mut spaces = AddressSpaces::new();
    spaces.apply(&VmEvent {
        id: EventId(1_000_000),
        time_ns: 0,
        task: Task { pid: first.task.pid, tid: first.task.pid, comm: b"program".to_vec() },
        mm: first.mm,
        op: VmOp::Exec {
            exe: None,
            start_brk: Addr(0),
            brk: Addr(0),
            start_stack: Addr(0),
            compat: false,
            mappings: Some(initial),
        },
        ret: 0,
        stack: Err(NoStack::NotTaken),
        total_vm: None,
    });
    spaces
}

/// Ranges of equal protection, neighbours joined: what both sides have to agree on.
fn shape(parts: impl Iterator<Item = (AddrRange, Prot, Sharing)>) -> Vec<(AddrRange, Prot, Sharing)> {
    let mut shape: Vec<(AddrRange, Prot, Sharing)> = Vec::new();
    for (range, prot, sharing) in parts {
        match shape.last_mut() {
            Some((last, p, s)) if last.end == range.start && (*p, *s) == (prot, sharing) => {
                last.end = range.end;
            }
            _ => shape.push((range, prot, sharing)),
        }
    }
    shape
}

/// The numbers of events after which ledger and snapshot are the same.
fn agreeing_points(log: &StraceLog, mappings: &[Mapping]) -> Vec<usize> {
    let pid = log.events.first().expect("events").task.pid;
    let mut spaces = begin(log, mapped_by_execve(mappings, log));
    // After the last event: no range is excused.
    let seen = observed(pid, mappings.to_vec(), u64::MAX);
    let kernel = shape(mappings.iter().map(|m| (m.range, m.prot, m.sharing)));
    let virt: u64 = mappings.iter().map(|m| m.range.len()).sum();
    let mut points = Vec::new();
    for (index, event) in log.events.iter().enumerate() {
        spaces.apply(event);
        let ledger = spaces.ledger_of_pid(pid).expect("the process is known");
        let result = spaces.reconcile(pid, &seen);
        let covered: u64 = result.regions.iter().map(|r| r.range.len()).sum();
        assert_eq!(covered, virt, "regions are exactly the kernel's mappings");
        let same = shape(ledger.pieces().map(|p| (p.range, p.prot, p.sharing))) == kernel;
        assert_eq!(same, result.drift.0 == 0, "drift is 0 exactly where the maps are equal");
        if same {
            let unknown = result.regions.iter().filter(|r| r.origin == Origin::Unknown).count();
            assert_eq!(unknown, 0, "every byte has an origin");
            points.push(index + 1);
        }
    }
    points
}

/// VmSize in bytes.
fn vm_size(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix("VmSize:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

struct Capture {
    trace: Vec<u8>,
    /// (phase, smaps)
    snapshots: Vec<(String, String)>,
}

/// All captures by name.
fn captures() -> BTreeMap<String, Capture> {
    let mut captures = BTreeMap::new();
    for entry in std::fs::read_dir(fixtures()).expect("fixtures") {
        let path = entry.expect("entry").path();
        let file = path.file_name().expect("name").to_string_lossy().into_owned();
        let Some(name) = file.strip_suffix(".strace") else { continue };
        let mut snapshots = Vec::new();
        for other in std::fs::read_dir(fixtures()).expect("fixtures") {
            let other = other.expect("entry").path();
            let file = other.file_name().expect("name").to_string_lossy().into_owned();
            let phase = file
                .strip_prefix(name)
                .and_then(|f| f.strip_prefix('.'))
                .and_then(|f| f.strip_suffix(".smaps"));
            if let Some(phase) = phase {
                snapshots.push((phase.to_owned(), std::fs::read_to_string(&other).expect("smaps")));
            }
        }
        let trace = std::fs::read(&path).expect("trace");
        captures.insert(name.to_owned(), Capture { trace, snapshots });
    }
    captures
}

#[test]
fn complete_traces_end_in_their_snapshots() {
    let captures = captures();
    assert_eq!(captures.len(), 15, "all complete traces of the index");
    for (name, Capture { trace, snapshots }) in captures {
        assert!(!snapshots.is_empty(), "{name} has a snapshot");
        for order in ["effect", "report"] {
            let log = match order {
                "effect" => strace_log::parse(&trace),
                _ => strace_log::parse_in_report_order(&trace),
            };
            let log = log.unwrap_or_else(|e| panic!("{name}: {e}"));
            for (phase, smaps) in &snapshots {
                let status = std::fs::read_to_string(fixtures().join(format!("{name}.{phase}.status")));
                let virt: u64 = mappings_of(smaps).iter().map(|m| m.range.len()).sum();
                assert_eq!(vm_size(&status.expect("status")), Some(virt), "{name}.{phase}");
                let points = agreeing_points(&log, &mappings_of(smaps));
                assert!(!points.is_empty(), "{name}.{phase} agrees nowhere in {order} order");
            }
        }
    }
}

/// The traces' own trap: at its "resumed" line a munmap would take away what another thread was
/// given meanwhile.
#[test]
fn a_munmap_reported_late_does_not_take_the_next_arena() {
    let trace = std::fs::read(fixtures().join("arenas4.strace")).expect("trace");
    let log = strace_log::parse_in_report_order(&trace).expect("parses");
    let at =
        |what: &dyn Fn(&VmOp) -> bool| log.events.iter().position(|e| what(&e.op)).expect("is in the trace");
    let freed = at(&|op| matches!(op, VmOp::Munmap { addr: Addr(0x7f19_7800_0000), .. }));
    let given = log.events.iter().position(|e| e.ret == 0x7f19_7800_0000).expect("is in the trace");
    assert!(given < freed, "the trace has the race");

    let smaps = std::fs::read_to_string(fixtures().join("arenas4.threads-up.smaps")).expect("smaps");
    let mappings = mappings_of(&smaps);
    let points = agreeing_points(&log, &mappings);
    assert!(points.iter().all(|&p| p > freed), "{points:?}");
    let mut spaces = begin(&log, mapped_by_execve(&mappings, &log));
    for event in &log.events[..points[0]] {
        spaces.apply(event);
    }
    let result = spaces
        .reconcile(log.events[0].task.pid, &observed(log.events[0].task.pid, mappings.clone(), u64::MAX));
    let arena = result.regions.iter().find(|r| r.range.contains(Addr(0x7f19_7800_0000))).expect("mapped");
    let Origin::Event(id) = arena.origin else { panic!("{arena:?}") };
    let origin = &result.origins[id.0 as usize];
    assert_eq!((origin.task.tid, origin.mapped.0), (16693, 64 << 20));
    // The other thread's reservation lost its upper half by that munmap.
    let trimmed = result.origins.iter().find(|o| o.ret == 0x7f19_7400_0000).expect("owns its lower half");
    assert_eq!((trimmed.unmapped.0, trimmed.unmap_calls), (64 << 20, 1));
}

#[test]
fn a_trace_keeps_its_stacks() {
    let trace = std::fs::read(fixtures().join("arenas4.strace")).expect("trace");
    let log = strace_log::parse(&trace).expect("parses");
    let reservation = log.events.iter().find(|e| e.ret == 0x7f19_7960_0000).expect("the first arena");
    let stack = &log.stacks[reservation.stack.expect("has a stack").0 as usize];
    assert!(stack[0].module.ends_with(b"libc.so.6"));
    assert_eq!(stack[0].symbol.as_deref(), Some("__mmap"));
    assert!(stack.iter().any(|f| f.symbol.as_deref() == Some("malloc")));
    let lines = trace.split(|&b| b == b'\n').filter(|l| !l.starts_with(b" >") && !l.is_empty());
    let unfinished = lines.clone().filter(|l| l.ends_with(b"<unfinished ...>")).count();
    assert_eq!(log.events.len() + log.ignored_lines, lines.count() - unfinished);
    assert_eq!(log.ignored_lines, 0);
}
