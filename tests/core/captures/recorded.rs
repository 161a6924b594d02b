//! Recorded traces and snapshots of real programs (`tests/fixtures/captures/`) through ledger and
//! attribution.
//!
//! The traces' names are strace's nearest symbols. What a symbol's size does not cover is taken
//! as unnamed here, as the symbolizer does: so this is the classification without debug files.

use crate::captures::strace_log::{self, StraceLog};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use vmaudit::attribution::{Attributed, AuditInput, DataRules, attribute};
use vmaudit::ledger::{AddressSpaces, Reconciled};
use vmaudit::model::observation::{HeapInfo, Residency, ResidencySource};
use vmaudit::model::{
    Addr, AddrRange, Completeness, EventId, Frame, FrameKind, FunctionName, Mapping, ModuleInfo, NoStack,
    Observations, Stack, StackId, StackTable, SymbolFrame, SymbolizedStacks, Task, VmEvent, VmOp, VmaDetail,
    VmaDetails,
};
use vmaudit::model::{CodeMarks, FileMarks};
use vmaudit::procfs::{SmapsEntry, parse_smaps};

/// st_size of the dynamic symbols that the traces name too often (Debian's glibc 2.36).
const SIZES: &[(&str, u64)] = &[
    ("timer_settime", 0x3a),
    ("__default_morecore", 0x33),
    ("pthread_condattr_setpshared", 0x1e),
    ("__xmknodat", 0x2c),
    ("fgets", 0x152),
    ("__libc_init_first", 0x1),
    ("malloc_usable_size", 0x23d),
];

pub fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub fn observed(pid: i32, smaps: &[u8]) -> Observations {
    let entries = parse_smaps(smaps).entries;
    let entries: Vec<_> = entries.into_iter().filter(|e| !e.mapping.is_special("[vsyscall]")).collect();
    let detail = |e: &SmapsEntry| VmaDetail {
        range: e.mapping.range,
        flags: e.vm_flags.clone(),
        pss: e.pss,
        page_size: e.kernel_page_size,
        hugetlb: e.private_hugetlb + e.shared_hugetlb,
    };
    let details = VmaDetails { vmas: entries.iter().map(detail).collect(), guards: Vec::new() };
    let per_vma = entries.iter().map(|e| (e.mapping.range, e.rss, e.swap)).collect();
    Observations {
        pid,
        // after the last event: no range is excused
        begun_ns: u64::MAX,
        ended_ns: u64::MAX,
        mappings: entries.into_iter().map(|e| e.mapping).collect(),
        residency: Residency { source: ResidencySource::SmapsProportion, per_vma, ..Residency::default() },
        details,
        comm: b"program".to_vec(),
        stack_limit: Some(8 << 20),
        aslr: true,
        ..Observations::default()
    }
}

/// What no call of the trace ever mapped: execve did.
fn mapped_by_execve(mappings: &[Mapping], log: &StraceLog) -> Vec<Mapping> {
    let mut made = Vec::new();
    let mut first_brk = None;
    for event in log.events.iter().filter(|e| !e.failed()) {
        let ret = Addr(event.ret as u64);
        match &event.op {
            VmOp::Mmap { len, .. } | VmOp::Mremap { new_len: len, .. } => {
                made.push(AddrRange::new(ret.0, ret.saturating_add(*len).page_up().0));
            }
            VmOp::Brk { .. } => {
                let first: &mut Addr = first_brk.get_or_insert(ret);
                made.push(AddrRange::new(first.page_up().0, ret.page_up().0));
            }
            _ => {}
        }
    }
    let mut initial = Vec::new();
    for mapping in mappings {
        let mut parts = vec![mapping.range];
        for hole in &made {
            let cut = |p: AddrRange| {
                let below = AddrRange::new(p.start.0, hole.start.0.clamp(p.start.0, p.end.0));
                let above = AddrRange::new(hole.end.0.clamp(p.start.0, p.end.0), p.end.0);
                if hole.overlaps(p) { vec![below, above] } else { vec![p] }
            };
            parts = parts.into_iter().flat_map(cut).filter(|p| !p.is_empty()).collect();
        }
        initial.extend(parts.into_iter().map(|range| Mapping { range, ..mapping.clone() }));
    }
    initial
}

/// The ledger's view at the first moment at which it equals the snapshot.
fn replayed(log: &StraceLog, seen: &Observations) -> Reconciled {
    let first = log.events.first().expect("a trace has events");
    let mut spaces = AddressSpaces::new();
    spaces.apply(&VmEvent {
        id: EventId(1_000_000),
        time_ns: 0,
        task: Task { pid: seen.pid, tid: seen.pid, comm: b"program".to_vec() },
        mm: first.mm,
        op: VmOp::Exec {
            exe: None,
            start_brk: Addr(0),
            brk: Addr(0),
            start_stack: Addr(0),
            compat: false,
            mappings: Some(mapped_by_execve(&seen.mappings, log)),
        },
        ret: 0,
        stack: Err(NoStack::NotTaken),
        total_vm: None,
    });
    for event in &log.events {
        spaces.apply(event);
        let result = spaces.reconcile(seen.pid, seen);
        if result.drift.0 == 0 {
            return result;
        }
    }
    panic!("the trace never reaches the snapshot");
}

