//! Going on on the stack that a thread has left for the one that it is on: a goroutine's, for its own.

use super::go;
use super::registers::{Registers, StackBytes, Unread};
use super::rule::UnwindError;
use super::walk::{Position, Step, Walk, by_frame_pointer, completeness_of};
use crate::model::{Completeness, FrameKind};

/// `runtime.goexit`, in whose second instruction each goroutine's first function seems to have been called:
/// `nop; call` (src/runtime/asm_amd64.s).
const GOEXIT: [u8; 2] = [0x90, 0xe8];
/// Where `runtime.asmcgocall` keeps rsp up to Go 1.20, on the stack that it has aligned, and how far away that was.
const KEPT: u64 = 0x28;
const ALIGNED_BY: [u64; 2] = [0x40, 0x48];

impl Walk<'_> {
    /// From a function that changed from one to the other. Registers other than those that were saved have changed.
    #[cold]
    pub(super) fn step_to_left_stack(&mut self) -> Step {
        // The bytes of the other one were not copied, or it goes on from here already.
        let Some(left) = self.left.take() else { return Step::End(Completeness::Incomplete) };
        self.stack = StackBytes::of_left(&left);
        let on = |address, words: u64, bp| {
            let registers = Registers::restored(left.sp.wrapping_add(8 * words), bp);
            Step::To(Position::new(address, FrameKind::ReturnAddress, registers))
        };
        if self.follows_call(left.ip) {
            return on(left.ip, 0, left.bp);
        }
        // A function that represents the switch (`runtime.systemstack_switch`): on the stack is where that
        // returns to, from Go 1.21 on behind the caller's rbp.
        let first = self.stack.word(left.sp);
        let second = self.stack.word(left.sp.wrapping_add(8));
        match (first, second) {
            (Ok(address), _) if self.follows_call(address) => on(address, 1, left.bp),
            (Ok(bp), Ok(address)) if self.follows_call(address) => on(address, 2, bp),
            _ => Step::End(Completeness::Incomplete),
        }
    }

    /// From `runtime.asmcgocall`. C keeps rbp: it is as it was when the goroutine's stack was left, or leads to a frame
    /// on this very stack.
    #[cold]
    pub(super) fn step_from_call_out(&mut self, at: &Position) -> Step {
        let Some(bp) = at.registers.bp() else { return Step::End(Completeness::Incomplete) };
        if self.left.is_some_and(|left| left.bp == bp) {
            return self.step_to_left_stack();
        }
        // Up to Go 1.20 it has no frame that rbp leads to. Where it does not change stacks it keeps rsp.
        let sp = at.registers.sp;
        let kept = self.stack.word(sp.wrapping_add(KEPT)).unwrap_or(0);
        if ALIGNED_BY.contains(&kept.wrapping_sub(sp))
            && let Ok(address) = self.stack.word(kept)
            && self.follows_call(address)
        {
            let registers = Registers { sp: kept.wrapping_add(8), ..at.registers };
            return Step::To(Position::new(address, FrameKind::ReturnAddress, registers));
        }
        match self.frame_pointer(&at.registers) {
            Ok(caller) if self.follows_call(caller.return_address) => Step::To(by_frame_pointer(caller)),
            _ => Step::End(Completeness::Incomplete),
        }
    }

    /// In a Go program without unwind information and symbols, where no frame pointer leads on.
    #[cold]
    pub(super) fn step_uncovered_go(&mut self, at: &Position) -> Step {
        let bp = at.registers.bp().filter(|&bp| bp != 0);
        // What changes stacks leaves rbp as it was when the other stack was left.
        if let Some(left) = &self.left
            && bp == Some(left.bp)
        {
            return self.step_to_left_stack();
        }
        match self.frame_pointer(&at.registers) {
            Ok(caller) if caller.registers.bp() == Some(0) && self.is_goexit(caller.return_address) => {
                Step::To(by_frame_pointer(caller))
            }
            Err(unread @ UnwindError::Memory(Unread::BeyondCopy)) => Step::End(completeness_of(unread)),
            _ => Step::End(Completeness::Incomplete),
        }
    }

    /// Where C called Go, and not the other way round before (`-buildmode=c-shared`), the goroutine's stack begins with
    /// the call, and who called is on the thread's own.
    #[cold]
    pub(super) fn is_called_by_c(&self, at: &Position) -> bool {
        let Some(placed) = self.space.find(at.lookup()) else { return false };
        let Some(before) = self.frames.iter().nth_back(1) else { return false };
        let address = before.address.wrapping_sub(placed.offset).wrapping_add(placed.range.start.0);
        before.module == placed.module && go::is_called_back(placed, address.wrapping_sub(1))
    }

    fn is_goexit(&self, address: u64) -> bool {
        let before = address.wrapping_sub(1);
        let code = self.space.find(before).and_then(|placed| {
            let object = placed.object.as_ref()?;
            let at = object.layout().offset_of(placed.svma(before)?)?;
            object.read(at, GOEXIT.len() as u64).ok()
        });
        before.is_multiple_of(16) && code.is_some_and(|code| *code == GOEXIT)
    }
}
