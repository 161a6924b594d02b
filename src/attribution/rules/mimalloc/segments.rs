//! mimalloc 2's segments, read from their headers while the process runs.
//!
//! Source: src/segment.c, `mi_segment_is_valid`; src/page.c, `_mi_page_thread_free_collect`, `_mi_heap_delayed_free_all`;
//! include/mimalloc/internal.h, `_mi_ptr_cookie`.
//!
//! Nothing is taken on trust. A segment begins at a multiple of its size; its cookie is its own address, and a number that is
//! the same in all of them; the records of its slices lead from one run of slices to the next up to its end, and as many of
//! these are pages as it says. A layout of which no segment with blocks fits is not this process'.

use super::super::peek::Peek;
use super::layout::{Field, HUGE, LAYOUTS, Layout, OF_ONE_BLOCK, SLICE};
use crate::model::arenas::extents::Extents;
use crate::model::arenas::segments::{Owner, SegmentHeap, SegmentHeaps};
use crate::model::arenas::{ReadMemory, Surroundings};
use crate::model::observation::Residency;
use crate::model::{Addr, AddrRange, Sharing, USER_END};
use std::collections::{BTreeMap, BTreeSet};

/// Segments that one copy of the allocator may have: 2 TiB of them.
const MOST: usize = 1 << 16;
const PURGED: &str = "purged after a while (MIMALLOC_PURGE_DELAY, before 2.1 MIMALLOC_RESET_DELAY), when their thread frees or \
                      needs pages";
/// The two lowest bits of `xthread_free` say what the next thread has to do.
const FLAGS: u64 = 3;

/// Each copy of the allocator. Needs to know which pages are in memory: reading others would touch them.
pub fn read(process: &Surroundings<'_>, memory: &mut ReadMemory<'_>) -> Vec<SegmentHeaps> {
    let mut peek = Peek::new(memory);
    LAYOUTS.iter().flat_map(|layout| of_layout(layout, process, &mut peek)).collect()
}

fn of_layout(layout: &Layout, process: &Surroundings<'_>, peek: &mut Peek<'_, '_>) -> Vec<SegmentHeaps> {
    let mut copies: BTreeMap<u64, Vec<Header>> = BTreeMap::new();
    for at in candidates(layout, process) {
        let Some(header) = Header::at((layout, at), process.residency, peek) else { continue };
        let headers = copies.entry(header.key).or_default();
        // Within a block of more than a segment lies what was there before.
        if headers.len() < MOST && headers.last().is_none_or(|before| before.range.end <= at) {
            headers.push(header);
        }
    }
    copies.into_values().filter_map(|headers| copy(layout, &headers, (process.residency, peek))).collect()
}

/// Where a segment may begin.
fn candidates(layout: &Layout, process: &Surroundings<'_>) -> Vec<Addr> {
    let may_hold = process
        .mappings
        .iter()
        .filter(|m| m.file.is_none() && m.sharing == Sharing::Private && m.prot.read && m.prot.write);
    let runs = may_hold.flat_map(|m| process.residency.resident_in(m.range));
    let inside = |run: AddrRange| {
        let first = run.start.0.next_multiple_of(layout.segment);
        (first..run.end.0).step_by(layout.segment as usize).map(Addr)
    };
    runs.flat_map(inside).collect()
}

struct Header {
    range: AddrRange,
    /// The same in all segments of a copy.
    key: u64,
    thread: u64,
    used: u64,
    has_one_block: bool,
    entries: u64,
    committed: u64,
    /// All of it; what is not in memory was never written. None where it is in swap, or went away.
    bytes: Option<Vec<u8>>,
}

impl Header {
    fn at((layout, at): (&Layout, Addr), residency: &Residency, peek: &mut Peek<'_, '_>) -> Option<Header> {
        let mut word = |offset: u64| peek.u64(at.0 + offset);
        let key = word(layout.cookie)? ^ at.0;
        let (slices, entries) = (word(layout.segment_slices)?, word(layout.slice_entries)?);
        let info = word(layout.info_slices)?;
        let (thread, used) = (word(layout.thread)?, word(layout.used)?);
        let has_one_block = peek.u32(at.0 + layout.kind)? == OF_ONE_BLOCK;
        let fits = key != 0
            && info == layout.header().div_ceil(SLICE)
            && slices > info
            && entries == slices.min(layout.entries())
            && used < entries;
        let end = slices.checked_mul(SLICE).and_then(|len| at.0.checked_add(len));
        let end = end.filter(|&end| fits && end <= USER_END)?;
        let range = AddrRange { start: at, end: Addr(end) };
        let bytes = header(layout, at, (residency, peek));
        let mask = bytes.as_deref().unwrap_or_default();
        let mask = mask.get(layout.committed as usize..).unwrap_or_default();
        let mask = mask.iter().take(layout.entries() as usize / 8);
        let set: u64 = mask.map(|byte| u64::from(byte.count_ones())).sum();
        let committed = range.len() / layout.entries() * set;
        Some(Header { range, key, thread, used, has_one_block, entries, committed, bytes })
    }

