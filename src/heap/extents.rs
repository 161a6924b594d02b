//! Extents of allocators that keep such, for the report (docs/heap.md, "Arenas").

use super::sums::Sums;
use crate::model::arenas::ArenasRead;
use crate::model::arenas::extents as read;
use serde::{Deserialize, Serialize};

/// One copy of such an allocator in the process.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ExtentHeap {
    /// With its version.
    pub allocator: String,
    pub arenas: Vec<ExtentArena>,
    /// The sum of them.
    pub total: ExtentArena,
    /// Its own profile of allocations, which is not read; absent where that is not on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Extents that are in no figure, because they changed while they were read, or are in swap.
    pub doubtful: u64,
}

/// Bytes. `active` = `small` + `inside` + `large` + `padding`; `mapped` = `active` + `dirty` + `muzzy` + `retained`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ExtentArena {
    pub number: u64,
    pub mapped: u64,
    /// Blocks that share extents with others of their size: in use, or kept by threads for their next calls.
    pub small: u64,
    pub small_blocks: u64,
    /// Other free bytes.
    pub inside: u64,
    /// Blocks with extents of their own, by what can be used of them.
    pub large: u64,
    pub large_blocks: u64,
    /// What no block can use.
    pub padding: u64,
    pub active: u64,
    /// Free, and not given back.
    pub dirty: u64,
    /// Free, and the kernel may take it.
    pub muzzy: u64,
    /// Free, given back, still mapped.
    pub retained: u64,
    /// Of active extents, in memory.
    pub resident: u64,
    /// Of dirty and muzzy ones, in memory: what purging gives back now.
    pub purge: u64,
    /// Of retained ones, in memory.
    pub retained_resident: u64,
}

pub(super) fn extents(found: &ArenasRead) -> impl Iterator<Item = ExtentHeap> + '_ {
    found.extents.iter().map(|heap| {
        let arenas: Vec<ExtentArena> = heap.arenas.iter().map(arena).collect();
        let total = ExtentArena::sum(&arenas);
        let (allocator, profile) = (heap.version.clone(), heap.profile.clone());
        ExtentHeap { allocator, arenas, total, profile, doubtful: heap.doubtful }
    })
}

fn arena(read: &read::ExtentArena) -> ExtentArena {
    let [active, dirty, muzzy, retained] =
        [read.active, read.dirty, read.muzzy, read.retained].map(|of| of.extents.bytes);
    ExtentArena {
        number: u64::from(read.number),
        mapped: active + dirty + muzzy + retained,
        small: read.small.bytes,
        small_blocks: read.small.count,
        inside: read.inside.bytes,
        large: read.large.bytes,
        large_blocks: read.large.count,
        padding: read.padding,
        active,
        dirty,
        muzzy,
        retained,
        resident: read.active.resident,
        purge: read.dirty.resident + read.muzzy.resident,
        retained_resident: read.retained.resident,
    }
}

impl Sums for ExtentArena {
    fn figures(&mut self) -> Vec<&mut u64> {
        vec![
            &mut self.mapped,
            &mut self.small,
            &mut self.small_blocks,
            &mut self.inside,
            &mut self.large,
            &mut self.large_blocks,
            &mut self.padding,
            &mut self.active,
            &mut self.dirty,
            &mut self.muzzy,
            &mut self.retained,
            &mut self.resident,
            &mut self.purge,
            &mut self.retained_resident,
        ]
    }
}
