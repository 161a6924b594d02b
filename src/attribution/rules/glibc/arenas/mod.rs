//! glibc's arenas, read from their headers while the process runs: what is in use, free, cached, and what
//! `malloc_trim(0)` would give back.
//!
//! ```text
//! libc's data ──find──► main arena ──next──► ring of arenas
//!                       [heap]               heap_info chains     ──► pieces
//! fastbins, then every chunk of each piece, then threads' caches  ──► sums, by page and in all
//! ```
//!
//! Nothing stops the process. What was read is proven where it can be: chunks lead exactly to the top and to
//! the ends of heaps, sums are what the header says, and the header is the same afterwards.

mod caches;
mod chunks;
mod pages;
mod pieces;
mod state;
mod window;

use super::is_libc;
use crate::model::arenas::{
    Arena, ArenasRead, Doubt, Holder, KnownBlock, MappedBlocks, ReadMemory, Surroundings,
};
use crate::model::observation::Residency;
use crate::model::path::base_name_lossy;
use crate::model::{Addr, AddrRange, Mapping, Sharing};
use caches::{CACHE_LENGTHS, Heaps, Kind, PageStore, follow, heads};
use chunks::{Cursor, Sought};
use pages::{Pages, know};
use pieces::{ArenaPieces, pieces_of};
use state::{State, find};
use std::cmp::Reverse;
use std::collections::HashMap;
use window::{Window, bytes_in};

/// Initialised data of the C library, or of a static program, that is searched.
const LONGEST_DATA: u64 = 4 << 20;

/// See [`crate::model::arenas`].
pub fn read(process: &Surroundings<'_>, memory: &mut ReadMemory<'_>) -> ArenasRead {
    let mut out = ArenasRead { knows_pages: process.residency.is_page_exact(), ..ArenasRead::default() };
    let mut found: Vec<Found> = Vec::new();
    for ring in rings(process, memory) {
        for (at, state) in ring.into_iter().enumerate() {
            let is_main = at == 0;
            let pieces = pieces_of(&state, is_main, process, memory);
            found.push(Found { state, is_main, pieces });
        }
    }
    let mut heaps: Vec<AddrRange> =
        found.iter().flat_map(|each| each.pieces.pieces.iter().map(|piece| piece.range)).collect();
    heaps.sort_unstable();
    let heaps = Heaps(&heaps);
    let mut maybe_caches = Vec::new();
    let mut walked: Vec<Walked<'_>> =
        found.iter().map(|each| walk(each, heaps, process, (memory, &mut maybe_caches))).collect();
    uncount_caches(&maybe_caches, heaps, (&mut walked, process.residency), memory);
    let mut holders = HashMap::new();
    for (each, mut walked) in found.iter().zip(walked) {
        let mut arena = Arena { doubt: walked.doubt, ..Arena::default() };
        for pages in &mut walked.pages {
            pages.finish();
            pages.holders(process.blocks, &mut holders);
            add(&mut arena, &pages.sum);
        }
        (arena.at, arena.is_main) = (each.state.at, each.is_main);
        (arena.threads, arena.system) = (each.state.threads, each.state.system);
        arena.doubt = doubt_of(each, &arena, memory);
        out.arenas.push(arena);
    }
    out.holders = sorted(holders);
    out.mapped = mapped_blocks(process);
    out
}

/// An arena and where its chunks are.
struct Found {
    state: State,
    is_main: bool,
    pieces: ArenaPieces,
}

struct Walked<'a> {
    pages: Vec<Pages<'a>>,
    doubt: Option<Doubt>,
}

/// The arenas of each copy of the C library; of a static program, the program's.
fn rings(process: &Surroundings<'_>, memory: &mut ReadMemory<'_>) -> Vec<Vec<State>> {
    let is_data = |m: &&Mapping| {
        m.prot.write && m.sharing == Sharing::Private && m.file.is_some() && m.range.len() <= LONGEST_DATA
    };
    let data = || process.mappings.iter().filter(is_data);
    let mut found = Vec::new();
    let mut examine = |mapping: &Mapping| {
        let mut bytes = vec![0; mapping.range.len() as usize];
        if memory(mapping.range.start, &mut bytes) {
            found.extend(find(mapping.range, &bytes, memory));
        }
    };
    data().filter(|m| is_libc(&base_name_lossy(&m.name))).for_each(&mut examine);
    let is_static = !process.mappings.iter().any(|m| is_libc(&base_name_lossy(&m.name)));
    data().filter(|m| is_static && m.name == process.exe).for_each(&mut examine);
    found
}

