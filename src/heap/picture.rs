//! What is outstanding at one moment, by site and by context. Numbers of stacks, not yet names.

use super::ledger::{Doubts, Flow, HeapPoint, SiteId, Totals};
use super::sampling::{Sampling, blocks};
use crate::model::{MmKey, NoStack, Pid, StackId};
use std::cmp::Reverse;
use std::collections::HashMap;

/// Which blocks are selected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    /// At least this old, in nanoseconds.
    pub older_ns: Option<u64>,
    pub min_size: Option<u64>,
    pub max_size: Option<u64>,
    /// Those of stacks of which nothing was ever freed, and that grow: [`super::ledger::SiteTotals::leaks`].
    pub leaks_only: bool,
}

impl Filter {
    /// Whether blocks have to be examined one by one.
    pub fn is_by_block(&self) -> bool {
        self.older_ns.is_some() || self.min_size.is_some() || self.max_size.is_some()
    }

    pub(super) fn takes(&self, size: u64, age_ns: u64) -> bool {
        self.older_ns.is_none_or(|least| age_ns >= least)
            && self.min_size.is_none_or(|least| size >= least)
            && self.max_size.is_none_or(|most| size <= most)
    }
}

/// Blocks, counted; of samples, estimated.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Amount {
    pub bytes: u64,
    /// In units of 1 / [`super::sampling::BLOCK`].
    pub weight: u64,
    /// Of `bytes`, as an estimate: the square of its standard error. 0 where every block was seen.
    pub variance: f64,
    /// Blocks that were seen.
    pub seen: u64,
    /// When the oldest was allocated (CLOCK_MONOTONIC); a millisecond or less too early.
    pub oldest_ns: Option<u64>,
}

impl Amount {
    pub fn blocks(&self) -> u64 {
        blocks(self.weight)
    }

    pub fn is_none(&self) -> bool {
        self.bytes == 0 && self.weight == 0
    }

    pub(super) fn add_block(&mut self, size: u64, made_ns: u64, sampling: Sampling) {
        let weight = sampling.weight(size);
        self.bytes = self.bytes.saturating_add(weight.bytes);
        self.weight = self.weight.saturating_add(weight.blocks);
        self.variance += sampling.variance(size);
        self.seen += 1;
        self.oldest_ns = Some(self.oldest_ns.map_or(made_ns, |oldest| oldest.min(made_ns)));
    }

    pub fn add(&mut self, other: &Amount) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.weight = self.weight.saturating_add(other.weight);
        self.variance += other.variance;
        self.seen += other.seen;
        self.oldest_ns = match (self.oldest_ns, other.oldest_ns) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
}

/// What one site has outstanding.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SiteRow {
    pub site: SiteId,
    pub stack: Result<StackId, NoStack>,
    /// Index into the list of probed functions.
    pub function: u32,
    pub amount: Amount,
    /// Of all its blocks, whatever the filter.
    pub totals: Totals,
    /// Change of outstanding bytes of all its blocks in [`Picture::growth_ns`].
    pub growth: i64,
    pub leaks: bool,
}

/// What one site allocated in all, whatever the filter.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SiteHistory {
    pub stack: Result<StackId, NoStack>,
    pub function: u32,
    pub totals: Totals,
    /// Outstanding when all together had the most; None where that is not known.
    pub at_peak: Option<Flow>,
    /// Blocks that were freed before their thread allocated again; None where that is not known.
    pub temporary: Option<u64>,
}

/// What the contexts with one path of names have outstanding.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ContextRow {
    /// From the outermost known ancestor; `None` where a name is not known. Empty: in no context.
    pub path: Vec<Option<Vec<u8>>>,
    /// How many contexts these are, those of them that are empty left out.
    pub contexts: u64,
    pub amount: Amount,
}

/// One address space at one moment.
#[derive(Clone, PartialEq, Debug)]
pub struct Picture {
    pub pid: Pid,
    pub mm: MmKey,
    pub at_ns: u64,
    pub sampling: Sampling,
    pub filter: Filter,
    /// Sites with blocks that the filter takes; most bytes first. They add up to `shown`.
    pub rows: Vec<SiteRow>,
    /// All that ever allocated; most bytes at the peak first.
    pub sites: Vec<SiteHistory>,
    /// As `rows`, by context; empty where no block is in one.
    pub contexts: Vec<ContextRow>,
    pub shown: Amount,
    /// What the filter leaves out.
    pub left_out: Amount,
    /// Of all blocks, whatever the filter.
    pub totals: Totals,
    /// The most that was outstanding; its blocks in units as in [`Amount::weight`].
    pub peak: Option<HeapPoint>,
    pub doubts: Doubts,
    /// How long before this moment [`SiteRow::growth`] begins; `None` while no interval has ended.
    pub growth_ns: Option<u64>,
    /// Intervals that have ended.
    pub intervals: u32,
    pub timeline: Vec<HeapPoint>,
}

impl Picture {
    /// Stacks that a report of it names.
    pub fn stacks(&self) -> impl Iterator<Item = StackId> {
        let outstanding = self.rows.iter().filter_map(|row| row.stack.ok());
        outstanding.chain(self.sites.iter().filter_map(|site| site.stack.ok()))
    }

    /// In which row each site is, by its number: those of a report are in the same order.
    pub fn rows_by_site(&self) -> HashMap<u32, u64> {
        self.rows.iter().zip(0..).map(|(row, number)| (row.site.0, number)).collect()
    }

    pub(super) fn finish(&mut self) {
        let order = |row: &SiteRow| (Reverse(row.amount.bytes), Reverse(row.amount.weight), row.function);
        self.rows.sort_by_key(|row| (order(row), row.stack.ok()));
        for row in &self.rows {
            self.shown.add(&row.amount);
        }
        let bytes =
            |site: &SiteHistory| (site.at_peak.unwrap_or_default().bytes, site.totals.allocated.bytes);
        self.sites.sort_by_key(|site| (Reverse(bytes(site)), site.function, site.stack.ok()));
        let key = |row: &ContextRow| (Reverse(row.amount.bytes), row.path.clone());
        self.contexts.sort_by_cached_key(key);
    }
}
