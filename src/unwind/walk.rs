//! The walk from the innermost frame outwards.

use super::cache::{Answers, CachedRule, RuleCache};
use super::calls::Call;
use super::generated::GeneratedCalls;
use super::go;
use super::registers::{RBP, Registers, StackBytes, Unread};
use super::rule::{Caller, Rule, UnwindError, evaluate};
use super::search::CallEvidence;
use super::space::{MappedModule, Space};
use super::trace::WalkTrace;
use super::v8;
use crate::model::{Completeness, Frame, FrameKind, LeftStack, PAGE, StackSample};
use gimli::UnwindContext;

/// Frames of one stack at most; deeper ones count as truncated.
pub const MAX_FRAMES: usize = 512;
/// Guessed frames at most.
const MAX_GUESSES: usize = 128;
/// Code at a file's entry point is no longer than this, bytes.
const LONGEST_ENTRY: u64 = 256;

/// What the walk keeps from one stack to the next.
#[derive(Default)]
pub(super) struct Scratch {
    pub cache: RuleCache,
    pub context: UnwindContext<usize>,
    pub trace: WalkTrace,
    /// Each frame's stack pointer, where requested.
    pub pointers: Option<Vec<u64>>,
    /// By address space, callee's and return address. Code without unwind information needs few of them, and
    /// often; each one takes at least a read of the file.
    pub origins: Answers<(u64, u64, u64), CallEvidence>,
    /// By file and virtual address of a call.
    pub framed: Answers<(u64, u64), Option<bool>>,
    /// By file and offset.
    pub calls: Answers<(u64, u64), Option<Call>>,
    pub generated: GeneratedCalls,
}

/// One walk.
pub(super) struct Walk<'a> {
    pub space: &'a Space,
    pub scratch: &'a mut Scratch,
    pub stack: StackBytes<'a>,
    /// Where it goes on.
    pub left: Option<LeftStack<'a>>,
    pub frames: &'a mut Vec<Frame>,
}

/// Where the walk is.
pub(super) struct Position {
    pub address: u64,
    pub kind: FrameKind,
    pub registers: Registers,
    /// The step that led here followed rbp.
    pub by_frame_pointer: bool,
    /// It led here from code whose runtime links all its frames by rbp, and finds them that way itself.
    pub linked: bool,
}

impl Position {
    /// Where a step led that did not follow rbp.
    #[inline]
    pub fn new(address: u64, kind: FrameKind, registers: Registers) -> Position {
        Position { address, kind, registers, by_frame_pointer: false, linked: false }
    }
}

pub(super) enum Step {
    To(Position),
    End(Completeness),
}

impl Position {
    /// The key for caches: a return address is looked up one byte back.
    #[inline]
    fn key(&self) -> u64 {
        (self.address << 1) | u64::from(self.kind == FrameKind::InstructionPointer)
    }

    /// Where unwind information is looked up: inside the calling instruction, not after it.
    pub fn lookup(&self) -> u64 {
        match self.kind {
            FrameKind::InstructionPointer => self.address,
            FrameKind::ReturnAddress | FrameKind::Guess | FrameKind::Managed => self.address.wrapping_sub(1),
        }
    }
}

