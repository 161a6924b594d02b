//! Stacks that were just walked, recognised without walking them again.
//!
//! Where every step finds its frame by fixed offsets from the stack pointer or from a register that a frame below has
//! saved, the walk depends on nothing but the starting point and the words that it reads: the same code at the same
//! depth with the same return addresses, and the saved registers that frames are found by at the same distances, is the
//! same stack, whatever lies between them. Programs that call the kernel often do so from few places, and comparing
//! some sixty words is much cheaper than following thirty rules, hashing the frames and looking them up.

use super::trace::WalkTrace;
use crate::model::{Completeness, ExpectedWord, StackId, StackSample, StackWord};

/// Walks remembered: one for each place that a call came from, more or less.
const SLOTS: usize = 1024;

struct Walked {
    /// The state of the address space; 0, which none has, where the slot is empty.
    space: u64,
    ip: u64,
    /// As [`place_of`] has it.
    place: u64,
    /// rbp's distance from the stack pointer, where a frame is found by it.
    frame_pointer: Option<u64>,
    words: Vec<StackWord>,
    stack: StackId,
}

/// A walk that was found again.
pub struct Repeated<'a> {
    pub ip: u64,
    /// Bytes from the stack pointer to the stack's end.
    pub depth: u64,
    /// rbp's distance from the stack pointer, where a frame is found by it.
    pub frame_pointer: Option<u64>,
    pub words: &'a [StackWord],
    pub stack: StackId,
}

/// The walks of all address spaces, each in the slot that its starting point gives.
pub(super) struct Memo {
    slots: Vec<Walked>,
    /// The slot that was found last.
    found: usize,
    /// The slot that was found again, and the depth of its stack.
    repeated: Option<(usize, u64)>,
}

impl Default for Memo {
    fn default() -> Memo {
        let empty = || Walked {
            space: 0,
            ip: 0,
            place: 0,
            frame_pointer: None,
            words: Vec::new(),
            stack: StackId(0),
        };
        Memo { slots: (0..SLOTS).map(|_| empty()).collect(), found: 0, repeated: None }
    }
}

/// What distinguishes stacks from the same instruction: how much there is, so that threads share their walks; of
/// those that were not copied whole, where they are.
fn place_of(captured: &StackSample<'_>) -> u64 {
    if captured.full { captured.bytes.len() as u64 } else { captured.sp }
}

fn slot_of(space: u64, ip: u64, place: u64) -> usize {
    let mixed = (ip ^ place.rotate_left(32) ^ space).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (64 - SLOTS.trailing_zeros())) as usize
}

/// A page that is not there reads as zeros: what ends at a zero may not end there.
fn is_equal(word: &StackWord, captured: &StackSample<'_>) -> bool {
    let at = word.distance as usize;
    let Some(found) = captured.bytes.get(at..at.saturating_add(8)) else { return false };
    let expected = match word.expected {
        ExpectedWord::ReturnAddress(0) if captured.holes => return false,
        ExpectedWord::ReturnAddress(address) => address,
        ExpectedWord::FramePointer(distance) => captured.sp.wrapping_add(distance),
    };
    found == expected.to_ne_bytes()
}

impl Memo {
    /// The stack, if the same was walked before.
    pub fn find(&mut self, space: u64, captured: &StackSample<'_>) -> Option<StackId> {
        self.repeated = None;
        let place = place_of(captured);
        let slot = slot_of(space, captured.ip, place);
        let walked = self.slots.get(slot)?;
        if space == 0 || (walked.space, walked.ip, walked.place) != (space, captured.ip, place) {
            return None;
        }
        let is_found_by = |distance| !captured.few && captured.bp.wrapping_sub(captured.sp) == distance;
        if !walked.frame_pointer.is_none_or(is_found_by)
            || !walked.words.iter().all(|word| is_equal(word, captured))
        {
            return None;
        }
        self.found = slot;
        if captured.full && !captured.holes {
            self.repeated = Some((slot, captured.bytes.len() as u64));
        }
        Some(walked.stack)
    }

    /// The stack pointers of the frames of what `find` found.
    pub fn pointers(&self, sp: u64) -> Vec<u64> {
        let words = self.slots.get(self.found).map_or(&[][..], |walked| &walked.words);
        pointers(sp, returns(words))
    }

    /// What was found last, if all of the stack was there.
    pub fn repeated(&mut self) -> Option<Repeated<'_>> {
        let (slot, depth) = self.repeated.take()?;
        let Walked { ip, frame_pointer, ref words, stack, .. } = *self.slots.get(slot)?;
        Some(Repeated { ip, depth, frame_pointer, words, stack })
    }

    /// Remembers a walk that reached the root.
    pub fn remember(&mut self, space: u64, captured: &StackSample<'_>, trace: &WalkTrace, stack: StackId) {
        let Some(words) = trace.words() else { return };
        let place = place_of(captured);
        if let Some(slot) = self.slots.get_mut(slot_of(space, captured.ip, place)) {
            (slot.space, slot.ip, slot.place, slot.stack) = (space, captured.ip, place, stack);
            slot.frame_pointer = trace.frame_pointer();
            slot.words.clear();
            slot.words.extend_from_slice(words);
        }
    }
}

