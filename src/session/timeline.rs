//! `--interval`: at each snapshot, how much each category has. Attribution runs at the snapshot, because
//! what a snapshot read is too much to keep; names come from symbol tables alone, each stack once.

use super::pipeline::Pipeline;
use super::symbol_names::SymbolNames;
use crate::attribution::{AuditInput, DataRules, by_category};
use crate::ledger::Reconciled;
use crate::model::observation::ResidencySource;
use crate::model::{CategorySize, Observations, Pid, SizePoint, StackTable, SymbolizedStacks};
use crate::report::Timeline;
use std::collections::HashMap;

/// What a snapshot of a process found.
type Observed<'a> = (&'a Observations, &'a Reconciled);

/// What is known besides.
type Known<'a> = (&'a StackTable, &'a SymbolizedStacks, &'a DataRules);

/// The timelines of all processes.
#[derive(Default)]
pub struct Timelines {
    by_pid: HashMap<Pid, Timeline>,
    names: SymbolNames,
}

impl Timelines {
    /// Adds a point, also to the recording.
    pub fn add(&mut self, pid: Pid, found: Observed<'_>, pipeline: &mut Pipeline) {
        let stacks = found.1.origins.iter().filter_map(|origin| origin.stack.ok());
        let names = self.names.of(stacks, pipeline);
        let categories = sizes(found, (&pipeline.stacks, names, pipeline.rules));
        let timeline = self.by_pid.entry(pid).or_default();
        let point = SizePoint {
            pid,
            number: timeline.next_number(),
            time_ns: found.0.at_ns(),
            rss_known: found.0.residency.source != ResidencySource::None,
            categories,
        };
        pipeline.note_point(&point);
        timeline.add(point);
    }

    /// Adds a point of a recording.
    pub fn replay(&mut self, point: SizePoint) {
        self.by_pid.entry(point.pid).or_default().add(point);
    }

    /// The newest point of a process is of a snapshot that was worth nothing.
    pub fn discard_newest(&mut self, pid: Pid) {
        if let Some(timeline) = self.by_pid.get_mut(&pid) {
            timeline.discard_newest();
        }
    }

    /// The report's own snapshot is attributed with all names that the report has: its point has to
    /// agree with the report's tables to the byte.
    pub fn correct(&mut self, pid: Pid, found: Observed<'_>, names: Known<'_>) {
        if let Some(timeline) = self.by_pid.get_mut(&pid) {
            timeline.correct(found.0.at_ns(), sizes(found, names));
        }
    }

    /// None for a process that was not examined.
    pub fn of(&self, pid: Pid) -> Option<Timeline> {
        self.by_pid.get(&pid).filter(|timeline| !timeline.is_empty()).cloned()
    }
}

fn sizes((observations, reconciled): Observed<'_>, (stacks, symbols, rules): Known<'_>) -> Vec<CategorySize> {
    let found = by_category(&AuditInput { reconciled, observations, stacks, symbols, rules });
    let sizes = found.into_iter().map(|(category, footprint)| CategorySize {
        category: category.id.into(),
        virt: footprint.virt,
        rss: footprint.rss,
    });
    sizes.collect()
}
