//! The versioned heap report: pictures and names to plain data.

pub mod model;
mod parts;

pub use model::{FROM_MEMORY, FROM_RUNTIME, HeapProcess, HeapReport, HeapRow, HeapSite, SCHEMA};
pub use parts::{HeapJson, HeapParts};

use super::ledger;
use super::picture::{self, Picture};
use super::sampling::blocks;
use crate::model::hash::IntMap;
use crate::model::{NoStack, Observations, StackId, StackTable, SymbolizedStacks};
use crate::report::SharedFrames;
use crate::report::model::Events;
use model::{Amount, Context, Filter, Function, Point, Totals};

impl HeapReport {
    /// The same processes before they allocated anything.
    pub fn emptied(&self) -> HeapReport {
        let before = |process: &HeapProcess| HeapProcess {
            pid: process.pid,
            comm: process.comm.clone(),
            exe: process.exe.clone(),
            cmdline: process.cmdline.clone(),
            attached: process.attached,
            totals: Totals { peak_bytes: process.totals.peak_bytes.map(|_| 0), ..Totals::default() },
            ..HeapProcess::default()
        };
        HeapReport {
            processes: self.processes.iter().map(before).collect(),
            stacks: Vec::new(),
            ..self.clone()
        }
    }
}

impl HeapProcess {
    /// A process that runs, of which nothing was counted.
    pub fn of_running(seen: &Observations) -> HeapProcess {
        HeapProcess {
            pid: seen.pid,
            comm: text(&seen.comm),
            exe: text(&seen.exe),
            cmdline: seen.cmdline.iter().map(|word| text(word)).collect(),
            attached: true,
            gaps: seen.gaps.clone(),
            ..HeapProcess::default()
        }
    }
}

/// What is true of the whole run.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct HeapFacts {
    pub backend: String,
    pub allocators: Vec<String>,
    /// By the index that events have.
    pub functions: Vec<Function>,
    pub combined: bool,
    pub events: Events,
    /// Events without a stack, because the ring was full.
    pub without_stack: u64,
    /// When watching began: CLOCK_MONOTONIC, nanoseconds.
    pub start_ns: u64,
}

/// What is known of a process from elsewhere.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HeapProcessFacts {
    pub comm: String,
    pub exe: String,
    pub cmdline: Vec<String>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub container: Option<String>,
    pub attached: bool,
    pub watched_ns: Option<u64>,
    /// When it was seen first: CLOCK_MONOTONIC, nanoseconds.
    pub since_ns: u64,
    pub gaps: Vec<String>,
}

/// Pictures to a report; the stacks of [`Picture::stacks`] have to be in `names` to have names.
pub fn build(
    facts: &HeapFacts,
    processes: &[(&HeapProcessFacts, &Picture)],
    table: &StackTable,
    names: &SymbolizedStacks,
) -> HeapReport {
    let mut numbers: IntMap<StackId, u64> = IntMap::default();
    let mut used: Vec<StackId> = Vec::new();
    let mut number = |id: StackId| {
        *numbers.entry(id).or_insert_with(|| {
            used.push(id);
            (used.len() - 1) as u64
        })
    };
    // all are taken alike
    let first = processes.first().map(|(_, seen)| *seen);
    let processes: Vec<HeapProcess> =
        processes.iter().map(|(known, seen)| process(facts, known, seen, &mut number)).collect();
    let filter = first.map(|seen| seen.filter).unwrap_or_default();
    let mut frames = SharedFrames::default();
    HeapReport {
        schema: SCHEMA,
        command: "heap".to_string(),
        backend: facts.backend.clone(),
        allocators: facts.allocators.clone(),
        functions: facts.functions.clone(),
        sampling_bytes: first.and_then(|seen| seen.sampling.mean()),
        combined: facts.combined,
        filter: Filter {
            older_ns: filter.older_ns,
            min_size: filter.min_size,
            max_size: filter.max_size,
            leaks_only: filter.leaks_only,
        },
        events: facts.events,
        without_stack: facts.without_stack,
        processes,
        stacks: used.into_iter().map(|id| frames.named_stack(id, table, names)).collect(),
    }
}

