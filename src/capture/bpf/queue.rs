//! Records that were moved out of the rings and wait for the session.

use crate::capture::record::{self, Record, flag, op};
use std::collections::VecDeque;
use std::mem::{offset_of, swap};

/// Records one after the other, each after its length. In blocks: what is written once is not moved again, as it
/// would be in one piece that grows. That takes milliseconds, and meanwhile the ring is full.
#[derive(Default)]
pub(super) struct Frames {
    blocks: VecDeque<Vec<u8>>,
    /// Emptied, to be written again.
    spare: Vec<Vec<u8>>,
    /// Of the first block.
    read: usize,
    left: usize,
}

const LENGTH: usize = size_of::<u64>();
/// Larger records have a block of their own.
const BLOCK: usize = 256 << 10;
/// So many blocks are kept for what is to come.
const SPARE: usize = 16;

impl Frames {
    /// Returns the record as it is kept.
    fn push(&mut self, record: &[u8]) -> &mut [u8] {
        // The next one's fields are aligned as in the ring.
        let length = LENGTH + record.len().next_multiple_of(LENGTH);
        if self.blocks.back().is_none_or(|block| block.capacity() - block.len() < length) {
            let spare = if length <= BLOCK { self.spare.pop() } else { None };
            self.blocks.push_back(spare.unwrap_or_else(|| Vec::with_capacity(length.max(BLOCK))));
        }
        self.left += length;
        let last = self.blocks.len() - 1;
        let block = &mut self.blocks[last];
        block.extend_from_slice(&(record.len() as u64).to_ne_bytes());
        let at = block.len();
        block.extend_from_slice(record);
        block.resize(at - LENGTH + length, 0);
        &mut block[at..at + record.len()]
    }

    /// The oldest that was not read yet.
    pub(super) fn next(&mut self) -> Option<&[u8]> {
        while self.blocks.front().is_some_and(|block| self.read >= block.len()) {
            self.read = 0;
            let emptied = self.blocks.pop_front();
            self.keep(emptied);
        }
        let block = self.blocks.front()?;
        let length = block.get(self.read..self.read + LENGTH)?;
        let length = u64::from_ne_bytes(length.try_into().ok()?) as usize;
        let at = self.read + LENGTH;
        self.read = (at + length).next_multiple_of(LENGTH);
        self.left = self.left.saturating_sub(self.read - at + LENGTH);
        block.get(at..at + length)
    }

    fn keep(&mut self, block: Option<Vec<u8>>) {
        if let Some(mut block) = block.filter(|block| block.capacity() == BLOCK && self.spare.len() < SPARE) {
            block.clear();
            self.spare.push(block);
        }
    }

    fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Bytes that were not read yet.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// What was read is forgotten, and the rest.
    fn clear(&mut self) {
        while let Some(block) = self.blocks.pop_front() {
            self.keep(Some(block));
        }
        (self.read, self.left) = (0, 0);
    }
}

/// What was moved out of the rings and not taken yet.
#[derive(Default)]
pub(super) struct Queue {
    calls: Frames,
    touches: Frames,
    /// Page faults up to this time were taken before the calls were: the calls that they rest on are in the
    /// queue, or were.
    until: u64,
    /// As many bytes as there may be of each.
    limit: usize,
    /// Calls whose stacks found no space in it.
    stripped: u64,
}

impl Queue {
    /// `limit`: in bytes, of calls and of page faults each.
    pub(super) fn of(limit: usize) -> Queue {
        Queue { limit, ..Queue::default() }
    }

    pub(super) fn is_full(&self) -> bool {
        self.calls.left() >= self.limit
    }

    pub(super) fn has_space_for_touches(&self) -> bool {
        self.touches.left() < self.limit
    }

    /// Calls that left their stacks behind because the queue was more than three quarters full.
    pub(super) fn stripped(&self) -> u64 {
        self.stripped
    }

    /// All calls were moved that page faults up to this time rest on.
    pub(super) fn moved_until(&mut self, time_ns: u64) {
        self.until = time_ns;
    }

    pub(super) fn push_touch(&mut self, record: &[u8]) {
        self.touches.push(record);
    }

