//! Searches the stack upwards for a return address, where no rule applies: because no table covers the code,
//! or because the rule needs a register that was not captured.
//!
//! ```text
//!   sp ─▶ ┌────────────────────┐
//!         │ the frame's own    │   may hold return addresses of calls that are over: each
//!         │ variables          │   candidate is tried, whether the frames above it agree
//!         │ saved registers    │
//!         │ return address     │ ◀─ behind `call F`, where F is the function being left
//!   CFA ─▶ ├────────────────────┤
//! ```

use super::calls::{Call, LONGEST_CALL, call_before};
use super::registers::{Registers, Unread};
use super::rule::{Caller, Rule, UnwindError};
use super::space::MappedModule;
use super::walk::{Position, Step, Walk};
use crate::model::{Completeness, FrameKind, PAGE};
use crate::objects::Object;

/// How far up one search goes for a return address, bytes.
const GUESS_REACH: u64 = 64 << 10;
/// How much further up a call that is known to lead here is preferred to an indirect one, bytes.
const GUESS_CHOICE: u64 = 1 << 10;
/// So many frames above a candidate have to agree.
const TRIAL: usize = 8;

/// What the call before a candidate for a return address says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CallEvidence {
    /// It calls this very function.
    Calls,
    /// Its target is not known.
    MayCall,
    /// It calls something else, or there is no call.
    Elsewhere,
}

/// What the frames above a candidate say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trial {
    /// Each is called from where it returns to, as far as that can be checked.
    Agrees,
    /// A function is returned to that called another one: a tail call, or a left-over.
    Doubtful,
    /// It cannot be.
    Fails,
}

