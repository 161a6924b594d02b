//! Two heaps → what changed.

use super::model::{HeapChange, HeapDiff, HeapWidths, SCHEMA};
use super::notes::notes;
use super::side::{Figures, HeapSide, Whose};
use crate::diff::identity::{OfSide, StackKey, Stacks};
use crate::diff::model::{Kind, Width};
use crate::report::model::Stack;
use std::cmp::Reverse;
use std::collections::HashMap;

/// A stack of either side, and the allocator's function that it called, whichever library has that.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Key {
    stack: Option<StackKey>,
    no_stack: Option<String>,
    function: String,
}

/// What both sides have under one key.
#[derive(Default)]
struct Pair<'a> {
    a: Figures,
    b: Figures,
    /// Of the side that has more of it.
    stack: Option<&'a Stack>,
}

/// What changed from `a` to `b`.
pub fn compare_heaps(a: &HeapSide<'_>, b: &HeapSide<'_>) -> HeapDiff {
    let mut stacks = Stacks::new(&stacks_of(a), &stacks_of(b));
    let mut numbers: HashMap<Key, usize> = HashMap::new();
    let mut pairs: Vec<(Key, Pair<'_>)> = Vec::new();
    for (side, is_a) in [(a, true), (b, false)] {
        for &(whose, figures) in &side.figures {
            let stack = whose.stack.and_then(|at| side.report.stacks.get(usize::try_from(at).ok()?));
            let key = key(side, whose, stack.map(|stack| stacks.key(stack, 0)));
            let at = *numbers.entry(key.clone()).or_insert_with(|| {
                pairs.push((key, Pair::default()));
                pairs.len() - 1
            });
            let Some((_, pair)) = pairs.get_mut(at) else { continue };
            if is_a {
                pair.a.add(figures)
            } else {
                pair.b.add(figures)
            }
            if is_a || pair.stack.is_none() || rank(&pair.b) >= rank(&pair.a) {
                pair.stack = stack;
            }
        }
    }
    let what = What {
        peak: a.knows_peak() && b.knows_peak(),
        sampled: a.report.sampling_bytes.is_some() || b.report.sampling_bytes.is_some(),
    };
    let mut changed: Vec<(HeapWidths, &Key, &Pair<'_>)> =
        pairs.iter().map(|(key, pair)| (what.widths(&pair.a, &pair.b), key, pair)).collect();
    changed.retain(|(widths, ..)| !widths.is_equal());
    changed.sort_by_cached_key(|(widths, key, _)| (Reverse(weight(widths)), key.function.clone()));
    let mut out = Vec::new();
    let changes: Vec<HeapChange> = changed
        .into_iter()
        .map(|(widths, key, pair)| HeapChange {
            kind: widths.kind(),
            function: key.function.clone(),
            widths,
            within_error: widths.is_within_error(),
            stack: pair.stack.map(|stack| {
                out.push(stack.clone());
                out.len() as u64 - 1
            }),
            no_stack: key.no_stack.clone(),
        })
        .collect();
    let totals = totals(a, b, what);
    HeapDiff {
        schema: SCHEMA,
        kind: "diff".to_owned(),
        command: "heap".to_owned(),
        equal: totals.kind() == Kind::Equal && changes.is_empty(),
        a: a.facts.clone(),
        b: b.facts.clone(),
        notes: notes(a, b, &stacks),
        totals,
        changes,
        stacks: out,
    }
}

/// A report of a heap does not say whether addresses were randomised.
fn stacks_of<'a>(side: &HeapSide<'a>) -> OfSide<'a> {
    OfSide { stacks: &side.report.stacks, is_randomised: true }
}

fn key(side: &HeapSide<'_>, whose: Whose<'_>, stack: Option<StackKey>) -> Key {
    let function = usize::try_from(whose.function).ok().and_then(|at| side.report.functions.get(at));
    Key {
        stack,
        no_stack: whose.no_stack.map(str::to_owned),
        function: function.map(|function| function.name.clone()).unwrap_or_default(),
    }
}

fn rank(figures: &Figures) -> (u64, u64, u64) {
    (figures.outstanding, figures.peak, figures.allocated)
}

/// What it is sorted by.
fn weight(widths: &HeapWidths) -> [u64; 4] {
    let change = |width: Width| width.change.unsigned_abs();
    [
        change(widths.outstanding),
        widths.peak.map_or(0, change),
        change(widths.allocated),
        change(widths.allocations),
    ]
}

/// What can be compared.
#[derive(Clone, Copy)]
struct What {
    peak: bool,
    sampled: bool,
}

impl What {
    fn widths(self, a: &Figures, b: &Figures) -> HeapWidths {
        HeapWidths {
            outstanding: Width::new(a.outstanding, b.outstanding),
            blocks: Width::new(a.blocks, b.blocks),
            allocated: Width::new(a.allocated, b.allocated),
            allocations: Width::new(a.allocations, b.allocations),
            peak: self.peak.then(|| Width::new(a.peak, b.peak)),
            standard_error: self.sampled.then(|| (a.variance + b.variance).sqrt().round() as u64),
        }
    }
}

/// Of all processes: what is shown, and what was allocated in all.
fn totals(a: &HeapSide<'_>, b: &HeapSide<'_>, what: What) -> HeapWidths {
    let sum = |side: &HeapSide<'_>| {
        let mut sum = Figures::default();
        for process in &side.processes {
            let error = process.shown.standard_error as f64;
            sum.add(Figures {
                outstanding: process.shown.bytes,
                blocks: process.shown.blocks,
                allocated: process.totals.allocated_bytes,
                allocations: process.totals.allocations,
                peak: process.totals.peak_bytes.unwrap_or(0),
                variance: error * error,
            });
        }
        sum
    };
    what.widths(&sum(a), &sum(b))
}
