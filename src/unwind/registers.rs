//! Registers and stack bytes as they were at the event, and reading the latter.

use crate::model::{Completeness, LeftStack, StackSample};

/// Callee-saved registers (System V ABI) in the order of their DWARF numbers.
pub const SAVED: usize = 6;
pub const RBX: usize = 0;
pub const RBP: usize = 1;

/// All of [`Registers::known`].
const ALL: u8 = (1 << SAVED) - 1;

/// The registers that survive calls, and so can be known in outer frames.
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    pub sp: u64,
    pub saved: [u64; SAVED],
    /// Bit i: `saved[i]` is known. What a frame has saved is known in its caller.
    pub known: u8,
}

impl Registers {
    pub fn of(captured: &StackSample<'_>) -> Registers {
        let c = captured;
        let known = if c.few { 0 } else { ALL };
        Registers { sp: c.sp, saved: [c.bx, c.bp, c.r12, c.r13, c.r14, c.r15], known }
    }

    /// Of a stack that was left: what else there was is not kept.
    pub fn restored(sp: u64, bp: u64) -> Registers {
        let mut registers = Registers { sp, saved: [0; SAVED], known: 0 };
        registers.set(RBP, bp);
        registers
    }

    /// rbp, if it is known.
    #[inline]
    pub fn bp(&self) -> Option<u64> {
        (self.known & 1 << RBP != 0).then_some(self.saved[RBP])
    }

    #[inline]
    pub fn set(&mut self, index: usize, value: u64) {
        self.saved[index] = value;
        self.known |= 1 << index;
    }

    /// By DWARF number (System V ABI, x86-64, figure 3.36); None for one that a call may change, and
    /// for one that is not known.
    pub fn by_dwarf(&self, number: u16) -> Option<u64> {
        match number {
            7 => Some(self.sp),
            _ => saved_index(number)
                .filter(|index| self.known & 1 << index != 0)
                .map(|index| self.saved[index]),
        }
    }
}

/// rbx 3, rbp 6, r12 to r15 12 to 15.
pub fn saved_index(dwarf: u16) -> Option<usize> {
    match dwarf {
        3 => Some(RBX),
        6 => Some(RBP),
        12..=15 => Some(usize::from(dwarf) - 10),
        _ => None,
    }
}

/// The DWARF number of a callee-saved register.
pub fn dwarf_number(index: usize) -> u16 {
    [3, 6, 12, 13, 14, 15][index]
}

/// Why a word is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unread {
    /// Above the copied bytes, and there may be more stack.
    BeyondCopy,
    /// Outside the stack.
    NoStack,
}

/// The copied stack bytes at their addresses.
#[derive(Clone, Copy, Debug)]
pub struct StackBytes<'a> {
    base: u64,
    bytes: &'a [u8],
    full: bool,
    holes: bool,
}

impl<'a> StackBytes<'a> {
    pub fn of(captured: &StackSample<'a>) -> StackBytes<'a> {
        StackBytes { base: captured.sp, bytes: captured.bytes, full: captured.full, holes: captured.holes }
    }

    pub fn of_left(left: &LeftStack<'a>) -> StackBytes<'a> {
        StackBytes { base: left.sp, bytes: left.bytes, full: left.full, holes: false }
    }

    /// The little-endian word at an address.
    #[inline]
    pub fn word(&self, address: u64) -> Result<u64, Unread> {
        let at = address.wrapping_sub(self.base);
        let word = usize::try_from(at).ok().and_then(|at| self.bytes.get(at..at.checked_add(8)?));
        match word.and_then(|w| w.try_into().ok()) {
            Some(word) => Ok(u64::from_le_bytes(word)),
            None => Err(self.missing(address)),
        }
    }

    /// What a return address of 0 means: the root, unless it may be in a page that was swapped out.
    #[cold]
    pub fn end_at_zero(&self) -> Completeness {
        if self.holes { Completeness::Incomplete } else { Completeness::Complete }
    }

    #[cold]
    fn missing(&self, address: u64) -> Unread {
        // The stack of another thread or a signal stack is no continuation of this one. 1 GiB
        // above the copy is taken as the same stack: most are limited to 8 MiB.
        const REACH: u64 = 1 << 30;
        let above = address.checked_sub(self.base);
        if !self.full && above.is_some_and(|a| a < REACH) { Unread::BeyondCopy } else { Unread::NoStack }
    }

    /// The address after the last byte.
    pub fn end(&self) -> u64 {
        self.base.saturating_add(self.bytes.len() as u64)
    }

    /// Addresses of the aligned words that were copied.
    pub fn slots(&self, from: u64) -> impl Iterator<Item = u64> + use<> {
        let first = from.max(self.base).checked_next_multiple_of(8).unwrap_or(u64::MAX);
        let end = self.end().saturating_sub(7);
        (first..end.max(first)).step_by(8)
    }
}
