//! The words of the blocks ([`super::pages`]): put where the next search for the address finds them. Threads that have
//! blocks in the same page take turns; a program with one thread needs no atomic operation.

use super::area::BLOCK_PART;
use super::memory::{self, Area, block_words, reach};
use super::pages::{
    ADDRESS_BITS, KEY, LOCKED, RUN_WORDS, Search, WORD_COUNTS, key_of, page_word, place, where_of, words_of,
};
use super::search::search;
use super::setup;
use super::sys;
use super::thread::Thread;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

/// Taken while a page gets other words.
static WORDS_LOCK: AtomicU32 = AtomicU32::new(0);
/// The word that the next run begins with.
static NEXT_RUN: AtomicUsize = AtomicUsize::new(0);
/// What is left of the newest run for each of [`WORD_COUNTS`]: from, to.
static RUNS: [[AtomicUsize; 2]; WORD_COUNTS.len()] =
    [const { [const { AtomicUsize::new(0) }; 2] }; WORD_COUNTS.len()];
/// Those that are free: the first one, + 1.
static FREE_WORDS: [AtomicUsize; WORD_COUNTS.len()] = [const { AtomicUsize::new(0) }; WORD_COUNTS.len()];

/// Words are handed out anew with each area.
pub fn begin() {
    WORDS_LOCK.store(0, Relaxed);
    NEXT_RUN.store(0, Relaxed);
    RUNS.iter().flatten().chain(&FREE_WORDS).for_each(|at| at.store(0, Relaxed));
}

/// A page's words, which no other thread changes meanwhile: there is none (`ALONE`), or it waits.
struct Page<const ALONE: bool> {
    word: &'static AtomicU64,
    /// Its value, unlocked.
    value: u64,
}

impl<const ALONE: bool> Page<ALONE> {
    #[inline(always)]
    fn lock(word: &'static AtomicU64) -> Page<ALONE> {
        let value = word.load(Relaxed);
        let is_free = value & LOCKED == 0;
        if ALONE || is_free && word.compare_exchange(value, value | LOCKED, Acquire, Relaxed).is_ok() {
            return Page { word, value };
        }
        Page { word, value: wait(word) }
    }

    #[inline(always)]
    fn words(&self, area: Area) -> &'static [AtomicU64] {
        let (first, len) = words_of(self.value, block_words());
        area.words(first, len)
    }
}

impl<const ALONE: bool> Drop for Page<ALONE> {
    #[inline(always)]
    fn drop(&mut self) {
        if !ALONE {
            self.word.store(self.value, Release);
        }
    }
}

#[cold]
#[inline(never)]
fn wait(word: &'static AtomicU64) -> u64 {
    let mut spins = 0;
    loop {
        let value = word.load(Relaxed);
        let is_free = value & LOCKED == 0;
        if is_free && word.compare_exchange_weak(value, value | LOCKED, Acquire, Relaxed).is_ok() {
            return value;
        }
        sys::pause(&mut spins);
    }
}

/// The leaf that the thread was led to last is the one that it is led to next, mostly.
#[inline(always)]
fn page_of(
    area: Area,
    thread: &mut Thread,
    (window, page): (usize, usize),
    make: bool,
) -> Option<&'static AtomicU64> {
    if thread.window != window as u64 + 1 {
        thread.leaf = area.page(memory::leaf(window, make)?, 0);
        thread.window = window as u64 + 1;
    }
    // SAFETY: a leaf has a word for each page.
    unsafe { thread.leaf.add(page).as_ref() }
}

/// What was there for the address, 0 for nothing, and where among the page's words the new one is; None where
/// there is no space.
#[inline(always)]
pub fn put(area: Area, thread: &mut Thread, address: u64, new: u64) -> Option<(u64, usize)> {
    if address >> ADDRESS_BITS != 0 {
        return None;
    }
    let (window, page, at) = place(address);
    let page = page_of(area, thread, (window, page), true)?;
    match setup::is_single() {
        true => put_in::<true>(area, page, (at, new)),
        false => put_in::<false>(area, page, (at, new)),
    }
}

#[inline(always)]
fn put_in<const ALONE: bool>(
    area: Area,
    page: &'static AtomicU64,
    (at, new): (u64, u64),
) -> Option<(u64, usize)> {
    let mut page = Page::<ALONE>::lock(page);
    let words = page.words(area);
    // SAFETY: what the search says is an index of one of the words.
    let word = |index| unsafe { words.get_unchecked(index) };
    match search(words, at) {
        Search::Found(index) => {
            let former = word(index).load(Relaxed);
            word(index).store(new, Release);
            Some((former, index))
        }
        Search::Free(index) => {
            word(index).store(new, Release);
            Some((0, index))
        }
        Search::Full => {
            page.value = grow(area, (page.word, page.value, !ALONE), (at, new))?;
            Some((0, 0))
        }
    }
}

