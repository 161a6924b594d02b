//! What is allocated and freed: each block's word ([`shadow`]), and the counts of its stack. Nothing is sent.

use super::area::*;
use super::memory::{self, Area};
use super::pages::*;
use super::real;
use super::samples;
use super::shadow;
use super::thread::Thread;
use super::walk::{Registers, stack_of};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// `bytes` more are outstanding, or less.
#[inline(always)]
fn changed(area: Area, thread: &Thread, bytes: i64) {
    let shard = unsafe { &*thread.shard };
    if thread.is_shared != 0 {
        add_to_total(bytes, bytes.max(0), memory::bell().tick.load(Relaxed));
        return;
    }
    let peaks = &area.head().peaks;
    let delta = shard.delta.load(Relaxed) + bytes;
    shard.delta.store(delta, Relaxed);
    if delta > shard.high.load(Relaxed) {
        let tick = memory::bell().tick.load(Relaxed);
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
    let pending = match peaks.threads.load(Relaxed) {
        0 | 1 => MOST_PENDING,
        _ => peaks.pending.load(Relaxed),
    };
    if delta > pending || delta < -pending {
        flush(shard);
    }
}

/// Adds what a thread has not added to the total yet.
#[inline(never)]
pub fn flush(shard: &Shard) {
    let delta = shard.delta.swap(0, Relaxed);
    add_to_total(delta, shard.high.load(Relaxed), shard.high_tick.load(Relaxed));
    shard.high.store(0, Relaxed);
}

#[inline(never)]
fn add_to_total(delta: i64, high: i64, tick: u32) {
    let head = memory::area().head();
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
    let pending = (peak.max(known) >> 8).clamp(LEAST_PENDING, MOST_PENDING);
    if pending != head.peaks.pending.load(Relaxed) {
        head.peaks.pending.store(pending, Relaxed);
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
pub fn count_free(area: Area, thread: &Thread, stack: u32, freed: (u64, u64)) {
    match thread.count(stack) {
        Some(count) => count_free_of(area, thread, count, freed),
        None => drop(area.head().doubts.uncounted.fetch_add(1, Relaxed)),
    }
}

#[inline(always)]
fn count_free_of(area: Area, thread: &Thread, count: &Count, (blocks, bytes): (u64, u64)) {
    keep_peak(area, count);
    thread.add(&count.frees, blocks);
    thread.add(&count.freed_bytes, bytes);
    changed(area, thread, -(bytes as i64));
}

#[inline(always)]
pub fn count_allocation(area: Area, thread: &Thread, stack: u32, (blocks, bytes): (u64, u64)) {
    let Some(count) = thread.count(stack) else {
        area.head().doubts.uncounted.fetch_add(1, Relaxed);
        return;
    };
    keep_peak(area, count);
    thread.add(&count.allocations, blocks);
    thread.add(&count.bytes, bytes);
    changed(area, thread, bytes as i64);
}

/// How often the usable size of a size is read: some give more than a step where the rest would be too small.
const MOST_READS: u32 = 4;

/// Notes the usable size for a size of less than [`LARGE`].
#[inline(always)]
fn note_given(area: Area, address: u64, size: u64) {
    let known = area.given(given_at(size));
    let (least, times) = given(known.load(Relaxed));
    if times < MOST_READS {
        note_small(known, (least, times), address);
    }
}

/// What a large block's word has no bits for: the usable bytes beyond the size, and the size.
#[cold]
#[inline(never)]
fn put_extra(area: Area, thread: &mut Thread, address: u64, size: u64) {
    if let Some(more) = real::given(address).checked_sub(size) {
        put_extra_word(area, thread, address + GIVEN_EXTRA, more);
    }
    put_extra_word(area, thread, address + SIZE_EXTRA, size_extra(size));
}

fn put_extra_word(area: Area, thread: &mut Thread, address: u64, value: u64) {
    let former = shadow::put(area, thread, address, extra(value, address)).map_or(0, |(former, _)| former);
    if is_block(former) {
        lost_free(area, thread, address, former);
    }
}

/// A block that is in the way was freed by a call that was not seen.
#[cold]
#[inline(never)]
fn lost_free(area: Area, thread: &mut Thread, address: u64, word: u64) {
    area.head().doubts.lost_frees.fetch_add(1, Relaxed);
    let size = size_at(area, thread, address, word);
    count_free(area, thread, block_stack(word), (1, size));
}

/// The size of a large block, when it goes.
#[cold]
#[inline(never)]
fn take_extra(area: Area, thread: &mut Thread, address: u64, word: u64) -> u64 {
    let is_extra = |word| extra_of(word).is_some();
    shadow::take(area, thread, address + GIVEN_EXTRA, None, is_extra);
    let rest = extra_of(shadow::take(area, thread, address + SIZE_EXTRA, None, is_extra));
    large_size(word, rest.unwrap_or(1))
}

#[inline(always)]
fn size_at(area: Area, thread: &mut Thread, address: u64, word: u64) -> u64 {
    match is_large(word) {
        true => take_extra(area, thread, address, word),
        false => block_size(word),
    }
}

#[cold]
#[inline(never)]
fn note_small(known: &AtomicU32, (least, times): (u64, u32), address: u64) {
    let now = real::given(address).min(0xff_ffff);
    // An allocator that has hardly begun may not know.
    if now == 0 {
        return;
    }
    let least = if times == 0 { now } else { least.min(now) };
    known.store((times + 1) << 24 | least as u32, Relaxed);
}

/// A block that no other thread knows yet.
#[inline(always)]
pub fn allocated(thread: &mut Thread, address: u64, size: u64, registers: &Registers, function: u8) {
    let area = memory::area();
    let stack = stack_of(thread, registers, function);
    if size >= HUGE {
        return huge_allocated(thread, address, size, stack);
    }
    let word = block(stack, memory::bell().tick16.load(Relaxed) as u16, size, address);
    let Some((former, index)) = shadow::put(area, thread, address, word) else {
        area.head().doubts.uncounted.fetch_add(1, Relaxed);
        return;
    };
    if is_block(former) {
        lost_free(area, thread, address, former);
    }
    match size >= LARGE {
        true => put_extra(area, thread, address, size),
        false => note_given(area, address, size),
    }
    (thread.newest, thread.newest_index) = (address, index as u32);
    count_allocation(area, thread, stack, (1, size));
}

#[cold]
#[inline(never)]
fn huge_allocated(thread: &mut Thread, address: u64, size: u64, stack: u32) {
    let area = memory::area();
    // One of its page may be left there by a free that was not seen.
    let word = shadow::take(area, thread, address, None, is_block);
    if word != 0 {
        lost_free(area, thread, address, word);
    }
    let (has_space, former) = samples::put(address, size, stack);
    if let Some((stack, size)) = former {
        area.head().doubts.lost_frees.fetch_add(1, Relaxed);
        count_free(area, thread, stack, (1, size));
    }
    if !has_space {
        area.head().doubts.uncounted.fetch_add(1, Relaxed);
        return;
    }
    (thread.newest, thread.newest_index) = (address, u32::MAX);
    count_allocation(area, thread, stack, (1, size));
}

/// What a block was, for one that is not freed after all.
#[derive(Clone, Copy)]
pub struct Former {
    /// 0: it is huge.
    word: u64,
    stack: u32,
    size: u64,
    is_newest: bool,
}

/// Before the allocator has it back: another thread may get the address then.
#[inline(always)]
pub fn freed(thread: &mut Thread, address: u64) -> Option<Former> {
    let area = memory::area();
    let is_newest = thread.newest == address;
    let word = match is_newest {
        true => shadow::take(area, thread, address, Some(thread.newest_index as usize), is_block),
        false => shadow::take(area, thread, address, None, is_block),
    };
    let (stack, size) = match word {
        0 => match samples::take(address) {
            Some(known) => known,
            None => {
                area.head().doubts.unseen_frees.fetch_add(1, Relaxed);
                return None;
            }
        },
        _ => (block_stack(word), size_at(area, thread, address, word)),
    };
    match thread.count(stack) {
        Some(count) => {
            if is_newest {
                thread.newest = 0;
                thread.add(&count.temporary, 1);
            }
            count_free_of(area, thread, count, (1, size));
        }
        None => drop(area.head().doubts.uncounted.fetch_add(1, Relaxed)),
    }
    Some(Former { word, stack, size, is_newest })
}

/// A resize failed.
#[cold]
pub fn put_back(thread: &mut Thread, address: u64, Former { word, stack, size, is_newest }: Former) {
    let area = memory::area();
    if let Some(count) = thread.count(stack) {
        thread.add(&count.frees, 1u64.wrapping_neg());
        thread.add(&count.temporary, (is_newest as u64).wrapping_neg());
        thread.add(&count.freed_bytes, size.wrapping_neg());
    }
    changed(area, thread, size as i64);
    if word == 0 {
        // Its own place is free still.
        samples::put(address, size, stack);
        return;
    }
    shadow::put(area, thread, address, word);
    if is_large(word) {
        put_extra(area, thread, address, size);
    }
}

/// Nothing was handed out.
#[cold]
pub fn refused(size: u64) {
    let doubts = &memory::area().head().doubts;
    doubts.refused.fetch_add(1, Relaxed);
    let _ = doubts.refused_bytes.fetch_update(Relaxed, Relaxed, |sum| Some(sum.saturating_add(size)));
}
