//! The collectors' tables by their sizes, which follow from the largest heap: a bit for each 64
//! bytes of it, a byte for each 512, and one by which a heap outside of the low addresses is known.

use super::layout::Heap;
use super::spans::{Kind, Span, Spans, page_up, reservable};
use super::{BITMAP, CARDS, MARK_STACK, Z_MARK_STACK, Z_TABLES};
use crate::attribution::rules::runs::extent;
use crate::model::{Addr, AddrRange, PAGE};

/// Bytes of heap for a byte of a mark bitmap; Parallel's (17) and Shenandoah's hold two in one.
const BITMAPS: [u64; 2] = [64, 32];
/// Bytes of heap for a byte of a card table or a block offset table (BOT).
const CARD: u64 = 512;
/// Bytes of heap for a byte of each of Shenandoah's bitmaps.
const SHENANDOAH_BITMAP: u64 = 32;
/// G1CMMarkStack with MarkStackSizeMax's default of 4 Mi entries.
const MARK_STACK_SIZE: u64 = 32 << 20;
const HUGE_PAGE: u64 = 2 << 20;
/// ZGranuleSize.
const Z_GRANULE: u64 = 2 << 20;
/// ZMarkStackSpaceLimit's default.
const Z_MARK_STACK_SIZE: u64 = 8 << 30;
/// Reserved parts are larger than stacks' guards.
const MIN_RESERVED: u64 = 64 << 10;
/// Smaller ones that are committed as a whole are not searched for.
const MIN_WHOLE: u64 = 4 << 20;
/// Mappings that a table may consist of where both its ends are known.
const MAX_PARTS: usize = 16;
const MIN_HEAP: u64 = 16 << 20;
/// GenAlignment; regions are larger.
const HEAP_ALIGN: u64 = 64 << 10;
/// Reservations that one heap can consist of.
const GENERATIONS: usize = 3;

/// A reservation, as far as maps shows where it begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reservation {
    pub range: AddrRange,
    /// Bytes from its begin on that are committed, or that something committed below it has.
    pub committed: u64,
}

/// What is reserved and not yet known to be something: each begins with its committed part.
pub(super) fn reservations(spans: &Spans) -> Vec<Reservation> {
    let mut found = Vec::new();
    for run in spans.runs(reservable) {
        for part in run.split(|span| !spans.is_free(span.range)) {
            let mut last: Option<Reservation> = None;
            for (i, span) in part.iter().enumerate() {
                let begins = i == 0 || (span.kind == Kind::Open && part[i - 1].kind == Kind::Closed);
                match &mut last {
                    Some(open) if !begins => open.range.end = span.range.end,
                    _ => {
                        let committed = if span.kind == Kind::Open { span.range.len() } else { 0 };
                        found.extend(last.replace(Reservation { range: span.range, committed }));
                    }
                }
            }
            found.extend(last);
        }
    }
    found
}

/// The largest reservation (or neighbouring ones together) that tables of its size exist for, or that is as
/// large as the command line says. What was committed right below it may have merged with its begin: the
/// command line's size, counted from its end, shows where that is.
pub(super) fn largest_with_tables(free: &[Reservation], heap_size: Option<u64>) -> Option<AddrRange> {
    let sizes: std::collections::HashSet<u64> = free.iter().map(|r| r.range.len()).collect();
    let mut best: Option<AddrRange> = None;
    for (i, first) in free.iter().enumerate() {
        let mut whole = first.range;
        for next in free[i..].iter().take(GENERATIONS) {
            if next.range.start > whole.end {
                break;
            }
            whole.end = next.range.end;
            let merged =
                heap_size.and_then(|heap_size| without_what_merged(whole, first.committed, heap_size));
            let range = merged.unwrap_or(whole);
            let size = range.len();
            let tables = [page_up(size / 64), page_up(size / CARD), page_up(size / CARD) + PAGE];
            let proven = heap_size == Some(size) || tables.iter().any(|table| sizes.contains(table));
            if size >= MIN_HEAP && proven && best.is_none_or(|best| best.len() < size) {
                best = Some(range);
            }
        }
    }
    best
}

/// The last `heap_size` bytes, if they begin in the committed part, at a place where a heap may begin.
fn without_what_merged(whole: AddrRange, committed: u64, heap_size: u64) -> Option<AddrRange> {
    let start = Addr(whole.end.0.checked_sub(heap_size)?);
    let begin = whole.start.0..whole.start.0.saturating_add(committed);
    (begin.contains(&start.0) && start.is_aligned(HEAP_ALIGN)).then_some(AddrRange { start, end: whole.end })
}

