//! What the ledger alone knows of a process, in the shape of a look at it.

use super::audits::shares_space_with_parent;
use super::pipeline::Pipeline;
use crate::ledger::{LedgerPiece, RegionKind};
use crate::model::mapping::is_randomised;
use crate::model::observation::{Residency, ResidencySource, SnapshotMoment, StatusFigures};
use crate::model::{AddrRange, Mapping, MappingFile, Observations, Pid};

/// A process that nobody could look at: at its end, or as of a moment (CLOCK_MONOTONIC, ns). None
/// where it has no address space of its own.
pub fn from_ledger(pipeline: &Pipeline, pid: Pid, as_of_ns: Option<u64>) -> Option<Observations> {
    let process = pipeline.spaces.process(pid)?;
    // A child that never executed anything, and whose address space was its parent's.
    process.exec_ns.or(process.created_ns).or(process.found_ns)?;
    let ledger = pipeline.spaces.ledger_of_pid(pid)?;
    if shares_space_with_parent(pipeline, pid) {
        return None;
    }
    let mut mappings: Vec<Mapping> = ledger.pieces().map(mapping).collect();
    if as_of_ns.is_some() {
        grow_stack(&mut mappings, ledger.stack_growth());
    }
    let virt = mappings.iter().map(|mapping| mapping.range.len()).sum();
    let aslr = is_randomised(&mappings).unwrap_or(true);
    let time = as_of_ns.or(process.exited_ns).unwrap_or_default();
    let gap = match as_of_ns {
        Some(_) => "as the calls until then add up: what was resident at that moment is not known",
        None => "it ended before it could be looked at: what is resident is not known",
    };
    Some(Observations {
        pid,
        moment: SnapshotMoment::Live,
        begun_ns: time,
        ended_ns: time,
        mappings,
        residency: Residency {
            source: ResidencySource::None,
            resident: Vec::new(),
            swapped: Vec::new(),
            per_vma: Vec::new(),
        },
        threads: Vec::new(),
        heap_infos: Vec::new(),
        status: StatusFigures { vm_size: virt, vm_peak: virt, ..StatusFigures::default() },
        comm: process.comm.clone(),
        exe: process.exe.as_ref().map(|file| file.path.clone()).unwrap_or_default(),
        cmdline: Vec::new(),
        stack_limit: None,
        aslr,
        gaps: vec![gap.to_owned()],
    })
}

fn mapping(piece: LedgerPiece) -> Mapping {
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
