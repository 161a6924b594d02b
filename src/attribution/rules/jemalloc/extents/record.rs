//! What a leaf of the tree and an extent's own record say of it.
//!
//! | bits | arena | slab | state | class | free |
//! | --- | --- | --- | --- | --- | --- |
//! | 5.0 to 5.2 | 0–11 | 12 | 16–17 | 18–25 | 26–35 |
//! | 5.3 | 0–11 | 12 | 17–19 | 20–27 | 28–37 |
//!
//! A leaf has the class from bit 48 on and slab in bit 0 (both of the latest block, where the extent is free), of 5.3 the
//! state in bits 2 to 4, too.

use super::classes;
use crate::model::{Addr, AddrRange, PAGE, USER_END};

/// A leaf's entry that leads to the extent that begins at its page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    pub page: Addr,
    pub leaf: u64,
    /// The first three words of the record.
    pub record: [u64; 3],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Active,
    Dirty,
    Muzzy,
    Retained,
}

/// What an active extent holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Blocks {
    pub is_slab: bool,
    pub size: u64,
    pub used: u64,
    pub free: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    pub range: AddrRange,
    pub arena: u32,
    pub state: State,
    pub blocks: Blocks,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    V52,
    V53,
}

/// `SC_LARGE_MINCLASS`: what a small block gets that is sampled.
const SAMPLED: u64 = 16 << 10;

/// The extent's range, whatever the layout: blocks may begin amid the first page (`opt.cache_oblivious`).
pub fn range(record: &[u64; 3]) -> Option<AddrRange> {
    let (start, len) = (Addr(record[1]).page_down(), record[2] & !(PAGE - 1));
    let end = start.0.checked_add(len)?;
    (len > 0 && start.0 >= PAGE && end <= USER_END).then_some(AddrRange { start, end: Addr(end) })
}

impl Layout {
    /// None where the two do not say the same, or blocks would not fit.
    pub fn extent(self, entry: &Entry, pad: u64) -> Option<Extent> {
        let [bits, ..] = entry.record;
        let field = |from: u32, len: u32| bits >> from & ((1 << len) - 1);
        let (state, class, free) = match self {
            Layout::V52 => (field(16, 2), field(18, 8), field(26, 10)),
            Layout::V53 => (field(17, 3), field(20, 8), field(28, 10)),
        };
        let is_slab = field(12, 1) == 1;
        let leaf_state = entry.leaf >> 2 & 7;
        // Of what is freed, class and slab may still be the latest block's.
        let agree = (class == classes::NONE
            || entry.leaf >> 48 == class && entry.leaf & 1 == u64::from(is_slab))
            && leaf_state == if self == Layout::V53 { state } else { 0 };
        let range = range(&entry.record).filter(|range| range.start == entry.page && agree)?;
        let state = match state {
            0 => State::Active,
            1 => State::Dirty,
            2 => State::Muzzy,
            3 => State::Retained,
            // In between: it is split or merged right now.
            _ => return None,
        };
        let blocks = match state {
            State::Active => blocks(range.len(), class, is_slab.then_some(free), pad)?,
            _ if class != classes::NONE => return None,
            _ => Blocks::default(),
        };
        Some(Extent { range, arena: field(0, 12) as u32, state, blocks })
    }
}

fn blocks(len: u64, class: u64, free: Option<u64>, pad: u64) -> Option<Blocks> {
    let size = classes::size(class)?;
    if let Some(free) = free {
        // LG_SLAB_MAXREGS: at most 512, and nothing is left over.
        let all = len / size;
        let fits = (1..=512).contains(&all) && all * size == len && free <= all;
        return fits.then(|| Blocks { is_slab: true, size, used: all - free, free });
    }
    let one = |size| Some(Blocks { is_slab: false, size, used: 1, free: 0 });
    let usable = len.checked_sub(pad)?;
    // Up to 5.3.0 all that there is space for is the class' size, then (opt.disable_large_size_classes) whole pages.
    if class >= classes::LARGE && usable <= size && class.checked_sub(1).and_then(classes::size)? < usable {
        return one(usable);
    }
    // A small block that is sampled by jemalloc's profile has an extent of its own, too.
    (class < classes::LARGE && size < usable && usable <= SAMPLED).then(|| one(size))?
}

