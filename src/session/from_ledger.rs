//! The ledger's state of a process, in the form of a snapshot of it.

use super::pipeline::Pipeline;
use super::spaces::shares_space_with_parent;
use crate::ledger::{LedgerPiece, RegionKind};
use crate::model::mapping::is_randomised;
use crate::model::observation::{HeapInfo, StatusFigures, ThreadObservation};
use crate::model::{Addr, AddrRange, Mapping, MappingFile, Observations, Pid};
use std::collections::HashMap;

/// A moment of a recording.
#[derive(Debug)]
pub struct AsOf {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Snapshots taken after it: what does not change while a program runs was the same then.
    pub later: HashMap<Pid, Observations>,
    /// Where the kernel's mappings began when a process was found: to the ledger, what was there
    /// before it is one.
    pub found: HashMap<Pid, Vec<Addr>>,
}

/// A process without a snapshot: at its end, or as of a moment. None where it has no address space of its
/// own.
pub fn from_ledger(pipeline: &Pipeline, pid: Pid, as_of: Option<&AsOf>) -> Option<Observations> {
    let process = pipeline.spaces.process(pid)?;
    // A child that never executed anything, and whose address space was its parent's.
    process.exec_ns.or(process.created_ns).or(process.found_ns)?;
    let ledger = pipeline.spaces.ledger_of_pid(pid)?;
    if shares_space_with_parent(&pipeline.spaces, pid) {
        return None;
    }
    let starts = as_of.and_then(|moment| moment.found.get(&pid)).map_or(&[][..], Vec::as_slice);
    let mut mappings: Vec<Mapping> =
        ledger.pieces().flat_map(|piece| cut(piece, starts)).map(mapping_of).collect();
    if as_of.is_some() {
        grow_stack(&mut mappings, ledger.stack_growth());
    }
    let virt = mappings.iter().map(|mapping| mapping.range.len()).sum();
    let peak = if as_of.is_some() { 0 } else { ledger.peak_bytes() };
    let aslr = is_randomised(&mappings).unwrap_or(true);
    let time = as_of.map(|moment| moment.time_ns).or(process.exited_ns).unwrap_or_default();
    let gap = match as_of {
        Some(_) => "as the calls until then add up: what was resident at that moment is not known",
        None => "it was not examined before its end: what was resident is not known",
    };
    let exe = process.exe.as_ref().map(|file| file.path.clone()).unwrap_or_default();
    let later = as_of.and_then(|moment| moment.later.get(&pid));
    // Of an attached process the program is known by the snapshots alone.
    let later = later.filter(|seen| process.exe.is_none() || seen.exe == exe);
    let lived = |thread: &&ThreadObservation| {
        process.threads().iter().any(|known| known.tid == thread.tid && known.exited_ns.is_none())
    };
    // What a call mapped meanwhile need not have been a heap.
    let untouched = |at: Addr| {
        let holder = ledger.pieces().find(|piece| piece.range.contains(at));
        holder.is_some_and(|piece| piece.event.is_none())
    };
    let older = |heap: &&HeapInfo| untouched(heap.at);
    Some(Observations {
        pid,
        begun_ns: time,
        ended_ns: time,
        mappings,
        threads: later.map(|seen| seen.threads.iter().filter(lived).cloned().collect()).unwrap_or_default(),
        heap_infos: later
            .map(|seen| seen.heap_infos.iter().filter(older).cloned().collect())
            .unwrap_or_default(),
        status: StatusFigures { vm_size: virt, vm_peak: virt.max(peak), ..StatusFigures::default() },
        comm: process.comm.clone(),
        exe: later.map_or(exe, |seen| seen.exe.clone()),
        cmdline: later.map(|seen| seen.cmdline.clone()).unwrap_or_default(),
        stack_limit: later.and_then(|seen| seen.stack_limit),
        blocks: later
            .map(|seen| seen.blocks.iter().filter(|block| untouched(block.range.start)).copied().collect())
            .unwrap_or_default(),
        code: later.map(|seen| seen.code.clone()).unwrap_or_default(),
        aslr,
        gaps: vec![gap.to_owned()],
        ..Observations::default()
    })
}

/// What no call made, at the ascending addresses inside it.
fn cut(piece: LedgerPiece, starts: &[Addr]) -> Vec<LedgerPiece> {
    let first = starts.partition_point(|&at| at <= piece.range.start);
    let inside = starts.get(first..).unwrap_or(&[]).iter().take_while(|&&at| at < piece.range.end);
    let ends: Vec<Addr> = match piece.event {
        None => inside.copied().chain([piece.range.end]).collect(),
        Some(_) => vec![piece.range.end],
    };
    let mut parts = Vec::with_capacity(ends.len());
    let mut start = piece.range.start;
    for end in ends {
        let offset = match piece.file {
            Some(_) => piece.offset.saturating_add(start.0.saturating_sub(piece.range.start.0)),
            None => piece.offset,
        };
        parts.push(LedgerPiece { range: AddrRange { start, end }, offset, ..piece.clone() });
        start = end;
    }
    parts
}

/// As maps would show it, as far as that is known.
pub(super) fn mapping_of(piece: LedgerPiece) -> Mapping {
    let named = match piece.kind {
        RegionKind::Stack => b"[stack]".to_vec(),
        // The only ones that execve maps but for the vdso, which has its name.
        RegionKind::Special => b"[vvar]".to_vec(),
        _ => Vec::new(),
    };
    Mapping {
        range: piece.range,
        prot: piece.prot,
        sharing: piece.sharing,
        offset: piece.offset,
        file: piece.file.as_ref().map(|file| MappingFile {
            major: file.major,
            minor: file.minor,
            inode: file.inode,
        }),
        name: piece.file.as_ref().map_or(named, |file| file.path.clone()),
    }
}

/// The stack grows down, as far as what lies below it allows.
fn grow_stack(mappings: &mut [Mapping], by: u64) {
    let Some(at) = mappings.iter().position(|mapping| mapping.name == b"[stack]") else { return };
    let floor = at.checked_sub(1).and_then(|below| mappings.get(below)).map_or(0, |below| below.range.end.0);
    if let Some(stack) = mappings.get_mut(at) {
        let start = stack.range.start.0.saturating_sub(by).max(floor);
        stack.range = AddrRange::new(start, stack.range.end.0);
    }
}