/// Removes what is there for the address, if `is_meant`. 0 for nothing. `hint`: where it was put, if the
/// page has the same words still.
#[inline(always)]
pub fn take(
    area: Area,
    thread: &mut Thread,
    address: u64,
    hint: Option<usize>,
    is_meant: impl FnOnce(u64) -> bool,
) -> u64 {
    if address >> ADDRESS_BITS != 0 {
        return 0;
    }
    let (window, page, at) = place(address);
    let Some(page) = page_of(area, thread, (window, page), false) else { return 0 };
    match setup::is_single() {
        true => take_from::<true>(area, page, (at, hint), is_meant),
        false => take_from::<false>(area, page, (at, hint), is_meant),
    }
}

#[inline(always)]
fn take_from<const ALONE: bool>(
    area: Area,
    page: &'static AtomicU64,
    (at, hint): (u64, Option<usize>),
    is_meant: impl FnOnce(u64) -> bool,
) -> u64 {
    let page = Page::<ALONE>::lock(page);
    let words = page.words(area);
    let is_there =
        |index: &usize| words.get(*index).is_some_and(|word| word.load(Relaxed) & KEY == key_of(at));
    let index = match hint.filter(is_there) {
        Some(index) => index,
        None => match search(words, at) {
            Search::Found(index) => index,
            _ => return 0,
        },
    };
    // SAFETY: what the search says, and what was checked, is an index of one of the words.
    let at = unsafe { words.get_unchecked(index) };
    match at.load(Relaxed) {
        word if is_meant(word) => {
            at.store(0, Relaxed);
            word
        }
        _ => 0,
    }
}

/// The page's words move to a larger run: the page's new value. None where there is no space.
#[cold]
#[inline(never)]
fn grow(area: Area, (page, value, is_locked): (&AtomicU64, u64, bool), (at, new): (u64, u64)) -> Option<u64> {
    let (old, len) = words_of(value, block_words());
    let former = area.words(old, len);
    for (class, &len) in WORD_COUNTS.iter().enumerate().filter(|(_, len)| **len > former.len()) {
        let first = allocate_words(area, class)?;
        let words = area.words(first, len);
        let moved = former.iter().map(|word| word.load(Relaxed)).filter(|&word| word != 0);
        let mut all = moved.map(|word| (where_of(word), word)).chain([(at, new)]);
        let fits = all.all(|(at, word)| match search(words, at) {
            Search::Free(index) => {
                words[index].store(word, Relaxed);
                true
            }
            _ => false,
        });
        if !fits {
            give_back(words, (first, class));
            continue;
        }
        let value = page_word(first, len);
        // vmaudit reads the words where the page says that they are.
        page.store(value | is_locked as u64, Release);
        if let Some(class) = WORD_COUNTS.iter().position(|&len| len == former.len()) {
            give_back(former, (old, class));
        }
        return Some(value);
    }
    None
}

fn allocate_words(area: Area, class: usize) -> Option<usize> {
    sys::lock(&WORDS_LOCK);
    let found = find_words(area, class);
    WORDS_LOCK.store(0, Release);
    found
}

/// Free words are all zero, but for the first one of each run: where the next one is, + 1.
fn find_words(area: Area, class: usize) -> Option<usize> {
    let len = WORD_COUNTS[class];
    if let Some(first) = FREE_WORDS[class].load(Relaxed).checked_sub(1) {
        let link = &area.words(first, 1)[0];
        let next = link.swap(0, Relaxed) as usize;
        // Somebody else may have written there: then those that follow are lost, and no more.
        let is_sound = next == 0 || next - 1 + len <= block_words();
        FREE_WORDS[class].store(if is_sound { next } else { 0 }, Relaxed);
        return Some(first);
    }
    let [start, end] = &RUNS[class];
    let mut at = start.load(Relaxed);
    if at + len > end.load(Relaxed) {
        at = NEXT_RUN.load(Relaxed);
        if !reach(BLOCK_PART, (at + RUN_WORDS) * 8) {
            return None;
        }
        NEXT_RUN.store(at + RUN_WORDS, Relaxed);
        end.store(at + RUN_WORDS, Relaxed);
    }
    start.store(at + len, Relaxed);
    Some(at)
}

fn give_back(words: &[AtomicU64], (first, class): (usize, usize)) {
    words.iter().for_each(|word| word.store(0, Relaxed));
    sys::lock(&WORDS_LOCK);
    if let Some(link) = words.first() {
        link.store(FREE_WORDS[class].load(Relaxed) as u64, Relaxed);
        FREE_WORDS[class].store(first + 1, Relaxed);
    }
    WORDS_LOCK.store(0, Release);
}
