//! How to get from a frame to its caller: a row of unwind information in a form that is cheap to
//! keep and to apply.
//!
//! All callee-saved registers are followed, not only rbp: glibc's `_dl_runtime_resolve` keeps its
//! frame in rbx, and functions that realign the stack (`DW_CFA_def_cfa_expression`) keep the
//! caller's stack pointer in memory.

use super::registers::{RBP, Registers, SAVED, StackBytes, Unread, dwarf_number, saved_index};
use crate::model::UnwindRow;
use crate::objects::Cfi;
use crate::objects::cfi::{ExpressionSource, Slice};
use gimli::{
    CfaRule, Encoding, Evaluation, EvaluationResult, Expression, Location, RegisterRule, UnwindContext,
    UnwindTableRow, Value, X86_64,
};

/// What to do at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Registers at fixed distances from the canonical frame address (CFA).
    Offsets(Offsets),
    /// DWARF expressions: evaluated at each use (signal frames, realigned stacks, PLT).
    Expressions { signal: bool },
    /// The return address is undefined: this has no caller (`_start`, `clone3`'s child).
    Root,
    /// A return address that is the first instruction of such a function, not behind a call: Go's
    /// `systemstack` puts `mstart` there.
    EntryRoot,
    /// A function that runs its callee on another stack.
    StackSwitch,
    /// A function that runs its callee on another stack where it is not on that one already.
    CallsOut,
    /// The address is an instruction's that goes on, not one behind a call.
    Resumed,
    /// Code of a runtime that links all its frames by rbp (V8), or this one for sure (Go).
    Linked,
    /// No unwind information covers the address.
    Uncovered,
    /// Not in any known file: generated code, if anything.
    NoModule,
}

/// `NOT_SAVED` in [`Offsets::saved`]: the register still holds the caller's value.
const NOT_SAVED: i16 = i16::MIN;

/// DWARF number of rsp.
const RSP_NUMBER: u8 = 7;

/// CFA = register + `cfa`; the return address is at CFA − 8, as a call instruction leaves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offsets {
    /// DWARF number of the base register.
    base: u8,
    cfa: i32,
    /// Where the caller's registers are, in words from the CFA.
    saved: [i16; SAVED],
}

/// A frame's caller.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub return_address: u64,
    pub registers: Registers,
}

/// Why there is no caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnwindError {
    Memory(Unread),
    /// The rule needs a register that was not captured and that no frame below has saved.
    Unknown,
    /// The rule needs a register that calls do not preserve, or its arithmetic makes no sense.
    InvalidCfa,
}

impl From<Unread> for UnwindError {
    fn from(unread: Unread) -> UnwindError {
        UnwindError::Memory(unread)
    }
}

impl Rule {
    /// Finds the rule in a file's unwind tables.
    pub fn find(cfi: &Cfi, svma: u64, context: &mut UnwindContext<usize>) -> Rule {
        cfi.with_row(svma, context, &mut |row, facts, _| from_row(row, facts.signal))
            .unwrap_or(Rule::Uncovered)
    }
}

/// By the stack pointer alone, in a function that has so much on the stack.
pub fn of_frame_size(size: u32) -> Option<Rule> {
    let cfa = i32::try_from(size).ok()?.checked_add(8)?;
    Some(Rule::Offsets(Offsets { base: RSP_NUMBER, cfa, saved: [NOT_SAVED; SAVED] }))
}

fn from_row(row: &UnwindTableRow<usize>, signal: bool) -> Rule {
    match row.register(X86_64::RA) {
        None | Some(RegisterRule::Undefined) => return Rule::Root,
        Some(RegisterRule::Offset(-8)) if !signal => {}
        Some(_) => return Rule::Expressions { signal },
    }
    offsets(row).map_or(Rule::Expressions { signal }, Rule::Offsets)
}

fn offsets(row: &UnwindTableRow<usize>) -> Option<Offsets> {
    let CfaRule::RegisterAndOffset { register, offset } = row.cfa() else { return None };
    let mut out = Offsets {
        base: u8::try_from(register.0).ok()?,
        cfa: i32::try_from(*offset).ok()?,
        saved: [NOT_SAVED; SAVED],
    };
    for (register, rule) in row.registers() {
        let Some(index) = saved_index(register.0) else { continue };
        match rule {
            RegisterRule::Offset(offset) if offset % 8 == 0 => {
                let words = i16::try_from(offset / 8).ok().filter(|&w| w != NOT_SAVED)?;
                out.saved[index] = words;
            }
            RegisterRule::SameValue | RegisterRule::Undefined => {}
            _ => return None,
        }
    }
    Some(out)
}

