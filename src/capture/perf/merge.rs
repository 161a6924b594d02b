//! From the rings of all CPUs to one order: calls are joined with their stacks, CPU by CPU, and the
//! whole is sorted by time.

use super::rings::{Rings, Timed, Waiting};
use super::sample::{is_same_call, tracepoint_of};
use std::collections::{HashSet, VecDeque};

/// A record, with the sample that has its stack.
pub struct Joined {
    pub record: Timed,
    pub stack: Option<Box<[u8]>>,
}

/// How many stacks are looked through for a call's own.
const NEAR: usize = 8;

/// Takes what happened up to `until` out of the rings, oldest first. `apart` are the tracepoints whose
/// stacks come apart.
pub fn take(rings: &mut Rings, apart: &HashSet<u16>, until: u64) -> Vec<Joined> {
    let mut all = Vec::new();
    for cpu in 0..rings.waiting.len() {
        let newest = rings.waiting[cpu].calls.back();
        if let Some(newest) = newest.filter(|newest| newest.time_ns <= until && is_apart(newest, apart)) {
            // Its stack may have been written after that ring was read.
            let newest = newest.bytes.clone();
            let tail = |stacks: &VecDeque<Timed>| {
                stacks.iter().rev().take(NEAR).any(|stack| is_same_call(&newest, &stack.bytes))
            };
            rings.drain_stacks_until(cpu, tail);
        }
        take_cpu(&mut rings.waiting[cpu], apart, until, &mut all);
    }
    rings.taken();
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
        let found = stacks.iter().take(NEAR).position(|stack| is_same_call(&record.bytes, &stack.bytes));
        let stack = found.and_then(|at| stacks.drain(..=at).next_back()).map(|stack| stack.bytes);
        all.push(Joined { record, stack });
    }
}
