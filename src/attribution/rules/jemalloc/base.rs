//! jemalloc's own bookkeeping, known by its headers: arenas, the tree that leads from pages to extents, and what is said of
//! each extent lie in blocks of their own.
//!
//! Source: jemalloc 5.0 to 5.3.1, include/jemalloc/internal/base_structs.h (base.h), `struct base_block_s`; src/base.c,
//! `base_block_alloc`, `base_extent_bump_alloc_post`. A block begins with its length, whole huge pages at a multiple of
//! them, and with the address of the next one. Then comes the extent of what is left at its end: it belongs to no arena
//! (all bits of the number are set), and ends where the block does.

use crate::model::headers::{BOOKKEEPING_HEADER, BookkeepingHeaders};
use crate::model::{Addr, Mapping, Prot, USER_END};

pub const HEADERS: BookkeepingHeaders = BookkeepingHeaders { may_hold, unit: HUGE_PAGE, block_len };

const HUGE_PAGE: u64 = 2 << 20;
/// MALLOCX_ARENA_BITS.
const NO_ARENA: u64 = (1 << 12) - 1;

fn may_hold(mapping: &Mapping) -> bool {
    mapping.prot == Prot::RW && mapping.is_plain_anonymous()
}

fn block_len(at: Addr, header: &[u8; BOOKKEEPING_HEADER]) -> Option<u64> {
    let word = |n: usize| Some(u64::from_le_bytes(*header.get(n * 8..)?.first_chunk()?));
    let [len, next, bits, rest, rest_len] = [word(0)?, word(1)?, word(2)?, word(3)?, word(4)?];
    let end = at.0.checked_add(len).filter(|end| *end <= USER_END)?;
    let whole = len > 0 && len.is_multiple_of(HUGE_PAGE);
    let chained = next.is_multiple_of(HUGE_PAGE) && next < USER_END && next != at.0;
    let behind_header = at.0 + BOOKKEEPING_HEADER as u64;
    let is_rest = rest > behind_header && rest <= end && rest.checked_add(rest_len) == Some(end);
    (whole && chained && is_rest && bits & NO_ARENA == NO_ARENA).then_some(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x7f27_0840_0000;

    fn len(words: [u64; 5]) -> Option<u64> {
        let mut header = [0; BOOKKEEPING_HEADER];
        let places = header.as_chunks_mut::<8>().0.iter_mut();
        places.zip(words).for_each(|(place, word)| *place = word.to_le_bytes());
        block_len(Addr(AT), &header)
    }

    /// As biome 2.6.8 has it (jemalloc 5.3.0).
    const SEEN: [u64; 5] = [0x20_0000, 0, 0xe80_afff, AT + 0x1_6580, 0x1e_9a80];

    #[test]
    fn a_block_says_how_long_it_is_and_what_is_left() {
        let with = |at: usize, word: u64| {
            let mut words = SEEN;
            words[at] = word;
            len(words)
        };
        assert_eq!(len(SEEN), Some(2 << 20));
        assert_eq!(with(1, AT + (2 << 20)), Some(2 << 20), "another follows");
        assert_eq!(len([4 << 20, 0, 0xfff, AT + (4 << 20), 0]), Some(4 << 20), "it is full");
        assert_eq!(with(0, 0x20_1000), None, "no whole huge page");
        assert_eq!(with(0, 4 << 20), None, "what is left ends elsewhere");
        assert_eq!(with(1, AT), None, "it follows itself");
        assert_eq!(with(2, 0xe80_a002), None, "an extent of an arena");
        assert_eq!(with(3, AT), None, "the header itself is left");
        assert_eq!(len([0; 5]), None);
        assert_eq!(len([!(HUGE_PAGE - 1), 0, 0xfff, 0, 0]), None);
    }
}