pub(super) fn find(spans: &mut Spans, heap: Option<Heap>) {
    let Some(heap) = heap else { return };
    if let Some(views) = heap.zgc_views {
        z_tables(spans, views);
        return;
    }
    let cards = |bytes: u64| page_up(bytes / CARD);
    let mut sizes: Vec<(u64, bool)> = BITMAPS.iter().map(|per| (page_up(heap.size / per), true)).collect();
    // a card table has a guard page
    sizes.extend([(cards(heap.size), false), (cards(heap.size) + PAGE, false)]);
    if heap.generations.len() > 1 {
        sizes.extend(heap.generations.iter().map(|&bytes| (cards(bytes), false)));
    }
    sizes.retain(|(size, _)| *size >= MIN_RESERVED);
    for (range, bitmap) in whole_tables(spans, &sizes) {
        if spans.is_free(range) {
            spans.take(range, if bitmap { &BITMAP } else { &CARDS });
        }
    }
    let runs: Vec<Vec<Span>> = spans.runs(reservable).into_iter().map(<[Span]>::to_vec).collect();
    for run in runs {
        // what is found is an edge for its neighbours
        while let Some((range, bitmap)) = next_table(spans, &run, &sizes) {
            spans.take(range, if bitmap { &BITMAP } else { &CARDS });
        }
    }
    if heap.is_shenandoah {
        second_bitmap(spans, page_up(heap.size / SHENANDOAH_BITMAP));
    }
    let stacks: Vec<AddrRange> = spans.all.iter().filter_map(|span| mark_stack(spans, span)).collect();
    if let [stack] = stacks.as_slice() {
        spans.take(*stack, &MARK_STACK);
    }
}

/// Shenandoah reserves a second bitmap as large as the first, for heap dumps and verification, right after it and so
/// right below, and commits nothing of it until then (shenandoahHeap.cpp, `_aux_bitmap_region`).
fn second_bitmap(spans: &mut Spans, size: u64) {
    let bitmaps = spans.edges_of(BITMAP.category, BITMAP.committed);
    let mapping_at = |start: Addr| {
        let range = AddrRange { start: Addr(start.0.saturating_sub(size)), end: start };
        let reserved = spans.covers(range, |kind| kind == Kind::Closed);
        (size >= MIN_RESERVED && reserved && spans.is_free(range)).then_some(range)
    };
    let found: Vec<AddrRange> = bitmaps.into_iter().filter_map(mapping_at).collect();
    if let [range] = found.as_slice() {
        spans.take(*range, &BITMAP);
    }
}

/// 32 MiB between multiples of 2 MiB, where the kernel puts what is that long (mm/huge_memory.c,
/// `thp_get_unmapped_area`); a smaller block may have merged with it at either end.
fn mark_stack(spans: &Spans, span: &Span) -> Option<AddrRange> {
    let len = span.range.len();
    let (start, end) = (span.range.start, span.range.end);
    // a table above it is known by now
    let range = if end.is_aligned(HUGE_PAGE) && spans.is_free(span.range) {
        AddrRange { start: Addr(end.0.saturating_sub(MARK_STACK_SIZE)), end }
    } else {
        AddrRange::from_len(start, MARK_STACK_SIZE)
    };
    let fits = (MARK_STACK_SIZE..MARK_STACK_SIZE * 3 / 2).contains(&len) && span.kind == Kind::Open;
    (fits && range.start.is_aligned(HUGE_PAGE) && spans.is_free(range)).then_some(range)
}

/// ZGC's page table and its table of forwardings: a pointer for each granule of the addresses that one view of the heap
/// may have (zGranuleMap.inline.hpp), committed as a whole. The lowest view begins where these end
/// (zGlobals.cpp, `ZAddressMetadataMarked0`). Both or none: others map 16 MiB, too.
fn z_tables(spans: &mut Spans, lowest_view: Addr) {
    let Some(bits) = lowest_view.0.checked_ilog2() else { return };
    let size = (1u64 << bits) / Z_GRANULE * size_of::<u64>() as u64;
    // a smaller block may have merged with them at either end
    let tables = |span: &Span| {
        let (start, end, count) = (span.range.start, span.range.end, span.range.len().checked_div(size)?);
        let own = span.kind == Kind::Open
            && spans.is_free(span.range)
            && span.range.len() - count * size < size / 2;
        let start = if end.is_aligned(HUGE_PAGE) { Addr(end.0 - count * size) } else { start };
        let aligned = own && size >= MIN_WHOLE && start.is_aligned(HUGE_PAGE);
        aligned.then(|| (0..count).map(move |n| AddrRange::from_len(start.saturating_add(n * size), size)))
    };
    let found: Vec<AddrRange> = spans.all.iter().filter_map(tables).flatten().collect();
    if found.len() == 2 {
        for table in found {
            spans.take(table, &Z_TABLES);
        }
    }
}

