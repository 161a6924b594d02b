//! What a thread has for itself.

use super::area::{Count, MODE_OFF, SHARDS, STACKS, Shard};
use super::interpreted::{self, Interpreted};
use super::{blocks, setup, sys};
use core::arch::{asm, global_asm};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering::*};

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
    pub generation: usize,
    /// Its stack's mapping.
    pub stack_start: u64,
    pub stack_end: u64,
    pub counts: *mut Count,
    pub shard: *mut Shard,
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
}

global_asm!(
    ".section .tbss,\"awT\",@nobits",
    ".p2align 6",
    ".globl vmaudit_thread",
    ".hidden vmaudit_thread",
    ".type vmaudit_thread,@object",
    ".size vmaudit_thread,96",
    "vmaudit_thread: .zero 96",
    ".text",
);

const _: () = assert!(size_of::<Thread>() == 96);

#[inline(always)]
pub fn current() -> *mut Thread {
    let at: *mut Thread;
    unsafe {
        asm!("mov {o}, qword ptr [rip + vmaudit_thread@GOTTPOFF]", "add {o}, qword ptr fs:[0]",
            o = out(reg) at, options(pure, nomem, nostack));
    }
    at
}

/// Stacks that were walked are recognised by what the walk had read.
pub const MEMO_SETS: usize = 128;
pub const MEMO_WORDS: usize = 96;
pub const MOST_FRAMES: usize = 512;

#[repr(C)]
pub struct Memo {
    pub ip: u64,
    pub sp: u64,
    pub bp: u64,
    /// All bits where a frame was found by `bp`, otherwise none.
    pub bp_mask: u64,
    pub stack: u32,
    pub code: u32,
    pub what: u32,
    pub len: u32,
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

/// Outside of the thread's stack, which may be small.
#[repr(C)]
pub struct Memory {
    /// The stack that was walked last: return addresses, the stack pointer of each, how many.
    pub frames: [u64; MOST_FRAMES],
    pub pointers: [u64; MOST_FRAMES],
    pub len: usize,
    pub flags: u32,
    pub interpreted: Interpreted,
    pub memos: [Memos; MEMO_SETS],
}

impl Thread {
    /// Takes a shard of the area, and memory.
    #[cold]
    #[inline(never)]
    pub fn begin(&mut self) {
        let area = setup::area();
        self.generation = setup::generation();
        (self.stack_start, self.stack_end) = (0, 0);
        self.random = (self as *const Thread as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ sys::gettid() << 20
            ^ 0x1234_5678_9abc_def1;
        for _ in 0..4 {
            self.random();
        }
        if self.ended == 0 {
            area.head().peaks.threads.fetch_add(1, Relaxed);
        }
        let shards = &area.head().shards;
        let free = |shard: &Shard| shard.taken.compare_exchange(0, 1, Acquire, Relaxed).is_ok();
        // What is left of it once it has ended is not worth a shard.
        let own = match self.ended {
            0 => shards.iter().take(SHARDS - 1).position(free),
            _ => None,
        };
        let number = own.unwrap_or(SHARDS - 1);
        self.is_shared = own.is_none() as u32;
        self.shard = &shards[number] as *const Shard as *mut Shard;
        self.counts = unsafe { area.counts().add(number * STACKS) };
        if self.memory.is_null() {
            self.memory = sys::map_private(size_of::<Memory>()).cast();
        } else if self.ended == 0 {
            // Of the process that this was forked from: its stacks have other numbers here.
            let sets = unsafe { (*self.memory).memos.iter_mut() };
            sets.for_each(|set| set.memos.iter_mut().for_each(|memo| memo.ip = 0));
        }
        interpreted::begin(self);
        if own.is_some() {
            setup::end_is_notified(self);
        }
    }

    /// To be called at the thread's end: another one may have its shard.
    pub fn end(&mut self) {
        self.inside += 1;
        self.ended = 1;
        // A child of fork that does not count has its parent's area still.
        if self.generation == setup::generation() && setup::mode() != MODE_OFF {
            setup::area().head().peaks.threads.fetch_sub(1, Relaxed);
            if self.is_shared == 0 {
                let shard = unsafe { &*self.shard };
                blocks::flush(shard);
                shard.taken.store(0, Release);
            }
        }
        let memory = core::mem::replace(&mut self.memory, null_mut());
        if !memory.is_null() {
            unsafe { sys::unmap(memory.cast(), size_of::<Memory>()) };
        }
        self.generation = 0;
        self.inside -= 1;
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
