//! From the rings of all CPUs to one order: calls are joined with their stacks, CPU by CPU, and the
//! whole is sorted by time.

use super::rings::{Timed, Waiting};
use super::sample::{is_same_call, tracepoint_of};
use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

/// A record, with the sample that has its stack.
pub struct Joined {
    pub record: Timed,
    pub stack: Option<Box<[u8]>>,
}

/// How many stacks are looked through for a call's own.
const NEAR: usize = 8;

/// A stack's record may be on its way for as long as it takes to copy it; the CPU may be a virtual
/// one that does not run.
const STACK_FLIGHT: Duration = Duration::from_millis(2);

/// Takes what happened up to `until` out of what was read of the rings, oldest first. `apart` are the tracepoints
/// whose stacks come apart; `more` reads the stacks of a CPU again.
pub fn take(
    read: &mut [Waiting],
    apart: &HashSet<u16>,
    until: u64,
    more: &mut dyn FnMut(usize) -> VecDeque<Timed>,
) -> Vec<Joined> {
    let mut all = Vec::new();
    for (cpu, waiting) in read.iter_mut().enumerate() {
        let newest = waiting.calls.back();
        if let Some(newest) = newest.filter(|newest| newest.time_ns <= until && is_apart(newest, apart)) {
            // Its stack may have been written after that ring was read.
            let newest = newest.bytes.clone();
            let tail = |stacks: &VecDeque<Timed>| {
                stacks.iter().rev().take(NEAR).any(|stack| is_same_call(&newest, &stack.bytes))
            };
            let begun = Instant::now();
            while !tail(&waiting.stacks) && begun.elapsed() < STACK_FLIGHT {
                waiting.stacks.extend(more(cpu));
                std::hint::spin_loop();
            }
        }
        take_cpu(waiting, apart, until, &mut all);
    }
    // Equal times stay in the order of their CPU.
    all.sort_by_key(|joined| joined.record.time_ns);
    all
}

fn is_apart(record: &Timed, apart: &HashSet<u16>) -> bool {
    tracepoint_of(&record.bytes).is_some_and(|id| apart.contains(&id))
}

fn take_cpu(waiting: &mut Waiting, apart: &HashSet<u16>, until: u64, all: &mut Vec<Joined>) {
    let Waiting { calls, stacks } = waiting;
    let mut previous = 0;
    while calls.front().is_some_and(|record| record.time_ns <= until) {
        let Some(record) = calls.pop_front() else { return };
        if !is_apart(&record, apart) {
            all.push(Joined { record, stack: None });
            continue;
        }
        // A stack lies between the calls before and after its own: older ones have lost theirs.
        while stacks.front().is_some_and(|stack| stack.time_ns < previous) {
            stacks.pop_front();
        }
        previous = record.time_ns;
        // Of a thread with deep stacks there are two.
        let own = |stack: &Timed| is_same_call(&record.bytes, &stack.bytes);
        let last = stacks.iter().take(NEAR).rposition(own);
        let stack = last.and_then(|last| {
            let found = stacks.drain(..=last).filter(own);
            found.max_by_key(|stack| stack.bytes.len()).map(|stack| stack.bytes)
        });
        all.push(Joined { record, stack });
    }
}
