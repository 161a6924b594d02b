//! The area in this process: the beginning of each part of vmaudit's file, as far as it is used, at addresses that lie as far from
//! each other as the parts lie in the file. Between them nothing is mapped or reserved: a part grows by moving its end
//! (mremap(2)), which takes no descriptor that the program may have closed. What is here is in no core dump and in no child of
//! fork, is not locked, and goes when counting ends.

use super::area::*;
use super::pages::{ADDRESS_BITS, LEAF_BYTES, STACKS, WINDOW_BITS};
use super::sys::{self, PAGE};
use super::{rules, stacks};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

/// The shared file.
#[derive(Clone, Copy)]
pub struct Area(*mut u8);

/// Where each part begins, and nothing about how much of it is mapped: [`reach`] says that.
macro_rules! part {
    ($name:ident, $part:expr, $of:ty) => {
        #[inline(always)]
        pub fn $name(self, index: usize) -> &'static $of {
            unsafe { &*self.0.add(PARTS[$part].at).cast::<$of>().add(index) }
        }
    };
}

impl Area {
    #[inline(always)]
    pub fn head(self) -> &'static Head {
        unsafe { &*self.0.cast::<Head>() }
    }

    #[inline(always)]
    pub fn given(self, index: usize) -> &'static AtomicU32 {
        unsafe { &*self.0.add(AT_GIVEN).cast::<AtomicU32>().add(index) }
    }

    part!(rule, RULE_PART, Rule);
    part!(request, REQUEST_PART, Request);
    part!(stack, STACK_PART, Stack);
    part!(word, WORD_PART, AtomicU64);
    part!(node, NODE_PART, Node);
    part!(owner, OWNER_PART, AtomicU32);
    part!(leaf_window, LEAF_WINDOW_PART, AtomicU32);
    part!(sample, SAMPLE_PART, Sample);

    #[inline(always)]
    pub fn page(self, leaf: usize, page: usize) -> &'static AtomicU64 {
        unsafe { &*self.0.add(PARTS[LEAF_PART].at + leaf * LEAF_BYTES).cast::<AtomicU64>().add(page) }
    }

    /// `first` and `len` are within what [`block_words`] says.
    #[inline(always)]
    pub fn words(self, first: usize, len: usize) -> &'static [AtomicU64] {
        let from = unsafe { self.0.add(PARTS[BLOCK_PART].at).cast::<AtomicU64>().add(first) };
        unsafe { core::slice::from_raw_parts(from, len) }
    }
}

static AREA: AtomicPtr<u8> = AtomicPtr::new(null_mut());

/// Only while something is counted.
#[inline(always)]
pub fn area() -> Area {
    Area(AREA.load(Relaxed))
}

/// How many bytes of each part are mapped: in this process' own memory, because indexes are checked with it.
static MAPPED: [AtomicUsize; PARTS.len()] = [const { AtomicUsize::new(0) }; PARTS.len()];
static GROWING: AtomicU32 = AtomicU32::new(0);

/// The bytes of a part that are mapped at first: all of the core, the smallest table of rules, a page of the others.
const fn at_first(part: usize) -> usize {
    match part {
        CORE => PARTS[CORE].bytes,
        RULE_PART => size_of::<Rule>() << RULE_TABLES[0],
        _ => PAGE,
    }
}

/// A part grows by half, but not by more than this; and by whole steps.
const MOST_STEP: usize = 1 << 20;
const STEP: usize = 64 << 10;

/// Whether the part has so many bytes, after growing where it had not.
#[inline(always)]
pub fn reach(part: usize, bytes: usize) -> bool {
    bytes <= MAPPED[part].load(Relaxed) || grow(part, bytes)
}

/// The number of blocks' words that are mapped; no index may reach it.
#[inline(always)]
pub fn block_words() -> usize {
    MAPPED[BLOCK_PART].load(Relaxed) / 8
}

