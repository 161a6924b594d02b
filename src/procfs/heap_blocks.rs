//! Blocks to which glibc's malloc gave a mapping of their own: each begins with its length.
//!
//! Source: glibc malloc/malloc.c, `sysmalloc_mmap`: a chunk's header is the length of what lies before it
//! (0 here) and its own length, a multiple of the page size, with the bit IS_MMAPPED (2) and no other.

use super::memory;
use super::process_dir::ProcessDir;
use super::residency::pagemap::is_plain_anonymous;
use crate::model::observation::{Residency, ResidencySource};
use crate::model::{Addr, AddrRange, Mapping, PAGE, Tid};

/// `mchunk_prev_size` and `mchunk_size`.
const HEADER: usize = 16;
const IS_MMAPPED: u64 = 2;
/// DEFAULT_MMAP_THRESHOLD_MIN: smaller mappings are not looked into, there may be tens of thousands.
const LEAST: u64 = 128 << 10;
/// Blocks that are looked for at most: a recording keeps them all.
const MAX_BLOCKS: usize = 1 << 14;

/// Sorted and disjoint. Pages that nobody has touched are not read: a block's first page has been. None
/// are found where memory may not be read, or is known by VMA only.
pub(super) fn read_blocks(
    dir: &ProcessDir,
    tid: Tid,
    mappings: &[Mapping],
    residency: &Residency,
) -> Vec<AddrRange> {
    if !matches!(residency.source, ResidencySource::PagemapScan | ResidencySource::Pagemap) {
        return Vec::new();
    }
    let may_hold = |m: &&Mapping| {
        m.range.len() >= LEAST
            && m.prot.read
            && m.prot.write
            && is_plain_anonymous(m)
            && !matches!(&*m.name, b"[heap]" | b"[stack]")
    };
    // The kernel merges neighbours: behind one block the next may begin.
    let mut places: Vec<AddrRange> = mappings.iter().filter(may_hold).map(|m| m.range).collect();
    let mut blocks = Vec::new();
    loop {
        places.retain(|place| place.len() >= PAGE && is_touched(residency, place.start));
        places.truncate(MAX_BLOCKS.saturating_sub(blocks.len()));
        if places.is_empty() {
            break;
        }
        let starts: Vec<Addr> = places.iter().map(|place| place.start).collect();
        let Ok(headers) = memory::read_pieces::<HEADER>(dir, tid, &starts) else { break };
        let mut rest = Vec::new();
        for (place, header) in places.iter().zip(headers) {
            let Some(len) = header.and_then(|header| block_len(&header, place.len())) else { continue };
            let end = place.start.saturating_add(len);
            blocks.push(AddrRange { start: place.start, end });
            rest.push(AddrRange { start: end, end: place.end });
        }
        places = rest;
    }
    blocks.sort_unstable();
    blocks
}

/// The length that a header states, if it can be one at the start of `room` bytes.
fn block_len(header: &[u8; HEADER], room: u64) -> Option<u64> {
    let mut words = header.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
    let (before, size) = (words.next()?, words.next()?);
    let len = size & !(PAGE - 1);
    (before == 0 && size == len | IS_MMAPPED && (PAGE..=room).contains(&len)).then_some(len)
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

    fn header(before: u64, size: u64) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[..8].copy_from_slice(&before.to_ne_bytes());
        out[8..].copy_from_slice(&size.to_ne_bytes());
        out
    }

    #[test]
    fn only_whole_pages_with_one_flag_that_fit() {
        let room = 0x10_0000;
        assert_eq!(block_len(&header(0, 0x4_1002), room), Some(0x4_1000));
        assert_eq!(block_len(&header(0, room | 2), room), Some(room));
        for (before, size) in [(0, room + 0x1002), (0, 0x4_1000), (0, 0x4_1003), (8, 0x4_1002), (0, 2)] {
            assert_eq!(block_len(&header(before, size), room), None, "{before} {size:#x}");
        }
    }

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
        let blocks = read_blocks(&dir, pid, &mappings, &residency);
        assert!(blocks.windows(2).all(|pair| pair[0].end <= pair[1].start));
        // other tests of this process map and unmap meanwhile: what lies before it may have merged with it
        let known = blocks.iter().any(|found| found.start == at && found.len() == (3 << 20) + PAGE);
        assert!(known || !mappings.iter().any(|m| m.range.start == at), "{blocks:x?} {at:x?}");
    }
}
