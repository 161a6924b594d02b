//! The mapping audit of the processes whose heaps were watched, as they were looked at last.

use crate::heap::mappings::beside;
use crate::heap::report::HeapReport;
use crate::model::observation::{ResidencySource, SnapshotMoment};
use crate::model::{Observations, Pid};
use crate::report::Report;
use crate::session::audits::{Audits, EventTotals};
use crate::session::pipeline::Pipeline;
use std::collections::HashSet;

/// Puts what each process has mapped beside its heap.
pub fn add_mappings(report: &mut HeapReport, main: Pid, audits: Audits, pipeline: &mut Pipeline) {
    let seen = seen_last(&audits, pipeline);
    // Calls that were lost are told in the heap's own figures.
    let nothing = EventTotals { dropped: 0, without_stack: 0 };
    let (mappings, _) = audits.report(main, nothing, pipeline);
    compare(report, &mappings, &seen);
}

/// Processes of which the last snapshot is of their end, or of now.
pub fn seen_last(audits: &Audits, pipeline: &Pipeline) -> HashSet<Pid> {
    audits.snapshots().filter(|snapshot| is_last(snapshot, pipeline)).map(|snapshot| snapshot.pid).collect()
}

/// One that ended unseen has nothing beside it: what was resident is not known, and an earlier snapshot is about
/// another heap.
pub fn compare(report: &mut HeapReport, mappings: &Report, seen: &HashSet<Pid>) {
    for process in &mut report.processes {
        let found = mappings.processes.iter().find(|mapped| mapped.pid == process.pid);
        match found.filter(|_| seen.contains(&process.pid)) {
            Some(mapped) => process.beside = beside(process, mapped),
            None => process.gaps.push(
                "what of it is resident is not known: it ended before its mappings could be looked at"
                    .to_owned(),
            ),
        }
    }
}

fn is_last(snapshot: &Observations, pipeline: &Pipeline) -> bool {
    let lives = || pipeline.spaces.process(snapshot.pid).is_some_and(|process| process.exited_ns.is_none());
    snapshot.residency.source != ResidencySource::None
        && (snapshot.moment == SnapshotMoment::HeldAtExit || lives())
}