impl Walk<'_> {
    pub fn run(&mut self, captured: &StackSample<'_>) -> Completeness {
        let mut at = Position::new(captured.ip, FrameKind::InstructionPointer, Registers::of(captured));
        let mut guesses = 0;
        self.scratch.trace.begin(captured);
        self.scratch.generated.begin();
        loop {
            // Nearly all frames: a known rule by fixed offsets, applied in place. Copies of rules
            // and registers would cost more than the rest.
            if at.kind != FrameKind::Guess
                && let Some(known) = self.scratch.cache.get(self.space.id, at.key())
                && let Rule::Offsets(offsets) = &known.rule
            {
                let address = at.address.wrapping_add(known.delta);
                self.frames.push(Frame { module: known.module, address, kind: at.kind });
                if let Some(pointers) = &mut self.scratch.pointers {
                    pointers.push(at.registers.sp);
                }
                if self.frames.len() >= MAX_FRAMES {
                    return Completeness::Truncated;
                }
                let innermost = self.frames.len() == 1;
                if let Some((register, value)) = offsets.base(&at.registers) {
                    self.scratch.trace.found_by(register, value);
                }
                match offsets.advance(&mut at.registers, &self.stack, innermost) {
                    Ok(address @ PAGE..) => {
                        self.scratch.trace.step(offsets, at.registers.sp, address);
                        at.address = address;
                    }
                    Ok(0) if guesses == 0 => {
                        self.scratch.trace.step(offsets, at.registers.sp, 0);
                        return self.stack.end_at_zero();
                    }
                    Ok(_) => return Completeness::Incomplete,
                    Err(UnwindError::Unknown) => {
                        let offsets = *offsets;
                        self.scratch.trace.mark_uncacheable();
                        match self.search(&at, Rule::Offsets(offsets)) {
                            Step::To(next) => at = next,
                            Step::End(completeness) => return completeness,
                        }
                        continue;
                    }
                    Err(error) => return completeness_of(error),
                }
                at.kind = FrameKind::ReturnAddress;
                (at.by_frame_pointer, at.linked) = (false, false);
                continue;
            }
            let CachedRule { mut rule, module, delta } = self.known(&at);
            if rule == Rule::EntryRoot {
                // Not behind a call: the address itself is the function's first instruction.
                at.kind = FrameKind::InstructionPointer;
                rule = Rule::Root;
            }
            if rule == Rule::Resumed {
                at.kind = FrameKind::InstructionPointer;
                continue;
            }
            if at.kind != FrameKind::Guess && matches!(rule, Rule::Offsets(_)) {
                continue; // It is known now.
            }
            self.frames.push(Frame { module, address: at.address.wrapping_add(delta), kind: at.kind });
            if let Some(pointers) = &mut self.scratch.pointers {
                pointers.push(at.registers.sp);
            }
            if self.frames.len() >= MAX_FRAMES {
                return Completeness::Truncated;
            }
            guesses += usize::from(at.kind == FrameKind::Guess);
            // `step_uncovered` says itself what it went by.
            if !matches!(rule, Rule::Root | Rule::Uncovered) {
                self.scratch.trace.mark_uncacheable();
            }
            match self.step(&at, rule) {
                Step::To(next) if guesses < MAX_GUESSES || next.kind != FrameKind::Guess => at = next,
                Step::To(_) => return Completeness::Incomplete,
                Step::End(Completeness::Complete) if guesses > 0 => return Completeness::Incomplete,
                Step::End(completeness) => return completeness,
            }
        }
    }

    #[cold]
    pub(super) fn known(&mut self, at: &Position) -> CachedRule {
        match self.scratch.cache.get(self.space.id, at.key()) {
            Some(known) => *known,
            None => self.cache_rule(at),
        }
    }

    #[cold]
    fn cache_rule(&mut self, at: &Position) -> CachedRule {
        let known = match self.space.find(at.lookup()) {
            None => CachedRule { rule: Rule::NoModule, module: None, delta: 0 },
            Some(placed) => {
                let delta = placed.delta();
                let mut rule = self.scratch.rule_at(placed, at.lookup());
                if at.kind == FrameKind::ReturnAddress
                    && at.address.is_multiple_of(16)
                    && self.call_before(placed, at.address).is_none()
                    && self.scratch.rule_at(placed, at.address) == Rule::Root
                {
                    rule = Rule::EntryRoot;
                }
                rule = go::special_rule(placed, at.lookup()).unwrap_or(rule);
                if at.kind == FrameKind::ReturnAddress && go::is_switched(placed, at.address) {
                    rule = Rule::Resumed;
                }
                if rule == Rule::Uncovered && is_entry(placed, at.lookup()) {
                    rule = Rule::Root;
                }
                if rule == Rule::Uncovered
                    && at.kind == FrameKind::ReturnAddress
                    && v8::is_linked(placed, at.lookup())
                {
                    rule = Rule::Linked;
                }
                CachedRule { rule, module: placed.module, delta }
            }
        };
        self.scratch.cache.put(self.space.id, at.key(), known);
        known
    }

    /// A step that is not one by fixed offsets from a proven frame.
    #[cold]
    fn step(&mut self, at: &Position, rule: Rule) -> Step {
        let innermost = self.frames.len() == 1;
        let caller = match rule {
            Rule::Root | Rule::EntryRoot if self.is_called_by_c(at) => {
                return Step::End(Completeness::Incomplete);
            }
            Rule::Root | Rule::EntryRoot => return Step::End(Completeness::Complete),
            Rule::StackSwitch => return self.step_to_left_stack(),
            Rule::CallsOut => return self.step_from_call_out(at),
            Rule::Offsets(offsets) => offsets.apply(&at.registers, &self.stack),
            Rule::Expressions { .. } => self.evaluate(at),
            Rule::Linked if at.kind == FrameKind::ReturnAddress => return self.step_linked(at),
            Rule::Linked | Rule::Uncovered => return self.step_uncovered(at, innermost),
            Rule::NoModule | Rule::Resumed => return self.step_generated(at),
        };
        let guessing = at.kind == FrameKind::Guess;
        match caller {
            // Registers are not trusted after a guess: what they lead to has to be plausible.
            Ok(caller) if guessing && !self.is_likely_caller(at, &caller) => self.guess(at),
            Err(_) if guessing => self.guess(at),
            Ok(Caller { return_address: 0, .. }) => Step::End(self.stack.end_at_zero()),
            // Never mapped (mmap_min_addr): argc or the like.
            Ok(Caller { return_address: ..PAGE, .. }) => Step::End(Completeness::Incomplete),
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
                linked: false,
            }),
            Err(UnwindError::Unknown) => self.search(at, rule),
            Err(error) => Step::End(completeness_of(error)),
        }
    }

    #[cold]
    fn evaluate(&mut self, at: &Position) -> Result<Caller, UnwindError> {
        let placed = self.space.find(at.lookup()).ok_or(UnwindError::InvalidCfa)?;
        let object = placed.object.as_ref().ok_or(UnwindError::InvalidCfa)?;
        let svma = placed.svma(at.lookup()).ok_or(UnwindError::InvalidCfa)?;
        evaluate(object.cfi(), svma, &mut self.scratch.context, (&at.registers, &self.stack, at.address))
    }

    /// Code of a file without unwind information: musl, Go without `.debug_frame`, V8's built-in
    /// functions, assembly. Proven ways first, guesses last.
    #[cold]
    fn step_uncovered(&mut self, at: &Position, innermost: bool) -> Step {
        let registers = &at.registers;
        if innermost
            && let Ok(word) = self.stack.word(registers.sp)
            && self.calls(at, word)
        {
            self.scratch.trace.returns_to(registers.sp, word);
            let registers = Registers { sp: registers.sp.wrapping_add(8), ..*registers };
            return Step::To(Position::new(word, FrameKind::ReturnAddress, registers));
        }
        if registers.bp() == Some(0) && at.by_frame_pointer {
            self.scratch.trace.ends_at_zero(RBP);
            return Step::End(Completeness::Complete);
        }
        if at.kind != FrameKind::Guess
            && let Ok(caller) = self.frame_pointer(registers)
            && self.follows_call(caller.return_address)
        {
            let framed = self.keeps_frame_pointer(at);
            let proven = framed == Some(true) || self.calls(at, caller.return_address);
            if proven {
                self.scratch.trace.step_by_frame_pointer(&caller);
            } else {
                self.scratch.trace.mark_uncacheable();
            }
            if proven || framed.is_none() && !innermost && !self.is_called_below(at, &caller) {
                return Step::To(by_frame_pointer(caller));
            }
        }
        self.scratch.trace.mark_uncacheable();
        // Go keeps frame pointers everywhere: where they end, nothing is left to be guessed.
        let is_go = |placed: &MappedModule| placed.object.as_ref().is_some_and(|o| o.is_go());
        if self.space.find(at.lookup()).is_some_and(is_go) {
            return self.step_uncovered_go(at);
        }
        self.guess(at)
    }

    /// Whether `rbp` is the function's frame pointer here, behind a call, where the function's own code says it.
    fn keeps_frame_pointer(&self, at: &Position) -> Option<bool> {
        let placed = self.space.find(at.lookup())?;
        let (object, svma) = placed.object.as_ref().zip(placed.svma(at.lookup()))?;
        let last = if at.kind == FrameKind::ReturnAddress { svma } else { svma.wrapping_sub(1) };
        self.scratch.framed.get_or_put((object.serial(), last), || object.calling_function(last)?.is_framed)
    }

    /// `[rbp]` the caller's rbp, `[rbp + 8]` the return address.
    pub(super) fn frame_pointer(&self, registers: &Registers) -> Result<Caller, UnwindError> {
        let bp = registers.bp().ok_or(UnwindError::Unknown)?;
        if !bp.is_multiple_of(8) || bp < registers.sp {
            return Err(UnwindError::InvalidCfa);
        }
        let mut caller = Registers { sp: bp.wrapping_add(16), ..*registers };
        caller.set(RBP, self.stack.word(bp)?);
        let return_address = self.stack.word(bp.wrapping_add(8))?;
        Ok(Caller { return_address, registers: caller })
    }

    pub(super) fn follows_call(&self, address: u64) -> bool {
        let placed = self.space.find(address.wrapping_sub(1));
        placed.is_some_and(|placed| self.call_before(placed, address).is_some())
    }

    fn is_likely_caller(&self, at: &Position, caller: &Caller) -> bool {
        match self.origin(at, caller.return_address) {
            CallEvidence::Calls => true,
            CallEvidence::Elsewhere => false,
            CallEvidence::MayCall => !self.is_called_below(at, caller),
        }
    }

    /// rbp may be untouched by all frames up to here, and belong to a function further out: then a call to
    /// this very function is to be found below that one's frame.
    fn is_called_below(&self, at: &Position, caller: &Caller) -> bool {
        let slot = caller.registers.sp.wrapping_sub(8);
        let mut below = self.stack.slots(at.registers.sp).take_while(|&s| s < slot);
        below.any(|s| self.stack.word(s).is_ok_and(|w| self.calls(at, w)))
    }
}

