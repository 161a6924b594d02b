//! Sampled blocks, and of those that are counted each by itself the huge ones, in a hash table that grows with them.

use super::area::*;
use super::blocks::{count_allocation, count_free};
use super::math;
use super::memory::{self, Area, reach};
use super::pages::STACKS;
use super::real;
use super::setup;
use super::sys;
use super::thread::Thread;
use super::walk::{Registers, stack_of};
use core::sync::atomic::{AtomicU32, Ordering::*};

/// Taken while the table is used.
static LOCK: AtomicU32 = AtomicU32::new(0);
/// The table that is in use; 0: none so far. And how many are in it.
static BITS: AtomicU32 = AtomicU32::new(0);
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Each area begins without a table.
pub fn begin() {
    for word in [&LOCK, &BITS, &COUNT] {
        word.store(0, Relaxed);
    }
}

/// The bytes of the part up to the end of the table with so many bits.
fn bytes(bits: u32) -> usize {
    2 * first_sample(bits) * size_of::<Sample>()
}

/// Bytes until the next mark: exponentially distributed.
pub fn draw(thread: &mut Thread) -> i64 {
    let mean = memory::area().head().mean.load(Relaxed) as f64;
    let uniform = ((thread.random() >> 11) + 1) as f64 / (1u64 << 53) as f64;
    (-math::ln(uniform) * mean) as i64 + 1
}

/// What a sampled block represents: as many blocks, in 1024ths, and bytes.
fn weight(size: u64) -> (u64, u64) {
    let mean = memory::area().head().mean.load(Relaxed) as f64;
    let probability = math::one_less_exp(size.max(1) as f64 / mean);
    let rounded = |number: f64| (number + 0.5) as u64;
    (rounded(1024.0 / probability), rounded(size as f64 / probability))
}

/// The blocks, under a lock. The table is at most three quarters full, until it cannot grow any more.
struct Samples {
    area: Area,
    bits: u32,
}

impl Samples {
    /// None where there is no space for a table.
    fn lock() -> Option<Samples> {
        let area = memory::area();
        sys::lock(&LOCK);
        let mut bits = BITS.load(Relaxed);
        if bits == 0 && reach(SAMPLE_PART, bytes(LEAST_SAMPLE_BITS)) {
            bits = LEAST_SAMPLE_BITS;
            Samples::publish(area, bits);
        }
        let samples = Samples { area, bits };
        if bits == 0 { None } else { Some(samples) }
    }

    fn publish(area: Area, bits: u32) {
        BITS.store(bits, Relaxed);
        area.head().sample_bits.store(bits, Release);
    }

