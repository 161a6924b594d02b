//! Arenas read from memory that is made up here, with figures computed byte by byte.

use proptest::collection::vec;
use proptest::prelude::*;
use vmaudit::attribution::rules::arena_readers;
use vmaudit::model::arenas::{Arena, ArenasRead, Doubt, KnownBlock, Surroundings};
use vmaudit::model::observation::{Residency, ResidencySource};
use vmaudit::model::{Addr, AddrRange, Mapping, MappingFile, PAGE, Prot, Sharing};

const LIBC: u64 = 0x7f00_0010_0000;
const HEAP: u64 = 0x5555_5580_0000;
/// Where the main arena's header is in libc's data.
const STATE: u64 = LIBC + 0xc60;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Held,
    Free,
    Fast,
    Cached,
}

/// A version's layout of `struct malloc_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Layout {
    bins_at: u64,
    has_threads: bool,
    mangles: bool,
}

const LAYOUTS: [Layout; 4] = [
    Layout { bins_at: 112, has_threads: true, mangles: true },
    Layout { bins_at: 112, has_threads: true, mangles: false },
    Layout { bins_at: 104, has_threads: false, mangles: false },
    Layout { bins_at: 24, has_threads: true, mangles: true },
];

/// Chunks of a main heap, then the top; as a process has them in memory.
#[derive(Clone, Debug)]
struct Made {
    layout: Layout,
    lead: u64,
    chunks: Vec<(Kind, u64)>,
    resident: Vec<bool>,
}

struct Process {
    heap: Vec<u8>,
    libc: Vec<u8>,
    chunks: Vec<(Addr, Kind, u64)>,
    top: Addr,
    residency: Residency,
}

fn put(bytes: &mut [u8], at: u64, word: u64) {
    bytes[at as usize..at as usize + 8].copy_from_slice(&word.to_ne_bytes());
}

impl Made {
    fn process(&self) -> Process {
        let mut at = HEAP + self.lead;
        // A thread's cache comes first, as the program's first call has it.
        let cache = at;
        let all = [(Kind::Held, 0x290)].into_iter().chain(self.chunks.iter().copied());
        let mut chunks = Vec::new();
        for (kind, len) in all {
            // Without fastbins nothing is in one, and caches are of one length here.
            let kind = if kind == Kind::Fast && self.layout.bins_at == 24 { Kind::Held } else { kind };
            let len = match kind {
                Kind::Fast => 0x60,
                Kind::Cached => 0x110,
                _ => len,
            };
            chunks.push((Addr(at), kind, len));
            at += len;
        }
        let top = Addr(at);
        let end = (at + 33).next_multiple_of(PAGE) + 2 * PAGE;
        let mut heap = vec![0; (end - HEAP) as usize];
        let mut before_is_free = false;
        for &(at, kind, len) in &chunks {
            put(&mut heap, at.0 + 8 - HEAP, len | u64::from(!before_is_free));
            before_is_free = kind == Kind::Free;
        }
        put(&mut heap, top.0 + 8 - HEAP, (end - top.0) | u64::from(!before_is_free));
        let of = |expected: Kind| chunks.iter().filter(move |each| each.1 == expected).map(|each| each.0.0);
        let fast = self.link(&mut heap, of(Kind::Fast), 0);
        let first = self.link(&mut heap, of(Kind::Cached), 16);
        let index = (0x110 - 32) / 16;
        if first != 0 {
            let count = of(Kind::Cached).count() as u64;
            put(&mut heap, cache + 16 - HEAP + index / 4 * 8, count << (index % 4 * 16));
            put(&mut heap, cache + 16 - HEAP + 128 + index * 8, first);
        }
        let mut libc = vec![0; 0x3000];
        let state = STATE - LIBC;
        let bins = state + self.layout.bins_at;
        if self.layout.bins_at > 24 {
            put(&mut libc, bins - 96 + 4 * 8, fast);
        }
        put(&mut libc, bins - 16, top.0);
        for head in (0..127).map(|index| bins + index * 16) {
            put(&mut libc, head, LIBC + head - 16);
            put(&mut libc, head + 8, LIBC + head - 16);
        }
        put(&mut libc, bins + 127 * 16 + 16, STATE);
        let system = end - HEAP - self.lead;
        let behind = bins + 127 * 16 + 32;
        let figures = if self.layout.has_threads { vec![1, system, system] } else { vec![system, system] };
        (0..).zip(figures).for_each(|(at, word)| put(&mut libc, behind + at * 8, word));
        let pages = (0..(end - HEAP) / PAGE).filter(|&page| self.is_resident(page));
        let resident = pages.map(|page| AddrRange::from_len(Addr(HEAP + page * PAGE), PAGE)).collect();
        let residency = Residency {
            source: ResidencySource::PagemapScan,
            resident,
            swapped: Vec::new(),
            per_vma: Vec::new(),
        };
        Process { heap, libc, chunks, top, residency }
    }

