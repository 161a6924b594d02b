//! What an allocator does with the memory that it has from the kernel, according to the headers in that
//! memory.

pub mod extents;
pub mod segments;

use super::Addr;
use super::observation::Residency;
use super::{AddrRange, Mapping};

/// Reads as many bytes as there is space for at an address of the process; false where not all of them can be
/// read. The process may run meanwhile.
pub type ReadMemory<'a> = dyn FnMut(Addr, &mut [u8]) -> bool + 'a;

/// Memory that consists of these bytes, from `start` on.
pub fn memory_of(start: u64, bytes: &[u8]) -> impl FnMut(Addr, &mut [u8]) -> bool {
    move |at, into| {
        let from = at.0.checked_sub(start).and_then(|from| usize::try_from(from).ok());
        let found = from.and_then(|from| bytes.get(from..from.checked_add(into.len())?));
        found.map(|found| into.copy_from_slice(found)).is_some()
    }
}

/// A block that the program holds: the requested size, and the number of the stack that requested it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KnownBlock {
    pub at: Addr,
    pub requested: u64,
    pub holder: u32,
}

/// What is known of a process before its arenas are read. All of it sorted by address.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    pub mappings: &'a [Mapping],
    pub residency: &'a Residency,
    /// Path of the program.
    pub exe: &'a [u8],
    /// Environment variables that allocators read: `NAME=VALUE`.
    pub variables: &'a [String],
    /// Blocks with mappings of their own.
    pub mapped_blocks: &'a [AddrRange],
    /// Some or all of the blocks that the program holds; empty where they are not counted.
    pub blocks: &'a [KnownBlock],
}

/// How the arenas of an allocator are read: pure, the caller reads the memory.
pub type ReadArenas = fn(&Surroundings<'_>, &mut ReadMemory<'_>) -> ArenasRead;

/// All arenas of one allocator in a process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ArenasRead {
    pub arenas: Vec<Arena>,
    /// Of allocators that keep extents, each copy of them.
    pub extents: Vec<extents::ExtentHeap>,
    /// Of allocators that keep segments, each copy of them.
    pub segments: Vec<segments::SegmentHeaps>,
    /// Blocks with mappings of their own.
    pub mapped: MappedBlocks,
    /// The stacks that hold pages of which at most a quarter is in use, most bytes first.
    pub holders: Vec<Holder>,
    /// `resident`, `trim` and the like of each arena mean something: pages were examined one by one.
    pub knows_pages: bool,
    /// The allocator is there, and what it has is not read.
    pub unread: Option<Unread>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unread {
    /// With its version, as far as its file's name has it.
    pub allocator: String,
    /// The reason and the evidence for it: a sentence.
    pub why: &'static str,
}

impl ArenasRead {
    /// Where a library is mapped whose name begins with `prefix`, before the suffix `.so`.
    pub fn unread(
        process: &Surroundings<'_>,
        prefix: &str,
        allocator: &str,
        why: &'static str,
    ) -> ArenasRead {
        let names =
            process.mappings.iter().filter_map(|mapping| mapping.name.rsplit(|&byte| byte == b'/').next());
        let mut names = names.filter_map(|name| std::str::from_utf8(name).ok());
        let unread = names.find_map(|name| {
            let (_, version) = name.strip_prefix(prefix)?.split_once(".so")?;
            let version = version.trim_start_matches('.');
            let allocator = [allocator, version].join(" ").trim_end().to_owned();
            Some(Unread { allocator, why })
        });
        ArenasRead { knows_pages: true, unread, ..ArenasRead::default() }
    }
}

/// Bytes and how many pieces they are in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pieces {
    pub bytes: u64,
    pub count: u64,
}

impl Pieces {
    pub fn add(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.count += 1;
    }

    pub fn remove(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.count = self.count.saturating_sub(1);
    }
}

/// One arena. `read` = `in_use` + `thread_caches` + `fast` + `free` + `top` + `own`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Arena {
    /// Where its header is.
    pub at: Addr,
    /// The first one, which extends the heap by brk.
    pub is_main: bool,
    /// Threads that use it; None where this version does not count them.
    pub threads: Option<u64>,
    /// Bytes that it has from the kernel, as its header says.
    pub system: u64,
    /// Bytes of that whose headers were read, one after the other.
    pub read: u64,
    /// Held by the program, the allocator's own 8 bytes of each block included.
    pub in_use: Pieces,
    /// Freed, and kept by a thread for its next call.
    pub thread_caches: Pieces,
    /// Freed and not joined with their neighbours.
    pub fast: Pieces,
    /// Freed, in lists by size.
    pub free: Pieces,
    /// Above the last block.
    pub top: u64,
    /// The allocator's own structures, and what others took by brk in between.
    pub own: u64,
    pub pages: PageFigures,
    pub trim: Trim,
    pub known: Known,
    /// Why it is not known completely.
    pub doubt: Option<Doubt>,
}

/// Bytes of an arena by page. `resident` = `used` + `trim.inside` + `trim.top` + `beside` + `whole`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageFigures {
    pub resident: u64,
    pub swapped: u64,
    /// Of `resident`: in use, and the allocator's own.
    pub used: u64,
    /// Of `resident`: free, in pages of which another part is in use.
    pub beside: u64,
    /// Of `resident`: whole pages without anything in use, that trimming leaves: the tops of arenas, blocks in
    /// caches.
    pub whole: u64,
    /// Resident pages of which a quarter or less is in use, and what is in use of them.
    pub sparse: Pieces,
    pub sparse_used: u64,
}

/// What trimming would give back now: resident bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Trim {
    /// Whole pages within free blocks.
    pub inside: u64,
    /// At the end of the main heap.
    pub top: u64,
}

/// Of the blocks that the program is known to hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Known {
    pub blocks: u64,
    /// The requested size.
    pub requested: u64,
    /// What could be used of these blocks beyond that.
    pub rounding: u64,
}

/// Blocks with mappings of their own; those of less than 128 KiB are not searched for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MappedBlocks {
    pub blocks: Pieces,
    pub resident: u64,
    pub known: Known,
}

/// What one holder keeps in memory in addition to its own blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Holder {
    /// As in [`KnownBlock::holder`].
    pub holder: u32,
    /// Its share of what is free in the pages that its blocks are in: those of a page share it equally.
    pub kept: u64,
    pub pages: u64,
    pub blocks: u64,
    /// What its blocks occupy of these pages.
    pub used: u64,
}

/// Why an arena is not known completely.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doubt {
    /// What was read does not fit together: it changed meanwhile.
    Changed,
    /// A header makes no sense: the rest of that heap was not read.
    Broken(Addr),
    /// The page of a header is in swap: reading it would bring it back.
    Swapped(Addr),
    Unreadable(Addr),
    /// So many bytes are elsewhere: brk was refused, or is used by other code.
    Elsewhere(u64),
}
