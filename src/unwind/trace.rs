//! What the walk that is going on has read so far.

use super::registers::{RBP, SAVED};
use super::rule::{Caller, Offsets};
use crate::model::{ExpectedWord, StackSample, StackWord};

/// Where a register's value comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// The call: no frame so far has saved it.
    Call,
    /// A word at this distance from the stack pointer.
    Slot(u64),
}

/// The words that the walk depends on: as long as they are equal, it leads to the same frames.
pub(super) struct WalkTrace {
    sp: u64,
    words: Vec<StackWord>,
    /// rbp's distance from the stack pointer at the call, where a frame is found by it.
    frame_pointer: Option<u64>,
    origins: [Origin; SAVED],
    /// Something else than fixed offsets led on.
    other: bool,
}

impl Default for WalkTrace {
    fn default() -> WalkTrace {
        let words = Vec::new();
        WalkTrace { sp: 0, words, frame_pointer: None, origins: [Origin::Call; SAVED], other: false }
    }
}

impl WalkTrace {
    pub fn begin(&mut self, captured: &StackSample<'_>) {
        self.sp = captured.sp;
        self.words.clear();
        self.frame_pointer = None;
        self.origins = [Origin::Call; SAVED];
        self.other = false;
    }

    /// A frame is found by a callee-saved register that has this value.
    #[inline]
    pub fn found_by(&mut self, register: usize, value: u64) {
        let distance = value.wrapping_sub(self.sp);
        match self.origins[register] {
            Origin::Slot(slot) => {
                let expected = ExpectedWord::FramePointer(distance);
                self.words.push(StackWord { distance: slot, expected });
            }
            Origin::Call if register == RBP => self.frame_pointer = Some(distance),
            Origin::Call => self.other = true,
        }
    }

    /// A step by `offsets` from the frame with this CFA.
    #[inline]
    pub fn step(&mut self, offsets: &Offsets, cfa: u64, return_address: u64) {
        for (register, at) in offsets.slots(cfa) {
            // What lies below was popped already: the register has it.
            if at >= self.sp {
                self.origins[register] = Origin::Slot(at.wrapping_sub(self.sp));
            }
        }
        self.returns_to(cfa.wrapping_sub(8), return_address);
    }

    /// A step by `[rbp]` and `[rbp + 8]`, as far as it is proven by the code alone.
    pub fn step_by_frame_pointer(&mut self, caller: &Caller) {
        let at = caller.registers.sp.wrapping_sub(16);
        self.found_by(RBP, at);
        self.origins[RBP] = Origin::Slot(at.wrapping_sub(self.sp));
        self.returns_to(at.wrapping_add(8), caller.return_address);
    }

    /// The return address is in this word.
    #[inline]
    pub fn returns_to(&mut self, slot: u64, return_address: u64) {
        let expected = ExpectedWord::ReturnAddress(return_address);
        self.words.push(StackWord { distance: slot.wrapping_sub(self.sp), expected });
    }

    /// The frames end where this register is 0.
    pub fn ends_at_zero(&mut self, register: usize) {
        match self.origins[register] {
            Origin::Slot(slot) => self.returns_to(self.sp.wrapping_add(slot), 0),
            Origin::Call => self.other = true,
        }
    }

    /// Any other step: this walk cannot be recognised by what it read.
    #[inline]
    pub fn mark_uncacheable(&mut self) {
        self.other = true;
    }

    /// None where the walk depends on something else.
    pub fn words(&self) -> Option<&[StackWord]> {
        (!self.other).then_some(&self.words)
    }

    pub fn frame_pointer(&self) -> Option<u64> {
        self.frame_pointer
    }
}