    /// It was given back to the arena, with its header as it was.
    fn is_free(&self) -> bool {
        self.thread == 0 && self.used == 0
    }

    fn owner(&self) -> Owner {
        match (self.thread, self.used) {
            (0, 0) => Owner::Nobody,
            (0, _) if self.has_one_block => Owner::Large,
            (0, _) => Owner::Ended,
            (thread, _) => Owner::Thread(Addr(thread)),
        }
    }

    fn number(&self, at: u64, field: Field) -> Option<u64> {
        let at = usize::try_from(at + field.at).ok()?;
        let bytes = self.bytes.as_ref()?.get(at..at + field.len)?;
        let mut word = [0; 8];
        word.get_mut(..field.len)?.copy_from_slice(bytes);
        Some(u64::from_le_bytes(word))
    }
}

fn header(layout: &Layout, at: Addr, (residency, peek): (&Residency, &mut Peek<'_, '_>)) -> Option<Vec<u8>> {
    let mut bytes = vec![0; layout.header() as usize];
    let range = AddrRange::from_len(at, layout.header());
    let whole = AddrRange { start: at, end: range.end.page_up() };
    if residency.swapped.iter().any(|run| run.overlaps(whole)) {
        return None;
    }
    for run in residency.resident_in(whole) {
        let run = run.intersect(range);
        let from = (run.start.0 - at.0) as usize;
        let into = bytes.get_mut(from..from + run.len() as usize)?;
        peek.fill(run.start.0, into).then_some(())?;
    }
    Some(bytes)
}

/// Slices of one size of blocks.
#[derive(Clone, Copy)]
struct Page {
    range: AddrRange,
    block: u64,
    reserved: u64,
    used: u64,
    /// Freed by other threads.
    returned: u64,
    heap: u64,
}

/// What the slices of a segment are.
struct Slices {
    pages: Vec<Page>,
    free: Vec<AddrRange>,
    own: AddrRange,
}

fn copy(
    layout: &Layout,
    headers: &[Header],
    (residency, peek): (&Residency, &mut Peek<'_, '_>),
) -> Option<SegmentHeaps> {
    let mut out = SegmentHeaps {
        version: format!("mimalloc {}", layout.versions),
        purged: PURGED,
        ..SegmentHeaps::default()
    };
    let mut read: Vec<(&Header, Slices)> = Vec::new();
    for header in headers {
        let slices = match header.is_free() {
            true => Some(Slices {
                pages: Vec::new(),
                free: vec![header.range],
                own: AddrRange::from_len(header.range.start, 0),
            }),
            false => slices(layout, header, peek),
        };
        match slices {
            Some(slices) => read.push((header, slices)),
            None => out.doubtful += 1,
        }
    }
    read.iter().any(|(_, slices)| !slices.pages.is_empty()).then_some(())?;
    out.doubtful += delayed(layout, &mut read, peek);
    let mut heaps: BTreeMap<Owner, SegmentHeap> = BTreeMap::new();
    for (header, slices) in &read {
        let owner = header.owner();
        let heap = heaps.entry(owner).or_insert_with(|| SegmentHeap::of(owner));
        heap.segments.add(header.range.len());
        heap.committed += header.committed;
        add(&mut heap.own, slices.own, residency);
        slices.free.iter().for_each(|&range| add(&mut heap.free, range, residency));
        slices.pages.iter().for_each(|page| page.add_to(heap, residency));
    }
    out.heaps = heaps.into_values().collect();
    Some(out)
}

impl Page {
    fn add_to(&self, heap: &mut SegmentHeap, residency: &Residency) {
        if self.used == 0 && self.returned == 0 {
            return add(&mut heap.free, self.range, residency);
        }
        add(&mut heap.pages, self.range, residency);
        heap.used.bytes += self.used * self.block;
        heap.used.count += self.used;
        heap.returned.bytes += self.returned * self.block;
        heap.returned.count += self.returned;
        heap.inside += (self.reserved - self.used - self.returned) * self.block;
        heap.padding += self.range.len() - self.reserved * self.block;
    }
}

fn add(to: &mut Extents, range: AddrRange, residency: &Residency) {
    if !range.is_empty() {
        to.extents.add(range.len());
        to.resident += residency.resident_in(range).map(|run| run.len()).sum::<u64>();
    }
}

const SLICE_COUNT: Field = Field { at: 0, len: 4 };
const SLICE_OFFSET: Field = Field { at: 4, len: 4 };
const CAPACITY: Field = Field { at: 10, len: 2 };
const RESERVED: Field = Field { at: 12, len: 2 };

