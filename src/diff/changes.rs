//! Items of both sides under one key → a change.

use super::cause::{Cause, FindingPlaces, Which};
use super::model::{Change, Kind, Width, Widths};
use super::side::{Figures, Item, Side};
use crate::report::model::{Range, Stack};
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};

/// Thread names kept with a change.
const MAX_NAMES: usize = 16;

/// What both sides have of one thing.
#[derive(Default)]
pub(super) struct Pair<'a> {
    pub a: Part<'a>,
    pub b: Part<'a>,
}

#[derive(Default)]
pub(super) struct Part<'a> {
    pub figures: Figures,
    pub items: Vec<Item<'a>>,
}

impl<'a> Part<'a> {
    pub fn add(&mut self, item: Item<'a>) {
        self.figures += Figures::of(item.region);
        self.items.push(item);
    }

    /// Things: an arena with its used and its reserved part is one.
    fn things(&self) -> u64 {
        self.items.iter().map(|item| (item.process, item.region.instance)).collect::<HashSet<_>>().len()
            as u64
    }

    fn largest(&self, test: impl Fn(&&Item<'a>) -> bool) -> Option<&Item<'a>> {
        self.items.iter().filter(test).max_by_key(|item| (item.region.virt, Reverse(item.start)))
    }

    /// Neighbours of one process joined.
    fn ranges(&self) -> Vec<Range> {
        let mut joined: Vec<(usize, u64, u64)> = Vec::new();
        for item in &self.items {
            match joined.last_mut() {
                Some(last) if last.0 == item.process && last.2 == item.start => last.2 = item.end,
                _ => joined.push((item.process, item.start, item.end)),
            }
        }
        let hex = |n: u64| format!("{n:#x}");
        joined.into_iter().map(|(_, start, end)| Range { start: hex(start), end: hex(end) }).collect()
    }

    fn threads(&self) -> Vec<String> {
        let names = self.items.iter().filter_map(|item| item.region.origin.as_ref());
        let names: BTreeSet<&str> =
            names.map(|origin| origin.comm.as_str()).filter(|name| !name.is_empty()).collect();
        names.into_iter().take(MAX_NAMES).map(str::to_owned).collect()
    }
}

impl Pair<'_> {
    pub fn widths(&self, residency: bool) -> Widths {
        widths(self.a.figures, self.b.figures, residency)
    }

    pub fn things(&self) -> Width {
        Width::new(self.a.things(), self.b.things())
    }
}

pub(super) fn widths(a: Figures, b: Figures, residency: bool) -> Widths {
    let known = |of: fn(&Figures) -> u64| residency.then(|| Width::new(of(&a), of(&b)));
    Widths {
        virt: Width::new(a.virt, b.virt),
        rss: known(|f| f.rss),
        swap: known(|f| f.swap),
        unused: known(Figures::unused),
        writable: Width::new(a.writable, b.writable),
        reserved: Width::new(a.reserved, b.reserved),
    }
}

/// Turns pairs into changes, and collects the stacks that they refer to.
pub(super) struct Writer<'s, 'a> {
    a: (&'s Side<'a>, FindingPlaces<'a>),
    b: (&'s Side<'a>, FindingPlaces<'a>),
    residency: bool,
    numbers: HashMap<(bool, u64), u64>,
    pub stacks: Vec<Stack>,
}

impl<'s, 'a> Writer<'s, 'a> {
    pub fn new(a: &'s Side<'a>, b: &'s Side<'a>, residency: bool) -> Writer<'s, 'a> {
        Writer {
            a: (a, FindingPlaces::new(a)),
            b: (b, FindingPlaces::new(b)),
            residency,
            numbers: HashMap::new(),
            stacks: Vec::new(),
        }
    }

    /// None for what did not change.
    pub fn change(&mut self, pair: &Pair<'a>, cause: &Cause) -> Option<Change> {
        let widths = pair.widths(self.residency);
        let kind = widths.kind();
        if kind == Kind::Equal {
            return None;
        }
        // what is said about it is said of the side that has more of it
        let which = if pair.a.figures.virt > pair.b.figures.virt { Which::A } else { Which::B };
        let (part, places) = match which {
            Which::A => (&pair.a, &self.a.1),
            Which::B => (&pair.b, &self.b.1),
        };
        let largest = part.largest(|_| true)?;
        let finding = places.find(largest);
        let label = match cause {
            Cause::Name(name) => Some(name.clone()),
            Cause::NoFinding => Some("in no finding".to_owned()),
            Cause::Stack(_) | Cause::Category => None,
        };
        let has_stack = match largest.region.category.as_str() {
            "loader" => false,
            _ => !matches!(cause, Cause::NoFinding),
        };
        let stack = part.largest(|item| item.stack().is_some()).and_then(Item::stack).filter(|_| has_stack);
        let (why, fix) = match finding {
            Some(f) if !f.why.is_empty() => (Some(f.why.clone()), f.fix.clone()),
            Some(f) => (None, f.fix.clone()),
            None => (None, Vec::new()),
        };
        Some(Change {
            kind,
            category: largest.region.category.clone(),
            name: category_name(largest, self.side(which)),
            label,
            widths,
            regions: pair.things(),
            stack: stack.and_then(|number| self.number(which, number)),
            threads: part.threads(),
            ranges_a: pair.a.ranges(),
            ranges_b: pair.b.ranges(),
            why,
            fix,
        })
    }

    fn side(&self, which: Which) -> &'s Side<'a> {
        match which {
            Which::A => self.a.0,
            Which::B => self.b.0,
        }
    }

    fn number(&mut self, which: Which, number: u64) -> Option<u64> {
        let stack = self.side(which).report.stacks.get(usize::try_from(number).ok()?)?;
        let stacks = &mut self.stacks;
        Some(*self.numbers.entry((which == Which::A, number)).or_insert_with(|| {
            stacks.push(stack.clone());
            stacks.len() as u64 - 1
        }))
    }
}

/// A category's name, from the table of the item's process.
pub(super) fn category_name(item: &Item<'_>, side: &Side<'_>) -> String {
    let rows = side.processes.get(item.process).map(|p| p.categories.as_slice()).unwrap_or_default();
    let row = rows.iter().find(|row| row.id == item.region.category);
    row.map_or_else(|| item.region.category.clone(), |row| row.name.clone())
}

/// Largest change first; then by what it is, so that the order is always the same.
pub(super) fn sort(changes: &mut [Change]) {
    changes.sort_by(|x, y| {
        let rank = |c: &Change| (Reverse(c.widths.weight()), Reverse(c.widths.virt.change.unsigned_abs()));
        let what = |c: &Change| (c.category.clone(), c.label.clone(), c.ranges_b.clone(), c.ranges_a.clone());
        rank(x).cmp(&rank(y)).then_with(|| format!("{:?}", what(x)).cmp(&format!("{:?}", what(y))))
    });
}
