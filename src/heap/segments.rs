//! Segments of allocators that keep such, for the report (docs/heap.md, "Arenas").

use super::sums::Sums;
use crate::model::arenas::ArenasRead;
use crate::model::arenas::segments::{Owner, SegmentHeap as Read};
use serde::{Deserialize, Serialize};

/// One copy of such an allocator in the process.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Segments {
    /// With the versions that keep such segments.
    pub allocator: String,
    /// When what is free of it is given back, in words.
    pub purged: String,
    pub heaps: Vec<SegmentHeap>,
    /// The sum of them.
    pub total: SegmentHeap,
    /// Segments that are in no figure, because they changed while they were read, or are in swap.
    pub doubtful: u64,
}

/// Bytes. `pages` = `used` + `returned` + `inside` + `padding`; `mapped` = `pages` + `free` + `own`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SegmentHeap {
    /// Whose it is: `thread`, `ended` (threads that left blocks in use), `large` (blocks with segments of
    /// their own, of no thread), `free` (without an owner). Null of a sum.
    pub owner: Option<String>,
    /// The thread's control block (`pthread_self()`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<u64>,
    pub segments: u64,
    pub mapped: u64,
    /// As the allocator has it: readable and writable.
    pub committed: u64,
    /// Blocks in use, by what can be used of them.
    pub used: u64,
    pub used_blocks: u64,
    /// Freed by other threads, and not taken back by this one yet.
    pub returned: u64,
    pub returned_blocks: u64,
    /// Space for more blocks in the same pages.
    pub inside: u64,
    /// What no block can use.
    pub padding: u64,
    /// Pages (runs of slices of 64 KiB) with blocks.
    pub pages: u64,
    /// Slices without blocks.
    pub free: u64,
    /// The segments' headers.
    pub own: u64,
    /// Of `pages`, `free` and `own`, what is in memory.
    pub resident: u64,
    pub free_resident: u64,
    pub own_resident: u64,
}

pub(super) fn segments(found: &ArenasRead) -> impl Iterator<Item = Segments> + '_ {
    found.segments.iter().map(|copy| {
        let heaps: Vec<SegmentHeap> = copy.heaps.iter().map(heap).collect();
        let total = SegmentHeap::sum(&heaps);
        let (allocator, purged) = (copy.version.clone(), copy.purged.to_owned());
        Segments { allocator, purged, heaps, total, doubtful: copy.doubtful }
    })
}

fn heap(read: &Read) -> SegmentHeap {
    let (owner, thread) = match read.owner {
        Owner::Thread(at) => ("thread", Some(at.0)),
        Owner::Ended => ("ended", None),
        Owner::Large => ("large", None),
        Owner::Nobody => ("free", None),
    };
    SegmentHeap {
        owner: Some(owner.to_owned()),
        thread,
        segments: read.segments.count,
        mapped: read.segments.bytes,
        committed: read.committed,
        used: read.used.bytes,
        used_blocks: read.used.count,
        returned: read.returned.bytes,
        returned_blocks: read.returned.count,
        inside: read.inside,
        padding: read.padding,
        pages: read.pages.extents.bytes,
        free: read.free.extents.bytes,
        own: read.own.extents.bytes,
        resident: read.pages.resident,
        free_resident: read.free.resident,
        own_resident: read.own.resident,
    }
}

impl Sums for SegmentHeap {
    fn figures(&mut self) -> Vec<&mut u64> {
        vec![
            &mut self.segments,
            &mut self.mapped,
            &mut self.committed,
            &mut self.used,
            &mut self.used_blocks,
            &mut self.returned,
            &mut self.returned_blocks,
            &mut self.inside,
            &mut self.padding,
            &mut self.pages,
            &mut self.free,
            &mut self.own,
            &mut self.resident,
            &mut self.free_resident,
            &mut self.own_resident,
        ]
    }
}
