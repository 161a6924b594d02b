//! The steps of a life, compact: what repeats is kept once, with a count.

use super::{Change, LifeStep};
use crate::model::{NoStack, StackId, VmEvent, VmOp};

/// Steps that follow each other again and again, as mmap and munmap in a loop do: up to this many
/// in a round.
const MAX_ROUND: usize = 4;
/// Beyond twice as many entries, half of those in the middle are left out.
const KEPT: usize = 4096;

/// One step, or a round of steps that was repeated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LifeEntry {
    /// The first round.
    pub steps: Vec<LifeStep>,
    /// How many rounds there were, equal but for time and event.
    pub times: u64,
    /// When the last step of the last round happened.
    pub last_ns: u64,
}

impl LifeEntry {
    fn single(step: LifeStep) -> LifeEntry {
        LifeEntry { last_ns: step.time_ns, steps: vec![step], times: 1 }
    }
}

#[derive(Clone, Default, Debug)]
pub(in crate::ledger) struct LifeLog {
    entries: Vec<LifeEntry>,
    /// The beginning of what may be one more round of the last entry.
    partial: Vec<LifeStep>,
    omitted: u64,
}

impl LifeLog {
    pub(in crate::ledger) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All steps, repeated ones counted each time.
    pub(in crate::ledger) fn steps(&self) -> u64 {
        let kept: u64 = self.entries.iter().map(|entry| entry.times * entry.steps.len() as u64).sum();
        kept + self.partial.len() as u64 + self.omitted
    }

    pub(in crate::ledger) fn push(&mut self, step: LifeStep) {
        if let Some(last) = self.entries.last_mut() {
            let expected = last.steps.get(self.partial.len());
            if expected.is_some_and(|expected| is_same(expected, &step)) {
                self.partial.push(step);
                if self.partial.len() == last.steps.len() {
                    last.times += 1;
                    last.last_ns = self.partial.last().map_or(last.last_ns, |step| step.time_ns);
                    self.partial.clear();
                }
                return;
            }
        }
        for begun in std::mem::take(&mut self.partial) {
            self.append(begun);
        }
        self.append(step);
    }

    fn append(&mut self, step: LifeStep) {
        if let Some(last) = self.entries.last_mut()
            && let [only] = last.steps.as_slice()
            && is_same(only, &step)
        {
            last.times += 1;
            last.last_ns = step.time_ns;
            return;
        }
        self.entries.push(LifeEntry::single(step));
        for round in 2..=MAX_ROUND {
            if self.join_rounds(round) {
                break;
            }
        }
        if self.entries.len() >= 2 * KEPT {
            let dropped = self.entries.drain(KEPT / 2..KEPT / 2 + KEPT);
            self.omitted += dropped.map(|entry| entry.times * entry.steps.len() as u64).sum::<u64>();
        }
    }

    /// Makes one entry of the last two rounds of `round` single steps, if they are equal.
    fn join_rounds(&mut self, round: usize) -> bool {
        let Some(start) = self.entries.len().checked_sub(2 * round) else { return false };
        let (first, second) = self.entries[start..].split_at(round);
        let single = |entry: &LifeEntry| entry.times == 1 && entry.steps.len() == 1;
        let equal = |(a, b): (&LifeEntry, &LifeEntry)| {
            single(a) && single(b) && a.steps.iter().zip(&b.steps).all(|(a, b)| is_same(a, b))
        };
        if !first.iter().zip(second).all(equal) {
            return false;
        }
        let last_ns = self.entries.last().map_or(0, |entry| entry.last_ns);
        self.entries.truncate(start + round);
        let steps = self.entries.drain(start..).flat_map(|entry| entry.steps).collect();
        self.entries.push(LifeEntry { steps, times: 2, last_ns });
        true
    }

    /// Everything until now, and the number of steps left out in the middle.
    pub(in crate::ledger) fn finished(&self) -> (Vec<LifeEntry>, u64) {
        let mut entries = self.entries.clone();
        entries.extend(self.partial.iter().cloned().map(LifeEntry::single));
        (entries, self.omitted)
    }
}

/// The same done by the same thread on the same way.
fn is_same(a: &LifeStep, b: &LifeStep) -> bool {
    let (first, second) = (a.event.as_deref(), b.event.as_deref());
    same_change(&a.change, &b.change) && first.map(event_key) == second.map(event_key)
}

/// A range that the kernel chose differs from round to round; how long it is matters.
fn same_change(a: &Change, b: &Change) -> bool {
    match (a, b) {
        (Change::Mapped { range: a }, Change::Mapped { range: b })
        | (Change::Replaced { range: a }, Change::Replaced { range: b }) => a.len() == b.len(),
        (Change::MovedAway { kept: a, .. }, Change::MovedAway { kept: b, .. }) => a == b,
        (Change::MovedHere { range: a, .. }, Change::MovedHere { range: b, .. }) => a.len() == b.len(),
        _ => a == b,
    }
}

type EventKey<'a> = (&'static str, i32, i32, &'a [u8], Result<StackId, NoStack>, i32, i64);

fn event_key(event: &VmEvent) -> EventKey<'_> {
    let advice = match event.op {
        VmOp::Madvise { advice, .. } => advice,
        _ => 0,
    };
    let error = if event.failed() { event.ret } else { 0 };
    let task = &event.task;
    (event.op.name(), task.pid, task.tid, &task.comm, event.stack, advice, error)
}