/// The trace's stacks under the ids that its events use, with proven names only.
fn named(log: &StraceLog) -> (StackTable, SymbolizedStacks, BTreeMap<u32, StackId>) {
    let (mut table, mut symbols, mut ids) =
        (StackTable::default(), SymbolizedStacks::default(), BTreeMap::new());
    for (old, frames) in log.stacks.iter().enumerate() {
        let mut raw = Vec::new();
        let mut lines = Vec::new();
        for f in frames {
            let info = ModuleInfo { path: f.module.clone(), major: 0, minor: 0, inode: 0, build_id: None };
            let loader = info.short_name().starts_with("ld-linux");
            let module = Some(table.intern_module(info));
            let frame = Frame { module, address: f.address, kind: FrameKind::ReturnAddress };
            let covered = |name: &str| {
                let size = SIZES.iter().find(|(n, _)| *n == name).map_or(u64::MAX, |(_, size)| *size);
                f.offset < size && !loader && !name.is_empty()
            };
            let function = f.symbol.as_deref().filter(|name| covered(name)).map(|name| FunctionName {
                name: name.to_string(),
                linkage: name.to_string(),
                offset: f.offset,
            });
            raw.push(frame);
            lines.push(Arc::new(SymbolFrame {
                frame,
                function,
                bounds: None,
                location: None,
                inlined: false,
            }));
        }
        let id = table.intern(&Stack { frames: raw, completeness: Completeness::Complete });
        symbols.stacks.insert(id, lines);
        ids.insert(old as u32, id);
    }
    (table, symbols, ids)
}

/// A capture, traced from execve on.
pub fn traced(name: &str, phase: &str) -> Attributed {
    let log = strace_log::parse(&fixture(&format!("{name}.strace"))).expect("parses");
    let pid = log.events.first().expect("events").task.pid;
    let observations = observed(pid, &fixture(&format!("{name}.{phase}.smaps")));
    let mut reconciled = replayed(&log, &observations);
    let (stacks, symbols, ids) = named(&log);
    for record in &mut reconciled.origins {
        if let Ok(id) = &mut record.stack {
            *id = ids[&id.0];
        }
    }
    attribute(&AuditInput {
        reconciled: &reconciled,
        observations: &observations,
        stacks: &stacks,
        symbols: &symbols,
        rules: DataRules::built_in(),
    })
}

/// The same snapshot without any history; `headers` are heaps as read from memory.
pub fn snapshot_only(name: &str, phase: &str, headers: &[(u64, u64)]) -> Attributed {
    snapshot_knowing(name, phase, (headers, &[]))
}

/// As [`snapshot_only`], where the program's file holds `marks`.
pub fn snapshot_knowing(name: &str, phase: &str, known: (&[(u64, u64)], &[&str])) -> Attributed {
    let (headers, marks) = known;
    let mut observations = observed(1, &fixture(&format!("{name}.{phase}.smaps")));
    observations.heap_infos = headers
        .iter()
        .map(|&(at, used)| HeapInfo {
            at: Addr(at),
            ar_ptr: Addr(at + 0x30),
            prev: Addr(0),
            size: used,
            mprotect_size: used,
            pagesize: 4096,
        })
        .collect();
    if !marks.is_empty() {
        let file =
            observations.mappings.iter().find_map(|m| m.file.filter(|_| m.prot.exec)).expect("a program");
        let setting = marks.contains(&"jemalloc").then(|| "_RJEM_MALLOC_CONF".to_string());
        let found =
            FileMarks { file, marks: marks.iter().map(|&m| m.to_owned()).collect(), setting, version: None };
        observations.code = CodeMarks { files: vec![found], ..CodeMarks::default() };
    }
    let reconciled = AddressSpaces::new().reconcile(1, &observations);
    let (stacks, symbols) = (StackTable::default(), SymbolizedStacks::default());
    attribute(&AuditInput {
        reconciled: &reconciled,
        observations: &observations,
        stacks: &stacks,
        symbols: &symbols,
        rules: DataRules::built_in(),
    })
}

/// (category, VIRT in KiB, things), in the order of ids.
pub fn figures(found: &Attributed) -> Vec<(&'static str, u64, u64)> {
    let mut rows: Vec<_> =
        found.rows.iter().map(|r| (r.category.id, r.footprint.virt >> 10, r.instances)).collect();
    rows.sort_unstable();
    rows
}

/// A traced capture's rows as smaps alone shows them: only its file shows how long a library's bss is.
pub fn without_bss(rows: &[(&'static str, u64, u64)], kib: u64) -> Vec<(&'static str, u64, u64)> {
    let shorter = |&(id, virt, pieces)| match id {
        "loader" => (id, virt - kib, pieces - 1),
        _ => (id, virt, pieces),
    };
    rows.iter().map(shorter).chain([("unknown", kib, 1)]).collect()
}
