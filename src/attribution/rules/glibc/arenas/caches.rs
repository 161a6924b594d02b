//! Lists of chunks that count as in use though they are free: fastbins, and the caches of threads.
//!
//! Source: glibc malloc/malloc.c, `mfastbinptr`, `tcache_perthread_struct`. Links are xored with their own
//! place's page number as of 2.32 (PROTECT_PTR); each link shows which it is: only one of the two readings is
//! the address of a chunk of the right length. A cache is itself a block in use, of a length of its own:
//!
//! | | counts | heads | chunk |
//! | --- | --- | --- | --- |
//! | 2.26 – 2.29 | 64 bytes | 64 | 0x250 |
//! | 2.30 – 2.41 | 64 of two bytes | 64 | 0x290 |
//! | 2.42 | 76 of two bytes: what may still be added | 76 | 0x300 |

use super::chunks::SHORTEST;
use super::state::word;
use super::window::holding;
use crate::model::arenas::ReadMemory;
use crate::model::hash::IntMap;
use crate::model::observation::Residency;
use crate::model::{Addr, AddrRange, PAGE};

/// Lengths of chunks that may be a thread's cache.
pub const CACHE_LENGTHS: &[u64] = &[0x250, 0x290, 0x300];
/// TCACHE_SMALL_BINS: lists of chunks of one length each.
const SMALL_LISTS: u64 = 64;
/// A fastbin's longest chunk (MAX_FAST_SIZE, rounded).
const LONGEST_FAST: u64 = 176;
/// A chunk's header, before what the program gets.
const HEADER: u64 = 16;

/// Pages of the process that were read; lists jump to and fro between them.
pub struct PageStore<'a, 'm> {
    read: &'a mut ReadMemory<'m>,
    residency: &'a Residency,
    pages: IntMap<u64, Box<[u8; PAGE as usize]>>,
}

/// Pages that are kept: 512 MiB. What has no space is read word by word.
const MAX_PAGES: usize = 1 << 17;
/// What is read at once, of pages that are in memory: neighbours come next.
const BLOCK: u64 = 64 << 10;

impl<'a, 'm> PageStore<'a, 'm> {
    pub fn new(read: &'a mut ReadMemory<'m>, residency: &'a Residency) -> PageStore<'a, 'm> {
        PageStore { read, residency, pages: IntMap::default() }
    }

    /// The word at an address, a multiple of 8.
    fn word(&mut self, at: Addr) -> Option<u64> {
        let page = at.page_down();
        if !self.pages.contains_key(&page.0) {
            // Nothing is read that is in swap: that would bring it back.
            if holding(&self.residency.swapped, page).is_some() {
                return None;
            }
            if self.pages.len() >= MAX_PAGES {
                let mut bytes = [0; 8];
                return (self.read)(at, &mut bytes).then(|| u64::from_ne_bytes(bytes));
            }
            self.fill(page)?;
        }
        word(&self.pages.get(&page.0)?[..], at.0 - page.0)
    }

    fn fill(&mut self, page: Addr) -> Option<()> {
        let alone = AddrRange::from_len(page, PAGE);
        let block = AddrRange::from_len(page.align_down(BLOCK), BLOCK);
        let run = holding(&self.residency.resident, page).map_or(alone, |run| run.intersect(block));
        let mut bytes = vec![0; run.len() as usize];
        let start = match (self.read)(run.start, &mut bytes) {
            true => run.start,
            false => {
                bytes.truncate(PAGE as usize);
                (self.read)(page, &mut bytes).then_some(page)?
            }
        };
        for (at, page) in (start.0..).step_by(PAGE as usize).zip(bytes.as_chunks::<{ PAGE as usize }>().0) {
            self.pages.insert(at, Box::new(*page));
        }
        Some(())
    }
}

/// Where chunks of any arena lie: sorted, disjoint.
#[derive(Clone, Copy)]
pub struct Heaps<'a>(pub &'a [AddrRange]);

impl Heaps<'_> {
    fn has_chunk(&self, at: Addr) -> bool {
        let next = self.0.partition_point(|heap| heap.end <= at);
        at.is_aligned(16) && self.0.get(next).is_some_and(|heap| heap.contains(at))
    }
}

