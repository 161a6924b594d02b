//! `--touch`: what is resident in the end, by the stack that reserved it and the one that touched it last.

mod shares;

use super::build::ProcessAudit;
use super::model;
use super::stacks::StackNumbers;
use crate::attribution::{Attributed, Piece};
use crate::ledger::{HeldBy, Origin};
use crate::model::{Addr, AddrRange, Frame, ModuleId, StackId, StackTable, SymbolizedStacks};
use crate::touch::{Count, RowId, Sample, SpaceTouches, TouchKey, Touches};
use shares::shares;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Rows of one process that are distinguished by their stacks, those with the most faults.
pub const NAMED_ROWS: usize = 4000;
/// Rows written for one process; the rest is one sum.
const WRITTEN_ROWS: usize = 500;
/// Written with a finding.
const ROWS_OF_A_FINDING: usize = 3;

/// A row with a name, while it is being put together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Key {
    reserved: Reserved,
    category: Option<&'static str>,
    touched: Toucher,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Reserved {
    Call(Option<StackId>),
    Preexisting,
    Kernel,
    Unknown,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Toucher {
    Stack(StackId),
    /// A fault whose stack is not known.
    NoStack,
    /// No fault was seen: inherited, from before tracing, or brought in by other means.
    Unseen,
    /// One of many small rows.
    Other,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    count: Count,
    bytes: u64,
}

impl Sum {
    fn merge(&mut self, other: Sum) {
        self.count.merge(other.count);
        self.bytes += other.bytes;
    }
}

/// Stacks that differ only in the places within the same functions are one.
struct SameFunctions<'a> {
    table: &'a StackTable,
    names: &'a SymbolizedStacks,
    known: HashMap<StackId, StackId>,
    by_path: HashMap<Vec<FunctionKey>, StackId>,
}

#[derive(PartialEq, Eq, Hash)]
enum FunctionKey {
    Named(Option<ModuleId>, String),
    Starts(Option<ModuleId>, u64),
    At(Frame),
}

impl SameFunctions<'_> {
    /// The first stack with these functions.
    fn one_of(&mut self, id: StackId) -> StackId {
        if let Some(&known) = self.known.get(&id) {
            return known;
        }
        let frames = self.names.frames(id);
        let key = |f: &Arc<crate::model::SymbolFrame>| match (&f.function, f.bounds) {
            (Some(function), _) => FunctionKey::Named(f.frame.module, function.name.clone()),
            (None, Some((start, _))) => FunctionKey::Starts(f.frame.module, start),
            (None, None) => FunctionKey::At(f.frame),
        };
        let path: Vec<FunctionKey> = if frames.is_empty() && (id.0 as usize) < self.table.len() {
            self.table.stack(id).frames.into_iter().map(FunctionKey::At).collect()
        } else {
            frames.iter().map(key).collect()
        };
        let one = *self.by_path.entry(path).or_insert(id);
        self.known.insert(id, one);
        one
    }
}

