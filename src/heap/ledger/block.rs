//! Outstanding blocks by address, small: there may be millions.

use crate::model::hash::IntMap;
use crate::model::{Addr, Tid};
use std::sync::Arc;

/// Index into [`super::Heaps::sites`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SiteId(pub u32);

/// Index into a ledger's contexts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct ContextId(pub u32);

/// Steps of [`Moment`], in nanoseconds: about a millisecond.
const TICK_NS: u64 = 1 << 20;

/// A time since the ledger's first event, in steps of 2^20 ns. It ends after 52 days: what is
/// allocated later snapshots no older than it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Moment(u32);

impl Moment {
    pub(super) fn at(time_ns: u64, base_ns: u64) -> Moment {
        let ticks = time_ns.saturating_sub(base_ns) / TICK_NS;
        Moment(u32::try_from(ticks).unwrap_or(u32::MAX))
    }

    /// The beginning of the step.
    pub(super) fn ns(self, base_ns: u64) -> u64 {
        base_ns.saturating_add(u64::from(self.0) * TICK_NS)
    }
}

/// One outstanding block: 24 bytes, 32 with its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Block {
    pub size: u64,
    pub site: SiteId,
    /// `u32::MAX` for none: an `Option` would take 8 bytes.
    context: u32,
    pub tid: Tid,
    pub made: Moment,
}

const _: () = assert!(size_of::<(u64, Block)>() == 32);

impl Block {
    pub(super) fn new(size: u64, site: SiteId, tid: Tid, made: Moment) -> Block {
        Block { size, site, context: u32::MAX, tid, made }
    }

    pub(super) fn in_context(self, context: Option<ContextId>) -> Block {
        Block { context: context.map_or(u32::MAX, |id| id.0), ..self }
    }

    pub(super) fn context(&self) -> Option<ContextId> {
        Some(self.context).filter(|&id| id != u32::MAX).map(ContextId)
    }
}

/// As many parts: one is copied when parent and child of a fork differ in it, and grows by itself.
const SHARDS: usize = 256;

/// Blocks by address. A clone shares what neither side has changed.
#[derive(Clone, Debug)]
pub(super) struct Blocks {
    shards: Vec<Arc<IntMap<u64, Block>>>,
}

impl Default for Blocks {
    fn default() -> Blocks {
        Blocks { shards: vec![Arc::default(); SHARDS] }
    }
}

/// Blocks are multiples of 16 bytes apart; neighbours go to different parts.
fn shard(address: Addr) -> usize {
    (address.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize % SHARDS
}

impl Blocks {
    /// The block that was there.
    pub(super) fn insert(&mut self, address: Addr, block: Block) -> Option<Block> {
        let shard = self.shards.get_mut(shard(address))?;
        Arc::make_mut(shard).insert(address.0, block)
    }

    pub(super) fn get(&self, address: Addr) -> Option<&Block> {
        self.shards.get(shard(address))?.get(&address.0)
    }

    pub(super) fn remove(&mut self, address: Addr) -> Option<Block> {
        let shard = self.shards.get_mut(shard(address))?;
        // no copy of a shared part for a free of what is not there
        if !shard.contains_key(&address.0) {
            return None;
        }
        Arc::make_mut(shard).remove(&address.0)
    }

    /// In no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Addr, &Block)> {
        self.shards.iter().flat_map(|shard| shard.iter().map(|(&at, block)| (Addr(at), block)))
    }
}
