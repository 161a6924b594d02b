//! Through code that was made at run time: of V8, of a JVM, of others. No file has its unwind information, and only
//! rbp leads on, if the code keeps it. HotSpot's interpreter and stubs do, its compiled code only with
//! `-XX:+PreserveFramePointer`: without it, rbp may still be that of a caller further out, and frames would be skipped.
//!
//! ```text
//!   sp ─▶ ┌──────────────────┐
//!         │ the frame's own  │   no word here returns behind a call: else that one may be the frame's
//!         ├──────────────────┤   return address, and rbp somebody else's
//!  rbp ─▶ │ caller's rbp     │
//!         │ return address   │   behind a call instruction
//!         └──────────────────┘
//! ```
//!
//! Each frame has a return address above its stack pointer. So where the nearest word that can be one is the very one
//! that rbp leads to, the step is proven; else what follows is marked as a guess.

use super::cache::Answers;
use super::calls::{Call, LONGEST_CALL, call_before};
use super::registers::{Registers, Unread};
use super::rule::{Caller, Rule, UnwindError};
use super::space::MappedModule;
use super::walk::{Position, Step, Walk, by_frame_pointer, completeness_of};
use crate::model::{Completeness, FrameKind, Pid};

/// Reads a process' memory at an address; false where not all of it can be read.
pub type ReadCode = Box<dyn Fn(Pid, u64, &mut [u8]) -> bool + Send>;

/// A call to a place so near behind itself only tells the code where it is: HotSpot's stubs find the address of
/// their frame that way (`MacroAssembler::call_VM`).
const OWN_PLACE: i32 = 16;

/// Calls in generated code.
#[derive(Default)]
pub(super) struct GeneratedCalls {
    read: Option<ReadCode>,
    /// By process and return address. What is no call now may be one soon, and is asked again.
    known: Answers<(Pid, u64), Call>,
}

impl GeneratedCalls {
    pub fn read_with(&mut self, read: ReadCode) {
        self.read = Some(read);
    }

    /// The call instruction before an address. None, too, where the memory cannot be read.
    pub fn call_before(&self, pid: Pid, address: u64) -> Option<Call> {
        if let Some(known) = self.known.get((pid, address)) {
            return Some(known);
        }
        let mut code = [0; LONGEST_CALL];
        let from = address.checked_sub(LONGEST_CALL as u64)?;
        if !self.read.as_ref()?(pid, from, &mut code) {
            return None;
        }
        let found = call_before(&code)?;
        self.known.put((pid, address), found);
        Some(found)
    }
}

impl Walk<'_> {
    /// Generated code, or memory that no list of mappings names.
    #[cold]
    pub(super) fn step_generated(&mut self, at: &Position) -> Step {
        if at.registers.bp() == Some(0) && at.by_frame_pointer {
            return Step::End(Completeness::Complete);
        }
        if at.linked && at.kind == FrameKind::ReturnAddress {
            return self.step_linked(at);
        }
        match self.frame_pointer(&at.registers) {
            _ if at.kind == FrameKind::Guess => self.guess(at),
            Ok(caller) if self.follows_call(caller.return_address) && self.is_nearest(at, &caller) => {
                Step::To(by_frame_pointer(only_linked(caller)))
            }
            Err(UnwindError::Memory(Unread::BeyondCopy)) => {
                Step::End(completeness_of(UnwindError::Memory(Unread::BeyondCopy)))
            }
            Err(UnwindError::Unknown) => self.search(at, Rule::NoModule),
            Ok(_) | Err(_) => self.guess(at),
        }
    }

    /// Code of a runtime whose frames are all linked.
    #[cold]
    pub(super) fn step_linked(&mut self, at: &Position) -> Step {
        match self.frame_pointer(&at.registers) {
            Ok(caller) if self.can_return_to(caller.return_address) => {
                Step::To(Position { linked: true, ..by_frame_pointer(only_linked(caller)) })
            }
            Err(UnwindError::Memory(Unread::BeyondCopy)) => {
                Step::End(completeness_of(UnwindError::Memory(Unread::BeyondCopy)))
            }
            Ok(_) | Err(_) => self.guess(at),
        }
    }

    /// Behind a call where that can be seen. Of code that cannot be read (the process is gone) it is not known, and
    /// the link stands for itself.
    fn can_return_to(&self, address: u64) -> bool {
        self.follows_call(address)
            || self.space.find(address.wrapping_sub(1)).is_some_and(MappedModule::is_generated)
    }

    /// No word below the caller's frame can be a return address.
    fn is_nearest(&mut self, at: &Position, caller: &Caller) -> bool {
        let slot = caller.registers.sp.wrapping_sub(8);
        let below = self.stack.slots(at.registers.sp).take_while(|&below| below < slot);
        !below.into_iter().any(|below| self.may_be_return(at, below))
    }

    fn may_be_return(&mut self, at: &Position, slot: u64) -> bool {
        let Ok(word) = self.stack.word(slot) else { return false };
        let Some(placed) = self.space.find(word.wrapping_sub(1)) else { return false };
        match self.call_before(placed, word) {
            None => false,
            Some(Call::Direct(distance)) if placed.is_generated() => !(0..=OWN_PLACE).contains(&distance),
            Some(_) if placed.is_generated() => true,
            // Left over from a call that is over, where the frames above it cannot be.
            Some(_) => {
                let registers = Registers { sp: slot.wrapping_add(8), ..at.registers };
                self.agrees(&Position { address: word, kind: FrameKind::ReturnAddress, registers, ..*at })
            }
        }
    }
}

/// What generated code has done with the other registers is not known.
fn only_linked(caller: Caller) -> Caller {
    Caller { registers: caller.registers.only_bp(), ..caller }
}

impl Registers {
    fn only_bp(self) -> Registers {
        Registers { known: self.known & 1 << super::registers::RBP, ..self }
    }
}