#[cold]
#[inline(never)]
fn grow(part: usize, bytes: usize) -> bool {
    let Part { at, bytes: most } = PARTS[part];
    if bytes > most {
        return false;
    }
    sys::lock(&GROWING);
    let now = MAPPED[part].load(Relaxed);
    let end = AREA.load(Relaxed) as usize + at + now;
    let generous = bytes.max(now + (now / 2).min(MOST_STEP)).next_multiple_of(STEP).min(most);
    let sizes = [generous, bytes.next_multiple_of(PAGE)];
    // SAFETY: the part is mapped up to `end`.
    let size = match now {
        _ if bytes <= now => Some(now),
        0 => None,
        _ => sizes.into_iter().find(|size| unsafe { sys::extend(end, size - now) }),
    };
    if let Some(size) = size {
        MAPPED[part].store(size, Release);
        area().head().mapped.fetch_add((size - now) as u64, Relaxed);
    }
    GROWING.store(0, Release);
    size.is_some()
}

/// Where areas are: between what programs, libraries and stacks are given, and what allocators ask for by address.
const BASE: usize = 0x2000_0000_0000;
const BASE_STEPS: u64 = 1 << 11;
const BASE_STEP: usize = 1 << 32;
const TRIES: u32 = 8;

/// Nobody can make the file shorter while it is mapped, which would end this process: F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW.
fn is_sealed(file: isize) -> bool {
    const SEALED: isize = 1 | 2 | 4;
    // F_SEAL_EXEC (vm.memfd_noexec) changes nothing.
    const MAY_BE: isize = SEALED | 0x20;
    let seals = sys::seals(file);
    seals >= 0 && seals & SEALED == SEALED && seals & !MAY_BE == 0
}

static BELL: AtomicPtr<Bell> = AtomicPtr::new(null_mut());

/// Only while something is counted, or in a child of what counts.
#[inline(always)]
pub fn bell() -> &'static Bell {
    unsafe { &*BELL.load(Relaxed) }
}

/// Maps the doorbell, in the place of a parent's. False where it is not as vmaudit makes it.
pub fn map_bell(file: isize) -> bool {
    if !is_sealed(file) || sys::length(file) != PAGE as u64 {
        return false;
    }
    let page = sys::map_page(file);
    if page.is_null() {
        return false;
    }
    forget_bell();
    BELL.store(page.cast(), Relaxed);
    true
}

fn forget_bell() {
    let former = BELL.swap(null_mut(), Relaxed);
    if !former.is_null() {
        // SAFETY: its users are gone, as those of the area.
        unsafe { sys::unmap(former.cast(), PAGE) };
    }
}

/// Maps the beginning of each part of a file. None where it is not as vmaudit makes it, or there is no space.
pub fn map(file: isize) -> Option<Area> {
    if !is_sealed(file) || sys::length(file) != BYTES as u64 {
        return None;
    }
    for _ in 0..TRIES {
        let base = BASE + (sys::random() % BASE_STEPS) as usize * BASE_STEP;
        let is_mapped = PARTS.iter().enumerate().all(|(part, &Part { at, .. })| {
            // SAFETY: in the place of nothing else.
            let mapped = unsafe { sys::map_at(base + at, at_first(part), Some((file, at)), false) };
            MAPPED[part].store(if mapped { at_first(part) } else { 0 }, Relaxed);
            mapped
        });
        let area = Area(base as *mut u8);
        AREA.store(area.0, Relaxed);
        if is_mapped && area.head().magic.load(Relaxed) == MAGIC {
            let all: usize = mapped_parts().map(|(_, bytes)| bytes).sum();
            area.head().mapped.fetch_add(all as u64, Relaxed);
            return Some(area);
        }
        // SAFETY: nobody has seen it yet.
        unsafe { unmap_parts() };
    }
    None
}

fn mapped_parts() -> impl Iterator<Item = (usize, usize)> {
    let base = AREA.load(Relaxed) as usize;
    let parts = PARTS.iter().zip(&MAPPED).map(move |(part, mapped)| (base + part.at, mapped.load(Relaxed)));
    parts.filter(|(_, bytes)| *bytes != 0)
}

/// The area goes, with its doorbell and what leads into it.
///
/// # Safety
/// No thread uses it any more.
pub unsafe fn unmap() {
    forget_bell();
    unsafe {
        unmap_parts();
        forget_tables();
    }
}

unsafe fn unmap_parts() {
    for (at, bytes) in mapped_parts() {
        unsafe { sys::unmap(at as *mut u8, bytes) };
    }
    MAPPED.iter().for_each(|mapped| mapped.store(0, Relaxed));
}

/// Zeros take the place of what is mapped there: a thread that is held up in a hook goes on in them.
pub fn wipe() {
    for (at, bytes) in mapped_parts() {
        // SAFETY: figures and numbers that are checked are what zeros can be taken for.
        unsafe { sys::map_at(at, bytes, None, true) };
    }
}

