//! Headers that an allocator keeps in its own memory, read as its rule says: of arenas, and of blocks with
//! mappings of their own, each of which begins with its length.

use super::memory;
use super::process_dir::ProcessDir;
use crate::model::headers::{ARENA_HEADER, BLOCK_HEADER, Headers};
use crate::model::observation::{HeapInfo, Residency, ResidencySource};
use crate::model::{Addr, AddrRange, Mapping, PAGE, Tid};

/// Blocks that are looked for at most: a recording keeps them all.
const MAX_BLOCKS: usize = 1 << 14;

pub(super) fn read_arenas(
    dir: &ProcessDir,
    tid: Tid,
    (mappings, residency): (&[Mapping], &Residency),
    headers: &Headers,
    gaps: &mut Vec<String>,
) -> Vec<HeapInfo> {
    let (candidates, cut) = (headers.arenas)(mappings, residency);
    if cut {
        gaps.push(format!("heap headers: only the first {} places were looked at", candidates.len()));
    }
    let read = match memory::read_pieces::<ARENA_HEADER>(dir, tid, &candidates) {
        Ok(read) => read,
        Err(error) => {
            gaps.push(format!("heap headers of {}: {error}", dir.pid()));
            return Vec::new();
        }
    };
    let mapped = |addr| {
        let at = mappings.partition_point(|mapping| mapping.range.end <= addr);
        mappings.get(at).is_some_and(|mapping| mapping.range.contains(addr))
    };
    candidates.iter().zip(read).filter_map(|(&at, header)| (headers.decode)(at, &header?, &mapped)).collect()
}

/// Sorted and disjoint. Pages that nobody has touched are not read: a block's first page has been. None
/// are found where memory may not be read, or is known by VMA only.
pub(super) fn read_blocks(
    dir: &ProcessDir,
    tid: Tid,
    (mappings, residency): (&[Mapping], &Residency),
    headers: &Headers,
) -> Vec<AddrRange> {
    if !matches!(residency.source, ResidencySource::PagemapScan | ResidencySource::Pagemap) {
        return Vec::new();
    }
    // The kernel merges neighbours: behind one block the next may begin.
    let mut places: Vec<AddrRange> =
        mappings.iter().filter(|m| (headers.may_be_block)(m)).map(|m| m.range).collect();
    let mut blocks = Vec::new();
    loop {
        places.retain(|place| place.len() >= PAGE && is_touched(residency, place.start));
        places.truncate(MAX_BLOCKS.saturating_sub(blocks.len()));
        if places.is_empty() {
            break;
        }
        let starts: Vec<Addr> = places.iter().map(|place| place.start).collect();
        let Ok(read) = memory::read_pieces::<BLOCK_HEADER>(dir, tid, &starts) else { break };
        let mut rest = Vec::new();
        for (place, header) in places.iter().zip(read) {
            let Some(len) = header.and_then(|header| (headers.block_len)(&header, place.len())) else {
                continue;
            };
            let end = place.start.saturating_add(len);
            blocks.push(AddrRange { start: place.start, end });
            rest.push(AddrRange { start: end, end: place.end });
        }
        places = rest;
    }
    blocks.sort_unstable();
    blocks
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

    #[test]
    fn of_this_process() {
        let pid = std::process::id() as Tid;
        let block = vec![1u8; 3 << 20];
        let at = Addr(block.as_ptr() as u64).page_down();
        let maps = std::fs::read("/proc/self/maps").expect("maps");
        let mappings = super::super::parse_maps(&maps).mappings;
        let resident = mappings.iter().map(|m| m.range).collect();
        let (swapped, per_vma) = (Vec::new(), Vec::new());
        let residency = Residency { source: ResidencySource::PagemapScan, resident, swapped, per_vma };
        let dir = ProcessDir::open(pid, pid).expect("own directory");
        let blocks = read_blocks(&dir, pid, (&mappings, &residency), &heap_headers()[0]);
        assert!(blocks.windows(2).all(|pair| pair[0].end <= pair[1].start));
        // other tests of this process map and unmap meanwhile: what lies before it may have merged with it
        let known = blocks.iter().any(|found| found.start == at && found.len() == (3 << 20) + PAGE);
        assert!(known || !mappings.iter().any(|m| m.range.start == at), "{blocks:x?} {at:x?}");
    }
}