fn walk<'a>(
    found: &Found,
    heaps: Heaps<'_>,
    process: &Surroundings<'a>,
    (memory, maybe_caches): (&mut ReadMemory<'_>, &mut Vec<MaybeCache>),
) -> Walked<'a> {
    let mut doubt = found.pieces.doubt;
    let mut fast = Vec::new();
    let mut store = PageStore::new(memory, process.residency);
    for &head in &found.state.fastbins {
        let list = follow(head, Kind::Fast, (&mut store, heaps));
        doubt = doubt.or((!list.whole).then_some(Doubt::Changed));
        fast.extend(list.chunks.into_iter().map(|(at, _)| at));
    }
    fast.sort_unstable();
    fast.dedup();
    let mut note = |at: Addr, len: u64, bytes: &[u8]| match heads(len, bytes, heaps) {
        Some(heads) => maybe_caches.push(MaybeCache { at, len, heads: Some(heads) }),
        None if (bytes.len() as u64) < len => maybe_caches.push(MaybeCache { at, len, heads: None }),
        None => {}
    };
    let mut sought =
        Sought { fast: &fast, blocks: process.blocks, maybe_cache: &mut note, cache_lengths: CACHE_LENGTHS };
    let mut all = Vec::new();
    for piece in &found.pieces.pieces {
        let mut window = Window::new(memory, process.residency, piece.range);
        let mut pages = Pages::new(process.residency, piece.range.start.page_down(), piece.lowers_brk);
        let ended = pieces::walk_all(piece, &mut window, &mut sought, &mut pages);
        doubt = doubt.or(ended.err());
        all.push(pages);
    }
    Walked { pages: all, doubt }
}

/// A block in use that may be a thread's cache.
struct MaybeCache {
    at: Addr,
    len: u64,
    /// None: not all of it was at hand.
    heads: Option<Vec<(u64, Addr)>>,
}

/// What threads' caches hold is free.
fn uncount_caches(
    maybe: &[MaybeCache],
    heaps: Heaps<'_>,
    (walked, residency): (&mut [Walked<'_>], &Residency),
    memory: &mut ReadMemory<'_>,
) {
    let mut cached: Vec<(Addr, u64)> = Vec::new();
    for each in maybe {
        let read = || {
            let mut bytes = vec![0; each.len as usize];
            memory(each.at, &mut bytes).then(|| heads(each.len, &bytes, heaps)).flatten()
        };
        let Some(heads) = each.heads.clone().or_else(read) else { continue };
        let mut store = PageStore::new(memory, residency);
        let lists: Vec<_> = heads
            .iter()
            .map(|&(index, head)| follow(head, Kind::Cache(index), (&mut store, heaps)).chunks)
            .collect();
        // In what only resembles one, first chunks do not fit; in one that is used meanwhile, some do not.
        if lists.iter().filter(|list| list.is_empty()).count() * 2 <= lists.len() {
            cached.extend(lists.into_iter().flatten());
        }
    }
    cached.sort_unstable();
    cached.dedup_by_key(|(at, _)| *at);
    for pages in walked.iter_mut().flat_map(|each| &mut each.pages) {
        let range = pages.range();
        let mut here = Cursor::new(&cached, range.start, |(at, _)| *at);
        while let Some(&(at, len)) = here.within(range) {
            pages.uncount(AddrRange::from_len(at, len));
        }
    }
}

fn add(to: &mut Arena, piece: &Arena) {
    for (to, from) in [
        (&mut to.in_use, piece.in_use),
        (&mut to.thread_caches, piece.thread_caches),
        (&mut to.fast, piece.fast),
        (&mut to.free, piece.free),
        (&mut to.pages.sparse, piece.pages.sparse),
    ] {
        to.bytes += from.bytes;
        to.count += from.count;
    }
    for (to, from) in [
        (&mut to.read, piece.read),
        (&mut to.top, piece.top),
        (&mut to.own, piece.own),
        (&mut to.pages.resident, piece.pages.resident),
        (&mut to.pages.swapped, piece.pages.swapped),
        (&mut to.pages.used, piece.pages.used),
        (&mut to.pages.beside, piece.pages.beside),
        (&mut to.pages.whole, piece.pages.whole),
        (&mut to.pages.sparse_used, piece.pages.sparse_used),
        (&mut to.trim.inside, piece.trim.inside),
        (&mut to.trim.top, piece.trim.top),
        (&mut to.known.blocks, piece.known.blocks),
        (&mut to.known.requested, piece.known.requested),
        (&mut to.known.rounding, piece.known.rounding),
    ] {
        *to += from;
    }
}

/// An arena that is used while it is read says so; else its sum is what its header says.
fn doubt_of(found: &Found, arena: &Arena, memory: &mut ReadMemory<'_>) -> Option<Doubt> {
    let now = State::read(found.state.at, memory);
    if !now.is_some_and(|now| now.is_as(&found.state)) {
        return Some(Doubt::Changed);
    }
    let missing = found.state.system.saturating_sub(arena.read.saturating_add(found.pieces.lead));
    match arena.doubt {
        Some(doubt) => Some(doubt),
        None if arena.read > found.state.system => Some(Doubt::Changed),
        None => (missing > 0).then_some(Doubt::Elsewhere(missing)),
    }
}

fn sorted(holders: HashMap<u32, Holder>) -> Vec<Holder> {
    let mut all: Vec<Holder> = holders.into_values().collect();
    all.sort_by_key(|holder| (Reverse(holder.kept), holder.holder));
    all
}

fn mapped_blocks(process: &Surroundings<'_>) -> MappedBlocks {
    let mut found = MappedBlocks::default();
    for block in process.mapped_blocks {
        found.blocks.add(block.len());
        found.resident += bytes_in(&process.residency.resident, *block);
        let mut known = Cursor::new(process.blocks, block.start, |known: &KnownBlock| known.at);
        if let Some(held) = known.within(*block) {
            know(&mut found.known, held, block.end.0.saturating_sub(held.at.0));
        }
    }
    found
}
