//! Where the memory of an allocator's arenas is: held, rounded up, free inside, free at the top, given back, and
//! what keeps the rest (docs/heap.md, "Arenas").

use super::extents::{ExtentHeap, extents};
use super::segments::{Segments, segments};
use crate::model::arenas::{self, ArenasRead, Doubt, Known};
use serde::{Deserialize, Serialize};

/// The arenas of one process at one moment. Bytes, if nothing else is said.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Fragmentation {
    /// What reading took, nanoseconds.
    pub took_ns: u64,
    /// Pages were examined one by one. Else `pages` and `trim` are null.
    pub knows_pages: bool,
    /// In the order of the allocator's own list: the main one first.
    pub arenas: Vec<Arena>,
    /// The sum of them.
    pub total: Arena,
    /// Allocators that keep extents; absent where there is none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extents: Vec<ExtentHeap>,
    /// Allocators that keep segments; absent where there is none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<Segments>,
    /// Allocators that are in the process, and of which nothing is read; absent where there is none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<Unread>,
    /// Blocks with mappings of their own, of 128 KiB and more.
    pub mapped_blocks: MappedBlocks,
    /// The stacks that hold pages of which at most a quarter is in use, as far as blocks are known; most
    /// first.
    pub holders: Vec<Holder>,
}

/// An allocator whose arenas are in no figure.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Unread {
    /// With its version, as far as that is known.
    pub allocator: String,
    /// The reason and the evidence for it.
    pub why: String,
}

/// `read` = `in_use` + `thread_caches` + `fast` + `free` + `top` + `own`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Arena {
    pub allocator: String,
    /// Of its header.
    pub address: u64,
    /// The first one, which extends the heap by brk.
    pub main: bool,
    /// Threads that use it; null where that is not known.
    pub threads: Option<u64>,
    /// What it has from the kernel, as its header says.
    pub mapped: u64,
    /// Of `mapped`, what is in the other figures.
    pub read: u64,
    /// Held by the program, each block with the allocator's own 8 bytes; and how many blocks.
    pub in_use: u64,
    pub in_use_blocks: u64,
    /// Freed, and kept by threads for their next calls.
    pub thread_caches: u64,
    pub thread_caches_blocks: u64,
    /// Freed, and not joined with their neighbours.
    pub fast: u64,
    pub fast_blocks: u64,
    /// Freed, in lists by size.
    pub free: u64,
    pub free_blocks: u64,
    /// Above the last block.
    pub top: u64,
    /// The allocator's own structures.
    pub own: u64,
    /// Blocks of the program that this run has seen allocated, their requested bytes, and what could be used
    /// of them beyond that; null where none is known.
    pub known: Option<KnownBlocks>,
    pub pages: Option<Pages>,
    pub trim: Option<Trim>,
    /// Why some of it is not known, or not to the byte: `changed`, `broken`, `swapped`, `unreadable`, `elsewhere`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub doubt: Option<String>,
    /// The same in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct KnownBlocks {
    pub blocks: u64,
    pub asked: u64,
    /// `malloc_usable_size` less the requested bytes.
    pub rounding: u64,
}

/// `resident` = `used` + `trim.inside` + `trim.top` + `beside` + `whole`, and `read` = `resident` + `swapped` +
/// `absent`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pages {
    pub resident: u64,
    pub swapped: u64,
    /// Given back, or never touched.
    pub absent: u64,
    pub used: u64,
    /// Free, in pages of which another part is in use.
    pub beside: u64,
    /// Whole pages without anything in use that trimming leaves.
    pub whole: u64,
    /// Resident pages of which at most a quarter is in use; their number, and what is in use of them.
    pub sparse_pages: u64,
    pub sparse_used: u64,
}

/// What `malloc_trim(0)` would give back: resident bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Trim {
    pub inside: u64,
    pub top: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MappedBlocks {
    pub blocks: u64,
    pub bytes: u64,
    /// Null where pages were not examined.
    pub resident: Option<u64>,
    pub known: Option<KnownBlocks>,
}

/// A stack, and what its blocks keep in memory in addition to themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Holder {
    /// Index into the process' `rows`; null for stacks that are in none, because the filter leaves them out.
    pub row: Option<u64>,
    /// Its share of what is free in the pages that its blocks are in: the blocks of a page share that equally.
    pub kept: u64,
    /// In how many pages its blocks are, each counted for each block in it.
    pub pages: u64,
    pub blocks: u64,
    pub used: u64,
}

impl Fragmentation {
    pub fn is_empty(&self) -> bool {
        self.arenas.is_empty() && self.extents.is_empty() && self.segments.is_empty()
    }
}

/// Joins what was read of each allocator. `row` says in which row of the report a holder is.
pub fn fragmentation(
    read: &[(&str, ArenasRead)],
    took_ns: u64,
    row: impl Fn(u32) -> Option<u64>,
) -> Fragmentation {
    let mut out = Fragmentation {
        took_ns,
        knows_pages: read.iter().all(|(_, read)| read.knows_pages),
        ..Fragmentation::default()
    };
    let mut holders: Vec<Holder> = Vec::new();
    for (allocator, read) in read {
        out.arenas.extend(read.arenas.iter().map(|each| arena(allocator, each, read.knows_pages)));
        out.extents.extend(extents(read));
        out.segments.extend(segments(read));
        let unread =
            |found: &arenas::Unread| Unread { allocator: found.allocator.clone(), why: found.why.to_owned() };
        out.unread.extend(read.unread.as_ref().map(unread));
        let mapped = &read.mapped;
        out.mapped_blocks.blocks += mapped.blocks.count;
        out.mapped_blocks.bytes += mapped.blocks.bytes;
        out.mapped_blocks.resident =
            read.knows_pages.then(|| out.mapped_blocks.resident.unwrap_or(0) + mapped.resident);
        out.mapped_blocks.known = plus(out.mapped_blocks.known, known(mapped.known), KnownBlocks::add);
        for holder in &read.holders {
            let row = row(holder.holder);
            let arenas::Holder { kept, pages, blocks, used, .. } = *holder;
            match holders.iter_mut().find(|known| known.row == row && row.is_none()) {
                Some(others) => {
                    others.kept += kept;
                    others.pages += pages;
                    others.blocks += blocks;
                    others.used += used;
                }
                None => holders.push(Holder { row, kept, pages, blocks, used }),
            }
        }
    }
    holders.sort_by_key(|holder| (std::cmp::Reverse(holder.kept), holder.row));
    out.holders = holders;
    out.total = total(&out.arenas);
    out
}

