//! What a thread has for itself.

use super::area::{CHUNK_STACKS, Count, MODE_OFF, SHARDS, Shard, spread};
use super::interpreted::{self, Interpreted};
use super::memory::{self, SLOTS, Slot};
use super::pages::STACKS;
use super::{blocks, setup, sys};
use core::arch::{asm, global_asm};
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*, compiler_fence};

/// In thread-local storage that is there from the thread's first instruction on; the assembly below knows
/// that `left` comes first.
#[repr(C)]
pub struct Thread {
    /// Bytes until the next mark; 0: each allocation is examined.
    pub left: i64,
    /// In one of our functions: what the allocator calls in turn is not counted.
    pub inside: u32,
    pub ended: u32,
    /// Which area the rest belongs to ([`setup::generation`]); 0: none.
    pub generation: u32,
    /// It may go on as long as this is [`setup::epoch`]; 0: it has not begun.
    pub epoch: u32,
    /// Its stack's mapping.
    pub stack_start: u64,
    pub stack_end: u64,
    /// Where its chunks of counts are.
    pub chunks: *const AtomicPtr<Count>,
    /// Its own slot, or the one that it shares; null before it has counted.
    pub slot: *const Slot,
    /// The flag of its own slot; null where it has none.
    busy: *const AtomicU32,
    pub shard: *const Shard,
    /// Others count in the same shard.
    pub is_shared: u32,
    /// Where among its page's words that of `newest` was put.
    pub newest_index: u32,
    pub random: u64,
    pub memory: *mut Memory,
    /// What it allocated last, while nothing came after.
    pub newest: u64,
    /// In an interpreter; 0: it has none there.
    pub state: u64,
    /// The window that it was led to last, + 1, and its leaf.
    pub window: u64,
    pub leaf: *const AtomicU64,
}

global_asm!(
    ".section .tbss,\"awT\",@nobits",
    ".p2align 6",
    ".globl vmaudit_thread",
    ".hidden vmaudit_thread",
    ".type vmaudit_thread,@object",
    ".size vmaudit_thread,128",
    "vmaudit_thread: .zero 128",
    ".text",
);

const _: () = assert!(size_of::<Thread>() == 128);

#[inline(always)]
pub fn current() -> *mut Thread {
    let at: *mut Thread;
    unsafe {
        asm!("mov {o}, qword ptr [rip + vmaudit_thread@GOTTPOFF]", "add {o}, qword ptr fs:[0]",
            o = out(reg) at, options(pure, nomem, nostack));
    }
    at
}

/// Stacks that were walked are recognised by what the walk had read: so many, and fewer where there are many threads.
pub const MEMO_SETS: usize = 128;
pub const FEWER_MEMO_SETS: usize = 16;
const THREADS_WITH_ALL: usize = 16;
pub const MEMO_WORDS: usize = 96;
pub const MOST_FRAMES: usize = 512;

#[repr(C)]
pub struct Memo {
    pub ip: u64,
    pub sp: u64,
    pub bp: u64,
    /// All bits where a frame was found by `bp`, otherwise none.
    pub bp_mask: u64,
    /// Its number; 0: it has none so far.
    pub stack: u32,
    pub code: u32,
    /// Who called, in [`FUNCTIONS`](super::area::FUNCTIONS).
    pub what: u32,
    pub len: u32,
    pub node: u32,
    /// How the stack ends.
    pub flags: u32,
    /// Distances from `sp`.
    pub at: [u32; MEMO_WORDS],
    pub word: [u64; MEMO_WORDS],
}

/// Two stacks that begin alike, and have other callers.
#[repr(C)]
pub struct Memos {
    /// The one that was of use last: 0 or 1.
    pub last: usize,
    pub memos: [Memo; 2],
}

