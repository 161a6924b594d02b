//! The words of the blocks ([`super::pages`]): put where the next search for the address finds them. Threads that have
//! blocks in the same page take turns; a program with one thread needs no atomic operation.

use super::area::Head;
use super::pages::{
    ADDRESS_BITS, KEY, LEAVES, LOCKED, MAX_WORDS, RUN_WORDS, Search, WORD_COUNTS, key_of, page_word, place,
    where_of, words_of,
};
use super::search::search;
use super::setup::{self, Area};
use super::sys;
use core::sync::atomic::{AtomicU64, Ordering::*};

/// A page's words, which no other thread changes meanwhile.
struct Page {
    word: &'static AtomicU64,
    /// Its value, unlocked.
    value: u64,
    was_locked: bool,
}

impl Page {
    #[inline(always)]
    fn lock(word: &'static AtomicU64) -> Page {
        if setup::is_single() {
            return Page { word, value: word.load(Relaxed), was_locked: false };
        }
        let value = word.load(Relaxed);
        let is_free = value & LOCKED == 0;
        if is_free && word.compare_exchange(value, value | LOCKED, Acquire, Relaxed).is_ok() {
            return Page { word, value, was_locked: true };
        }
        Page::wait(word)
    }

    #[cold]
    #[inline(never)]
    fn wait(word: &'static AtomicU64) -> Page {
        let mut spins = 0;
        loop {
            let value = word.load(Relaxed);
            let is_free = value & LOCKED == 0;
            if is_free && word.compare_exchange_weak(value, value | LOCKED, Acquire, Relaxed).is_ok() {
                return Page { word, value, was_locked: true };
            }
            sys::pause(&mut spins);
        }
    }

    #[inline(always)]
    fn words(&self, area: Area) -> &'static [AtomicU64] {
        let (first, len) = words_of(self.value);
        area.words(first, len)
    }
}

impl Drop for Page {
    #[inline(always)]
    fn drop(&mut self) {
        if self.was_locked {
            self.word.store(self.value, Release);
        }
    }
}

#[inline(always)]
fn page_of(area: Area, (window, page): (usize, usize), make: bool) -> Option<&'static AtomicU64> {
    let leaf = match area.window(window).load(Acquire) {
        0 if make => add_leaf(area, window)?,
        0 => return None,
        leaf => leaf,
    };
    Some(area.page(leaf as usize - 1, page))
}

#[cold]
#[inline(never)]
fn add_leaf(area: Area, window: usize) -> Option<u32> {
    let head = area.head();
    sys::lock(&head.leaf_lock);
    let known = area.window(window).load(Acquire);
    let next = head.next_leaf.load(Relaxed);
    let leaf = if known != 0 {
        known
    } else if (next as usize) < LEAVES {
        area.leaf_window(next as usize).store(window as u32, Relaxed);
        head.next_leaf.store(next + 1, Release);
        area.window(window).store(next + 1, Release);
        next + 1
    } else {
        0
    };
    head.leaf_lock.store(0, Release);
    (leaf != 0).then_some(leaf)
}

/// What was there for the address, 0 for nothing, and where among the page's words the new one is; None where
/// there is no space.
#[inline(always)]
pub fn put(area: Area, address: u64, new: u64) -> Option<(u64, usize)> {
    if address >> ADDRESS_BITS != 0 {
        return None;
    }
    let (window, page, at) = place(address);
    let mut page = Page::lock(page_of(area, (window, page), true)?);
    let words = page.words(area);
    match search(words, at) {
        Search::Found(index) => {
            let former = words[index].load(Relaxed);
            words[index].store(new, Release);
            Some((former, index))
        }
        Search::Free(index) => {
            words[index].store(new, Release);
            Some((0, index))
        }
        Search::Full => grow(area, &mut page, (at, new)).then_some((0, 0)),
    }
}

/// Removes what is there for the address, if `is_meant`. 0 for nothing. `hint`: where it was put, if the
/// page has the same words still.
#[inline(always)]
pub fn take(area: Area, address: u64, hint: Option<usize>, is_meant: impl FnOnce(u64) -> bool) -> u64 {
    if address >> ADDRESS_BITS != 0 {
        return 0;
    }
    let (window, page, at) = place(address);
    let Some(page) = page_of(area, (window, page), false) else { return 0 };
    let page = Page::lock(page);
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
    match words[index].load(Relaxed) {
        word if is_meant(word) => {
            words[index].store(0, Relaxed);
            word
        }
        _ => 0,
    }
}

/// The page's words move to a larger run.
#[cold]
#[inline(never)]
fn grow(area: Area, page: &mut Page, (at, new): (u64, u64)) -> bool {
    let former = page.words(area);
    for (class, &len) in WORD_COUNTS.iter().enumerate().filter(|(_, len)| **len > former.len()) {
        let Some(first) = allocate_words(area, class) else { return false };
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
            give_back(area.head(), words, (first, class));
            continue;
        }
        let (old, _) = words_of(page.value);
        page.value = page_word(first, len);
        // vmaudit reads the words where the page says that they are.
        page.word.store(page.value | page.was_locked as u64, Release);
        if let Some(class) = WORD_COUNTS.iter().position(|&len| len == former.len()) {
            give_back(area.head(), former, (old, class));
        }
        return true;
    }
    false
}

fn allocate_words(area: Area, class: usize) -> Option<usize> {
    let head = area.head();
    sys::lock(&head.words_lock);
    let found = find_words(area, class);
    head.words_lock.store(0, Release);
    found
}

/// Free words are all zero, but for the first one of each run: where the next one is, + 1.
fn find_words(area: Area, class: usize) -> Option<usize> {
    let head = area.head();
    let free = head.free_words[class].load(Relaxed);
    if let Some(first) = (free as usize).checked_sub(1) {
        let link = &area.words(first, 1)[0];
        head.free_words[class].store(link.load(Relaxed), Relaxed);
        link.store(0, Relaxed);
        return Some(first);
    }
    let run = &head.runs[class];
    let (at, end) = (run.start.load(Relaxed) as usize, run.end.load(Relaxed) as usize);
    let (at, end) = if at + WORD_COUNTS[class] <= end {
        (at, end)
    } else {
        let next = head.next_run.load(Relaxed) as usize;
        if next + RUN_WORDS > MAX_WORDS {
            return None;
        }
        head.next_run.store((next + RUN_WORDS) as u64, Relaxed);
        (next, next + RUN_WORDS)
    };
    run.start.store((at + WORD_COUNTS[class]) as u64, Relaxed);
    run.end.store(end as u64, Relaxed);
    Some(at)
}

fn give_back(head: &Head, words: &[AtomicU64], (first, class): (usize, usize)) {
    words.iter().for_each(|word| word.store(0, Relaxed));
    sys::lock(&head.words_lock);
    if let Some(link) = words.first() {
        link.store(head.free_words[class].load(Relaxed), Relaxed);
        head.free_words[class].store(first as u64 + 1, Relaxed);
    }
    head.words_lock.store(0, Release);
}