fn process(
    facts: &HeapFacts,
    known: &HeapProcessFacts,
    seen: &Picture,
    number: &mut impl FnMut(StackId) -> u64,
) -> HeapProcess {
    let known = known.clone();
    // What a process is watched for begins when it is seen first.
    let since = |at: u64| at.saturating_sub(known.since_ns.max(facts.start_ns));
    let row = |row: &picture::SiteRow| HeapRow {
        stack: row.stack.ok().map(&mut *number),
        no_stack: row.stack.err().map(|why| reason(why).to_string()),
        function: u64::from(row.function),
        amount: amount(&row.amount, seen.at_ns),
        allocated_bytes: row.totals.allocated.bytes,
        allocations: blocks(row.totals.allocated.blocks),
        freed_bytes: row.totals.freed.bytes,
        frees: blocks(row.totals.freed.blocks),
        growth: row.growth,
        leak: row.leaks,
    };
    let rows: Vec<HeapRow> = seen.rows.iter().map(row).collect();
    let site = |site: &picture::SiteHistory| HeapSite {
        stack: site.stack.ok().map(&mut *number),
        no_stack: site.stack.err().map(|why| reason(why).to_string()),
        function: u64::from(site.function),
        allocated_bytes: site.totals.allocated.bytes,
        allocations: blocks(site.totals.allocated.blocks),
        freed_bytes: site.totals.freed.bytes,
        frees: blocks(site.totals.freed.blocks),
        peak_bytes: site.at_peak.map(|flow| flow.bytes),
        peak_blocks: site.at_peak.map(|flow| blocks(flow.blocks)),
        temporary: site.temporary,
    };
    let context = |row: &picture::ContextRow| Context {
        path: row.path.iter().map(|name| name.as_ref().map(|n| text(n))).collect(),
        contexts: row.contexts,
        amount: amount(&row.amount, seen.at_ns),
    };
    let point =
        |p: &ledger::HeapPoint| Point { t_ns: since(p.time_ns), bytes: p.bytes, blocks: blocks(p.blocks) };
    let sites: Vec<HeapSite> = seen.sites.iter().map(site).collect();
    let left_out = amount(&seen.left_out, seen.at_ns);
    let mut shown = amount(&seen.shown, seen.at_ns);
    let mut totals = totals(seen, since(seen.peak.map_or(0, |p| p.time_ns)));
    // estimates of blocks are rounded in each row: what they add up to is the total
    shown.blocks = rows.iter().map(|row| row.amount.blocks).sum();
    totals.outstanding_blocks = shown.blocks + left_out.blocks;
    HeapProcess {
        pid: seen.pid,
        comm: known.comm,
        exe: known.exe,
        cmdline: known.cmdline,
        exit_code: known.exit_code,
        signal: known.signal,
        container: known.container,
        attached: known.attached,
        watched_ns: known.watched_ns,
        totals,
        shown,
        left_out,
        rows,
        contexts: seen.contexts.iter().map(context).collect(),
        sites,
        sizes: Vec::new(),
        doubts: seen.doubts,
        intervals: seen.intervals,
        growth_ns: seen.growth_ns,
        timeline: seen.timeline.iter().map(point).collect(),
        gaps: known.gaps,
        nothing_seen: None,
        own: None,
        forked: false,
        beside: None,
        fragmentation: None,
        runtimes: Vec::new(),
    }
}

fn totals(seen: &Picture, peak_ns: u64) -> Totals {
    let all = &seen.totals;
    Totals {
        outstanding_bytes: all.outstanding.bytes,
        outstanding_blocks: blocks(all.outstanding.blocks),
        allocated_bytes: all.allocated.bytes,
        allocations: blocks(all.allocated.blocks),
        freed_bytes: all.freed.bytes,
        frees: blocks(all.freed.blocks),
        inherited_bytes: all.inherited.bytes,
        inherited_blocks: blocks(all.inherited.blocks),
        peak_bytes: seen.peak.map(|peak| peak.bytes),
        peak_ns: seen.peak.map(|_| peak_ns),
        temporary: seen.sites.iter().map(|site| site.temporary).sum(),
    }
}

fn amount(amount: &picture::Amount, now_ns: u64) -> Amount {
    Amount {
        bytes: amount.bytes,
        blocks: amount.blocks(),
        samples: amount.seen,
        standard_error: amount.variance.sqrt().round() as u64,
        oldest_ns: amount.oldest_ns.map(|made| now_ns.saturating_sub(made)),
    }
}

fn reason(why: NoStack) -> &'static str {
    match why {
        NoStack::NotTaken => "not-taken",
        NoStack::Lost => "lost",
        NoStack::Unreadable => "unreadable",
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
