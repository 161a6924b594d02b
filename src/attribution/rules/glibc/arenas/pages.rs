//! The sums of a piece of an arena, by use and by page, and what `malloc_trim(0)` would give back of it.
//!
//! Source: glibc malloc/malloc.c, `mtrim`: fastbins are joined with their neighbours, then each free chunk gives
//! back the whole pages behind its first 48 bytes (`struct malloc_chunk`) by MADV_DONTNEED. `systrim`: brk is
//! lowered by the whole pages of the main arena's top, but for MINSIZE and a byte. Other arenas' tops stay.

use super::chunks::SHORTEST;
use super::window::bytes_in;
use crate::model::arenas::{Arena, Holder, Known, KnownBlock, PageFigures};
use crate::model::observation::Residency;
use crate::model::{Addr, AddrRange, PAGE};
use std::collections::HashMap;

/// `struct malloc_chunk`.
const CHUNK: u64 = 48;
/// A page with at most so much in use is held by little.
const SPARSE: u64 = PAGE / 4;

/// What a part of an arena is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    Held,
    Fast,
    Free,
    Top,
    Own,
    /// Before the first chunk of the main heap.
    Foreign,
}

/// Bytes of one page that are not free, and of how many blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct PageUse {
    used: u16,
    blocks: u16,
}

/// A piece of an arena, from its beginning on.
pub struct Pages<'a> {
    residency: &'a Residency,
    start: Addr,
    uses: Vec<PageUse>,
    /// Free chunks in a row, fastbins among them.
    run: AddrRange,
    /// brk is where this piece ends: the top can be given back.
    lowers_brk: bool,
    /// What has been added so far.
    pub sum: Arena,
}