/// A child of fork has nothing of the area, nor of the tables that lead into it.
pub fn forked() {
    rules::forked();
    stacks::forked();
    MAPPED.iter().for_each(|mapped| mapped.store(0, Relaxed));
    tables().for_each(|(table, _)| table.store(null_mut(), Relaxed));
    SLOTS.iter().for_each(Slot::forked);
    GROWING.store(0, Relaxed);
    LOCK.store(0, Relaxed);
}

/// In a child that was forked while this thread was in a hook (by a handler of a signal): what the hook goes on with.
pub fn forked_in_a_hook() {
    wipe();
    rules::forked_in_a_hook();
    stacks::forked_in_a_hook();
    for (table, bytes) in tables() {
        unsafe { sys::map_at(table.load(Relaxed) as usize, bytes, None, true) };
    }
    for slot in &SLOTS {
        let memory = slot.memory.load(Relaxed);
        if !memory.is_null() {
            unsafe { sys::map_at(memory as usize, slot.memory_bytes.load(Relaxed), None, true) };
        }
    }
}

/// A counting thread is known here, in memory that is there whatever becomes of the thread.
#[repr(align(64))]
pub struct Slot {
    /// How many threads are in a hook: who takes the area away looks at this.
    pub busy: AtomicU32,
    pub taken: AtomicU32,
    /// The thread's memory, which goes with the area.
    pub memory: AtomicPtr<u8>,
    pub memory_bytes: AtomicUsize,
}

impl Slot {
    fn forked(&self) {
        self.busy.store(0, Relaxed);
        self.taken.store(0, Relaxed);
        self.memory.store(null_mut(), Relaxed);
    }

    /// # Safety
    /// No thread uses the memory any more.
    pub unsafe fn free(&self) {
        let memory = self.memory.swap(null_mut(), Relaxed);
        if !memory.is_null() {
            unsafe { sys::unmap(memory, self.memory_bytes.load(Relaxed)) };
        }
    }
}

/// The last one is shared by all threads that have none of their own.
pub static SLOTS: [Slot; SHARDS] = [const {
    Slot {
        busy: AtomicU32::new(0),
        taken: AtomicU32::new(0),
        memory: AtomicPtr::new(null_mut()),
        memory_bytes: AtomicUsize::new(0),
    }
}; SHARDS];

/// Whether no thread but `own` is in a hook. It has to be said to all threads before that nothing is counted
/// any more: those that come later are no danger.
pub fn is_quiet(own: Option<&Slot>) -> bool {
    sys::barrier()
        && SLOTS.iter().all(|slot| {
            let is_own = own.is_some_and(|own| core::ptr::eq(own, slot));
            slot.busy.load(Acquire) <= is_own as u32
        })
}

/// Taken while a table gets another entry.
static LOCK: AtomicU32 = AtomicU32::new(0);

/// By shard: the chunks of its counts, by [`CHUNK_STACKS`] stacks.
static CHUNKS_OF: [AtomicPtr<AtomicPtr<Count>>; SHARDS] = [const { AtomicPtr::new(null_mut()) }; SHARDS];
const CHUNKS_OF_BYTES: usize = (STACKS + 1) / CHUNK_STACKS * size_of::<AtomicPtr<Count>>();
static NEXT_CHUNK: AtomicUsize = AtomicUsize::new(0);

/// The table of a shard's chunks. Null where there is no memory.
pub fn chunks_of(shard: usize) -> *const AtomicPtr<Count> {
    sys::lock(&LOCK);
    let mut table = CHUNKS_OF[shard].load(Relaxed);
    if table.is_null() {
        table = sys::map_private(CHUNKS_OF_BYTES).cast();
        CHUNKS_OF[shard].store(table, Relaxed);
    }
    LOCK.store(0, Release);
    table
}

