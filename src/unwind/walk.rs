//! The walk from the innermost frame outwards.

use super::cache::{Known, RuleCache};
use super::calls::{Call, LONGEST_CALL, call_before};
use super::registers::{CapturedStack, RBP, Registers, StackBytes, Unread};
use super::rule::{Caller, Rule, Stuck, evaluate};
use super::space::{Placed, Space};
use crate::model::{Completeness, Frame, FrameKind};
use gimli::UnwindContext;

/// Frames of one stack at most; deeper ones count as truncated.
pub const MAX_FRAMES: usize = 512;
/// Guessed frames at most.
const MAX_GUESSES: usize = 128;
/// How far up one guess looks for a return address, bytes.
const GUESS_REACH: u64 = 64 << 10;
/// A function whose start is known only from a call to it is taken to be no longer than this.
const LONGEST_FUNCTION: u64 = 64 << 10;
/// A leaf that makes a system call without a frame of its own is short.
const LONGEST_LEAF: u64 = 256;

/// What the walk keeps from one stack to the next.
#[derive(Default)]
pub(super) struct Scratch {
    pub cache: RuleCache,
    pub context: UnwindContext<usize>,
}

/// One walk.
pub(super) struct Walk<'a> {
    pub space: &'a Space,
    pub scratch: &'a mut Scratch,
    pub stack: StackBytes<'a>,
    pub frames: &'a mut Vec<Frame>,
}

/// Where the walk is.
struct Position {
    address: u64,
    kind: FrameKind,
    registers: Registers,
    /// The step that led here followed rbp.
    by_frame_pointer: bool,
}

enum Step {
    To(Position),
    End(Completeness),
}

impl Position {
    /// Where unwind information is looked up: inside the calling instruction, not after it.
    fn lookup(&self) -> u64 {
        match self.kind {
            FrameKind::InstructionPointer => self.address,
            FrameKind::ReturnAddress | FrameKind::Guess => self.address.wrapping_sub(1),
        }
    }
}

