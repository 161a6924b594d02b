//! Allocators that keep their memory in extents (runs of pages), each in use or free in some degree.

use super::Pieces;
use crate::model::Addr;

/// The extents of one copy of an allocator.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ExtentHeap {
    /// Name and version, as its file states them.
    pub version: String,
    /// Of the table that leads to all extents.
    pub root: Addr,
    /// By number.
    pub arenas: Vec<ExtentArena>,
    /// Its own profile of allocations, which is not read: a sentence.
    pub profile: Option<String>,
    /// Extents whose records made no sense: it changed while it was read. They are in no figure.
    pub doubtful: u64,
}

/// `active` = `small` + `inside` + `large` + `padding`, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExtentArena {
    pub number: u32,
    /// Blocks that share an extent with others of their size: in use, or kept by threads for their next calls.
    pub small: Pieces,
    /// Other free bytes.
    pub inside: Pieces,
    /// Blocks with an extent of their own, by what can be used of them.
    pub large: Pieces,
    /// Of active extents, what no block can use.
    pub padding: u64,
    pub active: Extents,
    /// Free, and not given back.
    pub dirty: Extents,
    /// Free, and the kernel may take it (MADV_FREE).
    pub muzzy: Extents,
    /// Free, given back, and still mapped.
    pub retained: Extents,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Extents {
    pub extents: Pieces,
    /// Bytes of them that are in memory; 0 where pages were not examined.
    pub resident: u64,
}