impl Offsets {
    /// The rule without any register but rsp and rbp; None where the frame is found by another one.
    pub fn plain(&self) -> Option<UnwindRow> {
        const RBP_NUMBER: u8 = 6;
        let from_bp = match self.base {
            RSP_NUMBER => false,
            RBP_NUMBER => true,
            _ => return None,
        };
        let bp = match self.saved[RBP] {
            0 => return None,
            NOT_SAVED => None,
            words => Some(words),
        };
        Some(UnwindRow::Offsets { from_bp, cfa: self.cfa, bp })
    }

    /// The callee-saved register that the frame is found by, and its value; None: the stack pointer, or not known.
    #[inline]
    pub fn base(&self, regs: &Registers) -> Option<(usize, u64)> {
        let number = u16::from(self.base);
        Some((saved_index(number)?, regs.by_dwarf(number)?))
    }

    /// Which registers are saved where, of a frame with this CFA.
    #[inline]
    pub fn slots(&self, cfa: u64) -> impl Iterator<Item = (usize, u64)> {
        let saved = self.saved.into_iter().enumerate().filter(|&(_, words)| words != NOT_SAVED);
        saved.map(move |(index, words)| (index, cfa.wrapping_add_signed(i64::from(words) * 8)))
    }

    /// Applies the rule to the registers themselves, which are of no use after an error; returns
    /// the return address. `innermost` allows saved registers below the stack pointer: an
    /// epilogue leaves rows unchanged after its pops.
    #[inline]
    pub fn advance(
        &self,
        regs: &mut Registers,
        stack: &StackBytes<'_>,
        innermost: bool,
    ) -> Result<u64, UnwindError> {
        let base = match self.base {
            RSP_NUMBER => regs.sp,
            other => base_register(regs, other)?,
        };
        self.advance_to(base.wrapping_add_signed(i64::from(self.cfa)), regs, stack, innermost)
    }

    /// The same for a frame whose CFA is known otherwise: its base register is known then, too.
    pub fn apply_at(
        &self,
        cfa: u64,
        regs: &Registers,
        stack: &StackBytes<'_>,
    ) -> Result<Caller, UnwindError> {
        let mut registers = *regs;
        if let Some(index) = saved_index(u16::from(self.base)) {
            registers.set(index, cfa.wrapping_sub(self.cfa as i64 as u64));
        }
        let return_address = self.advance_to(cfa, &mut registers, stack, false)?;
        Ok(Caller { return_address, registers })
    }

    /// The least that the CFA can be in a frame with this stack pointer: what it has saved lies above.
    pub fn least_cfa(&self, sp: u64) -> u64 {
        let lowest = self.saved.iter().copied().filter(|&words| words != NOT_SAVED).min().unwrap_or(-1);
        sp.wrapping_add_signed(-i64::from(lowest.min(-1)) * 8)
    }

    #[inline]
    fn advance_to(
        &self,
        cfa: u64,
        regs: &mut Registers,
        stack: &StackBytes<'_>,
        innermost: bool,
    ) -> Result<u64, UnwindError> {
        // A caller's frame lies above its callee's: this also ends loops.
        if cfa <= regs.sp {
            return Err(UnwindError::InvalidCfa);
        }
        for (index, at) in self.slots(cfa) {
            match stack.word(at) {
                Ok(word) => regs.set(index, word),
                Err(_) if innermost && at < regs.sp => {}
                Err(unread) => return Err(unread.into()),
            }
        }
        regs.sp = cfa;
        Ok(stack.word(cfa.wrapping_sub(8))?)
    }

    /// As [`Offsets::advance`], leaving the frame's own registers as they are.
    pub fn apply(&self, regs: &Registers, stack: &StackBytes<'_>) -> Result<Caller, UnwindError> {
        let mut registers = *regs;
        let return_address = self.advance(&mut registers, stack, false)?;
        Ok(Caller { return_address, registers })
    }
}

#[inline]
fn base_register(regs: &Registers, number: u8) -> Result<u64, UnwindError> {
    let number = u16::from(number);
    regs.by_dwarf(number).ok_or(if saved_index(number).is_some() {
        UnwindError::Unknown
    } else {
        UnwindError::InvalidCfa
    })
}