impl Scratch {
    fn rule_at(&mut self, placed: &MappedModule, address: u64) -> Rule {
        let Some(object) = &placed.object else {
            // A file that could not be opened may well have had tables: no guessing there.
            return Rule::NoModule;
        };
        let Some(svma) = placed.svma(address) else { return Rule::Uncovered };
        let Scratch { cache, context, .. } = self;
        cache.rule(object.serial(), svma, || match Rule::find(object.cfi(), svma, context) {
            Rule::Uncovered => go::table_rule(object, svma).unwrap_or(Rule::Uncovered),
            known => known,
        })
    }
}

/// In the code that the kernel starts, which has no caller. That of ld.so (`_start` and, behind it,
/// `_dl_start_user`; sysdeps/x86_64/dl-machine.h) has no unwind information to say so.
fn is_entry(placed: &MappedModule, address: u64) -> bool {
    let (Some(object), Some(svma)) = (&placed.object, placed.svma(address)) else { return false };
    let entry = object.layout().entry;
    svma.checked_sub(entry).is_some_and(|d| d < LONGEST_ENTRY)
        && object.function_starts().before(svma) == Some(entry)
}

pub(super) fn by_frame_pointer(caller: Caller) -> Position {
    let Caller { return_address, registers } = caller;
    Position { by_frame_pointer: true, ..Position::new(return_address, FrameKind::ReturnAddress, registers) }
}

pub(super) fn completeness_of(error: UnwindError) -> Completeness {
    match error {
        UnwindError::Memory(Unread::BeyondCopy) => Completeness::Truncated,
        UnwindError::Memory(Unread::NoStack) | UnwindError::Unknown | UnwindError::InvalidCfa => {
            Completeness::Incomplete
        }
    }
}
