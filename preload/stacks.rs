//! The stacks that were seen: each has a number, and its words are kept once. What ends as a former one did leads to that
//! one's words: of 190 frames, as interpreters have them, most are those of others.

use super::area::*;
use super::memory::{Area, STACK_HASHES, TAIL_HASHES, reach};
use super::pages::STACKS;
use super::walk::mix;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};

/// This process' own numbers; the next stack gets one more.
static LAST_STACK: AtomicU32 = AtomicU32::new(0);
static NEXT_WORD: AtomicUsize = AtomicUsize::new(0);

/// Numbers begin anew with each area.
pub fn begin() {
    LAST_STACK.store(0, Relaxed);
    NEXT_WORD.store(0, Relaxed);
}

/// The number of what consists of so many words, and has this hash.
#[inline(never)]
pub fn intern(area: Area, (len, hash): (usize, u64), what: (u32, u32), word: impl Fn(usize) -> u64) -> u32 {
    let head = area.head();
    let hash = hash.max(1);
    for slot in STACK_HASHES.places(hash) {
        let mut known = slot.hash.load(Acquire);
        if known == 0 {
            match slot.hash.compare_exchange(0, hash, AcqRel, Acquire) {
                Ok(_) => {
                    let number = add(area, len, what, &word);
                    slot.found.store(if number == 0 { u32::MAX } else { number }, Release);
                    return number;
                }
                Err(other) => known = other,
            }
        }
        if known == hash {
            loop {
                match slot.found.load(Acquire) {
                    0 => core::hint::spin_loop(),
                    u32::MAX => break,
                    number => return number,
                }
            }
            break;
        }
    }
    head.doubts.without_stack.fetch_add(1, Relaxed);
    0
}

fn add(area: Area, len: usize, (what, code): (u32, u32), word: impl Fn(usize) -> u64) -> u32 {
    let head = area.head();
    let tail = match what & DESCRIPTION {
        0 => longest_tail(len, &word),
        _ => Tail::default(),
    };
    let own = len - tail.len;
    let words = own + (tail.len != 0) as usize;
    let first = NEXT_WORD.fetch_add(words, Relaxed);
    if !reach(WORD_PART, (first + words) * 8) || LAST_STACK.load(Relaxed) as usize >= STACKS - 2 {
        return 0;
    }
    let number = LAST_STACK.fetch_add(1, Relaxed) + 1;
    if number as usize >= STACKS || !reach(STACK_PART, (number as usize + 1) * size_of::<Stack>()) {
        return 0;
    }
    head.last_stack.fetch_max(number, Relaxed);
    for index in 0..own {
        area.word(first + index).store(word(index), Relaxed);
    }
    if tail.len != 0 {
        area.word(first + own).store(rest_word(tail.at), Relaxed);
    }
    let stack = area.stack(number as usize);
    stack.first.store(first as u32, Relaxed);
    stack.what.store(what, Relaxed);
    stack.code.store(code, Relaxed);
    stack.frames.store(len as u32, Release);
    if what & DESCRIPTION == 0 {
        publish_tails(first, (own, tail), &word);
    }
    number
}

/// Outer frames, by their hash, and where their words are.
#[derive(Clone, Copy, Default)]
struct Tail {
    len: usize,
    hash: u64,
    at: usize,
}

/// What a former stack ends with, too.
fn longest_tail(len: usize, word: &impl Fn(usize) -> u64) -> Tail {
    let (mut tail, mut hash) = (Tail::default(), 0);
    for more in 1..=len {
        hash = mix(hash, word(len - more));
        if more.is_multiple_of(TAIL) {
            match find_tail(hash.max(1)) {
                Some(at) => tail = Tail { len: more, hash, at },
                None => break,
            }
        }
    }
    tail
}

fn find_tail(hash: u64) -> Option<usize> {
    for slot in TAIL_HASHES.places(hash) {
        match slot.hash.load(Acquire) {
            0 => return None,
            known if known == hash => return slot.found.load(Acquire).checked_sub(1).map(|at| at as usize),
            _ => {}
        }
    }
    None
}

/// For those that come: the tails of a stack whose own words begin at `first`, but for those that were there.
fn publish_tails(first: usize, (own, known): (usize, Tail), word: &impl Fn(usize) -> u64) {
    let mut hash = known.hash;
    for more in 1..=own {
        hash = mix(hash, word(own - more));
        if (known.len + more).is_multiple_of(TAIL) && !publish_tail(hash.max(1), first + own - more) {
            return;
        }
    }
}

/// False where there is no space: longer ones are not looked for then.
fn publish_tail(hash: u64, first: usize) -> bool {
    for slot in TAIL_HASHES.places(hash) {
        let known = match slot.hash.compare_exchange(0, hash, AcqRel, Acquire) {
            Ok(_) => {
                slot.found.store(first as u32 + 1, Release);
                return true;
            }
            Err(known) => known,
        };
        // Another thread's.
        if known == hash {
            return true;
        }
    }
    false
}
