//! Two sides → the comparison.

use super::address;
use super::cause::{ByName, Cause, Key, Keys, Which};
use super::changes::{Pair, Writer, category_name, sort, widths};
use super::identity::{OfSide, Stacks};
use super::model::{By, CategoryChange, Change, Diff, ProcessPair, SCHEMA};
use super::notes::notes;
use super::reasons::reasons;
use super::select::pairs;
use super::side::{Figures, Side};
use crate::report::model::Process;
use std::cmp::Reverse;
use std::collections::HashMap;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    pub by: By,
}

/// What changed from `a` to `b`.
pub fn compare(a: &Side<'_>, b: &Side<'_>, options: Options) -> Diff {
    let residency = a.knows_residency() && b.knows_residency();
    let mut stacks = Stacks::new(&stacks_of(a), &stacks_of(b));
    let by_name = ByName::of(a, b);
    let paired = pairs(&a.processes, &b.processes);
    let mut writer = Writer::new(a, b, residency);
    let grouped: Vec<(Pair<'_>, Cause)> = match options.by {
        By::Category => Vec::new(),
        By::Address => address::groups(a, b, &partners(a, b, &paired)),
        By::Stack | By::Finding => {
            let mut keys = Keys::new(options.by, &mut stacks, by_name.clone());
            let (of_a, of_b) = (keys.of(Which::A, a), keys.of(Which::B, b));
            grouped(a, b, (&of_a, &of_b)).into_iter().map(|(key, pair)| (pair, key.cause)).collect()
        }
    };
    let mut changes: Vec<Change> =
        grouped.iter().filter_map(|(pair, cause)| writer.change(pair, cause)).collect();
    sort(&mut changes);
    let stack_list = renumbered(&mut changes, &writer.stacks);
    let categories = categories(a, b, residency);
    let totals = widths(sum(a), sum(b), residency);
    let equal = totals.is_equal()
        && categories.iter().all(|row| row.widths.is_equal())
        && changes.iter().all(|change| change.widths.is_equal());
    let processes = if paired.len() > 1 { process_pairs(&paired, residency) } else { Vec::new() };
    Diff {
        schema: SCHEMA,
        kind: "diff".to_owned(),
        by: options.by,
        equal,
        a: a.facts.clone(),
        b: b.facts.clone(),
        reasons: reasons(a, b, &categories),
        notes: notes(a, b, (options.by, &stacks, &by_name)),
        totals,
        categories,
        processes,
        changes,
        stacks: stack_list,
    }
}

fn stacks_of<'a>(side: &Side<'a>) -> OfSide<'a> {
    OfSide { stacks: &side.report.stacks, is_randomised: side.facts.aslr }
}

fn sum(side: &Side<'_>) -> Figures {
    let mut sum = Figures::default();
    side.items.iter().for_each(|item| sum += Figures::of(item.region));
    sum
}

/// Items of both sides by key, in order of first appearance.
fn grouped<'a, 'k>(a: &Side<'a>, b: &Side<'a>, (of_a, of_b): (&'k [Key], &'k [Key])) -> Vec<(Key, Pair<'a>)> {
    let mut places: HashMap<&'k Key, usize> = HashMap::new();
    let mut out: Vec<(Key, Pair<'a>)> = Vec::new();
    let sides = [(a, of_a, true), (b, of_b, false)];
    for (side, keys, is_a) in sides {
        for (item, key) in side.items.iter().zip(keys) {
            let at = *places.entry(key).or_insert_with(|| {
                out.push((key.clone(), Pair::default()));
                out.len() - 1
            });
            if let Some((_, pair)) = out.get_mut(at) {
                if is_a { pair.a.add(*item) } else { pair.b.add(*item) }
            }
        }
    }
    out
}

fn categories(a: &Side<'_>, b: &Side<'_>, residency: bool) -> Vec<CategoryChange> {
    let keys = |side: &Side<'_>| -> Vec<Key> {
        let key = |category: &String| Key { category: category.clone(), cause: Cause::Category };
        side.items.iter().map(|item| key(&item.region.category)).collect()
    };
    let (of_a, of_b) = (keys(a), keys(b));
    let mut rows: Vec<CategoryChange> = grouped(a, b, (&of_a, &of_b))
        .into_iter()
        .map(|(key, pair)| {
            let widths = pair.widths(residency);
            let from_b = pair.b.items.first().map(|item| category_name(item, b));
            let name = from_b.or_else(|| pair.a.items.first().map(|item| category_name(item, a)));
            CategoryChange {
                name: name.unwrap_or_else(|| key.category.clone()),
                id: key.category,
                kind: widths.kind(),
                regions: pair.things(),
                widths,
            }
        })
        .collect();
    rows.sort_by(|x, y| {
        let rank = |row: &CategoryChange| {
            let virt = row.widths.virt;
            (Reverse(row.widths.weight()), Reverse(virt.a.max(virt.b)))
        };
        rank(x).cmp(&rank(y)).then_with(|| x.id.cmp(&y.id))
    });
    rows
}

type Paired<'a> = (Option<&'a Process>, Option<&'a Process>);

/// Indices of paired processes.
fn partners(a: &Side<'_>, b: &Side<'_>, paired: &[Paired<'_>]) -> HashMap<usize, usize> {
    let index = |side: &Side<'_>, searched: &Process| {
        side.processes.iter().position(|process| std::ptr::eq(*process, searched))
    };
    let both = paired.iter().filter_map(|(x, y)| Some((index(a, (*x)?)?, index(b, (*y)?)?)));
    both.collect()
}

fn process_pairs(paired: &[Paired<'_>], residency: bool) -> Vec<ProcessPair> {
    let figures = |process: Option<&Process>| {
        let totals = process.map(|p| p.totals).unwrap_or_default();
        let (virt, rss, swap) = (totals.virt, totals.rss, totals.swap);
        Figures { virt, rss, swap, writable: totals.writable, reserved: totals.reserved }
    };
    let mut rows: Vec<ProcessPair> = paired
        .iter()
        .filter_map(|&(a, b)| {
            let shown = b.or(a)?;
            let widths = widths(figures(a), figures(b), residency);
            Some(ProcessPair {
                comm: shown.comm.clone(),
                exe: shown.exe.clone(),
                pid_a: a.map(|p| p.pid),
                pid_b: b.map(|p| p.pid),
                kind: widths.kind(),
                widths,
            })
        })
        .collect();
    rows.sort_by_key(|row| (Reverse(row.widths.weight()), row.pid_a, row.pid_b));
    rows
}

/// Numbers stacks in the order in which the sorted changes refer to them.
fn renumbered(
    changes: &mut [Change],
    stacks: &[crate::report::model::Stack],
) -> Vec<crate::report::model::Stack> {
    let mut numbers: HashMap<u64, u64> = HashMap::new();
    let mut out = Vec::new();
    for change in changes {
        let Some(old) = change.stack else { continue };
        change.stack = stacks.get(usize::try_from(old).unwrap_or(usize::MAX)).map(|stack| {
            *numbers.entry(old).or_insert_with(|| {
                out.push(stack.clone());
                out.len() as u64 - 1
            })
        });
    }
    out
}