/// Applies a row with expressions. The stack pointer may move anywhere: a signal handler runs on
/// another stack than the code that it interrupted.
pub fn evaluate(
    cfi: &Cfi,
    svma: u64,
    context: &mut UnwindContext<usize>,
    frame: (&Registers, &StackBytes<'_>, u64),
) -> Result<Caller, UnwindError> {
    let apply = &mut |row: &UnwindTableRow<usize>,
                      facts: &crate::objects::FdeFacts,
                      source: &ExpressionSource<'_, '_>| {
        let (registers, stack, ip) = frame;
        RowContext { row, source, encoding: facts.encoding, registers, stack, ip }.caller(facts.signal)
    };
    cfi.with_row(svma, context, apply).unwrap_or(Err(UnwindError::InvalidCfa))
}

/// Everything that a row with expressions is evaluated against.
struct RowContext<'a, 's, 'd> {
    row: &'a UnwindTableRow<usize>,
    source: &'a ExpressionSource<'s, 'd>,
    encoding: Encoding,
    registers: &'a Registers,
    stack: &'a StackBytes<'a>,
    ip: u64,
}

impl<'d> RowContext<'_, '_, 'd> {
    fn caller(&self, signal: bool) -> Result<Caller, UnwindError> {
        let cfa = match self.row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                self.register(register.0)?.wrapping_add_signed(*offset)
            }
            CfaRule::Expression(expression) => {
                let expression = (self.source)(expression).ok_or(UnwindError::InvalidCfa)?;
                self.evaluate(expression, None)?
            }
        };
        if !signal && cfa <= self.registers.sp {
            return Err(UnwindError::InvalidCfa);
        }
        let mut caller = Registers { sp: cfa, ..*self.registers };
        for index in 0..SAVED {
            if let Some(word) = self.recover(dwarf_number(index), cfa)? {
                caller.set(index, word);
            }
        }
        let return_address = self.recover(X86_64::RA.0, cfa)?.ok_or(UnwindError::InvalidCfa)?;
        Ok(Caller { return_address, registers: caller })
    }

    /// A register of the caller; None where the row says nothing about it.
    fn recover(&self, number: u16, cfa: u64) -> Result<Option<u64>, UnwindError> {
        let Some(rule) = self.row.register(gimli::Register(number)) else { return Ok(None) };
        let value = match rule {
            RegisterRule::Offset(offset) => self.stack.word(cfa.wrapping_add_signed(offset))?,
            RegisterRule::ValOffset(offset) => cfa.wrapping_add_signed(offset),
            RegisterRule::Register(register) => self.register(register.0)?,
            RegisterRule::Expression(expression) => {
                let expression = (self.source)(&expression).ok_or(UnwindError::InvalidCfa)?;
                self.stack.word(self.evaluate(expression, Some(cfa))?)?
            }
            RegisterRule::ValExpression(expression) => {
                let expression = (self.source)(&expression).ok_or(UnwindError::InvalidCfa)?;
                self.evaluate(expression, Some(cfa))?
            }
            _ => return Ok(None),
        };
        Ok(Some(value))
    }

    fn register(&self, number: u16) -> Result<u64, UnwindError> {
        if number == X86_64::RA.0 {
            return Ok(self.ip);
        }
        let error =
            if saved_index(number).is_some() { UnwindError::Unknown } else { UnwindError::InvalidCfa };
        self.registers.by_dwarf(number).ok_or(error)
    }

    /// Evaluates a DWARF expression to an address; `cfa` is pushed first where the standard says
    /// so (DWARF 5, 6.4.2: rules for registers, not for the CFA itself).
    fn evaluate(&self, expression: Expression<Slice<'d>>, cfa: Option<u64>) -> Result<u64, UnwindError> {
        /// Real expressions have under 20 operations; a hostile one may branch for ever.
        const MAX_STEPS: u32 = 1000;
        let mut evaluation: Evaluation<Slice<'d>> = expression.evaluation(self.encoding);
        evaluation.set_max_iterations(MAX_STEPS);
        if let Some(cfa) = cfa {
            evaluation.set_initial_value(cfa);
        }
        let mut state = evaluation.evaluate().map_err(|_| UnwindError::InvalidCfa)?;
        for _ in 0..MAX_STEPS {
            state = match state {
                EvaluationResult::Complete => {
                    let pieces = evaluation.as_result();
                    return match pieces.last().map(|piece| &piece.location) {
                        Some(Location::Address { address }) => Ok(*address),
                        _ => Err(UnwindError::InvalidCfa),
                    };
                }
                EvaluationResult::RequiresRegister { register, .. } => {
                    let value = self.register(register.0)?;
                    evaluation.resume_with_register(Value::Generic(value))
                }
                EvaluationResult::RequiresMemory { address, size: 8, .. } => {
                    let word = self.stack.word(address)?;
                    evaluation.resume_with_memory(Value::Generic(word))
                }
                _ => return Err(UnwindError::InvalidCfa),
            }
            .map_err(|_| UnwindError::InvalidCfa)?;
        }
        Err(UnwindError::InvalidCfa)
    }
}