impl Walk<'_> {
    /// The caller of a frame whose rule needs an unknown register. It is sure where the nearest candidate is
    /// behind a call of this very function and the frames above agree; else it is a guess.
    #[cold]
    pub(super) fn search(&mut self, at: &Position, rule: Rule) -> Step {
        let sp = at.registers.sp;
        let from = match rule {
            Rule::Offsets(offsets) => offsets.least_cfa(sp).wrapping_sub(8),
            _ => sp,
        };
        let mut doubt: Option<Position> = None;
        for slot in self.stack.slots(from) {
            if slot.wrapping_sub(sp) > GUESS_REACH {
                break;
            }
            let Ok(word) = self.stack.word(slot) else { break };
            if word < PAGE || !self.follows_call(word) {
                continue;
            }
            let Some(candidate) = self.candidate(at, rule, slot) else { continue };
            let origin = self.origin(at, word);
            match (origin, self.try_candidate(&candidate)) {
                (_, Trial::Fails) => {}
                (CallEvidence::Calls, Trial::Agrees)
                    if doubt.is_none() && matches!(rule, Rule::Offsets(_)) =>
                {
                    return Step::To(candidate);
                }
                (CallEvidence::Calls, _) => {
                    return Step::To(Position { kind: FrameKind::Guess, ..candidate });
                }
                _ => doubt = doubt.or(Some(Position { kind: FrameKind::Guess, ..candidate })),
            }
        }
        if let Some(candidate) = doubt {
            return Step::To(candidate);
        }
        self.nothing_found()
    }

    /// The caller, if its return address is in this slot.
    fn candidate(&self, at: &Position, rule: Rule, slot: u64) -> Option<Position> {
        let address = self.stack.word(slot).ok()?;
        let cfa = slot.wrapping_add(8);
        let registers = match rule {
            Rule::Offsets(offsets) => offsets.apply_at(cfa, &at.registers, &self.stack).ok()?.registers,
            _ => Registers { sp: cfa, known: 0, ..at.registers },
        };
        Some(Position::new(address, FrameKind::ReturnAddress, registers))
    }

    /// The frames above can have led there.
    pub(super) fn agrees(&mut self, candidate: &Position) -> bool {
        self.try_candidate(candidate) != Trial::Fails
    }

    fn try_candidate(&mut self, candidate: &Position) -> Trial {
        let mut result = Trial::Agrees;
        let mut at = Position { ..*candidate };
        for _ in 0..TRIAL {
            let Rule::Offsets(offsets) = self.known(&at).rule else { return result };
            let Caller { return_address, registers } = match offsets.apply(&at.registers, &self.stack) {
                Ok(caller) => caller,
                Err(UnwindError::Unknown | UnwindError::Memory(Unread::BeyondCopy)) => return result,
                Err(_) => return Trial::Fails,
            };
            if return_address == 0 {
                return result;
            }
            if !self.follows_call(return_address) {
                return Trial::Fails;
            }
            if self.origin(&at, return_address) == CallEvidence::Elsewhere {
                result = Trial::Doubtful;
            }
            at = Position { address: return_address, registers, ..at };
        }
        result
    }

    /// A word up the stack that follows a call instruction which can have led here: the nearest
    /// one whose call is known to lead to this function, or else the nearest indirect call.
    #[cold]
    pub(super) fn guess(&mut self, at: &Position) -> Step {
        let mut indirect = None;
        for slot in self.stack.slots(at.registers.sp) {
            if slot.wrapping_sub(at.registers.sp) > GUESS_REACH
                || indirect.is_some_and(|(found, _)| slot.wrapping_sub(found) > GUESS_CHOICE)
            {
                break;
            }
            let Ok(word) = self.stack.word(slot) else { break };
            match self.origin(at, word) {
                CallEvidence::Calls => return guessed(at, slot, word),
                CallEvidence::MayCall => indirect = indirect.or(Some((slot, word))),
                CallEvidence::Elsewhere => {}
            }
        }
        if let Some((slot, word)) = indirect {
            return guessed(at, slot, word);
        }
        self.nothing_found()
    }

    fn nothing_found(&self) -> Step {
        let beyond = self.stack.word(self.stack.end()) == Err(Unread::BeyondCopy);
        Step::End(if beyond { Completeness::Truncated } else { Completeness::Incomplete })
    }

    pub(super) fn calls(&self, at: &Position, return_address: u64) -> bool {
        self.origin(at, return_address) == CallEvidence::Calls
    }

    /// Whether the call just before `return_address` can have led to `at`.
    pub(super) fn origin(&self, at: &Position, return_address: u64) -> CallEvidence {
        let query = (self.space.id, at.lookup(), return_address);
        if let Some(known) = self.scratch.origins.get(query) {
            return known;
        }
        let found = self.find_origin(at, return_address);
        if self.space.find(return_address.wrapping_sub(1)).is_some_and(MappedModule::is_generated) {
            return found; // It may be other code soon.
        }
        self.scratch.origins.put(query, found);
        found
    }

    fn find_origin(&self, at: &Position, return_address: u64) -> CallEvidence {
        let Some(placed) = self.space.find(return_address.wrapping_sub(1)) else {
            return CallEvidence::Elsewhere;
        };
        let Some(object) = &placed.object else {
            // Its target is not checked: generated code is patched, and has no list of functions.
            return match self.call_before(placed, return_address) {
                Some(_) => CallEvidence::MayCall,
                None => CallEvidence::Elsewhere,
            };
        };
        match self.call_before(placed, return_address) {
            None => CallEvidence::Elsewhere,
            Some(Call::Indirect) => CallEvidence::MayCall,
            Some(Call::Slot(distance)) => {
                let slot = return_address.wrapping_add_signed(i64::from(distance));
                self.through(object, placed.svma_near(slot), at)
            }
            Some(Call::Direct(distance)) => {
                let target = return_address.wrapping_add_signed(i64::from(distance));
                let Some(target) = placed.svma(target) else { return CallEvidence::Elsewhere };
                let here = self.space.find(at.lookup());
                match here.filter(|here| here.key == placed.key).and_then(|here| here.svma(at.lookup())) {
                    Some(here) if object.call_leads_to(target, here) => CallEvidence::Calls,
                    // Another module is reached through the procedure linkage table.
                    _ => match linkage_slot(object, target) {
                        Some(slot) => self.through(object, Some(slot), at),
                        None => CallEvidence::Elsewhere,
                    },
                }
            }
        }
    }

    /// The call instruction before an address of a file.
    pub(super) fn call_before(&self, placed: &MappedModule, address: u64) -> Option<Call> {
        if placed.is_generated() {
            return self.scratch.generated.call_before(self.space.pid, address);
        }
        let object = placed.object.as_ref()?;
        let offset = placed.file_offset(address);
        let query = (object.serial(), offset);
        if let Some(known) = self.scratch.calls.get(query) {
            return known;
        }
        let len = (LONGEST_CALL as u64).min(offset);
        let found = call_before(&object.read(offset - len, len).ok()?);
        self.scratch.calls.put(query, found);
        found
    }

    /// A call through a slot of the global offset table, of the symbol that the loader puts there.
    fn through(&self, object: &Object, slot: Option<u64>, at: &Position) -> CallEvidence {
        let Some(name) = slot.and_then(|slot| object.linkage().symbol_at(slot)) else {
            return CallEvidence::MayCall;
        };
        let Some(here) = self.space.find(at.lookup()) else { return CallEvidence::MayCall };
        let (Some(callee), Some(svma)) = (&here.object, here.svma(at.lookup())) else {
            return CallEvidence::MayCall;
        };
        let start = callee.cfi().bounds(svma).map(|bounds| bounds.start);
        let start = start.or_else(|| callee.uncovered_start(svma));
        let named = start.is_some_and(|start| callee.function_symbols().is_named(start, name));
        if named { CallEvidence::Calls } else { CallEvidence::MayCall }
    }
}

fn guessed(at: &Position, slot: u64, word: u64) -> Step {
    let registers = Registers { sp: slot.wrapping_add(8), ..at.registers };
    Step::To(Position::new(word, FrameKind::Guess, registers))
}

/// The slot of `jmp *x(%rip)`, with or without `endbr64` and the `bnd` prefix before it: a stub of
/// the procedure linkage table.
fn linkage_slot(object: &Object, svma: u64) -> Option<u64> {
    let code = object.layout().offset_of(svma).and_then(|at| object.read(at, 16).ok())?;
    let marked = code.starts_with(b"\xf3\x0f\x1e\xfa");
    let bound = code.get(if marked { 4 } else { 0 }) == Some(&0xf2);
    let at = usize::from(marked) * 4 + usize::from(bound);
    let [0xff, 0x25, distance @ ..] = code.get(at..at + 6)? else { return None };
    let next = svma.wrapping_add(at as u64 + 6);
    Some(next.wrapping_add_signed(i64::from(i32::from_le_bytes(distance.try_into().ok()?))))
}
