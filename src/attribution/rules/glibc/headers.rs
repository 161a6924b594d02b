//! What glibc's malloc writes into its memory: `heap_info` at the beginning of each heap of an arena, and the
//! length of each block that has a mapping of its own.
//!
//! Source: glibc malloc/arena.c, `struct _heap_info`: ar_ptr, prev, size, mprotect_size, and
//! from 2.35 on pagesize. A heap is HEAP_MAX_SIZE (64 MiB) long and aligned to it. malloc/malloc.c,
//! `sysmalloc_mmap`: a chunk's header is the length of what lies before it (0 here) and its own length, a
//! multiple of the page size, with the bit IS_MMAPPED (2) and no other.

use super::HEAP_MAX;
use crate::model::headers::{ARENA_HEADER, BLOCK_HEADER, MallocHeaders};
use crate::model::observation::{HeapInfo, Residency};
use crate::model::{Addr, AddrRange, Mapping, PAGE};

pub const MALLOC: MallocHeaders = MallocHeaders {
    arenas: heap_candidates,
    decode: decode_heap_info,
    may_hold: may_hold_headers,
    least_block: LEAST_BLOCK,
    block_len,
};

const IS_MMAPPED: u64 = 2;
/// DEFAULT_MMAP_THRESHOLD_MIN: smaller mappings are not examined, there may be tens of thousands.
const LEAST_BLOCK: u64 = 128 << 10;

/// More candidates than programs have heaps. Without page-exact residency each place is read
/// blindly, which may make the kernel map its zero page there (and 4 KiB of page table): the
/// terabytes of a sanitizer's shadow would give hundreds of thousands.
const MAX_BLIND_CANDIDATES: usize = 4096;

/// Multiples of 64 MiB in writable private anonymous memory whose page is resident or swapped: glibc writes
/// the header when it makes a heap, and reading an untouched page would change the target's page tables.
/// Second: true when the list was cut short.
fn heap_candidates(mappings: &[Mapping], residency: &Residency) -> (Vec<Addr>, bool) {
    let page_exact = residency.is_page_exact();
    let mut candidates = Vec::new();
    for mapping in mappings.iter().filter(|mapping| may_hold_headers(mapping)) {
        if page_exact {
            // Walk the touched pages, not the (possibly endless) multiples.
            for runs in [&residency.resident, &residency.swapped] {
                push_touched(&mut candidates, mapping.range, runs);
            }
        } else if !known_empty(residency, mapping.range) {
            push_touched(&mut candidates, mapping.range, &[mapping.range]);
        }
        if !page_exact && candidates.len() > MAX_BLIND_CANDIDATES {
            candidates.truncate(MAX_BLIND_CANDIDATES);
            return (candidates, true);
        }
    }
    candidates.sort_unstable();
    (candidates, false)
}

fn may_hold_headers(mapping: &Mapping) -> bool {
    mapping.prot.read
        && mapping.prot.write
        && mapping.is_plain_anonymous()
        && !matches!(mapping.name.as_slice(), b"[heap]" | b"[stack]")
}

/// smaps said that the VMA has no page at all.
fn known_empty(residency: &Residency, range: AddrRange) -> bool {
    let index = residency.per_vma.partition_point(|(vma, _, _)| vma.end <= range.start);
    residency.per_vma.get(index).is_some_and(|&(vma, rss, swap)| vma == range && rss == 0 && swap == 0)
}

/// Multiples of 64 MiB that lie both in `within` and in one of the sorted `runs`.
fn push_touched(candidates: &mut Vec<Addr>, within: AddrRange, runs: &[AddrRange]) {
    if within.start.saturating_add(HEAP_MAX - 1).align_down(HEAP_MAX) >= within.end {
        return;
    }
    let first = runs.partition_point(|run| run.end <= within.start);
    for run in runs[first..].iter().take_while(|run| run.start < within.end) {
        let piece = run.intersect(within);
        let mut at = piece.start.saturating_add(HEAP_MAX - 1).align_down(HEAP_MAX);
        while at < piece.end {
            candidates.push(at);
            let Some(next) = at.0.checked_add(HEAP_MAX) else { break };
            at = Addr(next);
        }
    }
}

/// The header in `bytes`, read at `at`, if it can be one. `mapped` returns whether an address is mapped.
/// `pagesize` is 0 for glibc before 2.35, which has no such field.
fn decode_heap_info(at: Addr, bytes: &[u8; ARENA_HEADER], mapped: &dyn Fn(Addr) -> bool) -> Option<HeapInfo> {
    let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
    let mut next = || words.next().unwrap_or(0);
    let (ar_ptr, prev, size, mprotect_size, fifth) = (Addr(next()), Addr(next()), next(), next(), next());
    let pagesize = if fifth.is_power_of_two() && (PAGE..=HEAP_MAX).contains(&fifth) { fifth } else { 0 };
    let found = HeapInfo { at, ar_ptr, prev, size, mprotect_size, pagesize };
    (plausible(&found) && mapped(ar_ptr) && (prev.0 == 0 || mapped(prev))).then_some(found)
}

/// The first heap of an arena holds the arena itself, right behind the header (_int_new_arena); later ones
/// name the heap before them.
pub fn plausible(found: &HeapInfo) -> bool {
    let &HeapInfo { at, ar_ptr, prev, size, mprotect_size, .. } = found;
    let length = |bytes: u64| bytes > 0 && bytes <= HEAP_MAX && bytes.is_multiple_of(PAGE);
    let in_first_heap = (0x20..=0x40).contains(&ar_ptr.0.wrapping_sub(at.0));
    let chained = prev.0 != 0 && prev.is_aligned(HEAP_MAX) && prev != at;
    at.is_aligned(HEAP_MAX)
        && length(size)
        && length(mprotect_size)
        && size <= mprotect_size
        && ar_ptr.0 != 0
        && ar_ptr.is_aligned(16)
        && if prev.0 == 0 { in_first_heap } else { chained && !in_first_heap }
}

