//! One process examined: the report's own model of it, and what has changed since the first snapshot.

use super::cursor::Cursor;
use super::sample::ProcessId;
use super::sort::{SortBy, SortKeys};
use super::track::difference;
use crate::report::model::{CategoryRow, Process, Region, Stack};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A snapshot into a process, and the stacks that it refers to.
#[derive(Clone, PartialEq, Debug)]
pub struct Details {
    pub process: Rc<Process>,
    pub stacks: Rc<Vec<Stack>>,
    /// Since vmaudit began.
    pub at_ns: u64,
    pub took_ns: u64,
}

impl Details {
    /// The stack that a region or finding refers to.
    pub fn stack(&self, index: Option<u64>) -> Option<&Stack> {
        self.stacks.get(usize::try_from(index?).ok()?)
    }
}

/// A row of the table of categories.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CategoryLine<'a> {
    pub row: &'a CategoryRow,
    /// Change of its VIRT since the first snapshot.
    pub growth: i64,
}

/// What calls with one stack have mapped since tracing began, and what is there still.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StackShare {
    /// Index into [`Details::stacks`]; None: without a stack.
    pub stack: Option<u64>,
    pub virt: u64,
    pub rss: u64,
    pub calls: u64,
}

/// The process that is open.
#[derive(Clone, PartialEq, Debug)]
pub struct Opened {
    pub id: ProcessId,
    /// None until the first snapshot.
    pub details: Option<Details>,
    /// Why there is no newer one.
    pub error: Option<String>,
    /// VIRT by category at the first snapshot of this program.
    first: Option<(String, BTreeMap<String, u64>)>,
    /// Time of that snapshot.
    pub since_ns: u64,
    pub categories: Cursor<String>,
    pub regions: Cursor<String>,
    pub shares: Cursor<Option<u64>>,
}

impl Opened {
    pub fn new(id: ProcessId) -> Opened {
        Opened {
            id,
            details: None,
            error: None,
            first: None,
            since_ns: 0,
            categories: Cursor::default(),
            regions: Cursor::default(),
            shares: Cursor::default(),
        }
    }

    /// A newer snapshot.
    pub fn update(&mut self, details: Details) {
        let process = &details.process;
        // After an execve nothing that was there before is.
        if self.first.as_ref().is_none_or(|(exe, _)| *exe != process.exe) {
            let sizes = process.categories.iter().map(|row| (row.id.clone(), row.virt));
            self.first = Some((process.exe.clone(), sizes.collect()));
            self.since_ns = details.at_ns;
        }
        self.details = Some(details);
        self.error = None;
    }

    /// Categories in the order in which they are shown.
    pub fn lines(&self, (sort, reversed): (SortBy, bool)) -> Vec<CategoryLine<'_>> {
        let Some(details) = &self.details else { return Vec::new() };
        let first = |id: &str| {
            let sizes = self.first.as_ref().map(|(_, sizes)| sizes);
            sizes.and_then(|sizes| sizes.get(id).copied()).unwrap_or(0)
        };
        let line = |row| CategoryLine { row, growth: difference(row.virt, first(&row.id)) };
        let mut lines: Vec<_> = details.process.categories.iter().map(line).collect();
        lines.sort_by(|a, b| {
            let order = sort.order(&key(a), &key(b)).then_with(|| b.row.virt.cmp(&a.row.virt));
            if reversed { order.reverse() } else { order }
        });
        lines
    }

    /// Change of what was there at the first snapshot and is not any more: no row has it.
    pub fn gone(&self) -> i64 {
        let (Some(details), Some((_, first))) = (&self.details, &self.first) else { return 0 };
        let there = |id: &str| details.process.categories.iter().any(|row| row.id == id);
        let gone = first.iter().filter(|(id, _)| !there(id)).map(|(_, virt)| *virt);
        difference(0, gone.fold(0, u64::saturating_add))
    }

    /// The regions of a category, largest first.
    pub fn regions_of(&self, category: &str) -> Vec<&Region> {
        let regions = self.details.iter().flat_map(|details| &details.process.regions);
        let mut regions: Vec<&Region> = regions.filter(|region| region.category == category).collect();
        // stable: equal ones stay in the order of their addresses
        regions.sort_by_key(|region| std::cmp::Reverse(region.virt));
        regions
    }

    /// What of a category was mapped since tracing began, by stack, largest first.
    pub fn shares_of(&self, category: &str) -> Vec<StackShare> {
        let mut by_stack: BTreeMap<Option<u64>, StackShare> = BTreeMap::new();
        let mut events = std::collections::BTreeSet::new();
        for region in self.regions_of(category) {
            let Some(origin) = &region.origin else { continue };
            let none = StackShare { stack: origin.stack, virt: 0, rss: 0, calls: 0 };
            let share = by_stack.entry(origin.stack).or_insert(none);
            share.virt += region.virt;
            share.rss += region.rss;
            share.calls += u64::from(events.insert(origin.event));
        }
        let mut shares: Vec<StackShare> = by_stack.into_values().collect();
        shares.sort_by_key(|share| std::cmp::Reverse(share.virt));
        shares
    }
}

fn key<'a>(line: &CategoryLine<'a>) -> SortKeys<'a> {
    let row = line.row;
    SortKeys { name: &row.name, virt: row.virt, rss: row.rss, unused: row.unused, growth: line.growth }
}