/// Chunks of a list, and whether it was followed to its end.
pub struct List {
    pub chunks: Vec<(Addr, u64)>,
    pub whole: bool,
}

/// Which list is followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Links lead from chunk to chunk.
    Fast,
    /// Of a thread's cache, by its number: links lead to what the program gets.
    Cache(u64),
}

impl Kind {
    fn target(self, link: u64) -> Addr {
        match self {
            Kind::Fast => Addr(link),
            Kind::Cache(_) => Addr(link.wrapping_sub(HEADER)),
        }
    }

    /// Chunks in it at most: counts of caches have 16 bits.
    fn most(self) -> usize {
        match self {
            Kind::Fast => 1 << 30,
            Kind::Cache(_) => 1 << 16,
        }
    }

    /// Whether a chunk of that length may be in it.
    fn fits(self, len: u64) -> bool {
        match self {
            Kind::Cache(index) if index < SMALL_LISTS => len == SHORTEST + index * 16,
            Kind::Cache(_) => len > SHORTEST + (SMALL_LISTS - 1) * 16,
            Kind::Fast => len <= LONGEST_FAST,
        }
    }
}

/// Follows a list; links are 16 bytes into a chunk.
pub fn follow(first: Addr, kind: Kind, (store, heaps): (&mut PageStore<'_, '_>, Heaps<'_>)) -> List {
    let mut list = List { chunks: Vec::new(), whole: false };
    let (mut at, mut mark) = (first, Addr(0));
    loop {
        if at.0 == 0 {
            list.whole = true;
            return list;
        }
        let fit = heaps.has_chunk(at).then(|| length(at, store)).flatten().filter(|&len| kind.fits(len));
        let Some(len) = fit.filter(|_| list.chunks.len() < kind.most()) else { return list };
        list.chunks.push((at, len));
        // Brent: a list that changes while it is followed may lead back into itself.
        if at == mark {
            return list;
        }
        if list.chunks.len().is_power_of_two() {
            mark = at;
        }
        let place = at.saturating_add(HEADER);
        let Some(link) = store.word(place) else { return list };
        let revealed = link ^ place.0 >> 12;
        let leads = |next: u64| next == 0 || heaps.has_chunk(kind.target(next));
        at = match [revealed, link].into_iter().find(|&next| leads(next)) {
            Some(0) => Addr(0),
            Some(next) => kind.target(next),
            None => return list,
        };
    }
}

fn length(at: Addr, store: &mut PageStore<'_, '_>) -> Option<u64> {
    Some(store.word(at.saturating_add(8))? & !7).filter(|&len| len >= SHORTEST)
}

/// What a chunk of such a length may be as a thread's cache.
struct Layout {
    counts: u64,
    heads: u64,
    /// Bytes of a count; 0: they do not show how long a list is.
    count_len: u64,
}

fn layout(len: u64) -> Option<Layout> {
    match len {
        0x250 => Some(Layout { counts: 64, heads: 64, count_len: 1 }),
        0x290 => Some(Layout { counts: 128, heads: 64, count_len: 2 }),
        0x300 => Some(Layout { counts: 152, heads: 76, count_len: 0 }),
        _ => None,
    }
}

/// The heads of lists in a chunk that may be a thread's cache: number and first chunk of each that is not empty.
/// `bytes` begins with the chunk.
pub fn heads(len: u64, bytes: &[u8], heaps: Heaps<'_>) -> Option<Vec<(u64, Addr)>> {
    let Layout { counts, heads, count_len } = layout(len)?;
    let mut found = Vec::new();
    for index in 0..heads {
        let head = word(bytes, HEADER + counts + index * 8)?;
        let count = match count_len {
            0 => u64::from(head != 0),
            1 => u64::from(*bytes.get((HEADER + index) as usize)?),
            _ => word(bytes, HEADER + index / 4 * 8)? >> (index % 4 * 16) & 0xffff,
        };
        match head {
            0 if count == 0 => {}
            head if count > 0 && head >= HEADER && heaps.has_chunk(Addr(head - HEADER)) => {
                found.push((index, Addr(head - HEADER)));
            }
            _ => return None,
        }
    }
    Some(found)
}