    fn is_resident(&self, page: u64) -> bool {
        self.resident.is_empty() || self.resident[page as usize % self.resident.len()]
    }

    /// Links chunks; returns the head, `offset` into the first one.
    fn link(&self, heap: &mut [u8], chunks: impl Iterator<Item = u64>, offset: u64) -> u64 {
        let mut next = 0;
        for at in chunks {
            let place = at + 16;
            let link = if self.layout.mangles { next ^ place >> 12 } else { next };
            put(heap, place - HEAP, link);
            next = at + offset;
        }
        next
    }
}

fn mapping(start: u64, len: usize, name: &str, inode: Option<u64>) -> Mapping {
    Mapping {
        range: AddrRange::from_len(Addr(start), len as u64),
        prot: Prot::RW,
        sharing: Sharing::Private,
        offset: 0,
        file: inode.map(|inode| MappingFile { major: 8, minor: 1, inode }),
        name: name.as_bytes().to_vec(),
    }
}

impl Process {
    fn read(&self, blocks: &[KnownBlock]) -> ArenasRead {
        let mappings = [
            mapping(HEAP, self.heap.len(), "[heap]", None),
            mapping(LIBC, self.libc.len(), "/usr/lib/x86_64-linux-gnu/libc.so.6", Some(7)),
        ];
        let process = Surroundings {
            mappings: &mappings,
            residency: &self.residency,
            exe: b"/bin/made",
            variables: &[],
            mapped_blocks: &[],
            blocks,
        };
        let mut memory = |at: Addr, into: &mut [u8]| {
            let from = [(HEAP, &self.heap), (LIBC, &self.libc)].into_iter().find_map(|(start, bytes)| {
                let skipped = usize::try_from(at.0.checked_sub(start)?).ok()?;
                bytes.get(skipped..skipped.checked_add(into.len())?)
            });
            from.map(|from| into.copy_from_slice(from)).is_some()
        };
        let (_, read) = arena_readers().find(|(name, _)| *name == "glibc").expect("its reader");
        read(&process, &mut memory)
    }

    fn sum(&self, kinds: &[Kind]) -> u64 {
        self.chunks.iter().filter(|each| kinds.contains(&each.1)).map(|each| each.2).sum()
    }

    fn end(&self) -> u64 {
        HEAP + self.heap.len() as u64
    }

    fn is_resident(&self, page: u64) -> bool {
        self.residency.resident.iter().any(|run| run.contains(Addr(page)))
    }