/// Puts `touch` into the process and `touched_by` into its findings.
pub(super) fn add(
    process: &mut model::Process,
    (audit, found): (&ProcessAudit<'_>, &Attributed),
    (touches, space): (&Touches, &SpaceTouches),
    stacks: &mut StackNumbers,
) {
    let (table, names) = (audit.input.stacks, audit.input.symbols);
    let mut same = SameFunctions { table, names, known: HashMap::new(), by_path: HashMap::new() };
    let named: HashMap<RowId, TouchKey> =
        space.largest(NAMED_ROWS).into_iter().filter_map(|(id, _)| Some((id, touches.row(id)?))).collect();
    let mut key = |row: Option<RowId>, reserved: HeldBy, category: Option<&'static str>| {
        let (row, toucher) = match row {
            None => (TouchKey { reserved, touched: None }, Toucher::Unseen),
            Some(id) => match named.get(&id) {
                Some(&row) => {
                    (row, row.touched.map_or(Toucher::NoStack, |id| Toucher::Stack(same.one_of(id))))
                }
                None => (TouchKey { reserved: HeldBy::Unknown, touched: None }, Toucher::Other),
            },
        };
        let reserved = match row.reserved {
            HeldBy::Call(stack) => Reserved::Call(stack.map(|id| same.one_of(id))),
            HeldBy::Preexisting => Reserved::Preexisting,
            HeldBy::Kernel => Reserved::Kernel,
            HeldBy::Unknown => Reserved::Unknown,
        };
        Key { reserved, category, touched: toucher }
    };

    let mut sums: BTreeMap<Key, Sum> = BTreeMap::new();
    let mut by_finding: HashMap<usize, BTreeMap<Toucher, Sum>> = HashMap::new();
    let mut seen: HashMap<RowId, BTreeMap<&'static str, Count>> = HashMap::new();
    let findings = finding_ranges(found);
    for piece in &found.pieces {
        let samples: Vec<(Addr, Sample)> = space.pages.within(piece.range).collect();
        let category = piece.category.id;
        for (_, sample) in samples.iter().filter(|(_, sample)| sample.weight > 0) {
            seen.entry(sample.row).or_default().entry(category).or_default().add(sample.weight);
        }
        let finding = finding_at(&findings, piece.range.start);
        for (row, bytes) in shares(audit, piece, &samples, space.pages.is_complete()) {
            let key = key(row, holder(audit, piece), Some(category));
            let sum = Sum { count: Count::default(), bytes };
            sums.entry(key).or_default().merge(sum);
            if let Some(finding) = finding {
                by_finding.entry(finding).or_default().entry(key.touched).or_default().merge(sum);
            }
        }
    }
    // Faults on what is mapped no longer, or was touched again since, appear in their row only.
    for (&id, &count) in &space.counts {
        for (category, count) in by_category(count, seen.get(&id)) {
            let key = key(Some(id), HeldBy::Unknown, category);
            sums.entry(key).or_default().merge(Sum { count, bytes: 0 });
        }
    }

    for (index, rows) in by_finding {
        let Some(finding) = process.findings.get_mut(index) else { continue };
        let mut rows: Vec<(Toucher, Sum)> = rows.into_iter().filter(|(_, sum)| sum.bytes > 0).collect();
        rows.sort_by_key(|&(toucher, sum)| (Reverse(sum.bytes), toucher));
        rows.truncate(ROWS_OF_A_FINDING);
        let share = |(toucher, sum): (Toucher, Sum)| model::TouchShare {
            stack: number(toucher, stacks),
            seen: toucher != Toucher::Unseen,
            bytes_estimate: sum.bytes,
        };
        finding.touched_by = rows.into_iter().map(share).collect();
    }
    process.touch = Some(written(sums, space, stacks));
}

fn number(toucher: Toucher, stacks: &mut StackNumbers) -> Option<u64> {
    match toucher {
        Toucher::Stack(id) => Some(stacks.number(id)),
        Toucher::NoStack | Toucher::Unseen | Toucher::Other => None,
    }
}

