//! The rings of all CPUs, emptied into memory: by a thread of its own whenever one fills up, and by the
//! reader whenever it needs what happened until now.
//!
//! Two rings a CPU: `calls` has a small record of everything; `stacks` has the stacks of the frequent
//! calls. Both records of a call are written one after the other, by the same CPU without a pause.

use super::ring::Ring;
use super::sample::{time_of, without_padding};
use std::collections::VecDeque;

/// A record and its time.
pub struct Timed {
    pub time_ns: u64,
    pub bytes: Box<[u8]>,
}

pub struct CpuRings {
    pub calls: Ring,
    pub stacks: Ring,
    /// A call may have found no space where fewer bytes than these were left.
    pub margin: u64,
}

impl CpuRings {
    /// Whether a call may have found no space where `used` bytes were in their ring at most.
    fn may_have_refused(&self, used: u64) -> bool {
        used.saturating_add(self.margin) >= self.calls.size()
    }
}

/// What was read of one CPU's rings and not yet put together: it is the reader's once it was taken.
#[derive(Default)]
pub struct Waiting {
    pub calls: VecDeque<Timed>,
    pub stacks: VecDeque<Timed>,
}

pub struct Rings {
    cpus: Vec<CpuRings>,
    waiting: Vec<Waiting>,
    /// Of each CPU: a call may have found no space since the last check.
    crowded: Vec<bool>,
    /// Bytes in `waiting`.
    held: usize,
}

/// Memory is the user's, too: where more waits than this, stacks are left out …
const WITH_STACKS: usize = 192 << 20;
/// … and where more waits than this, calls are left in their rings, which count those that they lose.
const MAX_HELD: usize = 256 << 20;

/// What is kept of the rings where so many bytes wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Keep {
    All,
    Calls,
    Nothing,
}

fn keep(held: usize) -> Keep {
    match held {
        MAX_HELD.. => Keep::Nothing,
        WITH_STACKS.. => Keep::Calls,
        _ => Keep::All,
    }
}

impl Rings {
    pub fn new(cpus: Vec<CpuRings>) -> Rings {
        let waiting = cpus.iter().map(|_| Waiting::default()).collect();
        let crowded = vec![false; cpus.len()];
        Rings { cpus, waiting, crowded, held: 0 }
    }

    /// Takes everything out of the rings.
    pub fn drain(&mut self) {
        for ((cpu, waiting), crowded) in self.cpus.iter_mut().zip(&mut self.waiting).zip(&mut self.crowded) {
            if keep(self.held) == Keep::Nothing {
                return;
            }
            let until = cpu.calls.head();
            let (kept, used) = drain(&mut cpu.calls, until, &mut waiting.calls);
            *crowded |= cpu.may_have_refused(used);
            self.held += kept;
            let until = cpu.stacks.head();
            if keep(self.held) == Keep::All {
                self.held += drain(&mut cpu.stacks, until, &mut waiting.stacks).0;
            } else {
                cpu.stacks.read(until, |_| {});
            }
        }
    }

    /// The CPUs (by number of their rings) on which calls may have found no space since the last call.
    pub fn take_crowded(&mut self) -> Vec<usize> {
        let crowded = self.crowded.iter_mut().map(std::mem::take).enumerate();
        crowded.filter_map(|(cpu, crowded)| crowded.then_some(cpu)).collect()
    }

    /// All that waits, CPU by CPU.
    pub fn take(&mut self) -> Vec<Waiting> {
        self.held = 0;
        self.waiting.iter_mut().map(std::mem::take).collect()
    }

    /// The stacks of a CPU that have come since.
    pub fn take_stacks(&mut self, cpu: usize) -> VecDeque<Timed> {
        let (Some(rings), Some(waiting)) = (self.cpus.get_mut(cpu), self.waiting.get_mut(cpu)) else {
            return VecDeque::new();
        };
        let until = rings.stacks.head();
        drain(&mut rings.stacks, until, &mut waiting.stacks);
        let stacks = std::mem::take(&mut waiting.stacks);
        let bytes: usize = stacks.iter().map(|stack| stack.bytes.len()).sum();
        self.held = self.held.saturating_sub(bytes);
        stacks
    }
}

/// Bytes that were kept, and those that were in the ring at most.
fn drain(ring: &mut Ring, until: u64, into: &mut VecDeque<Timed>) -> (usize, u64) {
    let mut bytes = 0;
    let used = ring.read(until, |record| {
        let bytes_kept: Box<[u8]> = without_padding(record).into();
        bytes += bytes_kept.len();
        into.push_back(Timed { time_ns: time_of(record).unwrap_or(0), bytes: bytes_kept });
    });
    (bytes, used)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_left_out_before_any_call_is() {
        assert_eq!(keep(0), Keep::All);
        assert_eq!(keep(WITH_STACKS - 1), Keep::All);
        assert_eq!(keep(WITH_STACKS), Keep::Calls);
        assert_eq!(keep(MAX_HELD - 1), Keep::Calls);
        assert_eq!(keep(MAX_HELD), Keep::Nothing);
    }
}
