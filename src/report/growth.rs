//! What grew and shrank between two reports of one recording, by call and stack.

use super::category_name;
use super::model::{Frame, Process, Report, Stack};
use crate::model::number::change;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// `report --growth`, as it is written (docs/report.md).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Growth {
    pub schema: u32,
    /// As in `TimelinePoint::t_ns`.
    pub from_ns: u64,
    pub to_ns: u64,
    /// Those that were alive at either moment, the main one first.
    pub processes: Vec<ProcessGrowth>,
    pub stacks: Vec<Stack>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ProcessGrowth {
    pub pid: i32,
    pub comm: String,
    /// VIRT at both moments; null where it did not exist.
    pub from: Option<u64>,
    pub to: Option<u64>,
    /// Largest change first; they add up to `from` and to `to`, and what did not change is left out
    /// and counted in `unchanged`.
    pub by_stack: Vec<StackGrowth>,
    pub unchanged: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StackGrowth {
    /// `mmap`, `brk` …; null for what no call with a stack mapped.
    pub op: Option<String>,
    pub category: String,
    /// What text shows for `category`.
    pub name: String,
    /// Index into `Growth::stacks`.
    pub stack: Option<u64>,
    pub from: u64,
    pub to: u64,
}

impl StackGrowth {
    pub fn change(&self) -> i64 {
        change(self.from, self.to)
    }
}

/// A call by what it is, not by its number in one report.
type Key<'a> = (Option<&'a str>, &'a str, Option<&'a [Arc<Frame>]>);

/// Compares the processes of two moments by pid.
pub fn growth((from, from_ns): (&Report, u64), (to, to_ns): (&Report, u64)) -> Growth {
    let mut order: Vec<i32> = Vec::new();
    for process in to.processes.iter().chain(&from.processes) {
        if !order.contains(&process.pid) {
            order.push(process.pid);
        }
    }
    let main = from.processes.first().or(to.processes.first()).map(|process| process.pid);
    order.sort_by_key(|&pid| Some(pid) != main);
    let find = |report: &'_ Report, pid: i32| report.processes.iter().position(|p| p.pid == pid);
    let mut stacks = Stacks::default();
    let processes = order.into_iter().map(|pid| {
        let old = find(from, pid).and_then(|at| from.processes.get(at));
        let new = find(to, pid).and_then(|at| to.processes.get(at));
        let by_stack = compare((from, old), (to, new), &mut stacks);
        let (changed, same): (Vec<StackGrowth>, Vec<StackGrowth>) =
            by_stack.into_iter().partition(|row| row.from != row.to);
        ProcessGrowth {
            pid,
            comm: new.or(old).map(|process| process.comm.clone()).unwrap_or_default(),
            from: old.map(|process| process.totals.virt),
            to: new.map(|process| process.totals.virt),
            by_stack: changed,
            unchanged: same.iter().map(|row| row.to).sum(),
        }
    });
    let processes = processes.collect();
    Growth { schema: super::SCHEMA, from_ns, to_ns, processes, stacks: stacks.all }
}

#[derive(Default)]
struct Stacks {
    all: Vec<Stack>,
}

impl Stacks {
    fn number(&mut self, frames: &[Arc<Frame>], source: &Report) -> Option<u64> {
        let known = self.all.iter().position(|stack| stack.frames == frames);
        let at = match known {
            Some(at) => at,
            None => {
                self.all.push(source.stacks.iter().find(|stack| stack.frames == frames)?.clone());
                self.all.len() - 1
            }
        };
        Some(at as u64)
    }
}

type Side<'a> = (&'a Report, Option<&'a Process>);

fn compare<'a>(from: Side<'a>, to: Side<'a>, stacks: &mut Stacks) -> Vec<StackGrowth> {
    let mut both: HashMap<Key<'a>, (u64, u64)> = HashMap::new();
    for (key, bytes) in by_call(from) {
        both.entry(key).or_default().0 = bytes;
    }
    for (key, bytes) in by_call(to) {
        both.entry(key).or_default().1 = bytes;
    }
    let mut rows: Vec<(Key<'a>, (u64, u64))> = both.into_iter().collect();
    rows.sort_by_key(|((op, category, frames), (old, new))| {
        let place = frames.map(|frames| frames.iter().map(|f| (&f.module, &f.offset)).collect::<Vec<_>>());
        (std::cmp::Reverse(old.abs_diff(*new)), *op, *category, place)
    });
    let row = |((op, category, frames), (old, new)): (Key<'a>, (u64, u64))| StackGrowth {
        op: op.map(str::to_owned),
        category: category.to_owned(),
        name: category_name(category).unwrap_or(category).to_owned(),
        stack: match frames {
            Some(frames) if old != new => {
                stacks.number(frames, from.0).or_else(|| stacks.number(frames, to.0))
            }
            _ => None,
        },
        from: old,
        to: new,
    };
    rows.into_iter().map(row).collect()
}

/// What is mapped, by call, category and frames; it adds up to VIRT.
fn by_call((report, process): Side<'_>) -> BTreeMap<Key<'_>, u64> {
    let mut sums: BTreeMap<Key<'_>, u64> = BTreeMap::new();
    for region in process.iter().flat_map(|process| &process.regions) {
        let origin = region.origin.as_ref();
        let stack = origin.and_then(|origin| report.stacks.get(usize::try_from(origin.stack?).ok()?));
        let frames = stack.map(|stack| stack.frames.as_slice());
        let key = (origin.map(|origin| origin.op.as_str()), region.category.as_str(), frames);
        *sums.entry(key).or_default() += region.virt;
    }
    sums
}
