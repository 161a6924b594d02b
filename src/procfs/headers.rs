//! Headers that an allocator keeps in its own memory, read as its rule says: of arenas, of blocks with
//! mappings of their own, each of which begins with its length, and of arenas that are full of pools.

use super::memory;
use super::process_dir::ProcessDir;
use crate::model::headers::{
    ARENA_HEADER, BLOCK_HEADER, BOOKKEEPING_HEADER, BookkeepingHeaders, CHAIN_HEADER, ChainHeaders,
    GroupHeaders, GroupTable, Headers, MallocHeaders, PAGE_DESCRIPTION, POOL_HEADER, PageHeaders,
    PoolHeaders,
};
use crate::model::observation::{Block, BlockKind, HeapInfo, Residency, ResidencySource};
use crate::model::{Addr, AddrRange, Mapping, PAGE, Tid};

/// Blocks that are searched for at most: a recording keeps them all.
const MAX_BLOCKS: usize = 1 << 14;

/// A process whose memory is read.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub dir: &'a ProcessDir,
    pub tid: Tid,
    pub mappings: &'a [Mapping],
    pub residency: &'a Residency,
}

pub(super) fn read_arenas(of: Target<'_>, headers: &Headers, gaps: &mut Vec<String>) -> Vec<HeapInfo> {
    let Headers::Malloc(headers) = headers else { return Vec::new() };
    let (candidates, cut) = (headers.arenas)(of.mappings, of.residency);
    if cut {
        gaps.push(format!("heap headers: only the first {} places were examined", candidates.len()));
    }
    let read = match memory::read_pieces::<ARENA_HEADER>(of.dir, of.tid, &candidates) {
        Ok(read) => read,
        Err(error) => {
            gaps.push(format!("heap headers of {}: {error}", of.dir.pid()));
            return Vec::new();
        }
    };
    let mapped = |addr| Mapping::holding(of.mappings, addr).is_some();
    candidates.iter().zip(read).filter_map(|(&at, header)| (headers.decode)(at, &header?, &mapped)).collect()
}

/// Sorted and disjoint. Untouched pages are not read: a block's first page is touched. None are found where
/// memory may not be read, or is known by VMA only.
pub(super) fn read_blocks(of: Target<'_>, headers: &[Headers]) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    if !matches!(of.residency.source, ResidencySource::PagemapScan | ResidencySource::Pagemap) {
        return blocks;
    }
    for each in headers {
        let found: Vec<Block> = match each {
            Headers::Malloc(headers) => large_blocks(of, headers, &blocks),
            Headers::Pools(headers) => pool_arenas(of, headers, &blocks),
            Headers::Groups(headers) => groups(of, headers),
            Headers::Pages(headers) => object_pages(of, headers, &blocks),
            Headers::Chains(headers) => chained_arenas(of, headers, &blocks),
            Headers::Bookkeeping(headers) => bookkeeping(of, headers, &blocks),
        };
        blocks.extend(found);
        // Of two that overlap the first one holds the other: it is what a program has left there.
        blocks.sort_unstable_by_key(|block| (block.range.start, block.range.end));
        let mut end = Addr(0);
        blocks.retain(|block| {
            let apart = block.range.start >= end;
            end = if apart { block.range.end } else { end };
            apart
        });
    }
    blocks
}

fn large_blocks(of: Target<'_>, headers: &MallocHeaders, known: &[Block]) -> Vec<Block> {
    let mut places = block_places(of.mappings, headers);
    let mut blocks = Vec::new();
    loop {
        places.retain(|place| place.len() >= PAGE && is_touched(of.residency, place.start));
        places.truncate(MAX_BLOCKS.saturating_sub(blocks.len() + known.len()));
        if places.is_empty() {
            return blocks;
        }
        let starts: Vec<Addr> = places.iter().map(|place| place.start).collect();
        let Ok(read) = memory::read_pieces::<BLOCK_HEADER>(of.dir, of.tid, &starts) else { return blocks };
        let mut rest = Vec::new();
        for (place, header) in places.iter().zip(read) {
            let Some(len) = header.and_then(|header| (headers.block_len)(&header, place.len())) else {
                continue;
            };
            let end = place.start.saturating_add(len);
            blocks.push(Block { range: AddrRange { start: place.start, end }, kind: BlockKind::Large });
            // The kernel merges neighbours: behind one block the next may begin.
            rest.push(AddrRange { start: end, end: place.end });
        }
        places = rest;
    }
}

