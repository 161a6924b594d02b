//! What an allocator writes into its own memory and its rule wants read: where it may lie, and what it says.

use super::observation::{HeapInfo, Residency};
use super::{Addr, Mapping};

/// Bytes of an arena's header, and of a block's.
pub const ARENA_HEADER: usize = 40;
pub const BLOCK_HEADER: usize = 16;

/// Whether an address is mapped.
type IsMapped<'a> = &'a dyn Fn(Addr) -> bool;

/// Whoever reads memory knows no allocator; these functions do no I/O.
#[derive(Clone, Copy, Debug)]
pub struct Headers {
    /// Where an arena may begin. Second: true when the list was cut short.
    pub arenas: fn(&[Mapping], &Residency) -> (Vec<Addr>, bool),
    /// The header at this address, if it can be one.
    pub decode: fn(Addr, &[u8; ARENA_HEADER], IsMapped<'_>) -> Option<HeapInfo>,
    /// A block with a mapping of its own may begin where this one does.
    pub may_be_block: fn(&Mapping) -> bool,
    /// The length that a block's header states, if it can be one at the beginning of so many bytes.
    pub block_len: fn(&[u8; BLOCK_HEADER], u64) -> Option<u64>,
}