/// A frame of the stack that was walked last, and what the walk read to find its caller.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Level {
    pub ip: u64,
    pub sp: u64,
    pub bp: u64,
    /// Where the caller's rbp was saved, and what was there; 0: nowhere.
    pub saved_at: u64,
    pub saved: u64,
    /// The word that said where the frame begins, in the same way.
    pub through_at: u64,
    pub through: u64,
    /// The node of the stack from here outwards.
    pub node: u32,
    pub uses_bp: bool,
    /// This frame or one further out is found by what rbp is here.
    pub bp_matters: bool,
}

/// Outside of the thread's stack, which may be small.
#[repr(C)]
pub struct Memory {
    /// The stack that was walked last, the outermost frame first; and space for one that is being walked.
    pub levels: [Level; 2 * MOST_FRAMES],
    pub len: usize,
    pub flags: u32,
    /// The walk depended on these besides: the state of the code, the end of the stack's mapping; 0: it is not to be relied on.
    pub code: u32,
    pub stack_end: u64,
    /// Where it found that there is no caller, and what was there.
    pub end_at: u64,
    pub end: u64,
    pub interpreted: Interpreted,
    /// How many sets there are, less 1: a power of two.
    pub last_set: usize,
    memos: [Memos; MEMO_SETS],
}

impl Memory {
    const fn bytes(sets: usize) -> usize {
        size_of::<Memory>() - (MEMO_SETS - sets) * size_of::<Memos>()
    }

    /// The set that a number leads to.
    ///
    /// # Safety
    /// The memory is there.
    #[inline(always)]
    pub unsafe fn memos<'a>(memory: *mut Memory, key: u64) -> &'a mut Memos {
        unsafe {
            let at = spread(key, MEMO_SETS.trailing_zeros()) & (*memory).last_set;
            &mut *(&raw mut (*memory).memos).cast::<Memos>().add(at)
        }
    }
}

impl Thread {
    /// From now on, until [`Thread::leave`], the area stays.
    #[inline(always)]
    pub fn enter(&mut self) {
        self.inside = 1;
        // SAFETY: a slot is a static.
        match unsafe { self.busy.as_ref() } {
            Some(busy) => busy.store(1, Relaxed),
            None => self.change_shared(1),
        }
        // Who takes the area away makes the processor keep this order (memory::is_quiet).
        compiler_fence(SeqCst);
    }

    #[inline(always)]
    pub fn leave(&mut self) {
        // SAFETY: as above.
        match unsafe { self.busy.as_ref() } {
            Some(busy) => busy.store(0, Release),
            None => self.change_shared(-1),
        }
        self.inside = 0;
    }

    #[inline(never)]
    fn change_shared(&self, by: i32) {
        // SAFETY: as above.
        if let Some(slot) = unsafe { self.slot.as_ref() } {
            slot.busy.fetch_add(by as u32, SeqCst);
        }
    }

    /// Takes a slot, with which the thread is in a hook already.
    #[cold]
    #[inline(never)]
    fn take_slot(&mut self) {
        let free = |slot: &Slot| slot.taken.compare_exchange(0, 1, Acquire, Relaxed).is_ok();
        // What is left of it once it has ended is not worth a slot.
        let own = match self.ended {
            0 => SLOTS.iter().take(SHARDS - 1).position(free),
            _ => None,
        };
        let slot = &SLOTS[own.unwrap_or(SHARDS - 1)];
        (self.slot, self.is_shared) = (slot, own.is_none() as u32);
        self.busy = if own.is_some() { &raw const slot.busy } else { null() };
        slot.busy.fetch_add(1, SeqCst);
    }

    /// The index of its slot, which is that of its shard.
    fn number(&self) -> usize {
        (self.slot as usize - SLOTS.as_ptr() as usize) / size_of::<Slot>()
    }

