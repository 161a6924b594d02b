//! What was counted of each stack.

use super::Area;
use super::layout::*;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// What was counted of one stack, by all threads. With samples, estimates: blocks in units of 1 / 1024.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counted {
    pub allocations: u64,
    pub bytes: u64,
    pub frees: u64,
    pub freed_bytes: u64,
    /// Freed before their thread allocated again.
    pub temporary: u64,
    /// Outstanding when all together had the most.
    pub peak_bytes: u64,
    pub peak_blocks: u64,
}

impl Area {
    /// By the stack's number.
    ///
    /// # Errors
    /// When the file cannot be searched for what was written, or mapped.
    pub fn counted(&self) -> io::Result<Vec<Counted>> {
        let mut out = vec![Counted::default(); self.last_stack()? as usize + 1];
        let newest = self.head().peaks.number.load(Relaxed);
        let chunks = (self.head().next_chunk.load(Acquire) as usize).min(CHUNKS);
        let (owners, counts) =
            (self.view(OWNER_PART, chunks * 4)?, self.view(COUNT_PART, chunks * CHUNK_BYTES)?);
        let mut all = Counted::default();
        for chunk in 0..chunks {
            let owner = owners.get::<AtomicU32>(chunk).map_or(0, |owner| owner.load(Relaxed));
            let Some((_, stacks)) = owned_by(owner) else { continue };
            let begin = PARTS[COUNT_PART].at + chunk * CHUNK_BYTES;
            for written in self.written(begin..begin + CHUNK_BYTES)? {
                let of = |at: usize| (at - begin) / size_of::<Count>();
                for row in of(written.start)..of(written.end) {
                    let to = out.get_mut(stacks * CHUNK_STACKS + row);
                    let (Some(from), Some(to)) = (counts.get::<Count>(chunk * CHUNK_STACKS + row), to) else {
                        break;
                    };
                    let row = Counted::read(from, newest);
                    match all.plus(&row) {
                        Some(sum) => {
                            all = sum;
                            *to = to.plus(&row).unwrap_or_default();
                        }
                        None => self.is_claim(),
                    }
                }
            }
        }
        Ok(out.into_iter().map(Counted::at_least_nothing).collect())
    }
}

impl Counted {
    /// A shard's counts of a stack; those that are about another peak than the newest are as they are now.
    fn read(count: &Count, newest: u32) -> Counted {
        let read = |from: &AtomicU64| from.load(Relaxed);
        let now = Counted {
            allocations: read(&count.allocations),
            bytes: read(&count.bytes),
            frees: read(&count.frees),
            freed_bytes: read(&count.freed_bytes),
            temporary: read(&count.temporary),
            ..Counted::default()
        };
        match count.peak.load(Relaxed) == newest {
            true => {
                Counted { peak_bytes: read(&count.peak_bytes), peak_blocks: read(&count.peak_blocks), ..now }
            }
            false => Counted {
                peak_blocks: now.allocations.wrapping_sub(now.frees),
                peak_bytes: now.bytes.wrapping_sub(now.freed_bytes),
                ..now
            },
        }
    }

    /// None where that is more than any program comes to. At the peak and of frees, a thread's own part may be negative: others
    /// have freed what it allocated.
    fn plus(&self, other: &Counted) -> Option<Counted> {
        const MOST_BYTES: u64 = 1 << 60;
        const MOST_BLOCKS: u64 = 1 << 52;
        let sum = |a: u64, b: u64, most: u64| {
            let is_possible = |value: u64| value < most || value > most.wrapping_neg();
            Some(a.wrapping_add(b)).filter(|&sum| is_possible(b) && is_possible(sum))
        };
        let bytes = |a, b| sum(a, b, MOST_BYTES);
        let blocks = |a, b| sum(a, b, MOST_BLOCKS);
        Some(Counted {
            allocations: blocks(self.allocations, other.allocations)?,
            bytes: bytes(self.bytes, other.bytes)?,
            frees: blocks(self.frees, other.frees)?,
            freed_bytes: bytes(self.freed_bytes, other.freed_bytes)?,
            temporary: blocks(self.temporary, other.temporary)?,
            peak_bytes: bytes(self.peak_bytes, other.peak_bytes)?,
            peak_blocks: blocks(self.peak_blocks, other.peak_blocks)?,
        })
    }

    /// What is less than nothing was written while it was read, or is not true.
    fn at_least_nothing(self) -> Counted {
        let at_least = |value: u64| if value > u64::MAX / 2 { 0 } else { value };
        Counted {
            allocations: at_least(self.allocations),
            bytes: at_least(self.bytes),
            frees: at_least(self.frees),
            freed_bytes: at_least(self.freed_bytes),
            temporary: at_least(self.temporary),
            peak_bytes: at_least(self.peak_bytes),
            peak_blocks: at_least(self.peak_blocks),
        }
    }
}
