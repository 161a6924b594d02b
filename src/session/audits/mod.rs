//! What is known of each process at its last snapshot, and the report made of it.

mod at_end;
mod audit;
mod ended;
mod snapshot;

use super::from_ledger::AsOf;
use super::pipeline::Pipeline;
use super::symbol_names::SymbolNames;
use super::targets::container_view::ContainerView;
use super::timeline::Timelines;
use super::touch;
use crate::attribution::{AuditInput, unused};
use crate::ledger::{AddressSpaces, ProcessRecord, Reconciled};
use crate::model::observation::SnapshotMoment;
use crate::model::{Observations, Pid, SizePoint, StackId, SymbolizedStacks};
use crate::report::{
    EventCounts, ProcessAudit, ProcessFacts, Report, ReportBuilder, RunFacts, Summary, build, summarize,
};
use crate::symbolize::{Config, Symbolizer};
use crate::touch::Touches;
use audit::{Audit, Basis, is_of_now, owners, peak_of, stacks_of_peak, unseen};
use ended::Ended;
use snapshot::joined;
pub use snapshot::{Snapshot, SnapshotCost, StaleSnapshot};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Instant;

/// The newest snapshot of each process.
#[derive(Default)]
pub struct Audits {
    snapshots: HashMap<Pid, Audit>,
    /// What the snapshot of a process at its end took the place of.
    replaced: Option<(Pid, Audit)>,
    /// Of processes that have ended and are small compared with others.
    summaries: HashMap<Pid, Box<Summary>>,
    ended: Ended,
    /// Of those, what is to become summaries.
    small: Vec<Pid>,
    /// Names for the summaries.
    names: SymbolNames,
    /// The process that comes first in the report: it keeps all.
    pub main: Pid,
    /// Nothing is left out, because an option needs every region.
    pub keeps_all: bool,
    /// Where `--interval` was given.
    timelines: Option<Timelines>,
    /// Which processes are in containers, and what is known of those.
    pub containers: ContainerView,
    /// With --touch.
    pub touches: Option<Rc<RefCell<Touches>>>,
    /// The moment that the report is to show, where it is not the end.
    as_of: Option<AsOf>,
}

/// What overflowed.
#[derive(Clone, Copy, Debug)]
pub struct EventTotals {
    /// Not known at all.
    pub dropped: u64,
    /// Known, but for their stacks.
    pub without_stack: u64,
}

impl Audits {
    /// With a timeline of the snapshots of each process, or without.
    pub fn new(timeline: bool) -> Audits {
        Audits { timelines: timeline.then(Timelines::default), ..Audits::default() }
    }

    /// Takes a snapshot. `drain` has to hand what was reported until now to the pipeline before the ledger is
    /// queried, and returns whether the examined process was still that one. Later records are unread when
    /// this returns.
    ///
    /// # Errors
    /// When it was not.
    pub fn add(
        &mut self,
        snapshot: Snapshot,
        pipeline: &RefCell<Pipeline>,
        drain: &mut dyn FnMut() -> bool,
    ) -> Result<SnapshotCost, StaleSnapshot> {
        let Snapshot { observations, read } = snapshot;
        let begun = Instant::now();
        let reconciled = joined(&observations, pipeline, drain);
        if reconciled.is_ok() {
            // Before anything else is applied to the ledger.
            pipeline.borrow_mut().note_snapshot(&observations);
        }
        let cost = SnapshotCost { read, reconcile: begun.elapsed(), mappings: observations.mappings.len() };
        if let (Some(timelines), Ok(reconciled)) = (&mut self.timelines, &reconciled) {
            timelines.add(observations.pid, (&observations, reconciled), &mut pipeline.borrow_mut());
        }
        let reconciled = reconciled?;
        self.containers.note(&observations);
        self.keep(observations, reconciled, &mut pipeline.borrow_mut());
        Ok(cost)
    }

    /// Adds a snapshot from a recording, with the ledger as it was then.
    pub fn replay(&mut self, observations: Observations, pipeline: &mut Pipeline) {
        let reconciled = pipeline.spaces.reconcile(observations.pid, &observations);
        self.keep(observations, reconciled, pipeline);
        self.reduce_small(pipeline);
    }