    /// Beyond three quarters of the limit, calls leave their stacks behind.
    pub(super) fn push(&mut self, record: &[u8]) {
        let is_call = record::op_of(record).is_some_and(|op| op < op::FORK);
        if !is_call {
            self.calls.push(record);
            return;
        }
        // In the ring they take more space than they have bytes: records come in a small number of sizes.
        let record =
            record::read(record).map_or(record, |(_, stack)| &record[..size_of::<Record>() + stack.len()]);
        if record.len() == size_of::<Record>() || self.calls.left() < self.limit / 4 * 3 {
            self.calls.push(record);
            return;
        }
        let head = self.calls.push(&record[..size_of::<Record>()]);
        let at = offset_of!(Record, payload);
        head[at..at + size_of::<u32>()].fill(0);
        let at = offset_of!(Record, flags);
        let flags = u16::from_ne_bytes([head[at], head[at + 1]]) & !flag::STACK_FULL | flag::WITHOUT_STACK;
        head[at..at + size_of::<u16>()].copy_from_slice(&flags.to_ne_bytes());
        self.stripped += 1;
    }

    /// Exchanges what was handled for what waits; None where that is nothing. Also the time up to which page
    /// faults may be handled after the calls.
    pub(super) fn exchange(&mut self, calls: &mut Frames, touches: &mut Frames) -> Option<u64> {
        calls.clear();
        touches.clear();
        if self.calls.is_empty() && self.touches.is_empty() {
            return None;
        }
        swap(calls, &mut self.calls);
        swap(touches, &mut self.touches);
        Some(self.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(op: u16, stack: usize) -> Vec<u8> {
        let mut record = vec![0; size_of::<Record>() + stack];
        let at = offset_of!(Record, op);
        record[at..at + 2].copy_from_slice(&op.to_ne_bytes());
        let at = offset_of!(Record, payload);
        record[at..at + 4].copy_from_slice(&(stack as u32).to_ne_bytes());
        let at = offset_of!(Record, flags);
        record[at..at + 2].copy_from_slice(&flag::STACK_FULL.to_ne_bytes());
        record
    }

    #[test]
    fn frames_come_out_as_they_went_in() {
        let mut frames = Frames::default();
        for length in [0, 1, 7, 8, 9, 500] {
            frames.push(&vec![length as u8; length]);
        }
        for length in [0, 1, 7, 8, 9, 500] {
            assert_eq!(frames.next(), Some(&vec![length as u8; length][..]));
        }
        assert!(frames.is_empty());
        assert_eq!(frames.next(), None);
    }

    #[test]
    fn blocks_are_filled_again() {
        let mut frames = Frames::default();
        for round in 0..3 {
            let lengths = (0..1000).map(|each| if each == 500 { 2 * BLOCK } else { each * 7 % 5000 });
            lengths.clone().for_each(|length| frames.push(&vec![round; length]).fill(round + 1));
            assert!(frames.left() > 4 * BLOCK);
            for length in lengths {
                assert_eq!(frames.next(), Some(&vec![round + 1; length][..]));
            }
            assert_eq!((frames.left(), frames.next()), (0, None));
        }
        assert!(frames.spare.len() <= SPARE && frames.spare.iter().all(|block| block.capacity() == BLOCK));
    }

    #[test]
    fn beyond_three_quarters_of_the_queue_calls_go_on_without_their_stacks() {
        let mut queue = Queue::of(4000);
        for _ in 0..4 {
            queue.push(&call(op::MMAP, 1000));
        }
        queue.push(&call(op::FILE, 100));
        let mut lengths = Vec::new();
        while let Some(record) = queue.calls.next() {
            let (head, stack) = record::read(record).expect("whole");
            lengths.push((head.op, stack.len(), head.flags & flag::WITHOUT_STACK != 0));
        }
        let whole = (op::MMAP, 1000, false);
        assert_eq!(lengths, [whole, whole, whole, (op::MMAP, 0, true), (op::FILE, 100, false)]);
        assert_eq!(queue.stripped, 1);
    }
}