/// The length that a header states, if it can be one at the start of `available` bytes.
fn block_len(header: &[u8; BLOCK_HEADER], available: u64) -> Option<u64> {
    let mut words = header.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
    let (before, size) = (words.next()?, words.next()?);
    let len = size & !(PAGE - 1);
    (before == 0 && size == len | IS_MMAPPED && (PAGE..=available).contains(&len)).then_some(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::observation::ResidencySource;
    use crate::model::{Prot, Sharing};

    fn header(words: [u64; 5]) -> [u8; ARENA_HEADER] {
        let mut bytes = [0; ARENA_HEADER];
        for (chunk, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *chunk = word.to_ne_bytes();
        }
        bytes
    }

    const AT: Addr = Addr(0x7f10_c000_0000);

    fn decode(words: [u64; 5]) -> Option<HeapInfo> {
        decode_heap_info(AT, &header(words), &|addr| addr.0 >= 0x7f00_0000_0000)
    }

    #[test]
    fn headers_of_first_and_later_heaps() {
        let first = decode([AT.0 + 0x30, 0, 0x21000, 0x21000, 0x1000]).expect("2.35 and later");
        assert_eq!(
            (first.at, first.ar_ptr, first.prev, first.pagesize),
            (AT, Addr(AT.0 + 0x30), Addr(0), 4096)
        );
        let old = decode([AT.0 + 0x20, 0, 0x21000, 0x22000, 0]).expect("before 2.35: a mutex follows");
        assert_eq!((old.size, old.mprotect_size, old.pagesize), (0x21000, 0x22000, 0));
        let later = decode([0x7f10_b000_0030, 0x7f10_bc00_0000, HEAP_MAX, HEAP_MAX, 0x1000]);
        assert!(later.is_some());
    }

    #[test]
    fn other_memory_is_refused() {
        let good = [AT.0 + 0x30, 0, 0x21000, 0x21000, 0x1000];
        let with = |index: usize, value: u64| {
            let mut words = good;
            words[index] = value;
            words
        };
        for bad in [
            [0; 5],
            with(0, 0),
            with(0, AT.0 + 0x38),
            with(0, AT.0 + 0x1000),
            with(0, 0x1000),
            with(1, 0x7f10_bc00_1000),
            with(1, AT.0),
            with(2, 0x21001),
            with(2, HEAP_MAX + PAGE),
            with(2, 0x22000),
            with(3, 0),
            with(3, u64::MAX),
        ] {
            assert_eq!(decode(bad), None, "{bad:x?}");
        }
    }

    fn writable(start: u64, end: u64) -> Mapping {
        Mapping {
            range: AddrRange::new(start, end),
            prot: Prot::RW,
            sharing: Sharing::Private,
            offset: 0,
            file: None,
            name: Vec::new(),
        }
    }

    fn residency(source: ResidencySource, resident: Vec<AddrRange>) -> Residency {
        Residency { source, resident, swapped: Vec::new(), per_vma: Vec::new() }
    }

    #[test]
    fn only_touched_multiples_are_read() {
        let span = writable(0x7f10_bfff_f000, 0x7f10_d000_0000);
        let stack = Mapping { name: b"[stack]".to_vec(), ..span.clone() };
        let touched = vec![
            AddrRange::new(0x7f10_bfff_f000, 0x7f10_c000_1000),
            AddrRange::new(0x7f10_c400_1000, 0x7f10_c500_0000),
            AddrRange::new(0x7f10_cc00_0000, 0x7f10_e000_0000),
        ];
        let exact = residency(ResidencySource::PagemapScan, touched);
        assert_eq!(
            heap_candidates(std::slice::from_ref(&span), &exact).0,
            [Addr(0x7f10_c000_0000), Addr(0x7f10_cc00_0000)]
        );
        assert!(heap_candidates(&[stack], &exact).0.is_empty());
        let blind = residency(ResidencySource::SmapsProportion, Vec::new());
        assert_eq!(heap_candidates(&[span], &blind).0.len(), 4);
    }

    #[test]
    fn a_blind_search_of_terabytes_is_cut_short() {
        let shadow = writable(0, 124 << 40);
        let blind = residency(ResidencySource::SmapsProportion, Vec::new());
        let (candidates, cut) = heap_candidates(std::slice::from_ref(&shadow), &blind);
        assert_eq!((candidates.len(), cut), (MAX_BLIND_CANDIDATES, true));
        let untouched = Residency { per_vma: vec![(shadow.range, 0, 0)], ..blind };
        assert_eq!(heap_candidates(&[shadow], &untouched), (Vec::new(), false));
    }

    fn block_header(before: u64, size: u64) -> [u8; BLOCK_HEADER] {
        let mut out = [0; BLOCK_HEADER];
        out[..8].copy_from_slice(&before.to_ne_bytes());
        out[8..].copy_from_slice(&size.to_ne_bytes());
        out
    }

    #[test]
    fn only_whole_pages_with_one_flag_that_fit() {
        let available = 0x10_0000;
        assert_eq!(block_len(&block_header(0, 0x4_1002), available), Some(0x4_1000));
        assert_eq!(block_len(&block_header(0, available | 2), available), Some(available));
        for (before, size) in [(0, available + 0x1002), (0, 0x4_1000), (0, 0x4_1003), (8, 0x4_1002), (0, 2)] {
            assert_eq!(block_len(&block_header(before, size), available), None, "{before} {size:#x}");
        }
    }
}