    /// Processes that ended, and were not examined, are kept as the ledger has them now, which need not keep
    /// them any longer.
    pub fn note_ended(&mut self, pipeline: &mut Pipeline) {
        for pid in pipeline.spaces.take_ended() {
            let ended = pipeline.spaces.process(pid).is_some_and(|process| process.exited_ns.is_some());
            if !ended || self.keeps_all {
                continue;
            }
            if self.is_final_now(pid, &pipeline.spaces) {
                if let Some(audit) = self.snapshots.get_mut(&pid) {
                    audit.peak = audit.peak.take().or_else(|| peak_of(&pipeline.spaces, pid));
                }
                pipeline.spaces.forget(pid);
                continue;
            }
            let newest = self.snapshots.remove(&pid);
            let newest = newest.filter(|audit| is_of_now(pid, audit, &pipeline.spaces));
            let audit = match newest {
                Some(audit) => Some(audit.at_end(&pipeline.spaces)),
                None => unseen(pid, pipeline, None),
            };
            let Some(audit) = audit else { continue };
            self.forget_ended(pid);
            let regions = audit.reconciled.regions.len();
            let size = unused(&audit.reconciled, &audit.observations);
            self.snapshots.insert(pid, Audit { peak: peak_of(&pipeline.spaces, pid), ..audit });
            pipeline.spaces.forget(pid);
            if pid != self.main {
                self.small.extend(self.ended.add(pid, size, regions));
            }
        }
    }

    /// An ended process that had this number before.
    fn forget_ended(&mut self, pid: Pid) {
        self.summaries.remove(&pid);
        self.ended.remove(pid);
        self.small.retain(|&small| small != pid);
    }

    /// It was held at its end, or what it had at its end is known already.
    fn is_final_now(&self, pid: Pid, spaces: &AddressSpaces) -> bool {
        let summary = self.summaries.get(&pid);
        summary.is_some_and(|summary| !spaces.replaced_since(pid, summary.seen().at_ns))
            || self.snapshots.get(&pid).is_some_and(|audit| audit.is_final() && is_of_now(pid, audit, spaces))
    }

    /// The newest snapshot of a process. With the last one of a process, small ones that ended before are
    /// reduced to their sums.
    fn keep(&mut self, observations: Observations, reconciled: Reconciled, pipeline: &mut Pipeline) {
        self.note_ended(pipeline);
        let pid = observations.pid;
        self.forget_ended(pid);
        let audit = Audit::of(observations, reconciled);
        if audit.observations.moment != SnapshotMoment::HeldAtExit {
            self.snapshots.insert(pid, audit);
            return;
        }
        let (size, regions) =
            (unused(&audit.reconciled, &audit.observations), audit.reconciled.regions.len());
        let replaced = self.snapshots.insert(pid, Audit { peak: peak_of(&pipeline.spaces, pid), ..audit });
        self.replaced = replaced.map(|audit| (pid, audit));
        if self.keeps_all {
            return;
        }
        // What it had mapped is not needed any more.
        pipeline.spaces.settle(pid, true);
        if pid != self.main {
            self.small.extend(self.ended.add(pid, size, regions));
        }
    }

    /// Reduces what became small compared with others to its sums: when no process waits for it.
    pub fn reduce_small(&mut self, pipeline: &mut Pipeline) {
        for pid in std::mem::take(&mut self.small) {
            self.reduce(pid, pipeline);
        }
    }

    /// To its sums. Without debugging information, which takes too long to read now: what is inlined is not
    /// seen.
    fn reduce(&mut self, pid: Pid, pipeline: &mut Pipeline) {
        let Some(audit) = self.snapshots.remove(&pid) else { return };
        let seen = audit.seen();
        let Audit { observations, reconciled, .. } = audit;
        let symbols = self.names.of(owners(&reconciled), pipeline);
        let input = AuditInput {
            reconciled: &reconciled,
            observations: &observations,
            stacks: &pipeline.stacks,
            symbols,
            rules: pipeline.rules,
        };
        let summary = summarize(&ProcessAudit { input, facts: &ProcessFacts::default() }, seen);
        self.summaries.insert(pid, Box::new(summary));
    }

    /// Adds a point of the timeline from a recording.
    pub fn replay_point(&mut self, point: SizePoint) {
        if let Some(timelines) = &mut self.timelines {
            timelines.replay(point);
        }
    }

    /// The newest snapshot of each process.
    pub fn snapshots(&self) -> impl Iterator<Item = &Observations> {
        self.snapshots.values().map(|audit| &audit.observations)
    }

    /// The report is to show what the ledger knows now, of the processes that live: snapshots count only
    /// where a process was held at its end by then.
    pub fn as_of(&mut self, moment: AsOf, pipeline: &mut Pipeline) {
        self.note_ended(pipeline);
        self.as_of = Some(moment);
        let lives = |pid| pipeline.spaces.process(pid).is_some_and(|process| process.exited_ns.is_none());
        self.snapshots
            .retain(|&pid, audit| audit.observations.moment == SnapshotMoment::HeldAtExit && lives(pid));
        self.summaries.retain(|&pid, _| lives(pid));
    }

