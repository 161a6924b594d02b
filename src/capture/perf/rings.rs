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
        Rings { cpus, waiting, held: 0 }
    }

    /// Takes everything out of the rings.
    pub fn drain(&mut self) {
        if self.held > MAX_HELD {
            return;
        }
        for (cpu, waiting) in self.cpus.iter_mut().zip(&mut self.waiting) {
            let until = cpu.calls.head();
            self.held += drain(&mut cpu.calls, until, &mut waiting.calls);
            let until = cpu.stacks.head();
            self.held += drain(&mut cpu.stacks, until, &mut waiting.stacks);
        }
    }

    /// Waits for the newest stack of a CPU, if that is on its way.
    pub fn drain_stacks_until(&mut self, cpu: usize, there: impl Fn(&VecDeque<Timed>) -> bool) {
        let begun = Instant::now();
        let (Some(rings), Some(waiting)) = (self.cpus.get_mut(cpu), self.waiting.get_mut(cpu)) else {
            return;
        };
        while !there(&waiting.stacks) && begun.elapsed() < STACK_FLIGHT {
            let until = rings.stacks.head();
            self.held += drain(&mut rings.stacks, until, &mut waiting.stacks);
            std::hint::spin_loop();
        }
    }

    /// All that waits was taken.
    pub fn taken(&mut self) {
        let of = |queue: &VecDeque<Timed>| queue.iter().map(|timed| timed.bytes.len()).sum::<usize>();
        self.held = self.waiting.iter().map(|cpu| of(&cpu.calls) + of(&cpu.stacks)).sum();
    }
}

fn drain(ring: &mut Ring, until: u64, into: &mut VecDeque<Timed>) -> usize {
    let mut bytes = 0;
    ring.read(until, |record| {
        let bytes_kept: Box<[u8]> = without_padding(record).into();
        bytes += bytes_kept.len();
        into.push_back(Timed { time_ns: time_of(record).unwrap_or(0), bytes: bytes_kept });
    });
    bytes
}
