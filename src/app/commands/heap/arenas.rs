//! The arenas of living processes, read from their memory: no probe, no stop, milliseconds.

use crate::app::error::AppError;
use crate::app::heap::RowsBySite;
use crate::app::heap_record::HeapRecord;
use crate::app::output::Output;
use crate::attribution::rules::{arena_readers, heap_headers, signs};
use crate::cli::HeapArgs;
use crate::heap::fragmentation::{Fragmentation, fragmentation};
use crate::heap::report::{FROM_MEMORY, HeapProcess, HeapReport, SCHEMA};
use crate::model::arenas::{ArenasRead, KnownBlock, Surroundings};
use crate::model::observation::BlockKind;
use crate::model::{Addr, AddrRange, Observations, PAGE, Pid};
use crate::procfs::{ObserveOptions, read_variables};
use crate::rights::read_memory;
use crate::session::snapshots::living::{Living, LivingError};
use crate::sys::clock::monotonic_ns;

/// How often an arena that changes while it is read is read again.
const ATTEMPTS: u32 = 3;

/// `--arenas`: prints them and ends.
pub fn print((args, to): (&HeapArgs, Output), pids: &[Pid]) -> Result<u8, AppError> {
    let mut report = HeapReport {
        schema: SCHEMA,
        command: "heap".to_owned(),
        backend: FROM_MEMORY.to_owned(),
        ..HeapReport::default()
    };
    super::of_living(pids, &mut report, |living, _| {
        let (seen, read) = read(living, &mut [])?;
        Ok(HeapProcess { fragmentation: Some(read.named(|_| None)), ..HeapProcess::of_running(&seen) })
    })?;
    super::write(args, &to, &report)?;
    let main = pids.first().copied().unwrap_or_default();
    if let Some(record) = HeapRecord::begin(args, (FROM_MEMORY, main))? {
        record.finish(&report, None)?;
    }
    Ok(0)
}

/// Adds to a report what can be read of those of its processes that still live. `known` gives the blocks that a
/// process holds, with their sites as holders.
pub fn add(report: &mut HeapReport, rows: &RowsBySite, mut known: impl FnMut(Pid) -> Vec<KnownBlock>) {
    let living = report.processes.iter_mut().filter(|p| p.exit_code.is_none() && p.signal.is_none());
    for process in living {
        let Ok(living) = Living::open(process.pid) else { continue };
        let mut blocks = known(process.pid);
        let rows = rows.get(&process.pid);
        if let Ok((_, read)) = read(&living, &mut blocks) {
            let found = read.named(|site| rows?.get(&site).copied());
            process.fragmentation = Some(found).filter(|found| !found.is_empty());
        }
    }
}

/// What the allocators of a process have.
struct Reading {
    read: Vec<(&'static str, ArenasRead)>,
    took_ns: u64,
}

impl Reading {
    fn named(&self, row: impl Fn(u32) -> Option<u64>) -> Fragmentation {
        fragmentation(&self.read, self.took_ns, row)
    }

    /// Bytes of arenas that could not be read.
    fn unread(&self) -> u64 {
        let arenas = self.read.iter().flat_map(|(_, read)| &read.arenas);
        let segments = self.read.iter().flat_map(|(_, read)| &read.segments);
        let extents = self.read.iter().flat_map(|(_, read)| &read.extents);
        arenas.map(|arena| arena.system.abs_diff(arena.read)).sum::<u64>()
            + extents.map(|heap| heap.doubtful * PAGE).sum::<u64>()
            + segments.map(|heap| heap.doubtful * PAGE).sum::<u64>()
    }
}

fn read(living: &Living, blocks: &mut [KnownBlock]) -> Result<(Observations, Reading), LivingError> {
    blocks.sort_unstable_by_key(|block| block.at);
    let variables = read_variables(living.pid, living.tid(), signs());
    let mut best: Option<(Observations, Reading)> = None;
    for _ in 0..ATTEMPTS {
        let begun = monotonic_ns();
        let seen = living.observe_with(options())?;
        let large = seen.blocks.iter().filter(|block| block.kind == BlockKind::Large);
        let large: Vec<AddrRange> = large.map(|block| block.range).collect();
        let surroundings = Surroundings {
            mappings: &seen.mappings,
            residency: &seen.residency,
            exe: &seen.exe,
            variables: &variables,
            mapped_blocks: &large,
            blocks,
        };
        let mut memory = |at: Addr, into: &mut [u8]| {
            // Reading would bring it back.
            let range = AddrRange::from_len(at, into.len() as u64);
            if seen.residency.swapped.iter().any(|run| run.overlaps(range)) {
                return false;
            }
            read_memory(living.tid(), at.0, into).is_ok_and(|count| count == into.len())
        };
        let read = arena_readers().map(|(name, read)| (name, read(&surroundings, &mut memory))).collect();
        let reading = Reading { read, took_ns: monotonic_ns().saturating_sub(begun) };
        let unread = reading.unread();
        if best.as_ref().is_none_or(|(_, best)| unread < best.unread()) {
            best = Some((seen, reading));
        }
        if unread == 0 {
            break;
        }
    }
    best.ok_or(LivingError::Gone(living.pid))
}

fn options() -> ObserveOptions {
    ObserveOptions {
        threads: false,
        details: false,
        code: &[],
        headers: heap_headers(),
        ..ObserveOptions::default()
    }
}