    /// True once the process was seen at its very end.
    pub fn is_final(&self, pid: Pid) -> bool {
        let held = |audit: &Audit| audit.observations.moment == SnapshotMoment::HeldAtExit;
        self.summaries.contains_key(&pid) || self.snapshots.get(&pid).is_some_and(held)
    }

    /// A snapshot that was added and turned out to be worth nothing.
    pub fn discard(&mut self, pid: Pid) {
        self.ended.remove(pid);
        self.summaries.remove(&pid);
        if let Some(timelines) = &mut self.timelines {
            timelines.discard_newest(pid);
        }
        self.snapshots.remove(&pid);
        if let Some((_, audit)) = self.replaced.take_if(|(replaced, _)| *replaced == pid) {
            self.snapshots.insert(pid, audit);
        }
    }

    /// Processes that ended unseen are shown as the ledger has them, without residency; and so are those that
    /// have executed another program since they were examined: what was seen is not theirs any more.
    fn complete_from_ledger(&mut self, pipeline: &Pipeline) {
        self.snapshots.retain(|&pid, audit| is_of_now(pid, audit, &pipeline.spaces));
        for process in pipeline.spaces.processes() {
            if process.exited_ns.is_some()
                && let Some(audit) = self.snapshots.remove(&process.pid)
            {
                let is_old = audit.basis == Basis::Snapshot && !audit.is_final();
                let audit = if is_old { audit.at_end(&pipeline.spaces) } else { audit };
                self.snapshots.insert(process.pid, audit);
            }
            if self.snapshots.contains_key(&process.pid) || self.summaries.contains_key(&process.pid) {
                continue;
            }
            if self.as_of.is_some() && process.exited_ns.is_some() {
                continue;
            }
            if let Some(audit) = unseen(process.pid, pipeline, self.as_of.as_ref()) {
                self.snapshots.insert(process.pid, audit);
            }
        }
    }

    /// The report, the main process first. Also what symbolizing has to say.
    pub fn report(
        mut self,
        main: Pid,
        events: EventTotals,
        pipeline: &mut Pipeline,
    ) -> (Report, Vec<String>) {
        self.note_ended(pipeline);
        self.reduce_small(pipeline);
        self.complete_from_ledger(pipeline);
        let mut order: Vec<Pid> = self.snapshots.keys().chain(self.summaries.keys()).copied().collect();
        order.sort_unstable_by_key(|&pid| (pid != main, pid));
        for (pid, audit) in &mut self.snapshots {
            audit.peak = audit.peak.take().or_else(|| peak_of(&pipeline.spaces, *pid));
        }
        let (symbols, notes) = self.symbolize(pipeline);
        if let Some(timelines) = &mut self.timelines {
            let snapshots = self.snapshots.iter().filter(|(_, audit)| audit.basis == Basis::Snapshot);
            for (pid, audit) in snapshots {
                let found = (&audit.observations, &audit.reconciled);
                timelines.correct(*pid, found, (&pipeline.stacks, &symbols, pipeline.rules));
            }
        }
        let touches = self.touches.clone();
        let touches = touches.as_ref().map(|touches| touches.borrow());
        let mut builder = ReportBuilder::for_processes(order.len());
        for pid in order {
            let facts = self.facts(pid, pipeline);
            if let Some(summary) = self.summaries.remove(&pid) {
                builder.add_summary(*summary, &facts);
            } else if let Some(audit) = self.snapshots.remove(&pid) {
                // It goes with this turn: of all processes at once that would be much.
                let input = AuditInput {
                    reconciled: &audit.reconciled,
                    observations: &audit.observations,
                    stacks: &pipeline.stacks,
                    symbols: &symbols,
                    rules: pipeline.rules,
                };
                let touch = touches
                    .as_deref()
                    .and_then(|touches| Some((touches, touch::touches_of(touches, &pipeline.spaces, pid)?)));
                builder.add(&ProcessAudit { input, facts: &facts }, touch);
            }
        }
        let run = RunFacts {
            backend: pipeline.backend.clone(),
            events: EventCounts {
                seen: pipeline.tally.events.saturating_add(events.dropped),
                lost: events.dropped,
                without_stack: events.without_stack,
                truncated_stacks: pipeline.tally.truncated,
                unwind_incomplete: pipeline.tally.incomplete,
            },
            containers: self.containers.facts(),
        };
        let shared = Some((&pipeline.stacks, &symbols));
        (builder.finish(&run, shared, touches.as_deref()), notes)
    }