fn arena(allocator: &str, read: &arenas::Arena, knows_pages: bool) -> Arena {
    let pages = &read.pages;
    Arena {
        allocator: allocator.to_owned(),
        address: read.at.0,
        main: read.is_main,
        threads: read.threads,
        mapped: read.system,
        read: read.read,
        in_use: read.in_use.bytes,
        in_use_blocks: read.in_use.count,
        thread_caches: read.thread_caches.bytes,
        thread_caches_blocks: read.thread_caches.count,
        fast: read.fast.bytes,
        fast_blocks: read.fast.count,
        free: read.free.bytes,
        free_blocks: read.free.count,
        top: read.top,
        own: read.own,
        known: known(read.known),
        pages: knows_pages.then_some(Pages {
            resident: pages.resident,
            swapped: pages.swapped,
            absent: read.read.saturating_sub(pages.resident).saturating_sub(pages.swapped),
            used: pages.used,
            beside: pages.beside,
            whole: pages.whole,
            sparse_pages: pages.sparse.count,
            sparse_used: pages.sparse_used,
        }),
        trim: knows_pages.then_some(Trim { inside: read.trim.inside, top: read.trim.top }),
        doubt: read.doubt.map(|doubt| doubt_id(doubt).to_owned()),
        why: read.doubt.map(|doubt| doubt_words(doubt, read)),
    }
}

fn known(read: Known) -> Option<KnownBlocks> {
    let Known { blocks, requested: asked, rounding } = read;
    (blocks > 0).then_some(KnownBlocks { blocks, asked, rounding })
}

fn doubt_id(doubt: Doubt) -> &'static str {
    match doubt {
        Doubt::Changed => "changed",
        Doubt::Broken(_) => "broken",
        Doubt::Swapped(_) => "swapped",
        Doubt::Unreadable(_) => "unreadable",
        Doubt::Elsewhere(_) => "elsewhere",
    }
}

fn doubt_words(doubt: Doubt, arena: &arenas::Arena) -> String {
    let missing = crate::report::units::size(arena.system.saturating_sub(arena.read));
    let unread = match arena.read < arena.system {
        true => format!("; {missing} of it are in no other figure"),
        false => String::new(),
    };
    match doubt {
        Doubt::Changed => format!("it changed while it was read{unread}"),
        Doubt::Broken(at) => format!("what is at {at} is no header of a block{unread}"),
        Doubt::Swapped(at) => format!("the header at {at} is in swap, and stays there{unread}"),
        Doubt::Unreadable(at) => format!("the header at {at} could not be read{unread}"),
        Doubt::Elsewhere(_) => format!("{missing} of it are not where the heap is: brk was refused"),
    }
}

impl KnownBlocks {
    fn add(self, other: KnownBlocks) -> KnownBlocks {
        KnownBlocks {
            blocks: self.blocks + other.blocks,
            asked: self.asked.saturating_add(other.asked),
            rounding: self.rounding.saturating_add(other.rounding),
        }
    }
}

impl Pages {
    fn add(self, other: Pages) -> Pages {
        Pages {
            resident: self.resident + other.resident,
            swapped: self.swapped + other.swapped,
            absent: self.absent + other.absent,
            used: self.used + other.used,
            beside: self.beside + other.beside,
            whole: self.whole + other.whole,
            sparse_pages: self.sparse_pages + other.sparse_pages,
            sparse_used: self.sparse_used + other.sparse_used,
        }
    }
}

impl Trim {
    pub fn sum(self) -> u64 {
        self.inside + self.top
    }

    fn add(self, other: Trim) -> Trim {
        Trim { inside: self.inside + other.inside, top: self.top + other.top }
    }
}

fn plus<T: Copy>(a: Option<T>, b: Option<T>, add: impl Fn(T, T) -> T) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(add(a, b)),
        (a, b) => a.or(b),
    }
}

/// What several arenas are together.
pub fn total(arenas: &[Arena]) -> Arena {
    let mut sum = Arena::default();
    for each in arenas {
        for (to, from) in [
            (&mut sum.mapped, each.mapped),
            (&mut sum.read, each.read),
            (&mut sum.in_use, each.in_use),
            (&mut sum.in_use_blocks, each.in_use_blocks),
            (&mut sum.thread_caches, each.thread_caches),
            (&mut sum.thread_caches_blocks, each.thread_caches_blocks),
            (&mut sum.fast, each.fast),
            (&mut sum.fast_blocks, each.fast_blocks),
            (&mut sum.free, each.free),
            (&mut sum.free_blocks, each.free_blocks),
            (&mut sum.top, each.top),
            (&mut sum.own, each.own),
        ] {
            *to = to.saturating_add(from);
        }
        sum.threads = plus(sum.threads, each.threads, |a, b| a + b);
        sum.known = plus(sum.known, each.known, KnownBlocks::add);
        sum.pages = plus(sum.pages, each.pages, Pages::add);
        sum.trim = plus(sum.trim, each.trim, Trim::add);
    }
    sum
}