/// What is committed as a whole has only its size to be known by.
fn whole_tables(spans: &Spans, sizes: &[(u64, bool)]) -> Vec<(AddrRange, bool)> {
    let large = spans.all.iter().filter(|span| span.kind == Kind::Open && span.range.len() >= MIN_WHOLE);
    let table = |span: &Span| {
        let (_, bitmap) = sizes.iter().find(|(size, _)| span.range.len() == *size)?;
        Some((span.range, *bitmap))
    };
    large.filter_map(table).collect()
}

/// A table of one of these sizes below an edge: what is mapped later lies, as a rule, lower, and may
/// have merged with the table's committed part. Where a committed part follows a reserved one is an
/// edge only if the lower one's end is not committed, too.
fn next_table(spans: &Spans, run: &[Span], sizes: &[(u64, bool)]) -> Option<(AddrRange, bool)> {
    let all = extent(run);
    let edges = spans.edges_in(all).into_iter().chain([all.end]);
    let borders = run.iter().map(|span| span.range.end).filter(|&end| is_border(run, end));
    let known = |addr| spans.is_edge(addr) || is_border(run, addr);
    for end in edges.chain(borders) {
        let fits = |(size, _): &&(u64, bool), parts| {
            let range = AddrRange { start: Addr(end.0.saturating_sub(*size)), end };
            is_table(spans, range, parts) && (parts == 3 || known(range.start))
        };
        let three = sizes.iter().find(|size| fits(size, 3));
        let found = three.or_else(|| sizes.iter().find(|size| fits(size, MAX_PARTS)));
        if let Some(&(size, bitmap)) = found {
            return Some((AddrRange { start: Addr(end.0 - size), end }, bitmap));
        }
    }
    None
}

/// The run's own ends, and where a committed part follows a reserved one.
fn is_border(run: &[Span], addr: Addr) -> bool {
    let at = run.partition_point(|span| span.range.end <= addr);
    let begins = run.get(at).is_some_and(|span| span.range.start == addr);
    let opens = || {
        let below = at.checked_sub(1).and_then(|below| run.get(below));
        run[at].kind == Kind::Open && below.is_none_or(|below| below.kind == Kind::Closed)
    };
    (begins && opens()) || run.last().is_some_and(|span| span.range.end == addr)
}

/// Committed from its beginning on, as the heap is, and perhaps at its end (archived objects lie
/// there); the rest reserved.
fn is_table(spans: &Spans, range: AddrRange, parts: usize) -> bool {
    if spans.overlapping(range).len() > parts {
        return false;
    }
    let inside = spans.within(range);
    let reserved: u64 = inside.iter().filter(|s| s.kind == Kind::Closed).map(|s| s.range.len()).sum();
    let begins = inside.first().is_some_and(|span| span.kind == Kind::Open);
    spans.is_free(range)
        && spans.covers(range, reservable)
        && begins
        && reserved >= MIN_RESERVED
        && inside.last().is_some_and(|s| s.kind == Kind::Closed || s.range.len() <= range.len() / 32)
}

/// Of a reservation of 8 GiB a first piece is committed.
pub(super) fn z_mark_stack(spans: &mut Spans) {
    let mut found = None;
    let large = |span: &&Span| span.kind == Kind::Closed && span.range.len() >= Z_MARK_STACK_SIZE / 2;
    for span in spans.all.iter().filter(large) {
        let end = span.range.end;
        let range = AddrRange { start: Addr(end.0.saturating_sub(Z_MARK_STACK_SIZE)), end };
        if spans.is_free(range) && spans.covers(range, reservable) {
            found = Some(range);
        }
    }
    if let Some(range) = found {
        spans.take(range, &Z_MARK_STACK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As one of 20 runs of OpenJDK 17 with -Xmx1g and without compressed pointers: a stack's end below
    /// the heap is one VMA with what is committed of it.
    #[test]
    fn a_heap_that_merged_with_what_lies_below_it() {
        let merged =
            Reservation { range: AddrRange::new(0x7f37_392f_f000, 0x7f37_7940_0000), committed: 0x17b0_1000 };
        let heap = AddrRange::new(0x7f37_3940_0000, 0x7f37_7940_0000);
        assert_eq!(largest_with_tables(&[merged], Some(1 << 30)), Some(heap));
        // nothing says where it begins, or it begins in what is only reserved
        assert_eq!(largest_with_tables(&[merged], None), None);
        let little = Reservation { committed: 0x1000, ..merged };
        assert_eq!(largest_with_tables(&[little], Some(1 << 30)), None);
    }
}