impl<'a> Pages<'a> {
    /// `start` is a multiple of the page size.
    pub fn new(residency: &'a Residency, start: Addr, lowers_brk: bool) -> Pages<'a> {
        let run = AddrRange { start, end: start };
        Pages { residency, start, uses: Vec::new(), run, lowers_brk, sum: Arena::default() }
    }

    /// Pages of what has been added.
    pub fn range(&self) -> AddrRange {
        AddrRange::from_len(self.start, self.uses.len() as u64 * PAGE)
    }

    /// Adds what follows what was added before.
    pub fn add(&mut self, range: AddrRange, of: Use) {
        let len = range.len();
        let pages = range.end.page_up().0.saturating_sub(self.start.0) / PAGE;
        self.uses.resize(usize::try_from(pages).unwrap_or(0).max(self.uses.len()), PageUse::default());
        if of != Use::Foreign {
            self.sum.read += len;
        }
        match of {
            Use::Free | Use::Fast => {
                if self.run.end != range.start {
                    self.end_run();
                    self.run = AddrRange { start: range.start, end: range.start };
                }
                self.run.end = range.end;
                if of == Use::Free {
                    self.sum.free.add(len)
                } else {
                    self.sum.fast.add(len)
                }
                return;
            }
            Use::Top => {
                self.sum.top += len;
                self.trim_top(range);
                return;
            }
            Use::Held => self.sum.in_use.add(len),
            Use::Own => self.sum.own += len,
            Use::Foreign => {}
        }
        self.end_run();
        self.occupy(range, u16::from(of == Use::Held));
    }

    /// A block that the program is known to hold, with what it may use of it.
    pub fn know(&mut self, block: &KnownBlock, usable: u64) {
        know(&mut self.sum.known, block, usable);
    }

    /// What counted as in use is in a thread's cache.
    pub fn uncount(&mut self, range: AddrRange) {
        self.sum.in_use.remove(range.len());
        self.sum.thread_caches.add(range.len());
        for (page, bytes) in pages_of(range) {
            if let Some(of) = self.page(page) {
                of.used = of.used.saturating_sub(bytes);
                of.blocks = of.blocks.saturating_sub(1);
            }
        }
    }

    fn occupy(&mut self, range: AddrRange, blocks: u16) {
        for (page, bytes) in pages_of(range) {
            if let Some(of) = self.page(page) {
                of.used = of.used.saturating_add(bytes);
                of.blocks = of.blocks.saturating_add(blocks);
            }
        }
    }

    fn page(&mut self, at: Addr) -> Option<&mut PageUse> {
        let index = at.0.checked_sub(self.start.0)? / PAGE;
        self.uses.get_mut(usize::try_from(index).ok()?)
    }

    fn end_run(&mut self) {
        let run = std::mem::replace(&mut self.run, AddrRange { start: self.start, end: self.start });
        // Shorter ones are in bins that are not searched, or have no whole page.
        if run.len() >= PAGE + CHUNK {
            let pages = AddrRange::new(run.start.saturating_add(CHUNK).page_up().0, run.end.page_down().0);
            self.sum.trim.inside += bytes_in(&self.residency.resident, pages);
        }
    }

    fn trim_top(&mut self, top: AddrRange) {
        // Chunks of fastbins are joined with the top that they lie at.
        let start = if self.run.end == top.start { self.run.start } else { top.start };
        if self.run.end != top.start {
            self.end_run();
        }
        self.run = AddrRange { start: self.start, end: self.start };
        let spare = top.end.0.saturating_sub(start.0).saturating_sub(SHORTEST + 1) / PAGE * PAGE;
        if self.lowers_brk {
            let given = AddrRange::new(top.end.0 - spare, top.end.0);
            self.sum.trim.top += bytes_in(&self.residency.resident, given);
        }
    }

    /// All figures of pages, when nothing more is added or uncounted.
    pub fn finish(&mut self) {
        self.end_run();
        let (range, residency) = (self.range(), self.residency);
        let mut figures = PageFigures {
            resident: bytes_in(&residency.resident, range),
            swapped: bytes_in(&residency.swapped, range),
            ..PageFigures::default()
        };
        let mut empty = 0;
        for page in pages_in(&residency.resident, range) {
            let used = self.page(page).map_or(0, |of| u64::from(of.used));
            figures.used += used;
            match used {
                0 => empty += PAGE,
                _ => figures.beside += PAGE.saturating_sub(used),
            }
            if (1..=SPARSE).contains(&used) {
                figures.sparse.add(PAGE);
                figures.sparse_used += used;
            }
        }
        figures.whole = empty - (self.sum.trim.inside + self.sum.trim.top).min(empty);
        self.sum.pages = figures;
    }

    /// Adds the stacks that hold sparse pages to `holders`.
    pub fn holders(&mut self, blocks: &[KnownBlock], holders: &mut HashMap<u32, Holder>) {
        let range = self.range();
        let first = blocks.partition_point(|block| block.at < range.start);
        let mut here = blocks.iter().skip(first).take_while(|block| block.at < range.end).peekable();
        for page in pages_in(&self.residency.resident, range) {
            let end = page.saturating_add(PAGE);
            while here.next_if(|block| end_of(block) <= page).is_some() {}
            let Some(&PageUse { used, blocks }) = self.page(page).map(|of| &*of) else { return };
            let used = u64::from(used);
            if blocks == 0 || !(1..=SPARSE).contains(&used) {
                continue;
            }
            let share = (PAGE - used) / u64::from(blocks);
            let on_page = here.clone().take_while(|block| block.at.0 < end.0.saturating_add(CHUNK));
            for block in on_page.filter(|block| start_of(block) < end) {
                let part = AddrRange { start: start_of(block).max(page), end: end_of(block).min(end) };
                let holder = holders.entry(block.holder).or_default();
                holder.holder = block.holder;
                holder.kept += share;
                holder.pages += 1;
                holder.blocks += 1;
                holder.used += part.end.0.saturating_sub(part.start.0);
            }
        }
    }
}

pub fn know(known: &mut Known, block: &KnownBlock, usable: u64) {
    known.blocks += 1;
    known.requested = known.requested.saturating_add(block.requested);
    known.rounding = known.rounding.saturating_add(usable.saturating_sub(block.requested));
}

/// With the chunk's header.
fn start_of(block: &KnownBlock) -> Addr {
    Addr(block.at.0.saturating_sub(16))
}

/// Not behind the chunk's end: a program may use the first 8 bytes of the next one.
fn end_of(block: &KnownBlock) -> Addr {
    block.at.saturating_add(block.requested.max(24) - 8)
}

/// The pages that a range is part of, and how many bytes of it each has.
fn pages_of(range: AddrRange) -> impl Iterator<Item = (Addr, u16)> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let page = at.page_down();
        let end = page.saturating_add(PAGE).min(range.end);
        let bytes = end.0.checked_sub(at.0).filter(|&bytes| bytes > 0)?;
        at = end;
        Some((page, bytes as u16))
    })
}

/// Each page of `range` that is in one of the sorted runs.
fn pages_in(runs: &[AddrRange], range: AddrRange) -> impl Iterator<Item = Addr> {
    let first = runs.partition_point(|run| run.end <= range.start);
    let here = runs.iter().skip(first).take_while(move |run| run.start < range.end);
    here.flat_map(move |run| {
        let piece = run.intersect(range);
        (piece.start.0..piece.end.0).step_by(PAGE as usize).map(Addr)
    })
}
