//! Where the chunks of an arena are: `[heap]` of the main one, a chain of 64 MiB heaps of each other.

use super::chunks::{Ended, Piece, Sought, next_chunk, walk};
use super::pages::{Pages, Use};
use super::state::{State, word};
use super::window::Window;
use crate::attribution::rules::glibc::HEAP_MAX;
use crate::attribution::rules::glibc::headers::MALLOC;
use crate::model::arenas::{Doubt, ReadMemory, Surroundings};
use crate::model::headers::ARENA_HEADER;
use crate::model::{Addr, AddrRange, Mapping};

/// The pieces of an arena, in address order for the main one.
#[derive(Default)]
pub struct ArenaPieces {
    pub pieces: Vec<Place>,
    /// Bytes before the first chunk that the header counts.
    pub lead: u64,
    pub doubt: Option<Doubt>,
}

/// One of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    pub range: AddrRange,
    /// Where its first chunk is.
    pub first: Addr,
    /// The topmost chunk, where it is here.
    pub top: Option<Addr>,
    /// brk is where it ends.
    pub lowers_brk: bool,
    is_main: bool,
}

pub fn pieces_of(
    state: &State,
    is_main: bool,
    process: &Surroundings<'_>,
    memory: &mut ReadMemory<'_>,
) -> ArenaPieces {
    match is_main {
        true => main_piece(state, process, memory).unwrap_or_default(),
        false => heaps_of(state, process, memory),
    }
}

/// None where the main arena has nothing from brk.
fn main_piece(state: &State, process: &Surroundings<'_>, memory: &mut ReadMemory<'_>) -> Option<ArenaPieces> {
    let is_heap = |m: &&Mapping| m.is_special("[heap]");
    let heap = AddrRange {
        start: process.mappings.iter().find(is_heap)?.range.start,
        end: process.mappings.iter().rfind(is_heap)?.range.end,
    };
    if !heap.contains(state.top) {
        return None;
    }
    let mut bytes = [0; 16];
    let end = memory(state.top, &mut bytes).then(|| word(&bytes, 8)).flatten().map(|size| size & !7);
    let end = end.map(|len| state.top.saturating_add(len));
    // It may have grown since the mappings were read.
    let Some(end) = end.filter(|end| *end <= heap.end) else {
        return Some(ArenaPieces { doubt: Some(Doubt::Changed), ..ArenaPieces::default() });
    };
    let range = AddrRange { start: heap.start, end };
    // Where malloc's first brk was: others may have taken memory before, the C library itself in static programs.
    let base = Addr(end.0.saturating_sub(state.system)).max(range.start);
    let first = base.saturating_add(15).align_down(16);
    let lowers_brk = end == heap.end;
    let place = Place { range, first, top: Some(state.top), lowers_brk, is_main: true };
    Some(ArenaPieces { pieces: vec![place], lead: first.0 - base.0, doubt: None })
}

/// From the heap of the top chunk, the newest, to the one that the arena's header is in.
fn heaps_of(state: &State, process: &Surroundings<'_>, memory: &mut ReadMemory<'_>) -> ArenaPieces {
    let mut out = ArenaPieces::default();
    let mut at = state.top.align_down(HEAP_MAX);
    let oldest = state.at.align_down(HEAP_MAX);
    // `struct heap_info` is as long as the first heap has it.
    let info = state.at.0 - oldest.0;
    loop {
        let mut bytes = [0; ARENA_HEADER];
        let known = memory(at, &mut bytes).then(|| (MALLOC.decode)(at, &bytes, &|_| true)).flatten();
        let known = known.filter(|known| known.ar_ptr == state.at);
        let Some(known) = known.filter(|known| is_mapped(AddrRange::from_len(at, known.size), process))
        else {
            out.doubt = Some(Doubt::Changed);
            return out;
        };
        let range = AddrRange::from_len(at, known.size);
        let header = if at == oldest { info + state.len } else { info };
        // What the program gets is at a multiple of 16, and so is its chunk.
        let first = at.saturating_add(header.next_multiple_of(16));
        let top = Some(state.top).filter(|top| range.contains(*top));
        out.pieces.push(Place { range, first, top, lowers_brk: false, is_main: false });
        if at == oldest {
            return out;
        }
        if known.prev.0 == 0 || out.pieces.len() >= MAX_HEAPS {
            out.doubt = Some(Doubt::Changed);
            return out;
        }
        at = known.prev;
    }
}

/// Of 64 MiB each: 4 TiB.
const MAX_HEAPS: usize = 1 << 16;

fn is_mapped(range: AddrRange, process: &Surroundings<'_>) -> bool {
    let first = process.mappings.partition_point(|m| m.range.end <= range.start);
    process.mappings.get(first).is_some_and(|m| m.range.contains(range.start))
}

/// Walks a piece to its end. In the main heap, other code may have moved brk: two fenceposts end what is
/// below, and what is above begins anew.
pub fn walk_all(
    place: &Place,
    window: &mut Window<'_, '_>,
    sought: &mut Sought<'_>,
    pages: &mut Pages<'_>,
) -> Result<(), Doubt> {
    let Place { range, first, top, .. } = *place;
    let lead = AddrRange { start: range.start, end: first };
    let mut from = range.start;
    if place.is_main {
        pages.add(lead, Use::Foreign);
        from = first;
    }
    let mut header = first.0 - from.0;
    loop {
        let piece = Piece { range: AddrRange { start: from, end: range.end }, header, top };
        let stopped = match walk(piece, window, sought, pages) {
            Ok(()) => return Ok(()),
            Err(Ended::Doubt(doubt)) => return Err(doubt),
            Err(Ended::Fence(at)) => at,
        };
        let next = top.filter(|_| place.is_main);
        let next = next.and_then(|top| next_chunk(stopped, range.end, top, window));
        let Some(next) = next.filter(|next| *next > stopped) else { return Err(Doubt::Broken(stopped)) };
        pages.add(AddrRange { start: stopped, end: next }, Use::Own);
        (from, header) = (next, 0);
    }
}
