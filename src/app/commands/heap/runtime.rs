//! Runtimes' own records of allocating stacks (`--runtime`): read from their memory, no probe, no stop.

use crate::app::error::AppError;
use crate::app::heap::request::request;
use crate::app::output::Output;
use crate::attribution::rules::{budgets, own_heap_readers};
use crate::cli::HeapArgs;
use crate::heap::report::model::RuntimeRecord;
use crate::heap::report::{FROM_RUNTIME, HeapProcess, HeapReport, SCHEMA};
use crate::heap::runtime::{Shared, add_budget, add_profile};
use crate::model::arenas::Surroundings;
use crate::model::heap::runtime::{RuntimeSurroundings, Unreadable};
use crate::model::{Addr, AddrRange, FileRef, Mapping, Observations, PAGE, Pid, Sharing};
use crate::objects::variables::variable;
use crate::objects::{FileCache, Object, OpenRequest};
use crate::procfs::ObserveOptions;
use crate::rights::read_memory;
use crate::session::snapshots::living::{Living, LivingError};
use std::sync::Arc;

/// `--runtime`: prints it and ends.
pub fn print((args, to): (&HeapArgs, Output), pids: &[Pid]) -> Result<u8, AppError> {
    let mut report = HeapReport {
        schema: SCHEMA,
        command: "heap".to_owned(),
        backend: FROM_RUNTIME.to_owned(),
        ..HeapReport::default()
    };
    let mut shared = Shared::default();
    super::of_living(pids, &mut report, |living, report| of_process(living, (report, &mut shared), true))?;
    super::write(args, &to, &report)?;
    Ok(0)
}

/// Says of processes in which no allocation was seen that their runtime keeps a record itself.
pub fn mention(report: &mut HeapReport) {
    let silent = report.processes.iter_mut().filter(|p| p.nothing_seen.is_some() && p.exit_code.is_none());
    for process in silent.filter(|process| process.signal.is_none()) {
        let mut other = HeapReport::default();
        let Ok(living) = Living::open(process.pid) else { continue };
        let Ok(found) = of_process(&living, (&mut other, &mut Shared::default()), false) else { continue };
        for record in found.runtimes.iter().filter(|record| record.what.is_some()) {
            process.gaps.push(format!(
                "{} keeps a record itself of who allocated: vmaudit heap -p {} --runtime",
                record.runtime, process.pid
            ));
        }
    }
}

/// `queries`: runtimes that can report their memory on request are queried.
fn of_process(
    living: &Living,
    (report, shared): (&mut HeapReport, &mut Shared),
    queries: bool,
) -> Result<HeapProcess, LivingError> {
    let seen = living.observe_with(options())?;
    let mut process = HeapProcess::of_running(&seen);
    let program = Program::open(living, &seen);
    let surroundings = Surroundings {
        mappings: &seen.mappings,
        residency: &seen.residency,
        exe: &seen.exe,
        variables: &[],
        mapped_blocks: &[],
        blocks: &[],
    };
    let surroundings =
        RuntimeSurroundings { process: &surroundings, variable: &|name| program.as_ref()?.variable(name) };
    let mut memory = |at: Addr, into: &mut [u8]| read(living, &seen, program.as_ref(), (at, into));
    for (_, reader) in own_heap_readers() {
        match reader(&surroundings, &mut memory) {
            None => {}
            Some(Ok(heap)) => add_profile((&mut *report, &mut *shared), &mut process, &heap, &seen.mappings),
            Some(Err(unreadable)) => process.runtimes.push(RuntimeRecord {
                runtime: unreadable.runtime,
                why: Some(unreadable.why),
                ..RuntimeRecord::default()
            }),
        }
    }
    if queries {
        query_budgets(living, &seen, &mut process);
    }
    Ok(process)
}