/// What large blocks have more than they need: of 5 a page, to begin anywhere in the first one, unless
/// `opt.cache_oblivious` is false. Then no block begins within a page.
pub fn pad(layout: Layout, entries: &[Entry]) -> u64 {
    let is_large = |entry: &&Entry| entry.leaf & 1 == 0 && entry.leaf >> 48 != classes::NONE;
    let is_active = |pad: u64| {
        move |entry: &&Entry| {
            layout.extent(entry, pad).is_some_and(|e| e.state == State::Active && !e.blocks.is_slab)
        }
    };
    let count = |pad: u64| entries.iter().filter(is_large).filter(is_active(pad)).count();
    let (with, without) = (count(PAGE), count(0));
    let begins_within =
        entries.iter().filter(is_large).filter(is_active(PAGE)).any(|e| e.record[1] % PAGE != 0);
    // 64 places each: of eight blocks that begin at a page, none was moved.
    match begins_within || with > without || with == without && with < 8 {
        true => PAGE,
        false => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x7f16_3c20_0000;

    /// As 5.3 has it: record and leaf of an extent.
    fn entry(arena: u64, (slab, state, class, free): (u64, u64, u64, u64), len: u64) -> Entry {
        let bits = arena | slab << 12 | state << 17 | class << 20 | free << 28;
        let leaf = class << 48 | 0x7f16_4443_1280 | state << 2 | slab;
        Entry { page: Addr(AT), leaf, record: [bits, AT, len | 7] }
    }

    fn decoded(entry: &Entry) -> Option<(State, u64, u64, u64)> {
        let extent = Layout::V53.extent(entry, PAGE)?;
        let Blocks { size, used, free, .. } = extent.blocks;
        Some((extent.state, size, used, free))
    }

    #[test]
    fn of_each_kind() {
        // 128 blocks of 32 bytes, of which 28 are free.
        assert_eq!(decoded(&entry(2, (1, 0, 2, 28), PAGE)), Some((State::Active, 32, 100, 28)));
        assert_eq!(decoded(&entry(2, (0, 0, 36, 0), 5 * PAGE)), Some((State::Active, 16384, 1, 0)));
        // 5.3.1: whole pages, more than the class before and not more than its own.
        assert_eq!(decoded(&entry(2, (0, 0, 40, 0), 9 * PAGE)), Some((State::Active, 32768, 1, 0)));
        assert_eq!(decoded(&entry(2, (0, 0, 44, 0), 16 * PAGE)), Some((State::Active, 15 * PAGE, 1, 0)));
        assert_eq!(
            decoded(&entry(4095, (0, 3, classes::NONE, 0), 243 * PAGE)),
            Some((State::Retained, 0, 0, 0))
        );
    }

    #[test]
    fn what_does_not_fit_is_none() {
        let good = entry(2, (1, 0, 2, 28), PAGE);
        let with = |change: &dyn Fn(&mut Entry)| {
            let mut other = good;
            change(&mut other);
            decoded(&other)
        };
        assert_eq!(with(&|e| e.leaf ^= 1), None, "a slab in one of them");
        assert_eq!(with(&|e| e.leaf ^= 1 << 48), None, "another class");
        assert_eq!(with(&|e| e.leaf ^= 1 << 2), None, "another state");
        assert_eq!(with(&|e| e.record[0] |= 4 << 17), None, "being split");
        assert_eq!(with(&|e| e.record[0] |= 512 << 28), None, "more free than there are");
        assert_eq!(with(&|e| e.record[1] += PAGE), None, "elsewhere");
        assert_eq!(with(&|e| e.record[2] = 7), None, "empty");
        assert_eq!(with(&|e| e.record[2] = 1 << 60), None, "beyond all addresses");
        assert_eq!(decoded(&entry(2, (0, 0, 40, 0), 5 * PAGE)), None, "a large block of another class");
        assert_eq!(decoded(&entry(2, (0, 3, 40, 0), 5 * PAGE)), None, "free, and with a class");
    }

    #[test]
    fn whether_large_blocks_have_a_page_more() {
        let moved = |by: u64, len: u64| {
            let mut entry = entry(1, (0, 0, 36, 0), len);
            entry.record[1] += by;
            entry
        };
        assert_eq!(pad(Layout::V53, &[moved(0, 4 * PAGE)]), 0);
        assert_eq!(pad(Layout::V53, &[moved(640, 5 * PAGE)]), PAGE);
        assert_eq!(pad(Layout::V53, &[]), PAGE);
    }
}
