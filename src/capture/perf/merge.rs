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

/// How many stacks are searched for a call's own.
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
        let next = calls.front().map(|next| next.time_ns);
        let stack = take_stack(&record, next, stacks);
        all.push(Joined { record, stack });
    }
}

/// The call's stack. Of a thread with deep stacks there are two: the longer one. Until the `next` record on
/// this CPU each that matches the call is its own; what comes later may be that of an equal call.
fn take_stack(call: &Timed, next: Option<u64>, stacks: &mut VecDeque<Timed>) -> Option<Box<[u8]>> {
    let own = |stack: &Timed| is_same_call(&call.bytes, &stack.bytes);
    let first = stacks.iter().take(NEAR).position(own)?;
    let more = stacks.iter().skip(first + 1).take(NEAR);
    let more = more.take_while(|stack| own(stack) && next.is_some_and(|next| stack.time_ns < next)).count();
    let found = stacks.drain(..=first + more).skip(first);
    found.max_by_key(|stack| stack.bytes.len()).map(|stack| stack.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::perf::abi::PERF_RECORD_SAMPLE;

    /// A sample of a call with these raw fields, and so many bytes of stack.
    fn sample(time_ns: u64, raw: u8, stack: usize) -> Timed {
        let mut bytes = PERF_RECORD_SAMPLE.to_ne_bytes().to_vec();
        bytes.extend([0; 12]);
        bytes.extend(time_ns.to_ne_bytes());
        bytes.extend(vec![raw; 400 + stack]);
        Timed { time_ns, bytes: bytes.into() }
    }

    #[test]
    fn the_longer_one_of_two_stacks_is_taken_and_that_of_the_next_equal_call_is_not() {
        let lengths = |stacks: &VecDeque<Timed>| -> Vec<usize> {
            stacks.iter().map(|stack| stack.bytes.len() - 424).collect()
        };
        let call = sample(10, 1, 0);
        let all =
            || VecDeque::from([sample(11, 1, 16), sample(12, 1, 64), sample(21, 1, 16), sample(22, 1, 64)]);
        let mut stacks = all();
        let taken = take_stack(&call, Some(20), &mut stacks).expect("a stack");
        assert_eq!((taken.len() - 424, lengths(&stacks)), (64, vec![16, 64]));
        // It is not known where the next call begins: one is enough.
        let mut stacks = all();
        assert_eq!(take_stack(&call, None, &mut stacks).map(|stack| stack.len() - 424), Some(16));
        assert_eq!(lengths(&stacks), [64, 16, 64]);
        // Those of others before it are passed over, and gone.
        let mut stacks = VecDeque::from([sample(9, 2, 8), sample(11, 1, 16)]);
        assert_eq!(take_stack(&call, Some(20), &mut stacks).map(|stack| stack.len() - 424), Some(16));
        assert!(stacks.is_empty());
    }
}