/// Where blocks may begin, and up to where each may go. What is advised about a block (MADV_HUGEPAGE) splits it:
/// its header's page then is the last one before the next VMA, in a VMA of its own or in that of a neighbour.
fn block_places(mappings: &[Mapping], headers: &MallocHeaders) -> Vec<AddrRange> {
    let mut places = Vec::new();
    let mut run_end = Addr(0);
    let mut above: Option<&Mapping> = None;
    for mapping in mappings.iter().rev().filter(|mapping| (headers.may_hold)(mapping)) {
        let AddrRange { start, end } = mapping.range;
        let next = above.filter(|above| above.range.start == end);
        if next.is_none() {
            run_end = end;
        }
        let beyond = next.map_or(0, |next| next.range.len());
        if mapping.range.len().saturating_add(beyond) >= headers.least_block {
            places.push(AddrRange { start, end: run_end });
        }
        let last = Addr(end.0.saturating_sub(PAGE));
        if last > start && beyond.saturating_add(PAGE) >= headers.least_block {
            places.push(AddrRange { start: last, end: run_end });
        }
        above = Some(mapping);
    }
    places.reverse();
    places
}

/// Arenas that begin where a VMA or what is known there ends, and those that adjoin them. Pools are made from an
/// arena's beginning on.
fn pool_arenas(of: Target<'_>, headers: &PoolHeaders, known: &[Block]) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    if !(headers.in_process)(of.mappings) {
        return found;
    }
    let holding: Vec<AddrRange> =
        of.mappings.iter().filter(|m| (headers.may_hold)(m)).map(|m| m.range).collect();
    for &(arena, pool) in headers.sizes {
        let mut taken: Vec<AddrRange> = known.iter().chain(&found).map(|block| block.range).collect();
        taken.sort_unstable();
        let free: Vec<AddrRange> = holding.iter().flat_map(|range| gaps_between(*range, &taken)).collect();
        let mut places: Vec<(AddrRange, bool)> =
            free.iter().flat_map(|gap| [(*gap, true), (*gap, false)]).collect();
        loop {
            let at = |(gap, upwards): &(AddrRange, bool)| match upwards {
                true => gap.start,
                false => Addr(gap.end.0.saturating_sub(arena)),
            };
            let first_pool = |place: &(AddrRange, bool)| at(place).saturating_add(pool - 1).align_down(pool);
            places.retain(|place| place.0.len() >= arena && is_touched(of.residency, first_pool(place)));
            places.truncate(MAX_BLOCKS.saturating_sub(found.len() + known.len()));
            if places.is_empty() {
                break;
            }
            let pools: Vec<Addr> = places.iter().map(first_pool).collect();
            let Ok(read) = memory::read_pieces::<POOL_HEADER>(of.dir, of.tid, &pools) else { break };
            let mut rest = Vec::new();
            for (place, header) in places.iter().zip(read) {
                let first = first_pool(place);
                if !header.is_some_and(|header| (headers.is_pool)(&header, first, pool)) {
                    continue;
                }
                let range = AddrRange::from_len(at(place), arena);
                found.push(Block { range, kind: BlockKind::PoolArena });
                let (gap, upwards) = *place;
                let left = match upwards {
                    true => AddrRange { start: range.end, end: gap.end },
                    false => AddrRange { start: gap.start, end: range.start },
                };
                rest.push((left, upwards));
            }
            places = rest;
        }
        found.sort_unstable_by_key(|block| block.range);
        found.dedup();
    }
    found
}