fn written(sums: BTreeMap<Key, Sum>, space: &SpaceTouches, stacks: &mut StackNumbers) -> model::ProcessTouch {
    let mut rows: Vec<(Key, Sum)> =
        sums.into_iter().filter(|(_, sum)| sum.bytes > 0 || sum.count.faults > 0).collect();
    rows.sort_by_key(|&(key, sum)| {
        (key.touched == Toucher::Other, Reverse(sum.bytes), Reverse(sum.count.faults), key)
    });
    let unseen = rows.iter().filter(|(key, _)| key.touched == Toucher::Unseen).map(|(_, s)| s.bytes).sum();
    let is_named = |(key, _): &&(Key, Sum)| key.touched != Toucher::Other;
    let shown = rows.iter().take_while(is_named).count().min(WRITTEN_ROWS);
    let mut others = Sum::default();
    for (_, sum) in &rows[shown..] {
        others.merge(*sum);
    }
    let row = |&(key, sum): &(Key, Sum)| model::TouchRow {
        reserved_by: match key.reserved {
            Reserved::Call(stack) => stack.map(|id| stacks.number(id)),
            Reserved::Preexisting | Reserved::Kernel | Reserved::Unknown => None,
        },
        reserved: match key.reserved {
            Reserved::Call(_) => "call",
            Reserved::Preexisting => "preexisting",
            Reserved::Kernel => "kernel",
            Reserved::Unknown => "unknown",
        }
        .to_string(),
        category: key.category.map(str::to_string),
        touched_by: number(key.touched, stacks),
        seen: key.touched != Toucher::Unseen,
        faults: sum.count.faults,
        samples: sum.count.samples,
        error: error(sum.count),
        bytes_estimate: sum.bytes,
    };
    model::ProcessTouch {
        faults: space.total.faults,
        sampled: space.total.samples,
        error: error(space.total),
        exact: space.total.faults == space.total.samples && space.pages.is_complete(),
        unseen_bytes: unseen,
        outside: space.outside,
        refused: space.refused,
        rows: rows[..shown].iter().map(row).collect(),
        others: model::TouchRest {
            rows: (rows.len() - shown) as u64,
            faults: others.count.faults,
            bytes_estimate: others.bytes,
        },
    }
}

/// Half the width of the 95 % interval, in faults.
fn error(count: Count) -> u64 {
    (count.error() * count.faults as f64).ceil() as u64
}

/// A row's faults by category: as its samples lie, the rest with the largest part.
fn by_category(
    total: Count,
    seen: Option<&BTreeMap<&'static str, Count>>,
) -> Vec<(Option<&'static str>, Count)> {
    let Some(seen) = seen else { return vec![(None, total)] };
    let mut parts: Vec<(&'static str, Count)> =
        seen.iter().map(|(&category, &count)| (category, count)).collect();
    parts.sort_by_key(|&(_, count)| Reverse(count.faults));
    let mut rest = total;
    let mut out = Vec::with_capacity(parts.len());
    for &(category, count) in parts.iter().skip(1) {
        let part = Count {
            faults: count.faults.min(rest.faults),
            samples: count.samples.min(rest.samples),
            variance: count.variance.min(rest.variance),
        };
        rest = Count {
            faults: rest.faults - part.faults,
            samples: rest.samples - part.samples,
            variance: rest.variance - part.variance,
        };
        out.push((Some(category), part));
    }
    out.push((parts.first().map(|&(category, _)| category), rest));
    out
}

fn holder(audit: &ProcessAudit<'_>, piece: &Piece) -> HeldBy {
    let reconciled = audit.input.reconciled;
    match reconciled.regions.get(piece.region).map(|region| region.origin) {
        Some(Origin::Event(id)) => {
            HeldBy::Call(reconciled.origins.get(id.0 as usize).and_then(|record| record.stack.ok()))
        }
        Some(Origin::Preexisting) => HeldBy::Preexisting,
        Some(Origin::Kernel) => HeldBy::Kernel,
        Some(Origin::Unknown) | None => HeldBy::Unknown,
    }
}

/// The findings' ranges, sorted, each with its finding.
fn finding_ranges(found: &Attributed) -> Vec<(AddrRange, usize)> {
    let all = found.findings.iter().enumerate();
    let mut ranges: Vec<(AddrRange, usize)> =
        all.flat_map(|(index, f)| f.ranges.iter().map(move |&range| (range, index))).collect();
    ranges.sort_unstable();
    ranges
}

fn finding_at(ranges: &[(AddrRange, usize)], addr: Addr) -> Option<usize> {
    let at = ranges.partition_point(|(range, _)| range.start <= addr).checked_sub(1)?;
    ranges.get(at).filter(|(range, _)| range.contains(addr)).map(|&(_, index)| index)
}
