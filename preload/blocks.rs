//! Each block's stack, size and time, in a word that lies at its address' place. Only who has the block
//! writes it: no lock, no atomic operation, nothing to be sent.

use super::area::*;
use super::math;
use super::setup::{self, Area};
use super::thread::Thread;
use super::walk::{Registers, stack_of};
use core::hint::spin_loop;
use core::sync::atomic::{AtomicU64, Ordering::*};

#[inline(always)]
fn place_of(area: Area, address: u64, make: bool) -> Option<&'static AtomicU64> {
    if address >> ADDRESS_BITS != 0 {
        return None;
    }
    let (window, word) = place(address);
    let leaf = match area.window(window).load(Acquire) {
        0 if make => add_leaf(area, window)?,
        0 => return None,
        leaf => leaf,
    };
    Some(area.leaf_word(leaf as usize - 1, word))
}

#[cold]
#[inline(never)]
fn add_leaf(area: Area, window: usize) -> Option<u32> {
    let head = area.head();
    while head.leaf_lock.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
        spin_loop();
    }
    let known = area.window(window).load(Acquire);
    let next = head.next_leaf.load(Relaxed);
    let leaf = if known != 0 {
        known
    } else if (next as usize) < LEAVES {
        head.windows[next as usize].store(window as u32, Relaxed);
        head.next_leaf.store(next + 1, Release);
        area.window(window).store(next + 1, Release);
        next + 1
    } else {
        0
    };
    head.leaf_lock.store(0, Release);
    (leaf != 0).then_some(leaf)
}

/// `bytes` more are outstanding, or less.
#[inline(always)]
fn changed(thread: &Thread, bytes: i64) {
    // More than this is told to the others: the peak of several threads is known to as much for each.
    const TOLD: i64 = 64 << 10;
    let shard = unsafe { &*thread.shard };
    if thread.is_shared != 0 {
        tell(bytes, bytes.max(0), setup::doorbell().tick.load(Relaxed));
        return;
    }
    let delta = shard.delta.load(Relaxed) + bytes;
    shard.delta.store(delta, Relaxed);
    if delta > shard.high.load(Relaxed) {
        shard.high.store(delta, Relaxed);
        shard.high_tick.store(setup::doorbell().tick.load(Relaxed), Relaxed);
    }
    if !(-TOLD..=TOLD).contains(&delta) {
        shard.delta.store(0, Relaxed);
        tell(delta, shard.high.load(Relaxed), shard.high_tick.load(Relaxed));
        shard.high.store(0, Relaxed);
    }
}

#[inline(never)]
fn tell(delta: i64, high: i64, tick: u32) {
    let total = &setup::area().head().total;
    let peak = total.outstanding.fetch_add(delta, Relaxed) + high;
    let mut known = total.peak.load(Relaxed);
    while peak > known {
        match total.peak.compare_exchange_weak(known, peak, Relaxed, Relaxed) {
            Ok(_) => total.peak_tick.store(tick, Relaxed),
            Err(other) => {
                known = other;
                continue;
            }
        }
        break;
    }
}

#[inline(always)]
fn count_free(thread: &Thread, stack: u32, (blocks, bytes): (u64, u64)) {
    let count = unsafe { &*thread.counts.add(stack as usize) };
    thread.add(&count.frees, blocks);
    thread.add(&count.freed_bytes, bytes);
    changed(thread, -(bytes as i64));
}

#[inline(always)]
fn count_allocation(thread: &Thread, stack: u32, (blocks, bytes): (u64, u64)) {
    let count = unsafe { &*thread.counts.add(stack as usize) };
    thread.add(&count.allocations, blocks);
    thread.add(&count.bytes, bytes);
    changed(thread, bytes as i64);
}

/// A block that nobody else knows of yet.
#[inline(always)]
pub fn allocated(thread: &mut Thread, address: u64, size: u64, registers: &Registers, function: u8) {
    let area = setup::area();
    let stack = stack_of(thread, registers, function);
    let Some(place) = place_of(area, address, true) else {
        area.head().doubts.uncounted.fetch_add(1, Relaxed);
        return;
    };
    let former = place.load(Relaxed);
    if former != 0 {
        area.head().doubts.lost_frees.fetch_add(1, Relaxed);
        let size = size_at(area, address, former);
        count_free(thread, block_stack(former), (1, size));
    }
    if size >= LARGE
        && let Some(next) = place_of(area, address + 16, true)
    {
        next.store(size, Relaxed);
    }
    place.store(block(stack, setup::doorbell().tick.load(Relaxed), size), Release);
    count_allocation(thread, stack, (1, size));
}

#[cold]
fn large(area: Area, address: u64) -> u64 {
    place_of(area, address + 16, false).map_or(LARGE, |next| next.swap(0, Relaxed))
}

#[inline(always)]
fn size_at(area: Area, address: u64, word: u64) -> u64 {
    match block_size(word) {
        LARGE => large(area, address),
        size => size,
    }
}

/// What a block was, for one that is not freed after all.
#[derive(Clone, Copy)]
pub struct Former {
    word: u64,
    size: u64,
}

/// Before the allocator has it back: another thread may get the address then.
#[inline(always)]
pub fn freed(thread: &Thread, address: u64) -> Option<Former> {
    let area = setup::area();
    let word = place_of(area, address, false).map_or(0, |place| {
        let word = place.load(Relaxed);
        place.store(0, Relaxed);
        word
    });
    if word == 0 {
        area.head().doubts.unseen_frees.fetch_add(1, Relaxed);
        return None;
    }
    let size = size_at(area, address, word);
    count_free(thread, block_stack(word), (1, size));
    Some(Former { word, size })
}

