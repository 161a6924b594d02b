//! The stacks that were seen, as a tree: what called what. Each has a number, and what several have in common is there once: of
//! 190 frames, as interpreters have them, most are those of others.

use super::area::*;
use super::memory::{Area, reach};
use super::pages::STACKS;
use super::tables::{Number, Pair, Table};
use super::walk::mix;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};

/// This process' own numbers; the next one is one more.
static LAST_STACK: AtomicU32 = AtomicU32::new(0);
static LAST_NODE: AtomicU32 = AtomicU32::new(0);
static NEXT_WORD: AtomicUsize = AtomicUsize::new(0);

/// Nodes by what they are below, and their word; stacks by their node.
static NODES: Table<Number> = Table::new();
static NUMBERS: Table<Pair> = Table::new();
/// Descriptions by what stands for them.
static TEXTS: Table<Pair> = Table::new();

/// Numbers begin anew with each area.
pub fn begin() {
    LAST_STACK.store(0, Relaxed);
    LAST_NODE.store(0, Relaxed);
    NEXT_WORD.store(0, Relaxed);
}

pub fn forked() {
    NODES.forked();
    [&NUMBERS, &TEXTS].into_iter().for_each(Table::forked);
}

pub fn forked_in_a_hook() {
    NODES.forked_in_a_hook();
    [&NUMBERS, &TEXTS].into_iter().for_each(Table::forked_in_a_hook);
}

/// # Safety
/// No thread searches any more.
pub unsafe fn unmap() {
    unsafe {
        NODES.unmap();
        NUMBERS.unmap();
        TEXTS.unmap();
    }
}

/// The node of a word below another one (0: of an outermost one). 0 where there is no space, or `parent` had none.
#[inline(always)]
pub fn child(area: Area, parent: u32, word: u64) -> u32 {
    let hash = mix(mix(0, parent as u64 + 1), word) | 1 << 63;
    let is_it = |number: u32| {
        let node = area.node(number as usize);
        node.word.load(Relaxed) == word && node.parent.load(Relaxed) == parent
    };
    match NODES.get(hash, is_it) {
        0 => NODES.add(hash, is_it, || add_node(area, parent, word)),
        known => known,
    }
}

fn add_node(area: Area, parent: u32, word: u64) -> u32 {
    let number = LAST_NODE.load(Relaxed) + 1;
    if number as usize >= NODE_COUNT || !reach(NODE_PART, (number as usize + 1) * size_of::<Node>()) {
        return 0;
    }
    let node = area.node(number as usize);
    node.word.store(word, Relaxed);
    node.parent.store(parent, Relaxed);
    LAST_NODE.store(number, Relaxed);
    number
}

/// The number of the stack that ends at a node; 0: there is no space for it.
#[inline(always)]
pub fn number(area: Area, node: u32, what: u32, code: u32) -> u32 {
    let known = match node {
        0 => 0,
        _ => {
            let key = mix(mix(0, node as u64 | (what as u64) << 32), code as u64).max(1);
            match NUMBERS.get(key) {
                0 => NUMBERS.add(key, || add_stack(area, (node, 1), (what, code))),
                known => known,
            }
        }
    };
    if known == 0 {
        area.head().doubts.without_stack.fetch_add(1, Relaxed);
    }
    known as u32
}

fn add_stack(area: Area, (first, len): (u32, u32), (what, code): (u32, u32)) -> u64 {
    let last = LAST_STACK.load(Relaxed);
    if last as usize >= STACKS - 2 || !reach(STACK_PART, (last as usize + 2) * size_of::<Stack>()) {
        return 0;
    }
    // Texts and stacks are added with different locks.
    let number = LAST_STACK.fetch_add(1, Relaxed) + 1;
    if number as usize >= STACKS - 1 || !reach(STACK_PART, (number as usize + 1) * size_of::<Stack>()) {
        return 0;
    }
    area.head().last_stack.fetch_max(number, Relaxed);
    let stack = area.stack(number as usize);
    stack.first.store(first, Relaxed);
    stack.what.store(what, Relaxed);
    stack.code.store(code, Relaxed);
    stack.len.store(len, Release);
    number as u64
}

/// The number of a description, which consists of so many words, and for which a number stands; 0: there is no space.
pub fn text(area: Area, (len, hash): (usize, u64), word: impl Fn(usize) -> u64) -> u32 {
    let hash = hash.max(1);
    let known = match TEXTS.get(hash) {
        0 => TEXTS.add(hash, || add_text(area, len, word)),
        known => known,
    };
    if known == 0 {
        area.head().doubts.without_stack.fetch_add(1, Relaxed);
    }
    known as u32
}

fn add_text(area: Area, len: usize, word: impl Fn(usize) -> u64) -> u64 {
    let first = NEXT_WORD.load(Relaxed);
    if !reach(WORD_PART, (first + len) * 8) {
        return 0;
    }
    NEXT_WORD.store(first + len, Relaxed);
    for index in 0..len {
        area.word(first + index).store(word(index), Relaxed);
    }
    add_stack(area, (first as u32, len as u32), (DESCRIPTION, 0))
}
