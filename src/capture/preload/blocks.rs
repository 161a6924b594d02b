//! What is outstanding, as the library has it.

use super::Area;
use super::layout::{MODE_SAMPLE, SMALL, Sample, first_sample, given, given_at};
use super::pages::*;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// What is outstanding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CountedBlock {
    pub address: u64,
    pub size: u64,
    /// The usable size: malloc_usable_size(3). None where it is not known.
    pub given: Option<u64>,
    /// 0: no stack.
    pub stack: u32,
    /// When: as published by [`super::Bell::publish_time`]; rounded down.
    pub milliseconds: u32,
}

/// A page whose words move more often than this while they are read is taken as it was last.
const MOST_READS: usize = 100;

impl Area {
    /// All that is outstanding, or the sampled blocks.
    ///
    /// # Errors
    /// When the file cannot be searched for what was written.
    pub fn blocks(&self, mut take: impl FnMut(CountedBlock)) -> io::Result<()> {
        if self.head().mode.load(Relaxed) == MODE_SAMPLE {
            self.sampled().into_iter().for_each(take);
            return Ok(());
        }
        let leaves = (self.head().next_leaf.load(Acquire) as usize).min(LEAVES);
        for (leaf, window) in self.leaf_windows().iter().enumerate().take(leaves) {
            let window = window.load(Relaxed);
            let begin = super::layout::AT_LEAVES + leaf * LEAF_BYTES;
            for written in self.written(begin..begin + LEAF_BYTES)? {
                for page in (written.start - begin) / 8..(written.end - begin) / 8 {
                    for word in self.words_of(leaf * LEAF_PAGES + page) {
                        if is_block(word) {
                            take(self.counted_block(word, address_of(window, page, word)));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Those of a page that is the one with this number in all leaves.
    fn words_of(&self, page: usize) -> Vec<u64> {
        let mut out = Vec::new();
        let Some(page) = self.pages().get(page) else { return out };
        for _ in 0..MOST_READS {
            let value = page.load(Acquire);
            let (first, len) = words_of(value);
            out.clear();
            out.extend(self.words_of_page(first, len).iter().map(|word| word.load(Acquire)));
            if page.load(Acquire) & !LOCKED == value & !LOCKED {
                break;
            }
        }
        out
    }

    /// None of it where the library says what cannot be.
    fn words_of_page(&self, first: usize, len: usize) -> &[AtomicU64] {
        self.block_words().get(first..first + len).unwrap_or_default()
    }

    fn counted_block(&self, word: u64, address: u64) -> CountedBlock {
        let size = match is_large(word) {
            true => large_size(word, self.extra(address + SIZE_EXTRA).unwrap_or(1)),
            false => block_size(word),
        };
        let given = match size {
            0..=SMALL => self.given().get(given_at(size)).map(|word| given(word.load(Relaxed)).0),
            _ => self.extra(address + GIVEN_EXTRA).map(|more| size.saturating_add(more)),
        };
        let given = given.filter(|&given| given >= size);
        CountedBlock { address, size, given, stack: block_stack(word), milliseconds: block_ms(word) }
    }

    fn extra(&self, address: u64) -> Option<u64> {
        let (window, page, at) = place(address);
        let leaf = self.windows().get(window)?.load(Relaxed).checked_sub(1)? as usize;
        let page = self.pages().get(leaf * LEAF_PAGES + page)?;
        let (first, len) = words_of(page.load(Acquire));
        let words = self.words_of_page(first, len);
        match search(words, at) {
            Search::Found(index) => extra_of(words.get(index)?.load(Acquire)),
            _ => None,
        }
    }

    /// Read again where the library moved its table meanwhile.
    fn sampled(&self) -> Vec<CountedBlock> {
        let bits = &self.head().sample_bits;
        loop {
            let table = bits.load(Acquire);
            let begin = first_sample(table);
            let slots =
                if table == 0 { &[] } else { self.samples().get(begin..2 * begin).unwrap_or_default() };
            let found = slots.iter().filter_map(sampled_block).collect();
            if bits.load(Acquire) == table {
                return found;
            }
        }
    }
}

fn sampled_block(sample: &Sample) -> Option<CountedBlock> {
    let address = sample.address.load(Acquire);
    let (size, stack) = (sample.size.load(Relaxed), sample.stack.load(Relaxed));
    let milliseconds = sample.tick.load(Relaxed);
    let given = Some(sample.given.load(Relaxed)).filter(|&given| given >= size);
    (address != 0).then_some(CountedBlock { address, size, given, stack, milliseconds })
}

#[cfg(test)]
mod tests {
    use super::super::layout::STACKS;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn times_are_exact_at_first_and_to_one_part_in_2048_then() {
        for ms in 0..4096 {
            assert_eq!(ms_of(tick16(ms)), ms);
        }
        let mut ms = 4096u32;
        while ms < 100_000_000 {
            let known = ms_of(tick16(ms));
            assert!(known <= ms && ms - known <= ms / 2048, "{ms}: {known}");
            ms += ms / 7 + 1;
        }
        assert!(ms_of(tick16(u32::MAX)) >= 100_000_000, "the end of time is late");
    }

    #[test]
    fn blocks_keep_their_stack_time_size_and_place() {
        let all =
            [(0, 0, 0), (1, 17, 1), (STACKS as u32 - 1, 4000, LARGE - 1), (7, 5, 1 << 40), (3, 0, LARGE)];
        for (stack, ms, size) in all {
            for address in [0x7fff_ffff_fff8, 0x5555_5555_52a0, 0x7f00_0000_0000] {
                let word = block(stack, ms, size, address);
                assert!(is_block(word) && extra_of(word).is_none());
                assert_eq!((block_stack(word), block_ms(word)), (stack, ms));
                let rest = extra(size_extra(size), address + SIZE_EXTRA);
                assert!(!is_block(rest));
                assert_eq!(is_large(word), size >= LARGE);
                let known = match extra_of(rest) {
                    Some(rest) if is_large(word) => large_size(word, rest),
                    _ => block_size(word),
                };
                assert_eq!(known, size);
                let (window, page, at) = place(address);
                assert_eq!((at, address_of(window as u32, page, word)), (where_of(word), address));
            }
        }
    }

    proptest! {
        /// Whatever is there, in whatever order it came and went: it is found, and nothing else.
        #[test]
        fn a_pages_words_are_those_that_were_put_there(
            class in 0..WORD_COUNTS.len(),
            steps in prop::collection::vec((0..512u64, any::<bool>()), 0..400),
        ) {
            let words: Vec<AtomicU64> = (0..WORD_COUNTS[class]).map(|_| AtomicU64::new(0)).collect();
            let mut model = BTreeMap::new();
            for (step, (at, is_put)) in steps.into_iter().enumerate() {
                let new = block(step as u32, 0, 1, at << 3);
                let found = search(&words, at);
                #[cfg(target_arch = "x86_64")]
                prop_assert_eq!(found, super::super::search::search(&words, at));
                match (found, is_put) {
                    (Search::Found(index), true) => {
                        prop_assert_eq!(model.insert(at, new), Some(words[index].swap(new, Relaxed)));
                    }
                    (Search::Found(index), false) => {
                        prop_assert_eq!(model.remove(&at), Some(words[index].swap(0, Relaxed)));
                    }
                    (Search::Free(index), true) => {
                        prop_assert!(model.insert(at, new).is_none());
                        prop_assert_eq!(words[index].swap(new, Relaxed), 0);
                    }
                    (Search::Full, true) => {
                        prop_assert!(!model.contains_key(&at));
                        prop_assert!(class + 1 < WORD_COUNTS.len(), "the largest has a place for each");
                        prop_assert!(model.len() >= NEAR);
                    }
                    (_, false) => prop_assert!(!model.contains_key(&at)),
                }
            }
        }
    }
}
