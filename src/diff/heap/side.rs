//! One of the two heaps: the processes that are compared, and what each stack has in all of them.

use super::model::HeapSideFacts;
use crate::diff::model::SideSource;
use crate::diff::select::{Pick, SelectError, select_of};
use crate::heap::report::{FROM_MEMORY, HeapProcess, HeapReport, SCHEMA};
use std::collections::HashMap;

/// What is more than any program can allocate: sums of it would not be numbers any more.
const TOO_LARGE: u64 = 1 << 62;

/// A report that contradicts itself, or that this version cannot read.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum HeapUnsound {
    #[error("schema {0}: this vmaudit knows schema 1 (docs/heap.md)")]
    Schema(u32),
    #[error("process {pid}: its rows add up to {rows} bytes, and it shows {shown}")]
    Sum { pid: i32, rows: u64, shown: u64 },
    #[error("process {pid}: a row has stack {stack}, and there are {stacks}")]
    Stack { pid: i32, stack: u64, stacks: usize },
    #[error("process {pid}: a row has function {function}, and there are {functions}")]
    Function { pid: i32, function: u64, functions: usize },
    #[error("process {pid}: a row is larger than any address space")]
    TooLarge { pid: i32 },
}

/// Why a heap cannot be compared.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum HeapSideError {
    #[error("the report contradicts itself or cannot be read: {0}")]
    Unsound(#[from] HeapUnsound),
    #[error("{0}")]
    Select(#[from] SelectError),
    #[error("it has the arenas of an allocator (heap --arenas): nothing was counted that could be compared")]
    NothingCounted,
}

/// What one stack has.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Figures {
    pub outstanding: u64,
    pub blocks: u64,
    pub allocated: u64,
    pub allocations: u64,
    pub peak: u64,
    /// Of `outstanding`.
    pub variance: f64,
}

impl Figures {
    pub fn add(&mut self, other: Figures) {
        let Figures { outstanding, blocks, allocated, allocations, peak, variance } = other;
        self.outstanding = self.outstanding.saturating_add(outstanding);
        self.blocks = self.blocks.saturating_add(blocks);
        self.allocated = self.allocated.saturating_add(allocated);
        self.allocations = self.allocations.saturating_add(allocations);
        self.peak = self.peak.saturating_add(peak);
        self.variance += variance;
    }
}

/// Whose they are: a stack or why there is none, and the allocator's function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Whose<'a> {
    pub stack: Option<u64>,
    pub no_stack: Option<&'a str>,
    pub function: u64,
}

/// The processes of a report that are to be compared.
#[derive(Debug)]
pub struct HeapSide<'a> {
    pub(super) report: &'a HeapReport,
    pub(super) processes: Vec<&'a HeapProcess>,
    pub(super) figures: Vec<(Whose<'a>, Figures)>,
    pub(super) facts: HeapSideFacts,
}

impl<'a> HeapSide<'a> {
    /// Checks a report, and picks processes. `source` and `kind` are what [`HeapSideFacts`] calls so.
    ///
    /// # Errors
    /// When the report contradicts itself, has no such process, or counted nothing.
    pub fn new(
        report: &'a HeapReport,
        (source, kind): (&str, &str),
        pick: Pick,
    ) -> Result<HeapSide<'a>, HeapSideError> {
        if report.schema != SCHEMA {
            return Err(HeapUnsound::Schema(report.schema).into());
        }
        if report.backend == FROM_MEMORY {
            return Err(HeapSideError::NothingCounted);
        }
        let processes = select_of(&report.processes, pick, |process| (process.pid, &process.comm))?;
        let mut by: HashMap<Whose<'a>, usize> = HashMap::new();
        let mut figures: Vec<(Whose<'a>, Figures)> = Vec::new();
        for process in &processes {
            for (whose, more) in checked(report, process)? {
                let at = *by.entry(whose).or_insert_with(|| {
                    figures.push((whose, Figures::default()));
                    figures.len() - 1
                });
                if let Some((_, sum)) = figures.get_mut(at) {
                    sum.add(more);
                }
            }
        }
        let first = processes.first();
        let facts = HeapSideFacts {
            of: first
                .map(|p| SideSource::of_process(p.pid, (&p.comm, &p.exe), &p.cmdline))
                .unwrap_or_default()
                .read_from((source, kind), &report.backend),
            processes: report.processes.len() as u64,
            compared: processes.len() as u64,
            watched_ns: first.and_then(|p| p.watched_ns),
            sampling_bytes: report.sampling_bytes,
        };
        Ok(HeapSide { report, processes, figures, facts })
    }

    pub fn report(&self) -> &'a HeapReport {
        self.report
    }

    /// What it was read from.
    pub fn source(&self) -> &str {
        &self.facts.of.source
    }

    /// Those that are compared.
    pub fn processes(&self) -> &[&'a HeapProcess] {
        &self.processes
    }

    /// Peaks of several processes are not at one moment.
    pub(super) fn knows_peak(&self) -> bool {
        matches!(self.processes.as_slice(), [one] if one.totals.peak_bytes.is_some())
    }
}

/// What each stack of a process has, proven to add up.
fn checked<'a>(
    report: &'a HeapReport,
    process: &'a HeapProcess,
) -> Result<impl Iterator<Item = (Whose<'a>, Figures)>, HeapUnsound> {
    let pid = process.pid;
    let (stacks, functions) = (report.stacks.len(), report.functions.len());
    let whose = |stack: Option<u64>, no_stack: &'a Option<String>, function: u64| {
        if let Some(stack) = stack.filter(|stack| *stack >= stacks as u64) {
            return Err(HeapUnsound::Stack { pid, stack, stacks });
        }
        if function >= functions as u64 {
            return Err(HeapUnsound::Function { pid, function, functions });
        }
        Ok(Whose { stack, no_stack: no_stack.as_deref(), function })
    };
    let mut found = Vec::with_capacity(process.rows.len() + process.sites.len());
    let mut sum = 0u64;
    for row in &process.rows {
        let whose = whose(row.stack, &row.no_stack, row.function)?;
        let error = row.amount.standard_error as f64;
        sum = sum.saturating_add(row.amount.bytes);
        let mut figures = Figures {
            outstanding: row.amount.bytes,
            blocks: row.amount.blocks,
            variance: error * error,
            ..Figures::default()
        };
        // Reports without `sites` have the calls of what is outstanding alone.
        if process.sites.is_empty() {
            (figures.allocated, figures.allocations) = (row.allocated_bytes, row.allocations);
        }
        found.push((whose, figures));
    }
    for site in &process.sites {
        let figures = Figures {
            allocated: site.allocated_bytes,
            allocations: site.allocations,
            peak: site.peak_bytes.unwrap_or(0),
            ..Figures::default()
        };
        found.push((whose(site.stack, &site.no_stack, site.function)?, figures));
    }
    let shown = process.shown.bytes;
    let large = |figures: &Figures| figures.allocated.max(figures.outstanding).max(figures.peak) > TOO_LARGE;
    if shown > TOO_LARGE || found.iter().any(|(_, figures)| large(figures)) {
        return Err(HeapUnsound::TooLarge { pid });
    }
    match sum == shown {
        true => Ok(found.into_iter()),
        false => Err(HeapUnsound::Sum { pid, rows: sum, shown }),
    }
}
