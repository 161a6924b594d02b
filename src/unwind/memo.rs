//! Stacks that were just walked, recognised without walking them again.
//!
//! Where every step finds its frame by a fixed distance from the stack pointer, the walk depends
//! on nothing but the starting point and the return addresses it reads: the same code at the same
//! depth with the same return addresses is the same stack, whatever lies between them. Programs
//! that call the kernel often do so from few places, and comparing some thirty words is much
//! cheaper than following thirty rules, hashing the frames and looking them up.

use crate::model::{Completeness, StackId, StackSample};

/// Walks remembered: one for each place that a call came from, more or less.
const SLOTS: usize = 1024;

/// What the walk that is going on has read so far.
#[derive(Default)]
pub(super) struct WalkTrace {
    /// (distance from the first stack pointer, return address found there)
    returns: Vec<(u64, u64)>,
    /// Something else than fixed distances from the stack pointer led on.
    other: bool,
}

impl WalkTrace {
    pub fn begin(&mut self) {
        self.returns.clear();
        self.other = false;
    }

    /// A step by a fixed distance from the stack pointer.
    #[inline]
    pub fn step(&mut self, distance: u64, return_address: u64) {
        self.returns.push((distance, return_address));
    }

    /// Any other step: this walk cannot be recognised by its return addresses alone.
    #[inline]
    pub fn mark_uncacheable(&mut self) {
        self.other = true;
    }
}

struct Walked {
    /// The state of the address space; 0, which none has, where the slot is empty.
    space: u64,
    ip: u64,
    sp: u64,
    returns: Vec<(u64, u64)>,
    stack: StackId,
}

/// A walk that was found again.
pub struct Repeated<'a> {
    pub ip: u64,
    /// Bytes from the stack pointer to the stack's end.
    pub depth: u64,
    /// Return addresses, each after its distance from the stack pointer.
    pub returns: &'a [(u64, u64)],
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
        let empty = || Walked { space: 0, ip: 0, sp: 0, returns: Vec::new(), stack: StackId(0) };
        Memo { slots: (0..SLOTS).map(|_| empty()).collect(), found: 0, repeated: None }
    }
}

fn slot_of(space: u64, ip: u64, sp: u64) -> usize {
    let mixed = (ip ^ sp.rotate_left(32) ^ space).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (64 - SLOTS.trailing_zeros())) as usize
}

impl Memo {
    /// The stack, if the same was walked before.
    pub fn find(&mut self, space: u64, captured: &StackSample<'_>) -> Option<StackId> {
        self.repeated = None;
        let slot = slot_of(space, captured.ip, captured.sp);
        let walked = self.slots.get(slot)?;
        if space == 0 || walked.space != space || walked.ip != captured.ip || walked.sp != captured.sp {
            return None;
        }
        let unchanged = |&(distance, expected): &(u64, u64)| {
            let at = distance as usize;
            let word = captured.bytes.get(at..at.saturating_add(8));
            word.is_some_and(|word| word == expected.to_ne_bytes())
        };
        if !walked.returns.iter().all(unchanged) {
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
        let returns = self.slots.get(self.found).map_or(&[][..], |walked| &walked.returns);
        pointers(sp, returns.iter().map(|&(distance, _)| distance))
    }

    /// What was found last, if all of the stack was there.
    pub fn repeated(&mut self) -> Option<Repeated<'_>> {
        let (slot, depth) = self.repeated.take()?;
        let walked = self.slots.get(slot)?;
        Some(Repeated { ip: walked.ip, depth, returns: &walked.returns, stack: walked.stack })
    }

    /// Remembers a walk that reached the root.
    pub fn remember(&mut self, space: u64, captured: &StackSample<'_>, trace: &WalkTrace, stack: StackId) {
        if trace.other {
            return;
        }
        if let Some(slot) = self.slots.get_mut(slot_of(space, captured.ip, captured.sp)) {
            (slot.space, slot.ip, slot.sp, slot.stack) = (space, captured.ip, captured.sp, stack);
            slot.returns.clone_from(&trace.returns);
        }
    }
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

    fn captured(bytes: &[u8]) -> StackSample<'_> {
        StackSample { ip: 1, sp: 16, bytes, full: true, ..StackSample::default() }
    }

    #[test]
    fn only_equal_return_addresses_are_recognised() {
        let mut memo = Memo::default();
        let mut trace = WalkTrace::default();
        trace.begin();
        trace.step(8, 7);
        let mut bytes = [0u8; 24];
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
    fn other_steps_are_not_remembered() {
        let mut memo = Memo::default();
        let mut trace = WalkTrace::default();
        trace.begin();
        trace.mark_uncacheable();
        memo.remember(5, &captured(&[]), &trace, StackId(3));
        assert_eq!(memo.find(5, &captured(&[])), None);
    }
}