    /// What trimming gives back between blocks, and at the top: from page to page.
    fn trimmed(&self, is_free: impl Fn(Kind) -> bool) -> (u64, u64) {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for &(at, _, len) in self.chunks.iter().filter(|each| is_free(each.1)) {
            match runs.last_mut() {
                Some(last) if last.1 == at.0 => last.1 += len,
                _ => runs.push((at.0, at.0 + len)),
            }
        }
        let joined = runs.pop_if(|run| run.1 == self.top.0);
        let pages = |from: u64, until: u64| {
            let all = (from.next_multiple_of(PAGE)..until).step_by(PAGE as usize);
            all.filter(|page| page + PAGE <= until && self.is_resident(*page)).count() as u64 * PAGE
        };
        let inside = runs.iter().map(|run| pages(run.0 + 48, run.1)).sum();
        let start = joined.map_or(self.top.0, |run| run.0);
        let spare = (self.end() - start - 33) / PAGE * PAGE;
        (inside, pages(self.end() - spare, self.end()))
    }
}

fn only(read: &ArenasRead) -> &Arena {
    assert_eq!(read.arenas.len(), 1);
    &read.arenas[0]
}

fn check(made: &Made) {
    let process = made.process();
    let read = process.read(&[]);
    let arena = only(&read);
    assert_eq!(arena.doubt, None, "{made:?}");
    assert_eq!(arena.threads, made.layout.has_threads.then_some(1));
    assert_eq!(arena.in_use.bytes, process.sum(&[Kind::Held]));
    assert_eq!(arena.thread_caches.bytes, process.sum(&[Kind::Cached]));
    assert_eq!(arena.fast.bytes, process.sum(&[Kind::Fast]));
    assert_eq!(arena.free.bytes, process.sum(&[Kind::Free]));
    assert_eq!(arena.top, process.end() - process.top.0);
    assert_eq!(arena.read, arena.system);
    let sums = [arena.in_use, arena.thread_caches, arena.fast, arena.free];
    assert_eq!(sums.iter().map(|each| each.bytes).sum::<u64>() + arena.top + arena.own, arena.read);
    assert_eq!(sums.iter().map(|each| each.count).sum::<u64>(), process.chunks.len() as u64);
    let trimmed = process.trimmed(|kind| matches!(kind, Kind::Free | Kind::Fast));
    assert_eq!((arena.trim.inside, arena.trim.top), trimmed, "{made:?}");
    let pages = arena.pages;
    assert_eq!(pages.resident, process.residency.resident.iter().map(|run| run.len()).sum::<u64>());
    let parts = pages.used + arena.trim.inside + arena.trim.top + pages.beside + pages.whole;
    assert_eq!(parts, pages.resident, "{arena:?}");
    let mut used = vec![0; process.heap.len()];
    let held = process.chunks.iter().filter(|each| each.1 == Kind::Held).map(|each| (each.0.0, each.2));
    for (at, len) in held.chain([(HEAP, made.lead)]) {
        used[(at - HEAP) as usize..(at - HEAP + len) as usize].fill(1u64);
    }
    let by_page = used.chunks(PAGE as usize).map(|page| page.iter().sum::<u64>());
    let by_page: Vec<u64> = (HEAP..)
        .step_by(PAGE as usize)
        .zip(by_page)
        .filter(|(page, _)| process.is_resident(*page))
        .map(|(_, used)| used)
        .collect();
    assert_eq!(pages.used, by_page.iter().sum::<u64>());
    assert_eq!(
        pages.sparse.count,
        by_page.iter().filter(|used| (1..=PAGE / 4).contains(used)).count() as u64
    );
}

fn made() -> impl Strategy<Value = Made> {
    let kind = prop_oneof![
        4 => Just(Kind::Held), 3 => Just(Kind::Free), 2 => Just(Kind::Fast), 1 => Just(Kind::Cached)
    ];
    let len = prop_oneof![4 => 2u64..40, 2 => 40u64..300, 1 => 300u64..3000].prop_map(|units| units * 16);
    let chunks = vec((kind, len), 0..120);
    let lead = prop_oneof![Just(0), (1u64..100).prop_map(|units| units * 16)];
    (prop::sample::select(&LAYOUTS[..]), lead, chunks, vec(any::<bool>(), 0..20))
        .prop_map(|(layout, lead, chunks, resident)| Made { layout, lead, chunks, resident })
}