    fn at(&self, slot: usize) -> &'static Sample {
        self.area.sample(first_sample(self.bits) + slot)
    }

    fn next(&self, slot: usize) -> usize {
        (slot + 1) & ((1 << self.bits) - 1)
    }

    fn free_slot(&self, address: u64) -> usize {
        let mut slot = spread(address, self.bits);
        for _ in 0..1u32 << self.bits {
            if self.at(slot).address.load(Relaxed) == 0 {
                break;
            }
            slot = self.next(slot);
        }
        slot
    }

    /// False where there is no space.
    fn insert(&mut self, address: u64, size: u64, stack: u32) -> bool {
        let count = COUNT.load(Relaxed);
        if count >= (1 << self.bits) / 4 * 3 {
            let can_grow = self.bits < MOST_SAMPLE_BITS && reach(SAMPLE_PART, bytes(self.bits + 1));
            match can_grow {
                true => self.grow(),
                false if count >= (1 << self.bits) / 8 * 7 => return false,
                false => {}
            }
        }
        let sample = self.at(self.free_slot(address));
        sample.size.store(size, Relaxed);
        sample.stack.store(stack, Relaxed);
        sample.tick.store(memory::bell().tick.load(Relaxed), Relaxed);
        sample.given.store(real::given(address), Relaxed);
        sample.address.store(address, Release);
        COUNT.store(count + 1, Relaxed);
        true
    }

    /// vmaudit reads again if the table has changed while it was read.
    #[cold]
    fn grow(&mut self) {
        let old = Samples { area: self.area, bits: self.bits };
        self.bits += 1;
        for slot in 0..1 << old.bits {
            let from = old.at(slot);
            let address = from.address.load(Relaxed);
            if address != 0 {
                move_sample(from, self.at(self.free_slot(address)));
            }
        }
        Samples::publish(self.area, self.bits);
        // SAFETY: it is not read any more.
        unsafe { sys::remove((old.at(0) as *const Sample).cast(), size_of::<Sample>() << old.bits) };
        core::mem::forget(old);
    }

    fn remove(&self, address: u64) -> Option<(u32, u64)> {
        let mut slot = spread(address, self.bits);
        // However full somebody else may have made it.
        let mut left = 1u32 << self.bits;
        loop {
            left = left.checked_sub(1)?;
            match self.at(slot).address.load(Relaxed) {
                0 => return None,
                found if found == address => break,
                _ => slot = self.next(slot),
            }
        }
        let sample = self.at(slot);
        let known = (sample.stack.load(Relaxed).min(STACKS as u32 - 1), sample.size.load(Relaxed));
        // What follows moves up, where it may: a search ends at an empty slot.
        let mut hole = slot;
        let mask = (1 << self.bits) - 1;
        for _ in 0..left {
            slot = self.next(slot);
            let next = self.at(slot).address.load(Relaxed);
            if next == 0 {
                break;
            }
            let from_home = slot.wrapping_sub(spread(next, self.bits)) & mask;
            if from_home >= (slot.wrapping_sub(hole) & mask) {
                move_sample(self.at(slot), self.at(hole));
                hole = slot;
            }
        }
        self.at(hole).address.store(0, Release);
        COUNT.store(COUNT.load(Relaxed).saturating_sub(1), Relaxed);
        Some(known)
    }
}

fn move_sample(from: &Sample, to: &Sample) {
    to.size.store(from.size.load(Relaxed), Relaxed);
    to.stack.store(from.stack.load(Relaxed), Relaxed);
    to.tick.store(from.tick.load(Relaxed), Relaxed);
    to.given.store(from.given.load(Relaxed), Relaxed);
    to.address.store(from.address.load(Relaxed), Release);
}

impl Drop for Samples {
    fn drop(&mut self) {
        LOCK.store(0, Release);
    }
}

/// Notes a block: whether there is space for it, and what was left there by a free that was not seen.
pub fn put(address: u64, size: u64, stack: u32) -> (bool, Option<(u32, u64)>) {
    let Some(mut samples) = Samples::lock() else { return (false, None) };
    let former = samples.remove(address);
    (samples.insert(address, size, stack), former)
}

/// A huge block's stack and size, when it goes.
#[cold]
#[inline(never)]
pub fn take(address: u64) -> Option<(u32, u64)> {
    match COUNT.load(Relaxed) {
        0 => None,
        _ => Samples::lock()?.remove(address),
    }
}

#[cold]
#[inline(never)]
pub fn sampled(thread: &mut Thread, address: u64, size: u64, registers: &Registers, function: u8) {
    let stack = stack_of(thread, registers, function);
    let (has_space, former) = put(address, size, stack);
    if has_space && former.is_none() {
        setup::heed(address, true);
    }
    if let Some((stack, size)) = former {
        memory::area().head().doubts.lost_frees.fetch_add(1, Relaxed);
        count_free(memory::area(), thread, stack, weight(size));
    }
    match has_space {
        true => count_allocation(memory::area(), thread, stack, weight(size)),
        false => drop(memory::area().head().doubts.uncounted.fetch_add(1, Relaxed)),
    }
}

/// What may be one of the sampled blocks is freed.
#[cold]
#[inline(never)]
pub fn sample_freed(thread: &Thread, address: u64) {
    let Some(samples) = Samples::lock() else { return };
    let Some((stack, size)) = samples.remove(address) else { return };
    setup::heed(address, false);
    drop(samples);
    count_free(memory::area(), thread, stack, weight(size));
}
