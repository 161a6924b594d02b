//! HotSpot's memory as maps shows it, where no call was seen. OpenJDK 17 and 25, Linux x86-64:
//!
//! ```text
//! 0x687400000  rw-p, ---p …           Java heap, below 32 GiB (compressed pointers)
//!              rw-p  classes.jsa      archived objects, mapped into the heap's end
//! 0x7f80ef…    rw-p, ---p …           metaspace node, 64 MiB, committed in steps of 64 KiB
//!              rw-p  classes.jsa      shared classes, ---p up to a multiple of 16 MiB
//!              rw-p, ---p … 1 GiB     class space; since 19 with the shared classes below 4 GiB
//! 0x7f8150…    rw-p, ---p …           the collector's tables
//!              rwxp, ---p, rwxp, …    code cache
//! ```
//!
//! A reservation is PROT_NONE and NORESERVE; what is committed of it is mapped over it, read-write
//! and without NORESERVE (os/linux/os_linux.cpp, `anon_mmap` and `os::Linux::commit_memory_impl`).

use super::spans::{Kind, Span, Spans, page_up, reservable};
use super::tables;
use super::{ARCHIVE, CLASS_SPACE, CODE_CACHE, CODE_MAP, JAVA_HEAP, NODE, POLLING};
use crate::attribution::rules::World;
use crate::attribution::rules::runs::extent;
use crate::attribution::world::Surveyed;
use crate::model::{Addr, AddrRange, PAGE};
use std::collections::HashMap;

/// Compressed pointers reach no further: heaps below are placed there on purpose.
const COMPRESSED_END: Addr = Addr(32 << 30);
/// A launcher without a fixed place, and its bss, lie below.
const LOW: Addr = Addr(256 << 20);
const MIN_HEAP: u64 = 8 << 20;
const MIN_CODE: u64 = 2 << 20;
/// A code heap's map has a byte for each so many bytes of code (CodeCacheSegmentSize).
const CODE_SEGMENT: u64 = 128;
/// The archive and the class space above it begin at multiples of this.
const CLASS_ALIGN: u64 = 16 << 20;
/// metaspace::Settings: a node, the largest chunk (its alignment), what is committed at a time.
const NODE_SIZE: u64 = 64 << 20;
const ROOT_CHUNK: u64 = 4 << 20;
const GRANULE: u64 = 64 << 10;

pub(super) fn survey(world: &World<'_>) -> Vec<Surveyed> {
    if !is_jvm(world) {
        return Vec::new();
    }
    let mut spans = Spans::new(world);
    code_cache(&mut spans);
    let flags = Flags::of(world);
    classes(&mut spans, &flags);
    if spans.all.iter().any(|span| span.kind == Kind::HeapFile) {
        tables::z_mark_stack(&mut spans);
    }
    nodes(&mut spans);
    let heap = heap(&mut spans, &flags).map(|heap| Heap { is_shenandoah: is_shenandoah(world), ..heap });
    tables::find(&mut spans, heap);
    polling_page(&mut spans, world);
    spans.into_surveyed()
}

pub(super) fn is_jvm(world: &World<'_>) -> bool {
    world.fact("has a JVM", || world.has_file(|file| file == "libjvm.so"))
}

/// Sizes given on the command line.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Flags {
    pub heap: Option<u64>,
    pub class_space: Option<u64>,
    pub metaspace: Option<u64>,
}

impl Flags {
    pub fn of(world: &World<'_>) -> Flags {
        let mut flags = Flags::default();
        for word in &world.input.observations.cmdline {
            let value = |name: &[u8]| word.strip_prefix(name).and_then(bytes);
            flags.heap = value(b"-Xmx").or(value(b"-XX:MaxHeapSize=")).or(flags.heap);
            flags.class_space = value(b"-XX:CompressedClassSpaceSize=").or(flags.class_space);
            flags.metaspace = value(b"-XX:MaxMetaspaceSize=").or(flags.metaspace);
        }
        flags
    }

