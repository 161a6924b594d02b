//! Stacks as they are kept: the numbers of their frames, seven bits a byte, least significant first, the last byte of
//! a number without its highest bit (LEB128). A program has some hundred or thousand frames, so that one takes a byte
//! or two of hundreds of thousands of deep stacks.

use super::Completeness;
use prost::encoding::{decode_varint, encode_varint};

/// Of one piece of memory, but for a stack that is longer: what is there already is never moved.
const BLOCK: usize = 256 << 10;

#[derive(Default, Debug)]
pub(super) struct PackedStacks {
    blocks: Vec<Vec<u8>>,
    places: Vec<Place>,
    /// Where one is put together.
    scratch: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    block: u32,
    start: u32,
}

impl PackedStacks {
    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn push(&mut self, numbers: impl ExactSizeIterator<Item = u32>, completeness: Completeness) {
        self.scratch.clear();
        encode_varint((numbers.len() as u64) << 2 | code(completeness), &mut self.scratch);
        numbers.for_each(|number| encode_varint(number.into(), &mut self.scratch));
        let free = self.blocks.last().map_or(0, |block| block.capacity() - block.len());
        if free < self.scratch.len() {
            self.blocks.push(Vec::with_capacity(self.scratch.len().max(BLOCK)));
        }
        let number = self.blocks.len() - 1;
        let block = &mut self.blocks[number];
        self.places.push(Place { block: number as u32, start: block.len() as u32 });
        block.extend_from_slice(&self.scratch);
    }

    /// Of a stack that is there.
    pub fn get(&self, index: usize) -> (FrameNumbers<'_>, Completeness) {
        let place = self.places[index];
        let mut rest = &self.blocks[place.block as usize][place.start as usize..];
        let head = take(&mut rest);
        (FrameNumbers { rest, left: (head >> 2) as usize }, completeness_of(head & 3))
    }
}

/// A stack as indices into `StackTable::frames`, innermost first.
#[derive(Clone, Debug)]
pub struct FrameNumbers<'a> {
    /// And other stacks after it.
    rest: &'a [u8],
    left: usize,
}

impl Iterator for FrameNumbers<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        self.left = self.left.checked_sub(1)?;
        Some(take(&mut self.rest) as u32)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for FrameNumbers<'_> {}

fn code(completeness: Completeness) -> u64 {
    match completeness {
        Completeness::Complete => 0,
        Completeness::Truncated => 1,
        Completeness::Incomplete => 2,
    }
}

fn completeness_of(code: u64) -> Completeness {
    match code {
        0 => Completeness::Complete,
        1 => Completeness::Truncated,
        _ => Completeness::Incomplete,
    }
}

/// Of bytes that `push` wrote.
fn take(from: &mut &[u8]) -> u64 {
    decode_varint(from).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn what_was_put_in_comes_out(
            stacks in prop::collection::vec(
                (prop::collection::vec(prop_oneof![0..300u32, any::<u32>()], 0..40), 0..3u64),
                0..40,
            ),
            long in 0..200_000usize,
        ) {
            let mut packed = PackedStacks::default();
            // One that is longer than a block is among them.
            let long = (0..long as u32).rev().collect::<Vec<u32>>();
            let all: Vec<_> = stacks.into_iter().chain([(long, 1), (vec![], 2), (vec![7], 0)]).collect();
            for (numbers, completeness) in &all {
                packed.push(numbers.iter().copied(), completeness_of(*completeness));
            }
            prop_assert_eq!(packed.len(), all.len());
            for (index, (numbers, completeness)) in all.iter().enumerate() {
                let (found, kind) = packed.get(index);
                prop_assert_eq!(found.len(), numbers.len());
                prop_assert_eq!(&found.collect::<Vec<_>>(), numbers);
                prop_assert_eq!(kind, completeness_of(*completeness));
            }
        }
    }
}