    /// Begins with an area: takes a shard of it, and memory. False where nothing is counted any more, or there is no memory.
    #[cold]
    #[inline(never)]
    pub fn begin(&mut self) -> bool {
        // The process that this one was forked from had that.
        if self.generation < setup::forked_at() {
            (self.slot, self.busy, self.memory) = (null(), null(), null_mut());
        }
        if self.slot.is_null() {
            self.take_slot();
        }
        if setup::mode() == MODE_OFF {
            return false;
        }
        let (area, number) = (memory::area(), self.number());
        self.chunks = memory::chunks_of(number);
        if self.chunks.is_null() {
            area.head().doubts.uncounted.fetch_add(1, Relaxed);
            return false;
        }
        self.take_memory(number);
        (self.generation, self.epoch) = (setup::generation(), setup::epoch());
        (self.stack_start, self.stack_end) = (0, 0);
        (self.window, self.newest) = (0, 0);
        self.random = sys::random() | 1;
        if self.ended == 0 {
            area.head().peaks.threads.fetch_add(1, Relaxed);
        }
        self.shard = &raw const area.head().shards[number];
        interpreted::begin(self);
        if self.is_shared == 0 {
            setup::end_is_notified(self);
        }
        true
    }

    fn take_memory(&mut self, number: usize) {
        // SAFETY: `take_slot` has set it, to a static.
        let slot = unsafe { &*self.slot };
        let known = if self.is_shared == 0 { slot.memory.load(Relaxed).cast() } else { self.memory };
        self.memory = known;
        if known.is_null() {
            let sets = if number < THREADS_WITH_ALL { MEMO_SETS } else { FEWER_MEMO_SETS };
            let bytes = Memory::bytes(sets);
            self.memory = sys::map_private(bytes).cast();
            if self.memory.is_null() {
                return;
            }
            unsafe { (*self.memory).last_set = sets - 1 };
            if self.is_shared == 0 {
                slot.memory_bytes.store(bytes, Relaxed);
                slot.memory.store(self.memory.cast(), Relaxed);
            }
        } else {
            // They lead to stacks of a former area.
            unsafe { (*known).stack_end = 0 };
            for set in 0..=unsafe { (*known).last_set } {
                let memos = unsafe { &mut *(&raw mut (*known).memos).cast::<Memos>().add(set) };
                memos.memos.iter_mut().for_each(|memo| memo.ip = 0);
            }
        }
    }

    /// The counts of a stack, of this thread's shard. None where there is no space for them.
    #[inline(always)]
    pub fn count(&self, stack: u32) -> Option<&'static Count> {
        let stack = stack as usize & STACKS;
        // SAFETY: the table has an entry for each chunk that a stack may be in, and a chunk has counts for CHUNK_STACKS.
        let entry = unsafe { &*self.chunks.add(stack / CHUNK_STACKS) };
        let mut chunk = entry.load(Acquire);
        if chunk.is_null() {
            chunk = memory::add_chunk(self.number(), entry, stack / CHUNK_STACKS);
        }
        unsafe { chunk.add(stack % CHUNK_STACKS * !chunk.is_null() as usize).as_ref() }
    }

    /// To be called at the thread's end: another one may have its slot.
    pub fn end(&mut self) {
        self.enter();
        self.ended = 1;
        // A child of fork that does not count has nothing of its parent's.
        if self.generation == setup::generation() && setup::mode() != MODE_OFF {
            memory::area().head().peaks.threads.fetch_sub(1, Relaxed);
            if self.is_shared == 0 {
                blocks::flush(unsafe { &*self.shard });
                unsafe { (*self.slot).free() };
            } else if !self.memory.is_null() {
                unsafe { sys::unmap(self.memory.cast(), Memory::bytes((*self.memory).last_set + 1)) };
            }
        }
        self.memory = null_mut();
        (self.generation, self.epoch) = (0, 0);
        let (slot, is_own) = (self.slot, self.is_shared == 0);
        self.leave();
        (self.slot, self.busy) = (null(), null());
        if is_own && let Some(slot) = unsafe { slot.as_ref() } {
            slot.taken.store(0, Release);
        }
    }

    /// xorshift64
    pub fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Only this thread writes it, unless the shard is shared.
    #[inline(always)]
    pub fn add(&self, to: &AtomicU64, by: u64) {
        if self.is_shared != 0 {
            to.fetch_add(by, Relaxed);
        } else {
            to.store(to.load(Relaxed).wrapping_add(by), Relaxed);
        }
    }
}
