//! [`super::pages::search`] without jumps that depend on where the word is: four words are compared at once.

use super::pages::{KEY, NEAR, Search, key_of, near};
use core::arch::x86_64::*;
use core::sync::atomic::AtomicU64;

const _: () = assert!(NEAR == 4);

/// The same, for the only writer of the words.
#[inline(always)]
pub fn search(words: &[AtomicU64], at: u64) -> Search {
    if words.len() < NEAR {
        return Search::Full;
    }
    let first = near(words.len(), at);
    // SAFETY: `near` is at most as much as leaves NEAR words behind it. SSE2 is part of x86-64.
    let (found, free) = unsafe {
        let keys = _mm_and_si128(lower_halves(words.as_ptr().add(first)), _mm_set1_epi32(KEY as i32));
        (equal(keys, key_of(at) as i32), equal(keys, 0))
    };
    if found != 0 {
        Search::Found(first + found.trailing_zeros() as usize)
    } else if free != 0 {
        Search::Free(first + free.trailing_zeros() as usize)
    } else {
        Search::Full
    }
}

/// Of [`NEAR`] words. Each is loaded by itself: what was just stored would not be forwarded to a load of two.
#[inline(always)]
unsafe fn lower_halves(from: *const AtomicU64) -> __m128i {
    unsafe {
        let half = |word: usize| _mm_cvtsi32_si128(from.add(word).cast::<i32>().read());
        let (a, b) = (_mm_unpacklo_epi32(half(0), half(1)), _mm_unpacklo_epi32(half(2), half(3)));
        _mm_unpacklo_epi64(a, b)
    }
}

/// A bit for each.
#[inline(always)]
unsafe fn equal(keys: __m128i, key: i32) -> u32 {
    unsafe { _mm_movemask_ps(_mm_castsi128_ps(_mm_cmpeq_epi32(keys, _mm_set1_epi32(key)))) as u32 }
}
