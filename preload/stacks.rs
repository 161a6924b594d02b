//! The stacks that were seen: each has a number, and its words are kept once. What ends as a former one did leads to that
//! one's words: of 190 frames, as interpreters have them, most are those of others.

use super::area::*;
use super::setup::Area;
use super::walk::mix;
use core::sync::atomic::Ordering::*;

/// The number of what consists of so many words, and has this hash.
#[inline(never)]
pub fn intern(area: Area, (len, hash): (usize, u64), what: (u32, u32), word: impl Fn(usize) -> u64) -> u32 {
    let head = area.head();
    let hash = hash.max(1);
    for at in probes(&HASH_TABLES, hash, HASH_PROBES) {
        let slot = area.hash(at);
        let mut known = slot.hash.load(Acquire);
        if known == 0 {
            match slot.hash.compare_exchange(0, hash, AcqRel, Acquire) {
                Ok(_) => {
                    let number = add(area, len, what, &word);
                    slot.stack.store(if number == 0 { u32::MAX } else { number }, Release);
                    return number;
                }
                Err(other) => known = other,
            }
        }
        if known == hash {
            loop {
                match slot.stack.load(Acquire) {
                    // vmaudit has emptied it meanwhile.
                    0 if head.mode.load(Relaxed) == MODE_OFF => return 0,
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
        0 => longest_tail(area, len, &word),
        _ => Tail::default(),
    };
    let own = len - tail.len;
    let words = own + (tail.len != 0) as usize;
    let first = head.next_word.fetch_add(words as u64, Relaxed) as usize;
    if first + words > WORDS || head.last_stack.load(Relaxed) as usize >= STACKS - 2 {
        return 0;
    }
    let number = head.last_stack.fetch_add(1, Relaxed) + 1;
    if number as usize >= STACKS {
        return 0;
    }
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
        publish_tails(area, first, (own, tail), &word);
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
fn longest_tail(area: Area, len: usize, word: &impl Fn(usize) -> u64) -> Tail {
    let (mut tail, mut hash) = (Tail::default(), 0);
    for more in 1..=len {
        hash = mix(hash, word(len - more));
        if more.is_multiple_of(TAIL) {
            match find_tail(area, hash.max(1)) {
                Some(at) => tail = Tail { len: more, hash, at },
                None => break,
            }
        }
    }
    tail
}

fn find_tail(area: Area, hash: u64) -> Option<usize> {
    for at in probes(&TAIL_TABLES, hash, HASH_PROBES) {
        let slot = area.tail(at);
        match slot.hash.load(Acquire) {
            0 => return None,
            known if known == hash => return slot.stack.load(Acquire).checked_sub(1).map(|at| at as usize),
            _ => {}
        }
    }
    None
}

/// For those that come: the tails of a stack whose own words begin at `first`, but for those that were there.
fn publish_tails(area: Area, first: usize, (own, known): (usize, Tail), word: &impl Fn(usize) -> u64) {
    let mut hash = known.hash;
    for more in 1..=own {
        hash = mix(hash, word(own - more));
        if (known.len + more).is_multiple_of(TAIL) && !publish_tail(area, hash.max(1), first + own - more) {
            return;
        }
    }
}

/// False where there is no space: longer ones are not looked for then.
fn publish_tail(area: Area, hash: u64, first: usize) -> bool {
    for at in probes(&TAIL_TABLES, hash, HASH_PROBES) {
        let slot = area.tail(at);
        let known = match slot.hash.compare_exchange(0, hash, AcqRel, Acquire) {
            Ok(_) => {
                slot.stack.store(first as u32 + 1, Release);
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