/// What the pages of descriptions describe and what points back at them, and where these pages are. Nothing where one
/// of them could not be read.
fn groups(of: Target<'_>, headers: &GroupHeaders) -> Vec<Block> {
    let Some(tables) = (headers.tables)(of.mappings) else { return Vec::new() };
    let pages: Vec<Addr> = (tables.start.0..tables.end.0).step_by(PAGE as usize).map(Addr).collect();
    let pages: Vec<Addr> = pages.into_iter().filter(|page| is_touched(of.residency, *page)).collect();
    let Ok(read) = memory::read_pieces::<{ PAGE as usize }>(of.dir, of.tid, &pages) else {
        return Vec::new();
    };
    if pages.len() > MAX_BLOCKS || read.iter().any(Option::is_none) {
        return Vec::new();
    }
    let decoded =
        pages.iter().zip(&read).filter_map(|(page, bytes)| (headers.decode)(*page, bytes.as_ref()?));
    let mut decoded = decoded.peekable();
    let Some(check) = decoded.peek().map(|table| table.check) else { return Vec::new() };
    let decoded: Vec<GroupTable> = decoded.filter(|table| table.check == check).collect();
    let all_here = decoded.iter().all(|table| table.next == Addr(0) || tables.contains(table.next));
    let described = decoded.into_iter().flat_map(|table| table.groups).take(MAX_BLOCKS);
    let described: Vec<(Addr, AddrRange)> = described.collect();
    let starts: Vec<Addr> = described.iter().map(|(_, group)| group.start).collect();
    let Ok(heads) = memory::read_pieces::<8>(of.dir, of.tid, &starts) else { return Vec::new() };
    let points_back =
        |((at, _), head): &(&(Addr, AddrRange), Option<[u8; 8]>)| *head == Some(at.0.to_le_bytes());
    let found = described.iter().zip(heads).filter(points_back);
    let found = found.map(|((_, range), _)| Block { range: *range, kind: BlockKind::Group });
    let whole = all_here.then_some(Block { range: tables, kind: BlockKind::GroupTable });
    found.chain(whole).collect()
}

/// Pages of objects whose descriptions point back at them.
fn object_pages(of: Target<'_>, headers: &PageHeaders, known: &[Block]) -> Vec<Block> {
    if !(headers.in_process)(of.mappings) {
        return Vec::new();
    }
    let whole = |range: AddrRange| {
        let first = range.start.saturating_add(headers.least - 1).align_down(headers.least);
        (first.0..range.end.0.saturating_sub(headers.least - 1)).step_by(headers.least as usize).map(Addr)
    };
    let holding = of.mappings.iter().filter(|mapping| (headers.may_hold)(mapping));
    let places = holding.flat_map(|mapping| whole(mapping.range)).filter(|at| is_touched(of.residency, *at));
    let places: Vec<Addr> = places.take(MAX_BLOCKS.saturating_sub(known.len())).collect();
    let Ok(heads) = memory::read_pieces::<8>(of.dir, of.tid, &places) else { return Vec::new() };
    let described =
        places.iter().zip(heads).filter_map(|(at, head)| Some((*at, Addr(u64::from_le_bytes(head?)))));
    let mapped = |at: &Addr| Mapping::holding(of.mappings, *at).is_some_and(|mapping| mapping.prot.read);
    let described: Vec<(Addr, Addr)> = described.filter(|(_, description)| mapped(description)).collect();
    let descriptions: Vec<Addr> = described.iter().map(|(_, description)| *description).collect();
    let read = memory::read_pieces::<PAGE_DESCRIPTION>(of.dir, of.tid, &descriptions).unwrap_or_default();
    let pages = described.iter().zip(read).filter_map(|((at, _), bytes)| {
        let len = (headers.page_len)(*at, &bytes?).filter(|len| at.is_aligned(*len))?;
        Some(Block { range: AddrRange::from_len(*at, len), kind: BlockKind::ObjectPage })
    });
    pages.collect()
}

