//! The mapping audit of the processes whose heaps were watched, at their last snapshot.

use crate::heap::mappings;
use crate::heap::report::HeapReport;
use crate::model::observation::{ResidencySource, SnapshotMoment};
use crate::model::{Observations, Pid};
use crate::report::Report;
use crate::session::audits::{Audits, EventTotals};
use crate::session::pipeline::Pipeline;
use std::collections::HashSet;

/// Adds to each process' heap what it has mapped.
pub fn add_mappings(report: &mut HeapReport, main: Pid, audits: Audits, pipeline: &mut Pipeline) {
    let seen = seen_last(&audits, pipeline);
    // Lost calls are counted in the heap's own figures.
    let nothing = EventTotals { dropped: 0, without_stack: 0 };
    let (mappings, _) = audits.report(main, nothing, pipeline);
    compare(report, &mappings, &seen);
}

/// Processes of which the last snapshot is of their end, or of now.
pub fn seen_last(audits: &Audits, pipeline: &Pipeline) -> HashSet<Pid> {
    audits.snapshots().filter(|snapshot| is_last(snapshot, pipeline)).map(|snapshot| snapshot.pid).collect()
}

/// One that ended unseen has no comparison: what was resident is not known, and an earlier snapshot is of
/// another heap.
pub fn compare(report: &mut HeapReport, audited: &Report, seen: &HashSet<Pid>) {
    for process in &mut report.processes {
        let found = audited.processes.iter().find(|mapped| mapped.pid == process.pid);
        match found.filter(|_| seen.contains(&process.pid)) {
            Some(mapped) => {
                process.beside = mappings::compare(process, mapped);
                process.gaps.extend(mappings::not_counted(mapped));
            }
            None => process.gaps.push(
                "what of it is resident is not known: it ended before its mappings could be examined"
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