/// None where it does not fit together.
fn slices(layout: &Layout, header: &Header, peek: &mut Peek<'_, '_>) -> Option<Slices> {
    let record = |index: u64| layout.slices + index * layout.record.size;
    let begin = |index: u64| header.range.start.saturating_add(index * SLICE);
    let mut found =
        Slices { pages: Vec::new(), free: Vec::new(), own: AddrRange::from_len(header.range.start, 0) };
    let mut index = 0;
    while index < header.entries {
        let at = record(index);
        let count = header.number(at, SLICE_COUNT)?;
        (count > 0 && header.number(at, SLICE_OFFSET)? == 0).then_some(())?;
        let end = index.checked_add(count)?;
        // Of what is larger than a segment not each slice has a record.
        let range = AddrRange {
            start: begin(index),
            end: if end >= header.entries { header.range.end } else { begin(end) },
        };
        let last = end.min(header.entries) - 1;
        let leads_back = end > header.entries
            || header.number(record(last), SLICE_OFFSET)? == (last - index) * layout.record.size;
        leads_back.then_some(())?;
        match header.number(at, layout.record.block_size)? {
            _ if index == 0 => found.own = range,
            0 => found.free.push(range),
            block => found.pages.push(page((layout, header), (at, range, block), peek)?),
        }
        index = end;
    }
    (found.pages.len() as u64 == header.used).then_some(found)
}

fn page(
    (layout, header): (&Layout, &Header),
    (at, range, block): (u64, AddrRange, u64),
    peek: &mut Peek<'_, '_>,
) -> Option<Page> {
    let is_huge = block >= HUGE && layout.record.block_size.len == 4;
    let block = if is_huge { range.len() } else { block };
    let (capacity, reserved) = (header.number(at, CAPACITY)?, header.number(at, RESERVED)?);
    let used = header.number(at, layout.record.used)?;
    let fits = used <= capacity
        && capacity <= reserved
        && block.checked_mul(reserved).is_some_and(|bytes| bytes <= range.len());
    fits.then_some(())?;
    let word = |at: u64| header.number(at, Field { at: 0, len: 8 });
    let (mut block_at, mut returned) = (word(at + layout.record.thread_free)? & !FLAGS, 0);
    while block_at != 0 {
        (returned < used && range.contains(Addr(block_at))).then_some(())?;
        returned += 1;
        block_at = peek.u64(block_at)?;
    }
    let heap = word(at + layout.record.heap)?;
    Some(Page { range, block, reserved, used: used - returned, returned, heap })
}

/// Blocks of full pages that other threads freed lie in a list of the heap, too: the first of each page. How many lists
/// led elsewhere.
fn delayed(layout: &Layout, read: &mut [(&Header, Slices)], peek: &mut Peek<'_, '_>) -> u64 {
    let pages = read.iter().flat_map(|(_, slices)| &slices.pages);
    let (count, heaps) =
        pages.fold((0, BTreeSet::new()), |(count, mut heaps): (u64, BTreeSet<u64>), page| {
            heaps.insert(page.heap);
            (count + page.used, heaps)
        });
    let mut broken = 0;
    for heap in heaps.into_iter().filter(|&heap| heap != 0) {
        let mut next = heap.checked_add(layout.delayed).and_then(|at| peek.u64(at));
        let mut steps = 0;
        while let Some(at) = next.filter(|&at| at != 0) {
            let page = page_with(read, Addr(at)).filter(|page| page.used > 0 && steps <= count);
            let Some(page) = page else {
                next = None;
                break;
            };
            page.used -= 1;
            page.returned += 1;
            steps += 1;
            next = peek.u64(at);
        }
        broken += u64::from(next.is_none());
    }
    broken
}