/// Blocks of bookkeeping; one that is longer than what is mapped there is none.
fn bookkeeping(of: Target<'_>, headers: &BookkeepingHeaders, known: &[Block]) -> Vec<Block> {
    let unit = headers.unit;
    let units = |range: AddrRange| {
        let first = range.start.saturating_add(unit - 1).align_down(unit);
        (first.0..range.end.0).step_by(unit as usize).map(move |at| (Addr(at), range.end.0 - at))
    };
    let holding = of.mappings.iter().filter(|mapping| (headers.may_hold)(mapping));
    let places = holding.flat_map(|mapping| units(mapping.range));
    let places = places.filter(|(at, rest)| *rest >= unit && is_touched(of.residency, *at));
    let places: Vec<(Addr, u64)> = places.take(MAX_BLOCKS.saturating_sub(known.len())).collect();
    let starts: Vec<Addr> = places.iter().map(|(at, _)| *at).collect();
    let Ok(read) = memory::read_pieces::<BOOKKEEPING_HEADER>(of.dir, of.tid, &starts) else {
        return Vec::new();
    };
    let blocks = places.iter().zip(read).filter_map(|(&(at, rest), header)| {
        let len = (headers.block_len)(at, &header?).filter(|len| *len <= rest)?;
        Some(Block { range: AddrRange::from_len(at, len), kind: BlockKind::Bookkeeping })
    });
    blocks.collect()
}

/// Arenas all of whose blocks lead to other blocks of the same arena.
fn chained_arenas(of: Target<'_>, headers: &ChainHeaders, known: &[Block]) -> Vec<Block> {
    if !(headers.in_process)(of.mappings) {
        return Vec::new();
    }
    let (arena, block) = headers.sizes;
    let blocks = |range: AddrRange| {
        let first = range.start.saturating_add(block - 1).align_down(block);
        (first.0..range.end.0.saturating_sub(block - 1)).step_by(block as usize).map(Addr)
    };
    let holding = of.mappings.iter().filter(|m| m.range.len() >= arena && (headers.may_hold)(m));
    let places = holding.flat_map(|mapping| blocks(mapping.range)).filter(|at| is_touched(of.residency, *at));
    let places: Vec<Addr> = places.take(MAX_BLOCKS.saturating_sub(known.len())).collect();
    let Ok(heads) = memory::read_pieces::<CHAIN_HEADER>(of.dir, of.tid, &places) else { return Vec::new() };
    let next = heads.into_iter().map(|head| (headers.next)(&head?));
    let links: Vec<(Addr, Option<Addr>)> = places.into_iter().zip(next).collect();
    let found = chained(&links, headers.sizes).into_iter();
    found.map(|range| Block { range, kind: BlockKind::ChainedArena }).collect()
}

/// Links that may be missing or doubled: a chain has an end, and a program that goes on moves blocks from one to
/// another while they are read.
const LOOSE: u64 = 16;

/// Where so many neighbours begin that lead to each other, and each to another one.
fn chained(links: &[(Addr, Option<Addr>)], (arena, block): (u64, u64)) -> Vec<AddrRange> {
    let count = (arena / block) as usize;
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(window) = links.get(from..from + count) {
        let range = AddrRange::from_len(window[0].0, arena);
        let whole = window[count - 1].0.saturating_add(block) == range.end;
        let mut led_to = vec![false; count];
        let mut loose = 0;
        let fits = |(_, next): &(Addr, Option<Addr>)| {
            let Some(next) = next.filter(|next| next.is_aligned(block)) else { return false };
            let inside = range.contains(next).then(|| ((next.0 - range.start.0) / block) as usize);
            match inside.and_then(|at| led_to.get_mut(at)).filter(|led_to| !**led_to) {
                Some(led_to) => *led_to = true,
                None if inside.is_none() && next != Addr(0) => return false,
                None => loose += 1,
            }
            loose <= LOOSE
        };
        let is_arena = whole && window.iter().all(fits);
        if is_arena {
            found.push(range);
        }
        from += if is_arena { count } else { 1 };
    }
    found
}

/// What is left of a range between others, which are sorted.
fn gaps_between(within: AddrRange, taken: &[AddrRange]) -> Vec<AddrRange> {
    let first = taken.partition_point(|range| range.end <= within.start);
    let mut gaps = Vec::new();
    let mut start = within.start;
    for range in taken[first..].iter().take_while(|range| range.start < within.end) {
        if start < range.start {
            gaps.push(AddrRange { start, end: range.start });
        }
        start = start.max(range.end);
    }
    if start < within.end {
        gaps.push(AddrRange { start, end: within.end });
    }
    gaps
}