    /// The stacks of the newest snapshot of a process, if that is not older than `since_ns`
    /// (CLOCK_MONOTONIC).
    pub fn stacks_of(&self, pid: Pid, since_ns: u64) -> Option<Vec<StackId>> {
        let audit = self.snapshots.get(&pid).filter(|audit| audit.observations.ended_ns >= since_ns)?;
        let mut stacks: Vec<StackId> = owners(&audit.reconciled).collect();
        stacks.sort_unstable();
        stacks.dedup();
        Some(stacks)
    }

    /// The report of one process, from the newest snapshot of it, while the session goes on.
    pub fn report_of(&self, pid: Pid, symbols: &SymbolizedStacks, pipeline: &Pipeline) -> Option<Report> {
        let Audit { reconciled, observations, .. } = self.snapshots.get(&pid)?;
        let input =
            AuditInput { reconciled, observations, stacks: &pipeline.stacks, symbols, rules: pipeline.rules };
        let facts = self.facts(pid, pipeline);
        let run = RunFacts { backend: pipeline.backend.clone(), ..RunFacts::default() };
        Some(build(&run, &[ProcessAudit { input, facts: &facts }]))
    }

    /// Names for the stacks that still own a byte, or had their part in a peak.
    fn symbolize(&self, pipeline: &mut Pipeline) -> (SymbolizedStacks, Vec<String>) {
        let spaces = &pipeline.spaces;
        let mut owners: Vec<StackId> = self
            .snapshots
            .values()
            .flat_map(|audit| owners(&audit.reconciled).chain(audit.peak.iter().flat_map(stacks_of_peak)))
            .chain(self.snapshots.keys().flat_map(|&pid| {
                let touches = self.touches.iter();
                touches.flat_map(move |touches| touch::stacks(&touches.borrow(), spaces, pid))
            }))
            .collect();
        owners.sort_unstable();
        owners.dedup();
        if let Some(names) = &pipeline.recorded_names {
            return (names.symbolized(owners, &pipeline.stacks), Vec::new());
        }
        pipeline.name_all_generated();
        let mut symbolizer = Symbolizer::new(Config::default());
        let symbols = symbolizer.symbolize(&pipeline.stacks, owners, pipeline.unwinder.files_mut());
        pipeline.note_names(&symbols);
        let mut notes = symbolizer.take_notes();
        notes.extend(pipeline.managed.notes());
        notes.extend(pipeline.generated_notes());
        notes.extend(pipeline.unwinder.files_mut().note());
        (symbols, notes)
    }

    /// When the last process ended, as reports count it: without the hold at the exit. None where one runs on, or
    /// there is none.
    pub fn all_ended_ns(&self, pipeline: &Pipeline) -> Option<u64> {
        let end = |process: &ProcessRecord| {
            let exited = process.exited_ns?;
            let seen = self.snapshots.get(&process.pid).map(Audit::seen);
            let seen = seen.or(self.summaries.get(&process.pid).map(|summary| summary.seen()));
            Some(seen.filter(|seen| seen.held).map_or(exited, |seen| seen.at_ns))
        };
        let ends: Option<Vec<u64>> = pipeline.spaces.processes().iter().map(end).collect();
        ends?.into_iter().max()
    }

    fn facts(&self, pid: Pid, pipeline: &Pipeline) -> ProcessFacts {
        let Some(process) = pipeline.spaces.process(pid) else { return ProcessFacts::default() };
        let audit = self.snapshots.get(&pid);
        let summary = self.summaries.get(&pid);
        let Some(seen) = audit.map(Audit::seen).or(summary.map(|summary| summary.seen())) else {
            return ProcessFacts::default();
        };
        let end = match seen.held {
            true => seen.at_ns,
            false => process.exited_ns.unwrap_or(seen.at_ns),
        };
        let start = process.found_ns.or(process.begun_ns).unwrap_or(end);
        let unseen_end = process.exited_ns.is_some() && !seen.held && seen.knows_residency;
        ProcessFacts {
            exit_code: process.exit_code(),
            signal: process.signal(),
            threads_seen: Some(process.threads_seen()),
            inside: self.containers.inside(pid, |pid| pipeline.spaces.process(pid)?.parent),
            wall_ns: Some(end.saturating_sub(start)),
            attached: process.found_ns.is_some(),
            snapshot_age_ns: unseen_end.then(|| end.saturating_sub(seen.at_ns)),
            by_calls: seen.by_calls,
            began_ns: pipeline.spaces.began_ns(),
            peak: audit.and_then(|audit| audit.peak.clone()),
            timeline: self.timelines.as_ref().and_then(|timelines| timelines.of(pid)),
            ..ProcessFacts::default()
        }
    }
}
