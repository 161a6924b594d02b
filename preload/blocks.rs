//! Each block's stack, size and time, in a word that lies at its address' place. Only who has the block
//! writes it: no lock, no atomic operation, nothing to be sent.

use super::area::*;
use super::math;
use super::real;
use super::setup::{self, Area};
use super::thread::Thread;
use super::walk::{Registers, stack_of};
use core::hint::spin_loop;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

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
fn changed(area: Area, thread: &Thread, bytes: i64) {
    let shard = unsafe { &*thread.shard };
    if thread.is_shared != 0 {
        tell(bytes, bytes.max(0), setup::doorbell().tick.load(Relaxed));
        return;
    }
    let peaks = &area.head().peaks;
    let delta = shard.delta.load(Relaxed) + bytes;
    shard.delta.store(delta, Relaxed);
    if delta > shard.high.load(Relaxed) {
        let tick = setup::doorbell().tick.load(Relaxed);
        shard.high.store(delta, Relaxed);
        shard.high_tick.store(tick, Relaxed);
        if peaks.threads.load(Relaxed) <= 1 {
            let total = &area.head().total;
            let now = total.outstanding.load(Relaxed) + delta;
            if now > total.peak.load(Relaxed) {
                total.peak.store(now, Relaxed);
                total.peak_tick.store(tick, Relaxed);
                peaks.number.store(peaks.number.load(Relaxed).wrapping_add(1), Relaxed);
            }
        }
    }
    let untold = match peaks.threads.load(Relaxed) {
        0 | 1 => MOST_UNTOLD,
        _ => peaks.untold.load(Relaxed),
    };
    if delta > untold || delta < -untold {
        tell_all(shard);
    }
}

/// What a thread has not told yet.
#[inline(never)]
pub fn tell_all(shard: &Shard) {
    let delta = shard.delta.swap(0, Relaxed);
    tell(delta, shard.high.load(Relaxed), shard.high_tick.load(Relaxed));
    shard.high.store(0, Relaxed);
}

#[inline(never)]
fn tell(delta: i64, high: i64, tick: u32) {
    let head = setup::area().head();
    let total = &head.total;
    let peak = total.outstanding.fetch_add(delta, Relaxed) + high;
    let mut known = total.peak.load(Relaxed);
    while peak > known {
        match total.peak.compare_exchange_weak(known, peak, Relaxed, Relaxed) {
            Ok(_) => {
                total.peak_tick.store(tick, Relaxed);
                head.peaks.number.fetch_add(1, Relaxed);
            }
            Err(other) => {
                known = other;
                continue;
            }
        }
        break;
    }
    let untold = (peak.max(known) >> 8).clamp(LEAST_UNTOLD, MOST_UNTOLD);
    if untold != head.peaks.untold.load(Relaxed) {
        head.peaks.untold.store(untold, Relaxed);
    }
}

/// Before a count changes: what it is now is what it was at the newest peak, unless it changed since.
#[inline(always)]
fn keep_peak(area: Area, count: &Count) {
    let newest = area.head().peaks.number.load(Relaxed);
    if count.peak.load(Relaxed) != newest {
        let less = |all: &AtomicU64, freed: &AtomicU64| all.load(Relaxed).wrapping_sub(freed.load(Relaxed));
        count.peak_bytes.store(less(&count.bytes, &count.freed_bytes), Relaxed);
        count.peak_blocks.store(less(&count.allocations, &count.frees), Relaxed);
        count.peak.store(newest, Relaxed);
    }
}

#[inline(always)]
fn count_free(area: Area, thread: &Thread, stack: u32, (blocks, bytes): (u64, u64)) {
    let count = unsafe { &*thread.counts.add(stack as usize) };
    keep_peak(area, count);
    thread.add(&count.frees, blocks);
    thread.add(&count.freed_bytes, bytes);
    changed(area, thread, -(bytes as i64));
}

#[inline(always)]
fn count_allocation(area: Area, thread: &Thread, stack: u32, (blocks, bytes): (u64, u64)) {
    let count = unsafe { &*thread.counts.add(stack as usize) };
    keep_peak(area, count);
    thread.add(&count.allocations, blocks);
    thread.add(&count.bytes, bytes);
    changed(area, thread, bytes as i64);
}

/// How often a size is asked for at the allocator: some give more than a step where the rest would be too small.
const ASKED_FOR: u32 = 4;

/// What the allocator gives for a size of [`SMALL`] and less is learnt; of larger blocks it is kept.
#[inline(always)]
fn learn_given(area: Area, address: u64, size: u64) {
    if size > SMALL {
        if let Some(place) = place_of(area, address + 32, true) {
            place.store(real::given(address), Relaxed);
        }
        return;
    }
    let known = area.given(given_at(size));
    let (least, times) = given(known.load(Relaxed));
    if times < ASKED_FOR {
        learn_small(known, (least, times), address);
    }
}

#[cold]
#[inline(never)]
fn learn_small(known: &AtomicU32, (least, times): (u64, u32), address: u64) {
    let now = real::given(address).min(0xff_ffff);
    // An allocator that has hardly begun may not know.
    if now == 0 {
        return;
    }
    let least = if times == 0 { now } else { least.min(now) };
    known.store((times + 1) << 24 | least as u32, Relaxed);
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
    if former >> 44 != 0 {
        area.head().doubts.lost_frees.fetch_add(1, Relaxed);
        let size = size_at(area, address, former);
        count_free(area, thread, block_stack(former), (1, size));
    }
    learn_given(area, address, size);
    if size >= LARGE
        && let Some(next) = place_of(area, address + 16, true)
    {
        next.store(size, Relaxed);
    }
    place.store(block(stack, setup::doorbell().tick.load(Relaxed), size), Release);
    thread.newest = address;
    count_allocation(area, thread, stack, (1, size));
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
pub fn freed(thread: &mut Thread, address: u64) -> Option<Former> {
    let area = setup::area();
    let word = place_of(area, address, false).map_or(0, |place| {
        let word = place.load(Relaxed);
        place.store(0, Relaxed);
        word
    });
    if word >> 44 == 0 {
        area.head().doubts.unseen_frees.fetch_add(1, Relaxed);
        return None;
    }
    let size = size_at(area, address, word);
    if size > SMALL
        && let Some(place) = place_of(area, address + 32, false)
    {
        place.store(0, Relaxed);
    }
    let stack = block_stack(word);
    if thread.newest == address {
        thread.newest = 0;
        thread.add(unsafe { &(*thread.counts.add(stack as usize)).temporary }, 1);
    }
    count_free(area, thread, stack, (1, size));
    Some(Former { word, size })
}

/// A resize failed.
#[cold]
pub fn put_back(thread: &Thread, address: u64, Former { word, size }: Former) {
    let area = setup::area();
    let count = unsafe { &*thread.counts.add(block_stack(word) as usize) };
    thread.add(&count.frees, 1u64.wrapping_neg());
    thread.add(&count.freed_bytes, size.wrapping_neg());
    changed(area, thread, size as i64);
    if size > SMALL
        && let Some(place) = place_of(area, address + 32, true)
    {
        place.store(real::given(address), Relaxed);
    }
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
                sample.given.store(real::given(address), Relaxed);
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
                to.given.store(from.given.load(Relaxed), Relaxed);
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
        count_free(setup::area(), thread, stack, weight(size));
    }
    match has_room {
        true => count_allocation(setup::area(), thread, stack, weight(size)),
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
    count_free(setup::area(), thread, stack, weight(size));
}
