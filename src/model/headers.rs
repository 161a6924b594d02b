//! Headers that an allocator writes into its own memory and its rule uses: where they may be, and what they
//! mean.

use super::observation::{HeapInfo, Residency};
use super::{Addr, AddrRange, Mapping, PAGE};

/// Bytes of an arena's header, of a block's, of a pool's.
pub const ARENA_HEADER: usize = 40;
pub const BLOCK_HEADER: usize = 16;
pub const POOL_HEADER: usize = 48;

/// Whether an address is mapped.
type IsMapped<'a> = &'a dyn Fn(Addr) -> bool;

/// The code that reads memory knows no allocator; these functions do no I/O.
#[derive(Clone, Copy, Debug)]
pub enum Headers {
    Malloc(MallocHeaders),
    Pools(PoolHeaders),
    Groups(GroupHeaders),
    Pages(PageHeaders),
    Chains(ChainHeaders),
    Bookkeeping(BookkeepingHeaders),
}

/// Of an allocator whose arenas and large blocks begin with headers of their own.
#[derive(Clone, Copy, Debug)]
pub struct MallocHeaders {
    /// Where an arena may begin. Second: true when the list was cut short.
    pub arenas: fn(&[Mapping], &Residency) -> (Vec<Addr>, bool),
    /// The header at this address, if it can be one.
    pub decode: fn(Addr, &[u8; ARENA_HEADER], IsMapped<'_>) -> Option<HeapInfo>,
    /// A block with a mapping of its own may lie in such memory.
    pub may_hold: fn(&Mapping) -> bool,
    /// Shorter blocks are not searched for.
    pub least_block: u64,
    /// The length that a block's header states, if it can be one at the beginning of so many bytes.
    pub block_len: fn(&[u8; BLOCK_HEADER], u64) -> Option<u64>,
}

/// Of an allocator whose arenas have no header, but are full of pools that do.
#[derive(Clone, Copy, Debug)]
pub struct PoolHeaders {
    /// The process can have such arenas.
    pub in_process: fn(&[Mapping]) -> bool,
    pub may_hold: fn(&Mapping) -> bool,
    /// Lengths of an arena and of its pools, which lie at multiples of that.
    pub sizes: &'static [(u64, u64)],
    /// True for the header of a pool of this length at this address.
    pub is_pool: fn(&[u8; POOL_HEADER], Addr, u64) -> bool,
}

/// Of an allocator that keeps the descriptions of its mappings apart from them, in pages of their own; each mapping
/// begins with the address of its description.
#[derive(Clone, Copy, Debug)]
pub struct GroupHeaders {
    /// Where the descriptions lie, in a process that can have them.
    pub tables: fn(&[Mapping]) -> Option<AddrRange>,
    /// What a page of them says; None if it is none.
    pub decode: fn(Addr, &[u8; PAGE as usize]) -> Option<GroupTable>,
}

/// A page of descriptions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupTable {
    /// The word that all pages of one process begin with, and nothing else has.
    pub check: u64,
    /// The page after it; 0 for the last one.
    pub next: Addr,
    /// Where a description is, and what it describes.
    pub groups: Vec<(Addr, AddrRange)>,
}

/// Bytes of the description of a page of objects that are examined.
pub const PAGE_DESCRIPTION: usize = 64;

/// Of a runtime whose objects lie in pages, each at a multiple of its length; a page begins with the address of its
/// description.
#[derive(Clone, Copy, Debug)]
pub struct PageHeaders {
    /// The process can have such pages.
    pub in_process: fn(&[Mapping]) -> bool,
    pub may_hold: fn(&Mapping) -> bool,
    /// Bytes of the smallest page.
    pub least: u64,
    /// The length of the page at this address, if this is its description.
    pub page_len: fn(Addr, &[u8; PAGE_DESCRIPTION]) -> Option<u64>,
}

/// Bytes of a chained block's header that are read.
pub const CHAIN_HEADER: usize = 16;

/// Of a runtime that makes a whole arena of blocks of one length at once, each at a multiple of that and with a header
/// that leads to another block of the arena.
#[derive(Clone, Copy, Debug)]
pub struct ChainHeaders {
    /// The process can have such an arena.
    pub in_process: fn(&[Mapping]) -> bool,
    pub may_hold: fn(&Mapping) -> bool,
    /// Bytes of the arena, and of each of its blocks.
    pub sizes: (u64, u64),
    /// The block after it, 0 for the last one of a chain; None if it is no such header.
    pub next: fn(&[u8; CHAIN_HEADER]) -> Option<Addr>,
}

/// Bytes of the header of a block of bookkeeping that are read.
pub const BOOKKEEPING_HEADER: usize = 40;

/// Of an allocator that keeps its bookkeeping in blocks of their own, each at a multiple of their unit, and with a header
/// that says how long it is and what is left of it.
#[derive(Clone, Copy, Debug)]
pub struct BookkeepingHeaders {
    pub may_hold: fn(&Mapping) -> bool,
    pub unit: u64,
    /// The length of the block at this address, if this is its header.
    pub block_len: fn(Addr, &[u8; BOOKKEEPING_HEADER]) -> Option<u64>,
}