/// A resize failed.
#[cold]
pub fn put_back(thread: &Thread, address: u64, Former { word, size }: Former) {
    let area = setup::area();
    let count = unsafe { &*thread.counts.add(block_stack(word) as usize) };
    thread.add(&count.frees, 1u64.wrapping_neg());
    thread.add(&count.freed_bytes, size.wrapping_neg());
    changed(thread, size as i64);
    if size >= LARGE
        && let Some(next) = place_of(area, address + 16, true)
    {
        next.store(size, Relaxed);
    }
    if let Some(place) = place_of(area, address, true) {
        place.store(word, Release);
    }
}

/// Nothing was handed out.
#[cold]
pub fn refused(size: u64) {
    let doubts = &setup::area().head().doubts;
    doubts.refused.fetch_add(1, Relaxed);
    doubts.refused_bytes.fetch_add(size, Relaxed);
}

/// Bytes until the next mark: exponentially distributed.
pub fn draw(thread: &mut Thread) -> i64 {
    let mean = setup::area().head().mean.load(Relaxed) as f64;
    let uniform = ((thread.random() >> 11) + 1) as f64 / (1u64 << 53) as f64;
    (-math::ln(uniform) * mean) as i64 + 1
}

/// What a sampled block stands for: as many blocks, in 1024ths, and bytes.
fn weight(size: u64) -> (u64, u64) {
    let mean = setup::area().head().mean.load(Relaxed) as f64;
    let probability = math::one_less_exp(size.max(1) as f64 / mean);
    let rounded = |number: f64| (number + 0.5) as u64;
    (rounded(1024.0 / probability), rounded(size as f64 / probability))
}

/// The sampled blocks, while nobody else looks for one.
struct Samples {
    area: Area,
}

impl Samples {
    fn lock() -> Samples {
        let area = setup::area();
        while area.head().sample_lock.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            spin_loop();
        }
        Samples { area }
    }

    fn home(address: u64) -> usize {
        spread(address, SAMPLES.trailing_zeros()) & (SAMPLES - 1)
    }

    fn address(&self, slot: usize) -> u64 {
        self.area.sample(slot).address.load(Relaxed)
    }

    fn insert(&self, address: u64, size: u64, stack: u32) -> bool {
        let mut slot = Samples::home(address);
        for _ in 0..SAMPLES / 2 {
            if self.address(slot) == 0 {
                let sample = self.area.sample(slot);
                sample.size.store(size, Relaxed);
                sample.stack.store(stack, Relaxed);
                sample.tick.store(setup::doorbell().tick.load(Relaxed), Relaxed);
                sample.address.store(address, Release);
                return true;
            }
            slot = (slot + 1) & (SAMPLES - 1);
        }
        false
    }

    fn remove(&self, address: u64) -> Option<(u32, u64)> {
        let mut slot = Samples::home(address);
        loop {
            match self.address(slot) {
                0 => return None,
                found if found == address => break,
                _ => slot = (slot + 1) & (SAMPLES - 1),
            }
        }
        let sample = self.area.sample(slot);
        let known = (sample.stack.load(Relaxed), sample.size.load(Relaxed));
        // What follows moves up, where it may: nobody looks behind an empty slot.
        let mut hole = slot;
        loop {
            slot = (slot + 1) & (SAMPLES - 1);
            let next = self.address(slot);
            if next == 0 {
                break;
            }
            let from_home = slot.wrapping_sub(Samples::home(next)) & (SAMPLES - 1);
            if from_home >= (slot.wrapping_sub(hole) & (SAMPLES - 1)) {
                let (to, from) = (self.area.sample(hole), self.area.sample(slot));
                to.size.store(from.size.load(Relaxed), Relaxed);
                to.stack.store(from.stack.load(Relaxed), Relaxed);
                to.tick.store(from.tick.load(Relaxed), Relaxed);
                to.address.store(next, Release);
                hole = slot;
            }
        }
        self.area.sample(hole).address.store(0, Release);
        Some(known)
    }
}

impl Drop for Samples {
    fn drop(&mut self) {
        self.area.head().sample_lock.store(0, Release);
    }
}

#[cold]
#[inline(never)]
pub fn sampled(thread: &mut Thread, address: u64, size: u64, registers: &Registers, function: u8) {
    let stack = stack_of(thread, registers, function);
    let samples = Samples::lock();
    // Left there by a free that nobody saw.
    let former = samples.remove(address);
    let has_room = samples.insert(address, size, stack);
    if has_room && former.is_none() {
        setup::heed(address, true);
    }
    drop(samples);
    if let Some((stack, size)) = former {
        setup::area().head().doubts.lost_frees.fetch_add(1, Relaxed);
        count_free(thread, stack, weight(size));
    }
    match has_room {
        true => count_allocation(thread, stack, weight(size)),
        false => drop(setup::area().head().doubts.uncounted.fetch_add(1, Relaxed)),
    }
}

/// What may be one of the sampled blocks is freed.
#[cold]
#[inline(never)]
pub fn sample_freed(thread: &Thread, address: u64) {
    let samples = Samples::lock();
    let Some((stack, size)) = samples.remove(address) else { return };
    setup::heed(address, false);
    drop(samples);
    count_free(thread, stack, weight(size));
}
