//! Each block's stack, size and time, in one word, and where the words are: each page of the heap has space
//! for as many as were there at once. Compiled into both, the library and vmaudit.

use core::sync::atomic::{AtomicU64, Ordering::*};

/// User space of x86-64 with four levels of page tables.
pub const ADDRESS_BITS: u32 = 47;
const PAGE_BITS: u32 = 12;
/// A leaf has a word for each page of a window of the address space: where that page's words are.
pub const WINDOW_BITS: u32 = 24;
pub const LEAVES: usize = 1 << 15;
pub const LEAF_PAGES: usize = 1 << (WINDOW_BITS - PAGE_BITS);
pub const LEAF_BYTES: usize = LEAF_PAGES * 8;

/// How many words a page may have space for. In the last one, each multiple of 8 has a place of its own.
pub const WORD_COUNTS: [usize; 14] = [4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 511 + NEAR];
/// Words that are divided among pages with the same number of words.
pub const RUN_WORDS: usize = 2048;
/// The most words of all pages: 16 GiB of the file. What is mapped of it grows with what is written.
pub const MAX_WORDS: usize = 1 << 31;

/// A word is one of so many, that begin at its place.
pub const NEAR: usize = 4;

/// Of a page's word: a thread changes its words.
pub const LOCKED: u64 = 1;

/// Where the words of a page are: index of the first one, and how many.
#[inline(always)]
pub fn page_word(first: usize, len: usize) -> u64 {
    (first as u64) << 11 | (len as u64) << 1
}

/// 0 words where there are none, or where the page's word says what cannot be: the other side may have written it.
/// `limit` is how many words of all pages there are. Fewer than [`NEAR`] are none, either.
#[inline(always)]
pub fn words_of(page: u64, limit: usize) -> (usize, usize) {
    let (first, len) = ((page >> 11) as usize, (page >> 1) as usize & 0x3ff);
    if first + len > limit {
        return nowhere();
    }
    (first, len)
}

#[cold]
#[inline(never)]
fn nowhere() -> (usize, usize) {
    (0, 0)
}

/// The index of the first of [`NEAR`] words.
#[inline(always)]
pub fn near(len: usize, at: u64) -> usize {
    (at as usize * (len + 1 - NEAR)) >> (PAGE_BITS - 3)
}

/// Which window, which page in it, and where in the page.
#[inline(always)]
pub fn place(address: u64) -> (usize, usize, u64) {
    let page = (address >> PAGE_BITS) as usize & (LEAF_PAGES - 1);
    ((address >> WINDOW_BITS) as usize, page, address >> 3 & WHERE)
}

/// The address of a block, from its page and word.
#[inline]
pub fn address_of(window: u32, page: usize, word: u64) -> u64 {
    ((window as u64) << WINDOW_BITS) + ((page as u64) << PAGE_BITS) + ((word & WHERE) << 3)
}

/// Where in the page, in a word.
#[inline(always)]
pub fn where_of(word: u64) -> u64 {
    word & WHERE
}

const WHERE: u64 = (1 << (PAGE_BITS - 3)) - 1;

/// What is found in the words of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Search {
    /// The word is at this index.
    Found(usize),
    /// It is not there, but may be put here.
    Free(usize),
    /// There is no space near its place.
    Full,
}

/// Searches the word of what begins at `at` of the page.
#[cfg_attr(not(test), allow(dead_code))]
pub fn search(words: &[AtomicU64], at: u64) -> Search {
    if words.len() < NEAR {
        return Search::Full;
    }
    let first = near(words.len(), at);
    let near = words.iter().map(|word| word.load(Relaxed)).enumerate().skip(first).take(NEAR);
    match near.clone().find(|(_, word)| word & KEY == key_of(at)) {
        Some((index, _)) => Search::Found(index),
        None => {
            near.clone().find(|(_, word)| *word == 0).map_or(Search::Full, |(index, _)| Search::Free(index))
        }
    }
}

/// A block: 22 bits of stack number + 1, 16 of [`tick16`], one for large ones, 15 of size, one that is always there, 9 of
/// its place in the page.
#[inline(always)]
pub fn block(stack: u32, tick: u16, size: u64, address: u64) -> u64 {
    let size = match size < LARGE {
        true => size,
        false => size & (LARGE - 1) | LARGE,
    };
    (stack as u64 + 1) << STACK_BIT | (tick as u64) << 26 | size << 10 | key_of(address >> 3)
}

const STACK_BIT: u32 = 42;
/// Numbers of stacks are less than this.
pub const STACKS: usize = (1 << (64 - STACK_BIT)) - 1;

/// What a word is found by, in the lower half.
pub const KEY: u64 = WHERE | THERE;
const THERE: u64 = WHERE + 1;

#[inline(always)]
pub fn key_of(at: u64) -> u64 {
    at & WHERE | THERE
}

/// A block of as many bytes and more has two more words: the rest of the size, and what the allocator gave beyond it.
pub const LARGE: u64 = 1 << 15;

/// A block of as many bytes and more is not among the words of its page: it would have a page of words, and a part of the
/// tables that lead there, for itself.
pub const HUGE: u64 = 1 << 17;

/// Where additional words of a block have their place: no other block begins there.
pub const SIZE_EXTRA: u64 = 16;
pub const GIVEN_EXTRA: u64 = 32;

/// An additional word of a block, for an address in the block: 32 bits.
#[inline]
pub fn extra(value: u64, address: u64) -> u64 {
    value.min(MOST_EXTRA) << 10 | key_of(address >> 3)
}

const MOST_EXTRA: u64 = (1 << (STACK_BIT - 10)) - 1;

/// None for the word of a block.
#[inline]
pub fn extra_of(word: u64) -> Option<u64> {
    (word != 0 && !is_block(word)).then_some(word >> 10 & MOST_EXTRA)
}

#[inline(always)]
pub fn is_block(word: u64) -> bool {
    word >> STACK_BIT != 0
}

#[inline(always)]
pub fn block_stack(word: u64) -> u32 {
    ((word >> STACK_BIT) as u32).wrapping_sub(1)
}

#[inline(always)]
pub fn is_large(word: u64) -> bool {
    word & 1 << 25 != 0
}

/// The size, as far as the word has it.
#[inline(always)]
pub fn block_size(word: u64) -> u64 {
    word >> 10 & (LARGE - 1)
}

/// The rest of a large block's size.
#[inline]
pub fn size_extra(size: u64) -> u64 {
    size / LARGE
}

#[inline]
pub fn large_size(word: u64, extra: u64) -> u64 {
    block_size(word) + extra * LARGE
}

#[inline]
pub fn block_ms(word: u64) -> u32 {
    ms_of((word >> 26) as u16)
}

/// Milliseconds in 16 bits: exact for the first 4 s, and to one part in 2048 then.
#[inline(always)]
pub fn tick16(ms: u32) -> u16 {
    let shift = (32 - ms.leading_zeros()).saturating_sub(12);
    if shift > 15 { u16::MAX } else { (shift << 12) as u16 | (ms >> shift) as u16 }
}

/// The beginning of the step.
#[inline]
pub fn ms_of(tick: u16) -> u32 {
    ((tick & 0xfff) as u32) << (tick >> 12)
}