/// Where return addresses are, in bytes from the stack pointer.
pub fn returns(words: &[StackWord]) -> impl Iterator<Item = u64> {
    let is_return = |word: &&StackWord| matches!(word.expected, ExpectedWord::ReturnAddress(1..));
    words.iter().filter(is_return).map(|word| word.distance)
}

/// Each frame's stack pointer, of the innermost's and of where the return addresses are, in bytes from there.
pub fn pointers(sp: u64, returns: impl Iterator<Item = u64>) -> Vec<u64> {
    let word = size_of::<u64>() as u64;
    std::iter::once(sp).chain(returns.map(|distance| sp.wrapping_add(distance + word))).collect()
}

/// Only walks to the root are worth it: what ends early may go on when more bytes are there.
pub(super) fn is_worth(completeness: Completeness) -> bool {
    completeness == Completeness::Complete
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unwind::registers::{RBP, RBX};
    use crate::unwind::rule::{Offsets, Rule, of_frame_size};

    /// Of a frame that is found from the stack pointer.
    fn by_stack_pointer() -> Offsets {
        match of_frame_size(8) {
            Some(Rule::Offsets(offsets)) => offsets,
            other => panic!("{other:?}"),
        }
    }

    fn captured(bytes: &[u8]) -> StackSample<'_> {
        StackSample { ip: 1, sp: 16, bytes, full: true, ..StackSample::default() }
    }

    #[test]
    fn only_equal_return_addresses_are_recognised() {
        let mut memo = Memo::default();
        let mut trace = WalkTrace::default();
        let mut bytes = [0u8; 24];
        trace.begin(&captured(&bytes));
        trace.step(&by_stack_pointer(), 32, 7);
        bytes[8] = 7;
        memo.remember(5, &captured(&bytes), &trace, StackId(3));
        assert_eq!(memo.find(5, &captured(&bytes)), Some(StackId(3)));
        bytes[0] = 1;
        assert_eq!(memo.find(5, &captured(&bytes)), Some(StackId(3)), "what lies between does not matter");
        assert_eq!(memo.find(6, &captured(&bytes)), None, "other modules");
        assert_eq!(memo.find(5, &captured(&bytes[..12])), None, "too few bytes");
        bytes[8] = 8;
        assert_eq!(memo.find(5, &captured(&bytes)), None);
    }

    #[test]
    fn where_a_call_returned_to_names_the_call() {
        let mut unwinder = crate::unwind::Unwinder::default();
        let mut kind_of = |returned| {
            let stack = unwinder.unwind(crate::model::MmKey(1), &StackSample { returned, ..captured(&[]) });
            stack.frames.first().map(|frame| frame.kind)
        };
        assert_eq!(kind_of(true), Some(crate::model::FrameKind::ReturnAddress));
        assert_eq!(kind_of(false), Some(crate::model::FrameKind::InstructionPointer));
    }

    #[test]
    fn a_frame_that_is_found_by_a_register_is_recognised_by_it() {
        let mut memo = Memo::default();
        let mut trace = WalkTrace::default();
        let mut bytes = [0u8; 24];
        bytes[8] = 7;
        let at = |sp: u64, bp: u64| StackSample { sp, bp, ..captured(&[]) };
        trace.begin(&at(16, 24));
        trace.found_by(RBP, 24);
        trace.step(&by_stack_pointer(), 32, 7);
        memo.remember(5, &StackSample { bytes: &bytes, ..at(16, 24) }, &trace, StackId(3));
        let mut found = |sp, bp, few| memo.find(5, &StackSample { bytes: &bytes, few, ..at(sp, bp) });
        assert_eq!(found(16, 24, false), Some(StackId(3)));
        assert_eq!(found(160, 168, false), Some(StackId(3)), "another thread");
        assert_eq!(found(16, 32, false), None);
        assert_eq!(found(16, 24, true), None, "the register is not known");

        trace.begin(&at(16, 24));
        trace.found_by(RBX, 24);
        assert_eq!(trace.words(), None, "no backend compares it");
    }

    #[test]
    fn what_ends_at_a_zero_ends_at_no_hole() {
        let mut memo = Memo::default();
        let mut trace = WalkTrace::default();
        let bytes = [0u8; 24];
        trace.begin(&captured(&bytes));
        trace.step(&by_stack_pointer(), 32, 0);
        memo.remember(5, &captured(&bytes), &trace, StackId(3));
        assert_eq!(memo.find(5, &captured(&bytes)), Some(StackId(3)));
        assert_eq!(memo.find(5, &StackSample { holes: true, ..captured(&bytes) }), None);
    }

    #[test]
    fn other_steps_are_not_remembered() {
        let mut memo = Memo::default();
        let mut trace = WalkTrace::default();
        trace.begin(&captured(&[]));
        trace.mark_uncacheable();
        memo.remember(5, &captured(&[]), &trace, StackId(3));
        assert_eq!(memo.find(5, &captured(&[])), None);
    }
}
