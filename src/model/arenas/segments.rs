//! Allocators that keep their memory in segments of one size, each of one thread, cut into pages of equal blocks.

use super::Pieces;
use super::extents::Extents;
use crate::model::Addr;

/// The segments of one allocator.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SegmentHeaps {
    /// Name, and the versions that keep such segments.
    pub version: String,
    /// When what is free of it is given back: a sentence without a head.
    pub purged: &'static str,
    /// Those of threads by address, then the others.
    pub heaps: Vec<SegmentHeap>,
    /// Segments that did not fit together, or whose links led elsewhere: they changed while they were read, and are in no
    /// figure.
    pub doubtful: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Owner {
    /// By the address of its control block (`pthread_self()`).
    Thread(Addr),
    /// Threads that have ended, and left blocks in use.
    Ended,
    /// Blocks with segments of their own that belong to no thread: the one that made them has ended, or (up to 2.0.7) each.
    Large,
    /// Segments without blocks, free for any thread.
    Nobody,
}

/// `pages` = `used` + `returned` + `inside` + `padding`; the segments are `pages` + `free` + `own`. Bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentHeap {
    pub owner: Owner,
    pub segments: Pieces,
    /// Readable and writable, as the headers say.
    pub committed: u64,
    /// Blocks in use, by what can be used of them.
    pub used: Pieces,
    /// Freed by other threads, and not taken back yet.
    pub returned: Pieces,
    /// Space for more blocks in addition to those.
    pub inside: u64,
    /// What no block can use.
    pub padding: u64,
    /// Runs of slices with blocks in use.
    pub pages: Extents,
    /// Slices without.
    pub free: Extents,
    /// Headers.
    pub own: Extents,
}

impl SegmentHeap {
    pub fn of(owner: Owner) -> SegmentHeap {
        SegmentHeap {
            owner,
            segments: Pieces::default(),
            committed: 0,
            used: Pieces::default(),
            returned: Pieces::default(),
            inside: 0,
            padding: 0,
            pages: Extents::default(),
            free: Extents::default(),
            own: Extents::default(),
        }
    }
}
