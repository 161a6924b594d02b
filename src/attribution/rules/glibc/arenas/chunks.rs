//! From chunk to chunk through one piece of an arena.
//!
//! Source: glibc malloc/malloc.c, "Chunk descriptions" and `sysmalloc`. A chunk's second word is its length
//! and three flags; whether it is in use is in the chunk behind it (PREV_INUSE). What threads' caches and
//! fastbins hold counts as in use there.

use super::pages::{Pages, Use};
use super::window::{Absent, Window};
use crate::model::arenas::{Doubt, KnownBlock};
use crate::model::{Addr, AddrRange};

const PREV_INUSE: u64 = 1;
const FLAGS: u64 = 7;
/// MINSIZE, the shortest chunk.
pub const SHORTEST: u64 = 32;
/// CHUNK_HDR_SZ; a chunk of just this length is a fencepost.
pub const HEADER: u64 = 16;
/// Of a chunk in use, its own second word; the first is part of the chunk before it.
const OVERHEAD: u64 = 8;

/// A piece of an arena: where its chunks begin, and where what it has from the kernel ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    pub range: AddrRange,
    /// Its header: `heap_info`, and the arena's own in the first one.
    pub header: u64,
    /// The topmost chunk, where it is in this piece.
    pub top: Option<Addr>,
}

/// Addresses that are searched for, sorted, of chunks.
pub struct Cursor<'a, T> {
    rest: &'a [T],
    at: fn(&T) -> Addr,
}

impl<'a, T> Cursor<'a, T> {
    pub fn new(all: &'a [T], from: Addr, at: fn(&T) -> Addr) -> Cursor<'a, T> {
        let first = all.partition_point(|each| at(each) < from);
        Cursor { rest: all.get(first..).unwrap_or_default(), at }
    }

    /// The one within `range`; each is found once, in order.
    pub fn within(&mut self, range: AddrRange) -> Option<&'a T> {
        while let Some((first, rest)) = self.rest.split_first() {
            let at = (self.at)(first);
            if at >= range.end {
                return None;
            }
            self.rest = rest;
            if at >= range.start {
                return Some(first);
            }
        }
        None
    }
}

/// What is searched for on the way.
pub struct Sought<'a> {
    /// Chunks in fastbins.
    pub fast: &'a [Addr],
    pub blocks: &'a [KnownBlock],
    /// Takes chunks in use of a length that a thread's cache may have: address, length and what of its memory
    /// is at hand.
    pub maybe_cache: &'a mut dyn FnMut(Addr, u64, &[u8]),
    pub cache_lengths: &'a [u64],
}

/// What ended a walk before the end of its piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    Doubt(Doubt),
    /// What is above this address is not malloc's, at first.
    Fence(Addr),
}

/// Walks a piece; what is found is added to `pages`.
pub fn walk(
    piece: Piece,
    window: &mut Window<'_, '_>,
    sought: &mut Sought<'_>,
    pages: &mut Pages<'_>,
) -> Result<(), Ended> {
    let broken = |at: Addr| Ended::Doubt(Doubt::Broken(at));
    let mut at = piece.range.start.saturating_add(piece.header);
    pages.add(AddrRange { start: piece.range.start, end: at }, Use::Own);
    let mut fast = Cursor::new(sought.fast, at, |at| *at);
    let mut blocks = Cursor::new(sought.blocks, at, |block| block.at);
    let mut size = word(window, at)?;
    if piece.top != Some(at) && size & PREV_INUSE == 0 {
        return Err(broken(at));
    }
    loop {
        if piece.top == Some(at) {
            pages.add(AddrRange { start: at, end: piece.range.end }, Use::Top);
            return Ok(());
        }
        let len = size & !FLAGS;
        let rest = piece.range.end.0.saturating_sub(at.0);
        if let Some(end) = fence(len, rest) {
            pages.add(AddrRange::from_len(at, end), Use::Own);
            let end = at.saturating_add(end);
            return if end >= piece.range.end { Ok(()) } else { Err(Ended::Fence(end)) };
        }
        // At least the head of a top or a fencepost lies behind.
        if len < SHORTEST || !len.is_multiple_of(16) || len > rest.saturating_sub(HEADER) {
            return Err(broken(at));
        }
        let range = AddrRange::from_len(at, len);
        let next = word(window, range.end)?;
        if next & PREV_INUSE == 0 {
            pages.add(range, Use::Free);
        } else if fast.within(range) == Some(&at) {
            pages.add(range, Use::Fast);
        } else {
            pages.add(range, Use::Held);
            // Several where a program's own allocator is described, too.
            while let Some(block) = blocks.within(range) {
                let usable = range.end.0.saturating_add(OVERHEAD).saturating_sub(block.at.0);
                pages.know(block, usable);
            }
            if sought.cache_lengths.contains(&len) {
                (sought.maybe_cache)(at, len, window.held_from(at));
            }
        }
        (at, size) = (range.end, next);
    }
}

/// The length of what `sysmalloc` leaves at the end of a heap: two heads without a chunk, the last of which
/// has length 0 (in a heap that is full) or 16 (where other code took memory by brk).
fn fence(len: u64, rest: u64) -> Option<u64> {
    match (len, rest) {
        (0, HEADER) => Some(HEADER),
        (HEADER, _) => Some(HEADER * 2),
        _ => None,
    }
}

fn word(window: &mut Window<'_, '_>, at: Addr) -> Result<u64, Ended> {
    window.word(at.saturating_add(8)).map_err(|absent| match absent {
        Absent::Swapped => Ended::Doubt(Doubt::Swapped(at)),
        Absent::Unreadable => Ended::Doubt(Doubt::Unreadable(at)),
    })
}

/// Chunks examined to find where a heap goes on.
const PROBED: usize = 64;
/// What other code may take by brk between two of malloc's calls, at most.
const FOREIGN: u64 = 64 << 20;

/// Where the main heap's chunks go on behind what other code took.
pub fn next_chunk(from: Addr, end: Addr, top: Addr, window: &mut Window<'_, '_>) -> Option<Addr> {
    let start = from.saturating_add(15).align_down(16);
    let mut places = (start.0..end.0.min(start.0.saturating_add(FOREIGN))).step_by(16).map(Addr);
    places.find(|&at| at == top || is_chain(at, end, top, window))
}

/// `PROBED` chunks in a row, or fewer up to the top.
fn is_chain(from: Addr, end: Addr, top: Addr, window: &mut Window<'_, '_>) -> bool {
    let mut at = from;
    for step in 0..PROBED {
        if at == top {
            return step > 0;
        }
        let Ok(size) = word(window, at) else { return false };
        let len = size & !FLAGS;
        let rest = end.0.saturating_sub(at.0);
        // NON_MAIN_ARENA and IS_MMAPPED are set of none here.
        if size & (FLAGS & !PREV_INUSE) != 0 || step == 0 && size & PREV_INUSE == 0 {
            return false;
        }
        if step > 0 && fence(len, rest).is_some() {
            return true;
        }
        if len < SHORTEST || !len.is_multiple_of(16) || len > rest.saturating_sub(HEADER) {
            return false;
        }
        at = at.saturating_add(len);
    }
    true
}
