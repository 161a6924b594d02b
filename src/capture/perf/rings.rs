//! The rings of all CPUs, emptied into memory: by a thread of its own whenever one fills up, and by
//! the reader whenever it wants to know what happened until now.
//!
//! Two rings a CPU: `calls` has a small record of everything; `stacks` has the stacks of the frequent
//! calls. Both records of a call are written one after the other, by the same CPU without a pause.

use super::ring::Ring;
use super::sample::{time_of, without_padding};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A record and its time.
pub struct Timed {
    pub time_ns: u64,
    pub bytes: Box<[u8]>,
}

pub struct CpuRings {
    pub calls: Ring,
    pub stacks: Ring,
    /// A call may have found no room where fewer bytes than these were left.
    pub margin: u64,
}

impl CpuRings {
    /// Whether a call may have found no room where `used` bytes were in their ring at most.
    fn may_have_refused(&self, used: u64) -> bool {
        used.saturating_add(self.margin) >= self.calls.size()
    }
}

/// What was read of one CPU's rings and not yet put together.
#[derive(Default)]
pub struct Waiting {
    pub calls: VecDeque<Timed>,
    pub stacks: VecDeque<Timed>,
}

pub struct Rings {
    cpus: Vec<CpuRings>,
    pub waiting: Vec<Waiting>,
    /// Of each CPU: a call may have found no room since that was asked last.
    crowded: Vec<bool>,
    /// Bytes in `waiting`.
    held: usize,
}

/// More than this is left in the rings, and lost when they overflow: memory is the user's, too.
const MAX_HELD: usize = 256 << 20;

/// A stack's record may be on its way for as long as it takes to copy it; the CPU may be a virtual
/// one that does not run.
const STACK_FLIGHT: Duration = Duration::from_millis(2);

impl Rings {
    pub fn new(cpus: Vec<CpuRings>) -> Rings {
        let waiting = cpus.iter().map(|_| Waiting::default()).collect();
        let crowded = vec![false; cpus.len()];
        Rings { cpus, waiting, crowded, held: 0 }
    }

    /// Takes everything out of the rings.
    pub fn drain(&mut self) {
        if self.held > MAX_HELD {
            return;
        }
        for ((cpu, waiting), crowded) in self.cpus.iter_mut().zip(&mut self.waiting).zip(&mut self.crowded) {
            let until = cpu.calls.head();
            let (kept, used) = drain(&mut cpu.calls, until, &mut waiting.calls);
            *crowded |= cpu.may_have_refused(used);
            let until = cpu.stacks.head();
            self.held += kept + drain(&mut cpu.stacks, until, &mut waiting.stacks).0;
        }
    }

    /// The CPUs (by number of their rings) on which calls may have found no room since that was asked last.
    pub fn take_crowded(&mut self) -> Vec<usize> {
        let crowded = self.crowded.iter_mut().map(std::mem::take).enumerate();
        crowded.filter_map(|(cpu, crowded)| crowded.then_some(cpu)).collect()
    }

    /// Waits for the newest stack of a CPU, if that is on its way.
    pub fn drain_stacks_until(&mut self, cpu: usize, there: impl Fn(&VecDeque<Timed>) -> bool) {
        let begun = Instant::now();
        let (Some(rings), Some(waiting)) = (self.cpus.get_mut(cpu), self.waiting.get_mut(cpu)) else {
            return;
        };
        while !there(&waiting.stacks) && begun.elapsed() < STACK_FLIGHT {
            let until = rings.stacks.head();
            self.held += drain(&mut rings.stacks, until, &mut waiting.stacks).0;
            std::hint::spin_loop();
        }
    }

    /// All that waits was taken.
    pub fn taken(&mut self) {
        let of = |queue: &VecDeque<Timed>| queue.iter().map(|timed| timed.bytes.len()).sum::<usize>();
        self.held = self.waiting.iter().map(|cpu| of(&cpu.calls) + of(&cpu.stacks)).sum();
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