/// A shard's counts of so many stacks. Null where there is no space.
#[cold]
#[inline(never)]
pub fn add_chunk(shard: usize, entry: &AtomicPtr<Count>, stacks: usize) -> *mut Count {
    sys::lock(&LOCK);
    let mut chunk = entry.load(Relaxed);
    let number = NEXT_CHUNK.load(Relaxed);
    let has_space = || reach(COUNT_PART, (number + 1) * CHUNK_BYTES) && reach(OWNER_PART, (number + 1) * 4);
    if chunk.is_null() && has_space() {
        let area = area();
        chunk = unsafe { area.0.add(PARTS[COUNT_PART].at + number * CHUNK_BYTES).cast() };
        area.owner(number).store(owner(shard, stacks), Relaxed);
        NEXT_CHUNK.store(number + 1, Relaxed);
        area.head().next_chunk.store(number as u32 + 1, Release);
        entry.store(chunk, Release);
    }
    LOCK.store(0, Release);
    chunk
}

/// Leaves are found by two steps: a node for each 2^36 bytes of the address space, and there the number of a leaf + 1 for each window.
const NODE_BITS: u32 = 36 - WINDOW_BITS;
const NODE_BYTES: usize = size_of::<AtomicU32>() << NODE_BITS;
const NODE_COUNT: usize = 1 << (ADDRESS_BITS - WINDOW_BITS - NODE_BITS);
static NODES: [AtomicPtr<AtomicU32>; NODE_COUNT] = [const { AtomicPtr::new(null_mut()) }; NODE_COUNT];
static NEXT_LEAF: AtomicUsize = AtomicUsize::new(0);

/// The leaf of a window; `make`: a new one where there is none.
#[inline(always)]
pub fn leaf(window: usize, make: bool) -> Option<usize> {
    let node = NODES[window >> NODE_BITS & (NODE_COUNT - 1)].load(Acquire);
    let known = match node.is_null() {
        true => 0,
        // SAFETY: a node has an entry for each window of it.
        false => unsafe { (*node.add(window & ((1 << NODE_BITS) - 1))).load(Acquire) },
    };
    match known {
        0 if make => add_leaf(window),
        0 => None,
        leaf => Some(leaf as usize - 1),
    }
}

#[cold]
#[inline(never)]
fn add_leaf(window: usize) -> Option<usize> {
    sys::lock(&LOCK);
    let leaf = find_or_add_leaf(window);
    LOCK.store(0, Release);
    leaf
}

fn find_or_add_leaf(window: usize) -> Option<usize> {
    let to = &NODES[window >> NODE_BITS & (NODE_COUNT - 1)];
    let mut node = to.load(Relaxed);
    if node.is_null() {
        node = sys::map_private(NODE_BYTES).cast();
        if node.is_null() {
            return None;
        }
        to.store(node, Release);
    }
    let entry = unsafe { &*node.add(window & ((1 << NODE_BITS) - 1)) };
    let known = entry.load(Relaxed);
    if known != 0 {
        return Some(known as usize - 1);
    }
    let next = NEXT_LEAF.load(Relaxed);
    if !reach(LEAF_PART, (next + 1) * LEAF_BYTES) || !reach(LEAF_WINDOW_PART, (next + 1) * 4) {
        return None;
    }
    let area = area();
    area.leaf_window(next).store(window as u32, Relaxed);
    NEXT_LEAF.store(next + 1, Relaxed);
    area.head().next_leaf.store(next as u32 + 1, Release);
    entry.store(next as u32 + 1, Release);
    Some(next)
}

/// Pointers differ by what they point to only.
fn plain<T>(at: &'static AtomicPtr<T>) -> &'static AtomicPtr<u8> {
    // SAFETY: both are a word.
    unsafe { &*(&raw const *at).cast() }
}

fn tables() -> impl Iterator<Item = (&'static AtomicPtr<u8>, usize)> {
    let chunks = CHUNKS_OF.iter().map(|each| (plain(each), CHUNKS_OF_BYTES));
    let nodes = NODES.iter().map(|each| (plain(each), NODE_BYTES));
    chunks.chain(nodes).filter(|(table, _)| !table.load(Relaxed).is_null())
}

/// # Safety
/// As [`unmap`].
unsafe fn forget_tables() {
    unsafe {
        rules::unmap();
        stacks::unmap();
    }
    for (table, bytes) in tables() {
        unsafe { sys::unmap(table.swap(null_mut(), Relaxed), bytes) };
    }
    for slot in &SLOTS {
        unsafe { slot.free() };
    }
}

/// Numbers begin anew with each area.
pub fn begin() {
    NEXT_CHUNK.store(0, Relaxed);
    NEXT_LEAF.store(0, Relaxed);
}