/// The answer of a runtime that reports its memory on request.
fn query_budgets(living: &Living, seen: &Observations, process: &mut HeapProcess) {
    for budget in budgets() {
        let Some(file) = Program::with(living, seen, budget.mark) else { continue };
        let mut memory = |at: Addr, into: &mut [u8]| read(living, seen, Some(&file), (at, into));
        let Some(door) = (budget.find)(&mut |name| file.variable(name), &mut memory) else { continue };
        let answer = door.and_then(|door| {
            let answer = request(living, &door).and_then(|answer| (budget.parse)(&answer));
            let runtime = door.runtime;
            answer.map(|answer| (runtime.clone(), answer)).map_err(|why| Unreadable { runtime, why })
        });
        match answer {
            Ok((runtime, answer)) => add_budget(process, (runtime, budget.what), answer),
            Err(Unreadable { runtime, why }) => {
                let why = Some(why);
                process.runtimes.push(RuntimeRecord { runtime, why, ..RuntimeRecord::default() });
            }
        }
    }
}

/// The program's file.
struct Program {
    object: Arc<Object>,
    file: FileRef,
    /// What is added to the addresses that the file states.
    bias: u64,
}

impl Program {
    fn open(living: &Living, seen: &Observations) -> Option<Program> {
        let mapping = seen.mappings.iter().find(|m| m.file.is_some() && m.name == seen.exe)?;
        let file = mapping.file_ref()?;
        let request =
            OpenRequest { file: &file, range: mapping.range, pid: Some(living.pid), build_id: None };
        let object = FileCache::default().open(&request).ok()?;
        Program::at(mapping, file, object)
    }

    fn at(mapping: &Mapping, file: FileRef, object: Arc<Object>) -> Option<Program> {
        let bias = mapping.range.start.0.wrapping_sub(object.layout().svma_of(mapping.offset)?);
        Some(Program { object, file, bias })
    }

    /// The file with code that exports a variable.
    fn with(living: &Living, seen: &Observations, mark: &str) -> Option<Program> {
        let mut files = FileCache::default();
        seen.mappings.iter().filter(|m| m.prot.exec && m.file.is_some()).find_map(|mapping| {
            let file = mapping.file_ref()?;
            let request =
                OpenRequest { file: &file, range: mapping.range, pid: Some(living.pid), build_id: None };
            let object = files.open(&request).ok()?;
            variable(&object, mark.as_bytes())?;
            Program::at(mapping, file, object)
        })
    }

    fn variable(&self, name: &str) -> Option<Addr> {
        variable(&self.object, name.as_bytes()).map(|at| Addr(at.wrapping_add(self.bias)))
    }
}

/// Changes nothing in the process: what is in swap stays there, and pages of files that are not in memory are read from
/// the file.
fn read(
    living: &Living,
    seen: &Observations,
    program: Option<&Program>,
    (at, into): (Addr, &mut [u8]),
) -> bool {
    let whole = AddrRange::from_len(at, into.len() as u64);
    let is_exact = seen.residency.is_page_exact();
    if is_exact && holds(&seen.residency.swapped, whole) {
        return false;
    }
    let mapping = Mapping::holding(&seen.mappings, at).filter(|mapping| mapping.range.contains_range(whole));
    if let (Some(mapping), Some(program)) = (mapping, program)
        && is_exact
        && is_only_in_file(mapping, program)
        && !holds(&seen.residency.resident, whole)
    {
        let offset = mapping.offset + (at.0 - mapping.range.start.0);
        if let Ok(bytes) = program.object.read(offset, whole.len()) {
            into.copy_from_slice(&bytes);
            return true;
        }
    }
    read_memory(living.tid(), at.0, into).is_ok_and(|count| count == into.len())
}

/// It is never written to: what is not in memory is as in the file.
fn is_only_in_file(mapping: &Mapping, program: &Program) -> bool {
    mapping.sharing == Sharing::Private
        && !mapping.prot.write
        && mapping.file_ref().is_some_and(|file| file == program.file)
}

/// Whether some page of a range is in one of the sorted ranges.
fn holds(ranges: &[AddrRange], range: AddrRange) -> bool {
    let range =
        AddrRange { start: range.start.page_down(), end: range.end.saturating_add(PAGE - 1).page_down() };
    let next = ranges.partition_point(|known| known.end <= range.start);
    ranges.get(next).is_some_and(|known| known.overlaps(range))
}

fn options() -> ObserveOptions {
    ObserveOptions { threads: false, details: false, code: &[], headers: &[], ..ObserveOptions::default() }
}