proptest! {
    #[test]
    fn figures_are_those_of_each_byte(made in made()) {
        check(&made);
    }

    /// A heap that changes while it is read is any bytes: no figure is above what the header says, and
    /// nothing panics.
    #[test]
    fn any_bytes_are_read(
        made in made(),
        damage in vec((any::<prop::sample::Index>(), any::<u64>(), any::<bool>()), 1..40),
    ) {
        let mut process = made.process();
        for (at, word, in_heap) in damage {
            let bytes = if in_heap { &mut process.heap } else { &mut process.libc };
            let at = at.index(bytes.len() / 8) as u64 * 8;
            put(bytes, at, word);
        }
        let blocks: Vec<KnownBlock> =
            process.chunks.iter().map(|each| KnownBlock { at: Addr(each.0.0 + 16), requested: 24, holder: 0 }).collect();
        let read = process.read(&blocks);
        for arena in &read.arenas {
            prop_assert!(arena.read <= process.heap.len() as u64);
        }
    }
}

#[test]
fn a_header_that_makes_no_sense_ends_the_walk_and_is_reported() {
    let chunks = vec![(Kind::Held, 0x100); 200];
    let made = Made { layout: LAYOUTS[0], lead: 0, chunks, resident: Vec::new() };
    let mut process = made.process();
    let at = process.chunks[150].0;
    put(&mut process.heap, at.0 + 8 - HEAP, 0x7777_7777_7777_7770);
    let read = process.read(&[]);
    let arena = only(&read);
    assert_eq!(arena.doubt, Some(Doubt::Broken(at)));
    assert!(arena.read < arena.system && arena.read > 0x100 * 140);
}

#[test]
fn somebody_else_has_moved_brk() {
    let chunks = vec![(Kind::Held, 0x1000); 8];
    let made = Made { layout: LAYOUTS[0], lead: 0, chunks, resident: Vec::new() };
    let mut process = made.process();
    // In place of two chunks: two fenceposts, and what is not the allocator's.
    let at = process.chunks[4].0.0 - HEAP;
    process.heap[at as usize..at as usize + 0x2000].fill(0xaa);
    put(&mut process.heap, at + 8, 0x11);
    put(&mut process.heap, at + 0x18, 0x11);
    let read = process.read(&[]);
    let arena = only(&read);
    assert_eq!((arena.doubt, arena.own, arena.read), (None, 0x2000, arena.system));
    assert_eq!(arena.in_use.bytes, 0x290 + 6 * 0x1000);
}

/// Blocks of a page share what is free of it.
#[test]
fn who_holds_pages_that_are_nearly_empty() {
    let mut chunks = Vec::new();
    for _ in 0..10 {
        chunks.extend([(Kind::Held, 0x100), (Kind::Free, 0x1f00)]);
    }
    let made = Made { layout: LAYOUTS[0], lead: 0, chunks, resident: Vec::new() };
    let process = made.process();
    let held = process.chunks.iter().skip(1).filter(|each| each.1 == Kind::Held);
    let blocks: Vec<KnownBlock> =
        held.map(|each| KnownBlock { at: Addr(each.0.0 + 16), requested: 0xf0, holder: 3 }).collect();
    let read = process.read(&blocks);
    let arena = only(&read);
    assert_eq!((arena.known.blocks, arena.known.requested, arena.known.rounding), (10, 0xf0 * 10, 80));
    let [holder] = read.holders[..] else { panic!("{:?}", read.holders) };
    assert_eq!((holder.holder, holder.blocks, holder.pages), (3, 10, 10));
    // The cache itself is on the first block's page.
    assert_eq!(holder.kept, 9 * (PAGE - 0x100) + (PAGE - 0x390) / 2);
}
