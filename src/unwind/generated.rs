//! Through code that was made at run time: of V8, of a JVM, of others. No file has its unwind information, and only
//! rbp leads on, if the code keeps it. HotSpot's interpreter and stubs do, its compiled code only with
//! `-XX:+PreserveFramePointer`: without it, rbp may still be that of a caller further out, and frames would be skipped.
//!
//! ```text
//!   sp ─▶ ┌──────────────────┐
//!         │ the frame's own  │   no word here returns behind a call: else that one may be the frame's
//!         ├──────────────────┤   return address, and rbp another function's
//!  rbp ─▶ │ caller's rbp     │
//!         │ return address   │   behind a call instruction
//!         └──────────────────┘
//! ```
//!
//! A runtime's tables of its code, which have the size of each function's frames, come first. Otherwise: each
//! frame has a return address above its stack pointer. So where the nearest word that can be one is the very
//! one that rbp leads to, the step is proven; else what follows is marked as a guess.

use super::cache::Answers;
use super::calls::{Call, LONGEST_CALL, call_before};
use super::registers::{RBP, Registers, Unread};
use super::rule::{Caller, Rule, UnwindError};
use super::space::MappedModule;
use super::walk::{Position, Step, Walk, by_frame_pointer, completeness_of};
use crate::model::hash::IntMap;
use crate::model::stack::{CodeAt, CodeFrame, CodeTables, GeneratedFunction};
use crate::model::{Addr, Completeness, FrameKind, Pid};
use std::cell::Cell;

/// Reads a process' memory at an address; false where not all of it can be read.
pub type ReadCode = Box<dyn Fn(Pid, u64, &mut [u8]) -> bool + Send>;

/// A call to a place so near behind itself only gives the code its own address: HotSpot's stubs find the
/// address of their frame that way (`MacroAssembler::call_VM`).
const OWN_PLACE: i32 = 16;

/// What a frame in generated code runs, by the runtime's own tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeenCode {
    /// See [`CodeAt::what`](crate::model::stack::CodeAt).
    Compiled(u64),
    Interpreted {
        function: u64,
        instruction: u64,
    },
}

/// Calls in generated code, and whose it is.
#[derive(Default)]
pub(super) struct GeneratedCalls {
    read: Option<ReadCode>,
    tables: IntMap<Pid, Box<dyn CodeTables>>,
    /// Of the walk that is going on: the frame's index, and what it runs.
    pub seen: Vec<(usize, SeenCode)>,
    /// The last answer of the tables in this walk: the next frame needs what this one returns to.
    last: Cell<Option<(u64, Option<CodeAt>)>>,
    /// By process and return address. What is no call now may be one soon, and is read again.
    known: Answers<(Pid, u64), Call>,
}

impl GeneratedCalls {
    pub fn read_with(&mut self, read: ReadCode) {
        self.read = Some(read);
    }

    pub fn set_tables(&mut self, pid: Pid, tables: Option<Box<dyn CodeTables>>) {
        match tables {
            Some(tables) => drop(self.tables.insert(pid, tables)),
            None => drop(self.tables.remove(&pid)),
        }
    }

    pub fn has_tables(&self, pid: Pid) -> bool {
        self.tables.contains_key(&pid)
    }

    /// Before each walk.
    pub fn begin(&mut self) {
        self.seen.clear();
        self.last.set(None);
    }

    fn code_at(&self, pid: Pid, address: u64) -> Option<CodeAt> {
        let (tables, read) = (self.tables.get(&pid)?, self.read.as_ref()?);
        if let Some((_, answer)) = self.last.get().filter(|&(known, _)| known == address) {
            return answer;
        }
        let answer = tables.code_at(address, &mut |at, into| read(pid, at.0, into));
        self.last.set(Some((address, answer)));
        answer
    }

    /// What the code is called.
    pub fn name(&self, pid: Pid, code: SeenCode) -> Option<GeneratedFunction> {
        let (tables, read) = (self.tables.get(&pid)?, self.read.as_ref()?);
        let memory = &mut |at: Addr, into: &mut [u8]| read(pid, at.0, into);
        match code {
            SeenCode::Compiled(what) => tables.name(what, memory),
            SeenCode::Interpreted { function, instruction } => {
                tables.interpreted(function, instruction, memory)
            }
        }
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
        if let Some(step) = self.step_by_tables(at) {
            return step;
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

    /// As the runtime itself knows its frames. None where it does not, and where the function that is running may be
    /// about to make or leave its frame.
    fn step_by_tables(&mut self, at: &Position) -> Option<Step> {
        let CodeAt { frame, what } = self.scratch.generated.code_at(self.space.pid, at.lookup())?;
        let last = self.frames.len().checked_sub(1)?;
        let mut seen = SeenCode::Compiled(what);
        let caller = match frame {
            _ if at.kind == FrameKind::Guess => Err(UnwindError::Unknown),
            CodeFrame::Sized(size) => self.sized(&at.registers, size),
            CodeFrame::Linked => self.frame_pointer(&at.registers),
            CodeFrame::Interpreted { function, instruction, caller } => {
                let bp = at.registers.bp()?;
                let word = |distance: i64| self.stack.word(bp.wrapping_add_signed(distance)).ok();
                let (function, instruction) = (word(function)?, word(instruction)?);
                seen = SeenCode::Interpreted { function, instruction };
                let linked = self.frame_pointer(&at.registers);
                match (linked, word(caller)) {
                    // A compiled caller's frame does not reach to this one: its arguments were moved.
                    (Ok(mut linked), Some(sp)) if sp >= linked.registers.sp => {
                        linked.registers.sp = sp;
                        Ok(linked)
                    }
                    (Ok(_), _) => Err(UnwindError::InvalidCfa),
                    (Err(error), _) => Err(error),
                }
            }
        };
        self.scratch.generated.seen.push((last, seen));
        match caller {
            _ if at.kind != FrameKind::ReturnAddress => None,
            Ok(caller) if self.returns_to_known(caller.return_address) => {
                Some(Step::To(by_frame_pointer(only_linked(caller))))
            }
            Err(UnwindError::Memory(Unread::BeyondCopy)) => {
                Some(Step::End(completeness_of(UnwindError::Memory(Unread::BeyondCopy))))
            }
            Ok(_) | Err(_) => None,
        }
    }

    /// An interpreter pushes where it goes on, and jumps to what it calls.
    fn returns_to_known(&self, address: u64) -> bool {
        let into = || self.scratch.generated.code_at(self.space.pid, address.wrapping_sub(1));
        into().is_some_and(|code| matches!(code.frame, CodeFrame::Interpreted { .. }))
            || self.follows_call(address)
    }

    fn sized(&self, registers: &Registers, size: u64) -> Result<Caller, UnwindError> {
        let cfa = registers.sp.wrapping_add(size);
        let mut caller = Registers { sp: cfa, ..*registers };
        caller.set(RBP, self.stack.word(cfa.wrapping_sub(16))?);
        Ok(Caller { return_address: self.stack.word(cfa.wrapping_sub(8))?, registers: caller })
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

    /// Behind a call where that can be seen. Of code that cannot be read (the process is gone) it is not
    /// known, and the link alone decides.
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
        Registers { known: self.known & 1 << RBP, ..self }
    }
}