fn page_with<'a>(read: &'a mut [(&Header, Slices)], at: Addr) -> Option<&'a mut Page> {
    let segment = read.partition_point(|(header, _)| header.range.end <= at);
    let pages = &mut read.get_mut(segment)?.1.pages;
    let page = pages.partition_point(|page| page.range.end <= at);
    pages.get_mut(page).filter(|page| page.range.contains(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::arenas::memory_of;
    use crate::model::observation::ResidencySource;
    use crate::model::{Mapping, Prot};

    const AT: u64 = 0x200_0000_0000;
    const KEY: u64 = 0x1234_5678_9abc_def0;

    fn put(bytes: &mut [u8], at: u64, value: u64, len: usize) {
        bytes[at as usize..at as usize + len].copy_from_slice(&value.to_le_bytes()[..len]);
    }

    /// A segment with one page of 100 blocks of 64 bytes, 40 in use, and two of them freed by another thread.
    fn segment(layout: &Layout) -> Vec<u8> {
        let mut bytes = vec![0; 4 * SLICE as usize];
        let info = layout.header().div_ceil(SLICE);
        put(&mut bytes, layout.cookie, KEY ^ AT, 8);
        put(&mut bytes, layout.segment_slices, layout.entries(), 8);
        put(&mut bytes, layout.info_slices, info, 8);
        put(&mut bytes, layout.slice_entries, layout.entries(), 8);
        put(&mut bytes, layout.thread, 0x7f00_0000_1000, 8);
        put(&mut bytes, layout.used, 1, 8);
        let record = |index: u64| layout.slices + index * layout.record.size;
        let mut run = |first: u64, count: u64, block: u64| {
            put(&mut bytes, record(first), count, 4);
            let last = first + count - 1;
            if last > first {
                put(&mut bytes, record(last) + 4, (last - first) * layout.record.size, 4);
            }
            put(&mut bytes, record(first) + layout.record.block_size.at, block, layout.record.block_size.len);
        };
        run(0, info, info * SLICE);
        run(info, 1, 64);
        run(info + 1, layout.entries() - info - 1, 0);
        let page = record(info);
        put(&mut bytes, page + CAPACITY.at, 90, 2);
        put(&mut bytes, page + RESERVED.at, 100, 2);
        put(&mut bytes, page + layout.record.used.at, 40, layout.record.used.len);
        let block = info * SLICE;
        put(&mut bytes, page + layout.record.thread_free, (AT + block) | 1, 8);
        put(&mut bytes, block, AT + block + 64, 8);
        bytes
    }

    fn found(bytes: &[u8]) -> Vec<SegmentHeaps> {
        let range = AddrRange::from_len(Addr(AT), bytes.len() as u64);
        let mapping = Mapping {
            range,
            prot: Prot::RW,
            sharing: Sharing::Private,
            offset: 0,
            file: None,
            name: Vec::new(),
        };
        let source = ResidencySource::PagemapScan;
        let residency = Residency { source, resident: vec![range], swapped: Vec::new(), per_vma: Vec::new() };
        let process = Surroundings {
            mappings: &[mapping],
            residency: &residency,
            exe: b"/bin/made",
            variables: &[],
            mapped_blocks: &[],
            blocks: &[],
        };
        let mut memory = memory_of(AT, bytes);
        read(&process, &mut memory)
    }

    #[test]
    fn each_layout_is_distinguished_from_the_others() {
        for layout in &LAYOUTS {
            let read = found(&segment(layout));
            let [copy] = read.as_slice() else { panic!("{}: {read:?}", layout.versions) };
            assert_eq!(copy.version, format!("mimalloc {}", layout.versions));
            let [heap] = copy.heaps.as_slice() else { panic!("{copy:?}") };
            assert_eq!(heap.owner, Owner::Thread(Addr(0x7f00_0000_1000)));
            assert_eq!((heap.used.count, heap.used.bytes), (38, 38 * 64));
            assert_eq!((heap.returned.count, heap.inside), (2, 60 * 64));
            assert_eq!(heap.padding, SLICE - 6400);
            assert_eq!(heap.segments.bytes, layout.segment);
            assert_eq!(copy.doubtful, 0);
        }
    }

    /// Whatever is in the memory of the process: sums hold, and nothing overflows.
    #[test]
    fn any_word_may_be_anything() {
        let layout = &LAYOUTS[0];
        let good = segment(layout);
        let records = layout.slices + 3 * layout.record.size;
        for at in (0..records).step_by(4) {
            for value in [0, 1, 2, 511, 512, 0x7fff_ffff, 0xffff_ffff] {
                let mut bytes = good.clone();
                put(&mut bytes, at, value, 4);
                for heap in found(&bytes).iter().flat_map(|copy| &copy.heaps) {
                    let blocks = heap.used.bytes + heap.returned.bytes + heap.inside + heap.padding;
                    assert_eq!(blocks, heap.pages.extents.bytes, "{value:#x} at {at}");
                    let all = heap.pages.extents.bytes + heap.free.extents.bytes + heap.own.extents.bytes;
                    assert_eq!(all, heap.segments.bytes, "{value:#x} at {at}");
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_none() {
        let layout = &LAYOUTS[0];
        let with = |at: u64, value: u64| {
            let mut bytes = segment(layout);
            put(&mut bytes, at, value, 8);
            found(&bytes).len()
        };
        assert_eq!(with(layout.used, 1), 1);
        assert_eq!(with(layout.used, 2), 0, "it has one page");
        assert_eq!(with(layout.cookie, AT), 0, "no key");
        assert_eq!(with(layout.slice_entries, 7), 0, "not as many as there are slices");
        let page = layout.slices + layout.record.size;
        assert_eq!(with(page + layout.record.thread_free, AT + 3 * SLICE), 0, "another page's block");
        // A list that leads back to itself ends.
        assert_eq!(with(SLICE + 64, AT + SLICE), 0);
    }
}