impl Walk<'_> {
    pub fn run(&mut self, captured: &CapturedStack<'_>) -> Completeness {
        let mut at = Position {
            address: captured.ip,
            kind: FrameKind::InstructionPointer,
            registers: Registers::of(captured),
            by_frame_pointer: false,
        };
        let mut guesses = 0;
        loop {
            let mut known = self.known(&at);
            if known.rule == Rule::EntryRoot {
                // Not behind a call: the address itself is the function's first instruction.
                at.kind = FrameKind::InstructionPointer;
                known.rule = Rule::Root;
            }
            let address =
                if known.module.is_some() { at.address.wrapping_add(known.delta) } else { at.address };
            self.frames.push(Frame { module: known.module, address, kind: at.kind });
            if self.frames.len() >= MAX_FRAMES {
                return Completeness::Truncated;
            }
            let guessed = at.kind == FrameKind::Guess;
            guesses += usize::from(guessed);
            match self.step(&at, known.rule) {
                Step::To(next) if guesses < MAX_GUESSES || next.kind != FrameKind::Guess => at = next,
                Step::To(_) => return Completeness::Incomplete,
                Step::End(Completeness::Complete) if guesses > 0 => return Completeness::Incomplete,
                Step::End(completeness) => return completeness,
            }
        }
    }

    #[inline]
    fn known(&mut self, at: &Position) -> Known {
        let exact = at.kind == FrameKind::InstructionPointer;
        let key = (at.address << 1) | u64::from(exact);
        match self.scratch.cache.get(self.space.id, key) {
            Some(known) => *known,
            None => self.learn(at, key),
        }
    }

    #[cold]
    fn learn(&mut self, at: &Position, key: u64) -> Known {
        let known = match self.space.find(at.lookup()) {
            None => Known { rule: Rule::NoModule, module: None, delta: 0 },
            Some(placed) => {
                let delta = placed.offset.wrapping_sub(placed.range.start.0);
                let mut rule = self.scratch.rule_at(placed, at.lookup());
                if at.kind == FrameKind::ReturnAddress
                    && at.address.is_multiple_of(16)
                    && self.call_before(placed, at.address).is_none()
                    && self.scratch.rule_at(placed, at.address) == Rule::Root
                {
                    rule = Rule::EntryRoot;
                }
                Known { rule, module: placed.module, delta }
            }
        };
        self.scratch.cache.put(self.space.id, key, known);
        known
    }

    fn step(&mut self, at: &Position, rule: Rule) -> Step {
        let innermost = self.frames.len() == 1;
        let caller = match rule {
            Rule::Root | Rule::EntryRoot => return Step::End(Completeness::Complete),
            Rule::Offsets(offsets) => offsets.apply(&at.registers, &self.stack, innermost),
            Rule::Expressions { .. } => self.evaluate(at),
            Rule::Uncovered => return self.step_uncovered(at, innermost),
            Rule::NoModule => return self.step_generated(at),
        };
        let guessing = at.kind == FrameKind::Guess;
        match caller {
            // Registers are not trusted after a guess: what they lead to has to look right.
            Ok(caller) if guessing && !self.follows_call(caller.return_address) => self.guess(at),
            Err(_) if guessing => self.guess(at),
            Ok(Caller { return_address: 0, .. }) => Step::End(Completeness::Complete),
            Ok(caller) => Step::To(Position {
                address: caller.return_address,
                kind: match rule {
                    // The interrupted instruction itself, not one behind a call.
                    Rule::Expressions { signal: true } => FrameKind::InstructionPointer,
                    _ if guessing => FrameKind::Guess,
                    _ => FrameKind::ReturnAddress,
                },
                registers: caller.registers,
                by_frame_pointer: false,
            }),
            Err(stuck) => Step::End(completeness_of(stuck)),
        }
    }

    #[cold]
    fn evaluate(&mut self, at: &Position) -> Result<Caller, Stuck> {
        let placed = self.space.find(at.lookup()).ok_or(Stuck::Nonsense)?;
        let object = placed.object.as_ref().ok_or(Stuck::Nonsense)?;
        let svma = placed.svma(at.lookup()).ok_or(Stuck::Nonsense)?;
        evaluate(object.cfi(), svma, &mut self.scratch.context, (&at.registers, &self.stack, at.address))
    }

    /// Generated code, or memory that no list of mappings names: only rbp can lead on.
    #[cold]
    fn step_generated(&mut self, at: &Position) -> Step {
        if at.registers.bp() == 0 && at.by_frame_pointer {
            return Step::End(Completeness::Complete);
        }
        match self.frame_pointer(&at.registers) {
            Ok(caller) if self.could_return_to(caller.return_address) => Step::To(by_frame_pointer(caller)),
            Ok(_) => Step::End(Completeness::Incomplete),
            Err(stuck) => Step::End(completeness_of(stuck)),
        }
    }

    /// Code of a file without unwind information: musl, Go without `.debug_frame`, V8's built-in
    /// functions, assembly. Proven ways first, guesses last.
    #[cold]
    fn step_uncovered(&mut self, at: &Position, innermost: bool) -> Step {
        let registers = &at.registers;
        if innermost
            && let Ok(word) = self.stack.word(registers.sp)
            && self.called_from(at, word, LONGEST_LEAF)
        {
            let registers = Registers { sp: registers.sp.wrapping_add(8), ..*registers };
            let kind = FrameKind::ReturnAddress;
            return Step::To(Position { address: word, kind, registers, by_frame_pointer: false });
        }
        if registers.bp() == 0 && at.by_frame_pointer {
            return Step::End(Completeness::Complete);
        }
        if at.kind != FrameKind::Guess
            && let Ok(caller) = self.frame_pointer(registers)
            && self.follows_call(caller.return_address)
        {
            let slot = caller.registers.sp.wrapping_sub(8);
            let proven = self.called_from(at, caller.return_address, LONGEST_FUNCTION);
            // An rbp that nobody on the way here has touched belongs to a function further out:
            // then a call to this very function is to be found below it.
            let nearer = || self.stack.slots(registers.sp).take_while(|&s| s < slot);
            let skips = |s| self.stack.word(s).is_ok_and(|w| self.called_from(at, w, LONGEST_FUNCTION));
            if proven || !innermost && !nearer().any(skips) {
                return Step::To(by_frame_pointer(caller));
            }
        }
        self.guess(at)
    }

    /// The nearest word up the stack that follows a call instruction which can have led here.
    #[cold]
    fn guess(&mut self, at: &Position) -> Step {
        for slot in self.stack.slots(at.registers.sp) {
            if slot.wrapping_sub(at.registers.sp) > GUESS_REACH {
                return Step::End(Completeness::Incomplete);
            }
            let Ok(word) = self.stack.word(slot) else { break };
            if self.may_have_called(at, word) {
                let registers = Registers { sp: slot.wrapping_add(8), ..at.registers };
                let kind = FrameKind::Guess;
                return Step::To(Position { address: word, kind, registers, by_frame_pointer: false });
            }
        }
        let beyond = self.stack.word(self.stack.end()) == Err(Unread::BeyondCopy);
        Step::End(if beyond { Completeness::Truncated } else { Completeness::Incomplete })
    }

    /// `[rbp]` the caller's rbp, `[rbp + 8]` the return address.
    fn frame_pointer(&self, registers: &Registers) -> Result<Caller, Stuck> {
        let bp = registers.bp();
        if !bp.is_multiple_of(8) || bp < registers.sp {
            return Err(Stuck::Nonsense);
        }
        let mut caller = Registers { sp: bp.wrapping_add(16), saved: registers.saved };
        caller.saved[RBP] = self.stack.word(bp)?;
        let return_address = self.stack.word(bp.wrapping_add(8))?;
        Ok(Caller { return_address, registers: caller })
    }

    /// The address lies in executable memory, behind a call where that can be seen.
    fn could_return_to(&self, address: u64) -> bool {
        match self.space.find(address.wrapping_sub(1)) {
            Some(placed) if placed.object.is_some() => self.call_before(placed, address).is_some(),
            Some(_) => true,
            None => false,
        }
    }

    fn follows_call(&self, address: u64) -> bool {
        let placed = self.space.find(address.wrapping_sub(1));
        placed.is_some_and(|placed| self.call_before(placed, address).is_some())
    }

    /// A direct call just before `return_address` leads to the function that `at` is in, as far
    /// as can be told without its bounds: to no more than `longest` bytes before, and not to
    /// another function whose bounds are known.
    fn called_from(&self, at: &Position, return_address: u64, longest: u64) -> bool {
        let placed = self.space.find(return_address.wrapping_sub(1));
        let Some(Call::Direct(distance)) = placed.and_then(|p| self.call_before(p, return_address)) else {
            return false;
        };
        let target = return_address.wrapping_add_signed(i64::from(distance));
        self.may_start_at(at, target, longest)
    }

    fn may_start_at(&self, at: &Position, target: u64, longest: u64) -> bool {
        let near = at.address.checked_sub(target).is_some_and(|d| d <= longest);
        near && !self.space.find(target).is_some_and(|placed| {
            let svma = placed.svma(target);
            let bounds = svma.and_then(|svma| placed.object.as_ref()?.cfi().bounds(svma));
            bounds.is_some_and(|b| placed.svma(at.lookup()).is_none_or(|here| !b.contains(&here)))
        })
    }

    /// As [`Walk::called_from`], but calls whose target cannot be told count too: indirect ones,
    /// and those into another module's procedure linkage table.
    fn may_have_called(&self, at: &Position, return_address: u64) -> bool {
        let Some(placed) = self.space.find(return_address.wrapping_sub(1)) else { return false };
        match self.call_before(placed, return_address) {
            None => false,
            Some(Call::Indirect) => true,
            Some(Call::Direct(distance)) => {
                let here = self.space.find(at.lookup()).and_then(|p| p.key);
                let target = return_address.wrapping_add_signed(i64::from(distance));
                here != placed.key || self.may_start_at(at, target, LONGEST_FUNCTION)
            }
        }
    }

    /// The call instruction before an address of a file.
    fn call_before(&self, placed: &Placed, address: u64) -> Option<Call> {
        let object = placed.object.as_ref()?;
        let offset = placed.file_offset(address);
        let len = (LONGEST_CALL as u64).min(offset);
        call_before(&object.read(offset - len, len).ok()?)
    }
}

impl Scratch {
    fn rule_at(&mut self, placed: &Placed, address: u64) -> Rule {
        let Some(object) = &placed.object else {
            // A file that could not be opened may well have had tables: no guessing there.
            return Rule::NoModule;
        };
        let Some(svma) = placed.svma(address) else { return Rule::Uncovered };
        let Scratch { cache, context } = self;
        cache.rule(object.serial(), svma, || Rule::find(object.cfi(), svma, context))
    }
}

fn by_frame_pointer(caller: Caller) -> Position {
    Position {
        address: caller.return_address,
        kind: FrameKind::ReturnAddress,
        registers: caller.registers,
        by_frame_pointer: true,
    }
}

fn completeness_of(stuck: Stuck) -> Completeness {
    match stuck {
        Stuck::Memory(Unread::BeyondCopy) => Completeness::Truncated,
        Stuck::Memory(Unread::NoStack) | Stuck::Nonsense => Completeness::Incomplete,
    }
}
