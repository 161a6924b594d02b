//! `struct malloc_state`: the header of an arena, found and read without symbols.
//!
//! Source: glibc malloc/malloc.c, `struct malloc_state`. The offsets before and behind `bins` differ between
//! versions; the bins are in all of them 127 heads of circular lists, 16 bytes each, and an empty one points to
//! itself (`init_malloc_state`).
//!
//! ```text
//!            2.43           2.27 – 2.42                      before
//! +0         mutex, flags   mutex, flags, have_fastchunks    mutex, flags
//! …                         fastbinsY[10]                    fastbinsY[10]
//! bins - 16  top, last_remainder
//! bins       bins[254], binmap (16 bytes), next, next_free
//! bins +2064 attached_threads (2.22 and later), system_mem, max_system_mem
//! ```

use crate::model::arenas::ReadMemory;
use crate::model::{Addr, AddrRange, PAGE};
use std::collections::HashSet;

/// Heads of lists.
const BINS: usize = 127;
/// Bytes of a pair of pointers, which a head is.
const HEAD: u64 = 16;
/// NFASTBINS.
pub const FASTBINS: usize = 10;
/// From the header's start to `bins`: with 12 bytes before the fastbins (and 4 to align), with 8, without any.
const BINS_AT: [u64; 3] = [112, 104, 24];
/// From `bins` to `next`.
const NEXT_AT: u64 = BINS as u64 * HEAD + 16;
/// Threads of one arena; where there is no such field, system_mem is there, which is more.
const MOST_THREADS: u64 = 1 << 16;
/// Bytes that any version's header fits into.
pub const LONGEST: usize = 112 + NEXT_AT as usize + 40;

/// An arena's header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct State {
    pub at: Addr,
    /// Bytes of it.
    pub len: u64,
    /// The first block of each list; none where this version has no fastbins.
    pub fastbins: Vec<Addr>,
    pub top: Addr,
    /// Pairs of pointers.
    bins: Vec<(u64, u64)>,
    pub next: Addr,
    pub threads: Option<u64>,
    pub system: u64,
}

impl State {
    /// The header in `bytes`, the memory at `at`, if it can be one.
    pub fn decode(at: Addr, bytes: &[u8]) -> Option<State> {
        BINS_AT.iter().find_map(|&bins_at| State::with_bins_at(at, bytes, bins_at))
    }

    fn with_bins_at(at: Addr, bytes: &[u8], bins_at: u64) -> Option<State> {
        let word = |offset: u64| word(bytes, offset);
        let mut bins = Vec::with_capacity(BINS);
        let mut empty = 0;
        for index in 0..BINS as u64 {
            let offset = bins_at + index * HEAD;
            let (first, last) = (word(offset)?, word(offset + 8)?);
            // A head is read as if it were a block: its pointers are 16 bytes into that.
            let own = at.0.checked_add(offset)?.checked_sub(HEAD)?;
            if (first == own) != (last == own) || !is_block(first) && first != own {
                return None;
            }
            empty += usize::from(first == own);
            bins.push((first, last));
        }
        let top = word(bins_at - 16)?;
        let next = word(bins_at + NEXT_AT)?;
        let behind = bins_at + NEXT_AT + 16;
        let [first, second, third] = [word(behind)?, word(behind + 8)?, word(behind + 16)?];
        // No page multiple where the heap began amid a page.
        let is_system = |now: u64, most: u64| now <= most && most < 1 << 56;
        let (threads, system, len) = match first < MOST_THREADS && is_system(second, third) {
            true => (Some(first), second, behind + 24),
            false if is_system(first, second) => (None, first, behind + 16),
            false => return None,
        };
        let fastbins = match bins_at {
            24 => Vec::new(),
            _ => (0..FASTBINS as u64)
                .map(|index| word(bins_at - 96 + index * 8).map(Addr))
                .collect::<Option<_>>()?,
        };
        let heads = fastbins.iter().all(|&Addr(head)| head == 0 || is_block(head));
        (empty > 0 && heads && is_block(top) && next != 0 && next % 8 == 0).then_some(State {
            at,
            len,
            fastbins,
            top: Addr(top),
            bins,
            next: Addr(next),
            threads,
            system,
        })
    }

    /// Reads the one at `at`.
    pub fn read(at: Addr, read: &mut ReadMemory<'_>) -> Option<State> {
        let mut bytes = [0; LONGEST];
        // It may end within the last page of a mapping.
        let whole = read(at, &mut bytes);
        let left = (PAGE - at.0 % PAGE) as usize;
        let bytes = match whole {
            true => &bytes[..],
            false if left < LONGEST && read(at, bytes.get_mut(..left)?) => bytes.get(..left)?,
            false => return None,
        };
        State::decode(at, bytes)
    }

    /// True where nothing was allocated or freed between the two, but from and to threads' caches.
    pub fn is_as(&self, later: &State) -> bool {
        (self.top, self.system, &self.bins, &self.fastbins)
            == (later.top, later.system, &later.bins, &later.fastbins)
    }
}

/// A chunk is at a multiple of 16 in user space.
fn is_block(address: u64) -> bool {
    address.is_multiple_of(16) && (PAGE..1 << 56).contains(&address)
}

pub fn word(bytes: &[u8], offset: u64) -> Option<u64> {
    let rest = bytes.get(usize::try_from(offset).ok()?..)?;
    rest.first_chunk().map(|word| u64::from_ne_bytes(*word))
}

/// All arenas, the main one first, by the main one's header within initialised data of the C library: the only
/// one there from which the ring of arenas leads back to it. `bytes` is the memory of `data`.
pub fn find(data: AddrRange, bytes: &[u8], read: &mut ReadMemory<'_>) -> Option<Vec<State>> {
    (0..bytes.len() as u64).step_by(8).find_map(|offset| {
        let rest = bytes.get(usize::try_from(offset).ok()?..)?;
        let at = Addr(data.start.0.checked_add(offset)?);
        let mut layouts = BINS_AT.iter().filter(|&&bins_at| has_empty_list(at, rest, bins_at));
        layouts.find_map(|&bins_at| ring(State::with_bins_at(at, rest, bins_at)?, read))
    })
}

/// Cheap, and true of hardly anything else: the last bins, for blocks of more than half a megabyte, are not all in
/// use.
fn has_empty_list(at: Addr, bytes: &[u8], bins_at: u64) -> bool {
    (BINS as u64 - 8..BINS as u64).any(|index| {
        let offset = bins_at + index * HEAD;
        let own = at.0.wrapping_add(offset).wrapping_sub(HEAD);
        word(bytes, offset) == Some(own) && word(bytes, offset + 8) == Some(own)
    })
}

/// The arenas of a ring, from `main` on; None where it does not lead back.
fn ring(main: State, read: &mut ReadMemory<'_>) -> Option<Vec<State>> {
    let first = main.at;
    let mut seen = HashSet::from([first]);
    let mut all = vec![main];
    loop {
        let next = all.last()?.next;
        if next == first {
            return Some(all);
        }
        if !seen.insert(next) || all.len() >= MAX_ARENAS {
            return None;
        }
        all.push(State::read(next, read)?);
    }
}

/// More than 8 for each of 4,096 processors (M_ARENA_MAX).
const MAX_ARENAS: usize = 1 << 15;
