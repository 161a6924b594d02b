//! What is outstanding, as the library has it.

use super::Area;
use super::layout::*;
use super::pages::*;
use super::view::View;
use rustc_hash::FxHashMap;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// What is outstanding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CountedBlock {
    pub address: u64,
    pub size: u64,
    /// The usable size: malloc_usable_size(3). None where it is not known.
    pub given: Option<u64>,
    /// 0: no stack.
    pub stack: u32,
    /// When: as published by [`Area::publish_time`]; rounded down.
    pub milliseconds: u32,
}

/// A page whose words move more often than this while they are read is taken as it was last.
const MOST_READS: usize = 100;

/// More is not outstanding in any address space.
const MOST_BYTES: u64 = 1 << ADDRESS_BITS;

/// The words of the blocks, as far as they had been written when they were mapped.
struct Words {
    leaves: View,
    words: View,
    /// The leaf of a window.
    windows: FxHashMap<u32, usize>,
    /// Each word is one page's alone: so many blocks there are at most, whatever the pages say.
    left: usize,
}

impl Area {
    /// All that is outstanding, or the sampled blocks.
    ///
    /// # Errors
    /// When the file cannot be searched for what was written, or mapped.
    pub fn blocks(&self, mut take: impl FnMut(CountedBlock)) -> io::Result<()> {
        let mut left = MOST_BYTES;
        let mut take = |block: CountedBlock| match left.checked_sub(block.size) {
            Some(less) => {
                left = less;
                take(block);
            }
            None => self.is_claim(),
        };
        if self.head().mode.load(Relaxed) == MODE_SAMPLE {
            self.sampled()?.into_iter().for_each(take);
            return Ok(());
        }
        // Huge ones are not among the words of their page.
        self.sampled()?.into_iter().for_each(&mut take);
        let leaves = (self.head().next_leaf.load(Acquire) as usize).min(LEAVES);
        let windows = self.view(LEAF_WINDOW_PART, leaves * 4)?;
        let windows: Vec<u32> =
            (0..leaves).map_while(|leaf| Some(windows.get::<AtomicU32>(leaf)?.load(Relaxed))).collect();
        let words = self.view(BLOCK_PART, PARTS[BLOCK_PART].bytes)?;
        let mut words = Words {
            leaves: self.view(LEAF_PART, leaves * LEAF_BYTES)?,
            windows: windows.iter().enumerate().map(|(leaf, &window)| (window, leaf)).collect(),
            left: words.count::<AtomicU64>(),
            words,
        };
        for (leaf, window) in windows.into_iter().enumerate() {
            let begin = PARTS[LEAF_PART].at + leaf * LEAF_BYTES;
            for written in self.written(begin..begin + LEAF_BYTES)? {
                for page in (written.start - begin) / 8..(written.end - begin) / 8 {
                    let Some(of_page) = words.of_page(leaf * LEAF_PAGES + page) else {
                        self.is_claim();
                        return Ok(());
                    };
                    for word in of_page {
                        take(self.counted_block(&words, word, address_of(window, page, word)));
                    }
                }
            }
        }
        Ok(())
    }

    fn counted_block(&self, words: &Words, word: u64, address: u64) -> CountedBlock {
        let is_large = is_large(word);
        let size = match is_large {
            true => large_size(word, words.extra(address + SIZE_EXTRA).unwrap_or(1)),
            false => block_size(word),
        };
        let given = match is_large {
            false => self.given().get(given_at(size)).map(|word| given(word.load(Relaxed)).0),
            true => words.extra(address + GIVEN_EXTRA).map(|more| size.saturating_add(more)),
        };
        let given = given.filter(|&given| given >= size);
        CountedBlock { address, size, given, stack: block_stack(word), milliseconds: block_ms(word) }
    }

    /// Read again where the library moved its table meanwhile.
    fn sampled(&self) -> io::Result<Vec<CountedBlock>> {
        let bits = &self.head().sample_bits;
        for _ in 0..MOST_READS {
            let table = bits.load(Acquire);
            if table == 0 || table > MOST_SAMPLE_BITS {
                return Ok(Vec::new());
            }
            let begin = first_sample(table);
            let view = self.view(SAMPLE_PART, 2 * begin * size_of::<Sample>())?;
            let slots = (begin..2 * begin).filter_map(|slot| view.get::<Sample>(slot));
            let found = slots.filter_map(sampled_block).collect();
            if bits.load(Acquire) == table {
                return Ok(found);
            }
        }
        Ok(Vec::new())
    }
}

impl Words {
    /// The blocks of a page that is the one with this number in all leaves. None where pages have more than there are.
    fn of_page(&mut self, page: usize) -> Option<Vec<u64>> {
        let mut out = Vec::new();
        let Some(page) = self.leaves.get::<AtomicU64>(page) else { return Some(out) };
        for _ in 0..MOST_READS {
            let value = page.load(Acquire);
            let (first, len) = words_of(value, self.words.end::<AtomicU64>());
            let words = (first..first + len).filter_map(|at| self.words.get::<AtomicU64>(at));
            out.clear();
            out.extend(words.map(|word| word.load(Acquire)).filter(|&word| is_block(word)));
            if page.load(Acquire) & !LOCKED == value & !LOCKED {
                break;
            }
        }
        self.left = self.left.checked_sub(out.len())?;
        Some(out)
    }

    fn extra(&self, address: u64) -> Option<u64> {
        let (window, page, at) = place(address);
        let leaf = self.windows.get(&u32::try_from(window).ok()?)?;
        let page = self.leaves.get::<AtomicU64>(leaf * LEAF_PAGES + page)?;
        let (first, len) = words_of(page.load(Acquire), self.words.end::<AtomicU64>());
        let near = near(len.max(NEAR), at);
        let words =
            (near..len.min(near + NEAR)).filter_map(|index| self.words.get::<AtomicU64>(first + index));
        let mut words = words.map(|word| word.load(Acquire));
        extra_of(words.find(|word| word & KEY == key_of(at))?)
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
                let word = block(stack, tick16(ms), size, address);
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
