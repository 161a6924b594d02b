//! From ledgers to the report.

use super::watch::HeapWatch;
use crate::app::heap::RowsBySite;
use crate::app::heap::identity::ProcessIdentity;
use crate::capture::heap::HeapCounters;
use crate::heap::report::{HeapFacts, HeapProcessFacts, HeapReport, build};
use crate::heap::silence::{self, TestCall, Watched};
use crate::heap::{Filter, Picture};
use crate::model::Pid;
use crate::report::model::Events;
use crate::session::managed::Managed;
use crate::session::pipeline::Pipeline;
use crate::symbolize::Symbolizer;
use crate::sys::clock::monotonic_ns;
use std::cell::Cell;
use std::collections::BTreeSet;

/// What is the same for each report of a run.
#[derive(Clone, Debug, Default)]
pub struct ReportOptions {
    pub filter: Filter,
    pub allocators: Vec<String>,
    pub combined: bool,
    pub start_ns: u64,
    /// The process that comes first.
    pub main: Cell<Pid>,
    /// They are all in it.
    pub container: Option<String>,
}

/// The report as of now; and notes on symbols that were not found.
pub fn report(
    (requested, heap): (&ReportOptions, &HeapWatch),
    (pipeline, symbolizer): (&mut Pipeline, &mut Symbolizer),
    (counters, lost): (HeapCounters, u64),
) -> (HeapReport, RowsBySite) {
    let main = requested.main.get();
    let now = monotonic_ns();
    let mut pictures: Vec<(HeapProcessFacts, Picture)> = Vec::new();
    let living = heap.heaps.ledgers();
    for ledger in heap.ended.iter().chain(living) {
        let known = heap.known.get(&ledger.pid).cloned().unwrap_or_default();
        let at = known.until_ns.unwrap_or(now);
        let mut gaps = without_interpreted((requested, heap), &pipeline.managed, ledger.pid);
        if !known.attached {
            gaps.extend(heap.processes.gap(ledger.pid, known.since_ns));
        }
        let facts = HeapProcessFacts { container: requested.container.clone(), gaps, ..facts(&known, now) };
        pictures.push((facts, ledger.picture(heap.heaps.sites(), requested.filter, at)));
    }
    pictures.sort_by_key(|(_, picture)| (picture.pid != main, picture.pid));
    let owners: Vec<_> = pictures.iter().flat_map(|(_, picture)| picture.stacks()).collect();
    let run = HeapFacts {
        backend: pipeline.backend.clone(),
        allocators: requested.allocators.clone(),
        functions: heap.probes.functions(),
        combined: requested.combined,
        events: Events {
            seen: counters.seen,
            lost: counters.lost_allocations
                + counters.lost_frees
                + counters.lost_others
                + lost
                + pipeline.undecodable(),
            without_stack: 0,
            truncated_stacks: pipeline.tally.truncated,
            unwind_incomplete: pipeline.tally.incomplete,
        },
        without_stack: counters.without_stack,
        start_ns: requested.start_ns,
    };
    let names = symbolizer.symbolize(&pipeline.stacks, owners, pipeline.unwinder.files_mut());
    let processes: Vec<_> = pictures.iter().map(|(facts, picture)| (facts, picture)).collect();
    let rows = pictures.iter().map(|(_, picture)| (picture.pid, picture.rows_by_site())).collect();
    (build(&run, &processes, &pipeline.stacks, &names), rows)
}

/// Why functions of an interpreter are missing in the stacks of a process: sentences.
fn without_interpreted(
    (requested, heap): (&ReportOptions, &HeapWatch),
    managed: &Managed,
    pid: Pid,
) -> Vec<String> {
    let (mut is_read, mut gaps) = (false, BTreeSet::new());
    let files = heap.code.get(&pid).into_iter().flatten();
    for interpreter in files.filter_map(|&file| managed.interpreter_of(file)) {
        match interpreter {
            Ok(()) => is_read = true,
            Err(why) => drop(gaps.insert(why.to_owned())),
        }
    }
    if is_read && requested.combined {
        gaps.insert(
            "stacks are without the interpreter's functions: --combined does not read them".to_owned(),
        );
    } else if is_read {
        let all = |note| format!("{note} (in all processes, with the stacks of calls that map memory)");
        gaps.extend(managed.missing().into_iter().map(all));
    }
    gaps.into_iter().collect()
}

fn facts(known: &ProcessIdentity, now: u64) -> HeapProcessFacts {
    let end = known.until_ns.unwrap_or(now);
    HeapProcessFacts { watched_ns: Some(end.saturating_sub(known.since_ns)), ..known.facts() }
}

/// Says of each process without an allocation why none was seen. `test`: at the end of all, makes a test call
/// for a run without any. Returns why that is a failure.
pub fn explain_silence(
    report: &mut HeapReport,
    heap: &HeapWatch,
    (way, test): (&'static str, Option<&dyn Fn() -> TestCall>),
) -> Option<String> {
    let launched = report.processes.iter().all(|process| !process.attached);
    let whole_run = report.processes.iter().all(silence::is_silent);
    let test = test.filter(|_| whole_run && !report.processes.is_empty()).map(|test| test());
    // Of a sample, what is not in it was not examined; counted in the kernel, a child of fork starts with
    // nothing that it could free.
    if report.sampling_bytes.is_some() && test.is_none() {
        return None;
    }
    let from_the_start = launched && (!report.combined || whole_run);
    let mut failure = None;
    for process in report.processes.iter_mut().filter(|process| silence::is_silent(process)) {
        let probed = heap.probed.get(&process.pid).cloned().unwrap_or_default();
        let watched = Watched {
            allocators: report.allocators.clone(),
            probed: probed.into_iter().collect(),
            refused: heap.probes.refused(),
            unprobed: heap.processes.had_none(process.pid),
            way,
            test: test.unwrap_or_default(),
            from_the_start,
        };
        let nothing = silence::why(process, &watched);
        if test.is_some() && failure.is_none() && silence::is_failure(&nothing) {
            failure = Some(format!("{} (pid {}): {}", process.comm, process.pid, nothing.why));
        }
        process.nothing_seen = Some(nothing);
    }
    failure
}