    fn class_space(&self) -> u64 {
        let default_or_set = self.class_space.unwrap_or(1 << 30);
        self.metaspace.map_or(default_or_set, |most| default_or_set.min(most))
    }
}

/// `64m`, `2G`, `1048576`.
fn bytes(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text.get(digits.len()..)?.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// From the first executable mapping on, up to the end of what was reserved with it.
fn code_cache(spans: &mut Spans) {
    let mut maps = Vec::new();
    let mut found = Vec::new();
    for run in spans.runs(|kind| matches!(kind, Kind::Code | Kind::Closed)) {
        let Some(first) = run.iter().position(|span| span.kind == Kind::Code) else { continue };
        let run = &run[first..];
        let range = extent(run);
        if range.len() < MIN_CODE {
            continue;
        }
        found.push(range);
        let starts: Vec<usize> = (0..run.len())
            .filter(|&i| run[i].kind == Kind::Code && (i == 0 || run[i - 1].kind == Kind::Closed))
            .collect();
        for (i, &start) in starts.iter().enumerate() {
            let end = starts.get(i + 1).copied().unwrap_or(run.len());
            let own = &run[start..end];
            let code: u64 = own.iter().filter(|s| s.kind == Kind::Code).map(|s| s.range.len()).sum();
            maps.push((page_up(extent(own).len() / CODE_SEGMENT), page_up(code / CODE_SEGMENT)));
        }
    }
    for range in found {
        spans.take(range, &CODE_CACHE);
    }
    // of each code heap a map with its free and used segments (share/memory/heap.cpp, CodeHeap::reserve)
    let maps = CodeMaps::of(&maps);
    let mut found = Vec::new();
    for (at, span) in spans.all.iter().enumerate().filter(|(_, span)| span.kind == Kind::Closed) {
        let below = spans.before(at).filter(|below| below.kind == Kind::Open).map(|below| below.range.len());
        if let Some(whole) = below.and_then(|below| maps.whole(span.range.len(), below)) {
            found.push(AddrRange { start: Addr(span.range.end.0 - whole), end: span.range.end });
        }
    }
    for range in found {
        spans.take(range, &CODE_MAP);
    }
}

/// Lengths of the maps of code heaps, by what is not committed of them.
struct CodeMaps(HashMap<u64, Vec<(u64, u64)>>);

impl CodeMaps {
    /// `maps`: (whole, committed).
    fn of(maps: &[(u64, u64)]) -> CodeMaps {
        let mut by_reserved: HashMap<u64, Vec<(u64, u64)>> = HashMap::new();
        for &(whole, committed) in maps {
            let Some(reserved) = whole.checked_sub(committed) else { continue };
            let same = by_reserved.entry(reserved).or_default();
            // The first that fits is taken: none with an earlier one that has less committed.
            if same.last().is_none_or(|(_, least)| committed < *least) {
                same.push((whole, committed));
            }
        }
        CodeMaps(by_reserved)
    }

    /// The length of the first of which `reserved` bytes are not committed, and no more than `below` are.
    fn whole(&self, reserved: u64, below: u64) -> Option<u64> {
        let same = self.0.get(&reserved)?;
        let first = same.partition_point(|(_, committed)| below < *committed);
        same.get(first).map(|(whole, _)| *whole)
    }
}

/// The archive of shared classes, and the class space above it; without an archive the class
/// space may lie above the heap.
fn classes(spans: &mut Spans, flags: &Flags) {
    let mut archive = None;
    for (at, span) in spans.all.iter().enumerate().filter(|(_, span)| span.kind == Kind::Classes) {
        let above = spans.run(at, |kind| kind == Kind::Classes).len() + at;
        let rest = spans.run(above, reservable);
        let (Some(last), Some(first)) = (spans.all.get(above - 1), rest.first()) else { continue };
        let boundary = Addr(last.range.end.0.div_ceil(CLASS_ALIGN) * CLASS_ALIGN);
        let has_space = first.kind == Kind::Closed || last.range.end == boundary;
        if last.range.end != first.range.start || !has_space {
            continue;
        }
        let size = flags.class_space().min(extent(rest).end.0.saturating_sub(boundary.0));
        // of the archive that lies in the heap, the rest of the heap is not reserved
        let reserved = rest.iter().any(|span| span.kind == Kind::Closed && span.range.end > boundary);
        if size >= 1 << 20 && reserved {
            // one protected page before the archive, so that no class has the offset 0 (25)
            let guard = spans.before(at).map(|below| below.range).filter(|below| below.len() == PAGE);
            archive = Some((guard, AddrRange { start: span.range.start, end: boundary }, size));
            break;
        }
    }
    if let Some((guard, archive, size)) = archive {
        if let Some(guard) = guard {
            spans.take_whole(guard, &ARCHIVE);
        }
        spans.take(archive, &ARCHIVE);
        spans.take(AddrRange::from_len(archive.end, size), &CLASS_SPACE);
        return;
    }
    let size = flags.class_space();
    for run in spans.runs(reservable) {
        let end = extent(run).end;
        let own = |span: &&Span| span.range.start.0 + size == end.0 && span.kind == Kind::Open;
        if let Some(first) = run.iter().find(own)
            && first.range.start.is_aligned(ROOT_CHUNK)
            && first.range.len().is_multiple_of(GRANULE)
            && run.len() > 1
        {
            let range = AddrRange { start: first.range.start, end };
            spans.take(range, &CLASS_SPACE);
            return;
        }
    }
}

/// 64 MiB from a multiple of 4 MiB on, of which pieces of 64 KiB are committed.
fn nodes(spans: &mut Spans) {
    let mut found = Vec::new();
    for run in spans.runs(reservable) {
        let end = extent(run).end;
        let mut next = Addr(0);
        for span in run.iter().filter(|span| span.kind == Kind::Open) {
            let mut start = span.range.start.max(next);
            while start < span.range.end && start.0 + NODE_SIZE <= end.0 {
                let range = AddrRange::from_len(start, NODE_SIZE);
                if !is_node(spans, range) {
                    break;
                }
                found.push(range);
                next = range.end;
                start = next;
            }
        }
    }
    for range in found {
        spans.take(range, &NODE);
    }
}

fn is_node(spans: &Spans, range: AddrRange) -> bool {
    // Before the check of all that lies inside.
    if range.start < COMPRESSED_END || !range.start.is_aligned(ROOT_CHUNK) {
        return false;
    }
    let inside = spans.within(range);
    // the next reservation begins with what is committed of it
    let at = spans.all.partition_point(|span| span.range.end < range.end);
    let ends = spans.all.get(at).is_some_and(|s| s.range.end == range.end || s.kind == Kind::Open);
    // a heap of a glibc arena has one used part; it never ends at the archive
    let below_classes = spans.all.get(at + 1).is_some_and(|next| next.kind == Kind::Classes);
    let like_arena = inside.len() == 2 && range.start.is_aligned(NODE_SIZE);
    let arena = like_arena && !below_classes && !spans.flags_known;
    spans.is_free(range)
        && ends
        && !arena
        && inside.iter().any(|span| span.kind == Kind::Closed)
        && inside.iter().all(|span| span.range.start.is_aligned(GRANULE))
}

/// What the heap's tables are measured by.
#[derive(Clone, Debug, Default)]
pub(super) struct Heap {
    pub size: u64,
    /// Its generations, where they are reservations of their own.
    pub generations: Vec<u64>,
    /// Where the lowest of ZGC's views of it begins.
    pub zgc_views: Option<Addr>,
    pub is_shenandoah: bool,
}

/// The collector's own threads are called so.
fn is_shenandoah(world: &World<'_>) -> bool {
    world.input.observations.threads.iter().any(|thread| thread.comm.starts_with(b"Shenandoah"))
}

fn heap(spans: &mut Spans, flags: &Flags) -> Option<Heap> {
    if spans.all.iter().any(|span| span.kind == Kind::HeapFile) {
        return Some(zgc_heap(spans));
    }
    let range = low_heap(spans).or_else(|| {
        let free = tables::reservations(spans);
        tables::largest_with_tables(&free, flags.heap)
    })?;
    let inside = spans.within(range);
    let starts: Vec<Addr> = (0..inside.len())
        .filter(|&i| inside[i].kind == Kind::Open && (i == 0 || inside[i - 1].kind == Kind::Closed))
        .map(|i| inside[i].range.start)
        .collect();
    let ends = starts.iter().skip(1).copied().chain([range.end]);
    let generations = starts.iter().zip(ends).map(|(start, end)| end.0 - start.0).collect();
    spans.take(range, &JAVA_HEAP);
    Some(Heap { size: range.len(), generations, ..Heap::default() })
}

/// Several views of one memfd, each in a reservation of its own.
fn zgc_heap(spans: &mut Spans) -> Heap {
    let heap = |kind| matches!(kind, Kind::HeapFile | Kind::Closed);
    let views = spans.runs(heap).into_iter();
    let views = views.filter(|run| run.iter().any(|span| span.kind == Kind::HeapFile));
    let ranges: Vec<AddrRange> = views.map(extent).collect();
    let mut heap = Heap::default();
    for range in ranges {
        spans.take(range, &JAVA_HEAP);
        heap.size = heap.size.max(range.len());
        heap.zgc_views = heap.zgc_views.or(Some(range.start));
    }
    heap
}

/// The largest row of free mappings that compressed pointers reach.
fn low_heap(spans: &Spans) -> Option<AddrRange> {
    let mut best: Option<AddrRange> = None;
    for run in spans.runs(|kind| reservable(kind) || kind == Kind::Classes) {
        for part in run.split(|span| !spans.is_free(span.range)).filter(|part| !part.is_empty()) {
            let range = extent(part);
            let low = range.start >= LOW && range.end <= COMPRESSED_END && range.len() >= MIN_HEAP;
            if low && best.is_none_or(|best| best.len() < range.len()) {
                best = Some(range);
            }
        }
    }
    best
}

/// `---p`, `r--p`, `---p`: the page that stops threads, the one that does not, and the one that
/// assertions write to (runtime/safepointMechanism.cpp, utilities/debug.cpp).
fn polling_page(spans: &mut Spans, world: &World<'_>) {
    let mappings = world.mappings();
    let found = mappings.windows(3).find(|window| {
        let page = |i: usize, read: bool| {
            window.get(i).is_some_and(|m| {
                let anonymous = m.file.is_none() && m.name.is_empty() && !m.prot.write && !m.prot.exec;
                m.range.len() == PAGE && anonymous && m.prot.read == read
            })
        };
        let joined = window.windows(2).all(|pair| pair[0].range.end == pair[1].range.start);
        joined && page(0, false) && page(1, true) && page(2, false)
    });
    if let Some(window) = found {
        spans.take_whole(AddrRange::from_len(window[0].range.start, 3 * PAGE), &POLLING);
    }
}

#[cfg(test)]
mod tests {
    use super::{CodeMaps, bytes};

    #[test]
    fn sizes_as_the_jvm_reads_them() {
        assert_eq!(bytes(b"64m"), Some(64 << 20));
        assert_eq!(bytes(b"2G"), Some(2 << 30));
        assert_eq!(bytes(b"1048576"), Some(1 << 20));
        assert_eq!((bytes(b""), bytes(b"m"), bytes(b"5x"), bytes(b"99999999999t")), (None, None, None, None));
    }
    #[test]
    fn the_first_map_of_a_code_heap_that_fits() {
        let maps = [(10, 4), (9, 3), (12, 6), (8, 2), (7, 2), (5, 6)];
        let code = CodeMaps::of(&maps);
        for reserved in 0..8 {
            for below in 0..8 {
                let fits =
                    |(whole, committed): &&(u64, u64)| reserved + committed == *whole && below >= *committed;
                let first = maps.iter().find(fits).map(|(whole, _)| *whole);
                assert_eq!(code.whole(reserved, below), first, "{reserved} {below}");
            }
        }
    }
}