fn is_touched(residency: &Residency, at: Addr) -> bool {
    [&residency.resident, &residency.swapped].iter().any(|runs| {
        let first = runs.partition_point(|run| run.end <= at);
        runs.get(first).is_some_and(|run| run.contains(at))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribution::rules::heap_headers;

    fn read(mappings: &[Mapping]) -> Vec<Block> {
        let pid = std::process::id() as Tid;
        let resident = mappings.iter().map(|m| m.range).collect();
        let (swapped, per_vma) = (Vec::new(), Vec::new());
        let residency = Residency { source: ResidencySource::PagemapScan, resident, swapped, per_vma };
        let dir = ProcessDir::open(pid, pid).expect("own directory");
        read_blocks(Target { dir: &dir, tid: pid, mappings, residency: &residency }, heap_headers())
    }

    #[test]
    fn of_this_process() {
        // More than malloc's threshold for a mapping of its own can become (DEFAULT_MMAP_THRESHOLD_MAX): what other
        // tests of this process have freed raises it.
        const SIZE: usize = 33 << 20;
        let block = vec![1u8; SIZE];
        let at = Addr(block.as_ptr() as u64).page_down();
        let maps = std::fs::read("/proc/self/maps").expect("maps");
        let mappings = super::super::parse_maps(&maps).mappings;
        let blocks = read(&mappings);
        assert!(blocks.windows(2).all(|pair| pair[0].range.end <= pair[1].range.start));
        // other tests of this process map and unmap meanwhile: what lies before it may have merged with it
        let range = AddrRange::from_len(at, SIZE as u64 + PAGE);
        let known = blocks.iter().any(|found| found.range == range);
        assert!(known || !mappings.iter().any(|m| m.range.start == at), "{blocks:x?} {at:x?}");

        // The same one, split behind its header's page.
        let own = mappings.iter().find(|m| m.range.contains(at)).expect("mapped");
        let cut = at.saturating_add(PAGE);
        let part = |start, end| Mapping { range: AddrRange { start, end }, ..own.clone() };
        let split = [part(at, cut), part(cut, range.end)];
        assert_eq!(read(&split).iter().filter(|found| found.range.start == at).count(), 1);
    }

    /// Four blocks a arena: two chains, an arena next to it, and what only resembles one.
    #[test]
    fn blocks_that_lead_to_each_other_are_an_arena() {
        let block = |number: u64| Addr(0x10000 + number * 0x1000);
        // more blocks than there may be loose links
        let count = 4 * LOOSE;
        let sizes = (count * 0x1000, 0x1000);
        let chain = |from: u64| -> Vec<(Addr, Option<Addr>)> {
            let next = |n: u64| if n == 0 || n == count / 2 { Addr(0) } else { block(from + n - 1) };
            (0..count).map(|n| (block(from + n), Some(next(n)))).collect()
        };
        let range = |from: u64| AddrRange::from_len(block(from), sizes.0);
        let mut two = chain(1);
        two.extend(chain(1 + count));
        two.insert(0, (block(0), Some(Addr(0x77))));
        assert_eq!(chained(&two, sizes), [range(1), range(1 + count)]);

        let wrong = |at: usize, link: Option<Addr>| {
            let mut links = chain(0);
            links[at].1 = link;
            chained(&links, sizes)
        };
        assert_eq!(wrong(5, Some(block(9))), [range(0)], "moved while it was read");
        for link in [None, Some(block(count)), Some(Addr(block(3).0 + 8))] {
            assert!(wrong(5, link).is_empty(), "{link:?}");
        }
        let mut holed = chain(0);
        holed.remove(7);
        assert!(chained(&holed, sizes).is_empty());
        let zeros: Vec<_> = (0..count).map(|n| (block(n), Some(Addr(0)))).collect();
        assert!(chained(&zeros, sizes).is_empty(), "memory that was never written");
    }

    #[test]
    fn what_is_left_between_blocks() {
        let range = |start, end| AddrRange::new(start, end);
        let taken = [range(0, 2), range(5, 7), range(6, 8), range(20, 30)];
        assert_eq!(gaps_between(range(1, 10), &taken), [range(2, 5), range(8, 10)]);
        assert_eq!(gaps_between(range(0, 2), &taken), []);
    }
}
