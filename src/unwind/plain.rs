//! The rules along a stack, for a walker that knows only the simplest ones: the kernel's side of
//! `vmaudit heap --combined`.

use super::registers::{Registers, StackBytes};
use super::rule::Rule;
use super::walk::{Position, Walk};
use super::{Unwinder, space::Space};
use crate::model::{FrameKind, MmKey, PAGE, StackSample, UnwindRow};

/// A rule at a code address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlainStep {
    pub address: u64,
    /// Of the innermost frame: the address is the next instruction's, not one that a call returns to.
    /// The two may have different rules.
    pub innermost: bool,
    pub rule: UnwindRow,
}

/// Frames that a walk is followed through.
const MOST: usize = 128;

impl Unwinder {
    /// The rules that lead through the captured stack, from its innermost frame on, up to the first that
    /// is not plain. None of them is a guess.
    pub fn plain_rules(&mut self, mm: MmKey, captured: &StackSample<'_>) -> Vec<PlainStep> {
        let Some(space) = self.spaces.get(&mm) else { return Vec::new() };
        let space: &Space = space;
        let mut frames = Vec::new();
        let stack = StackBytes::of(captured);
        let mut walk = Walk { space, scratch: &mut self.scratch, stack, frames: &mut frames };
        let mut at = Position {
            address: captured.ip,
            kind: FrameKind::InstructionPointer,
            registers: Registers::of(captured),
            by_frame_pointer: false,
        };
        let mut steps = Vec::new();
        while steps.len() < MOST {
            let innermost = at.kind == FrameKind::InstructionPointer;
            let step = |rule| PlainStep { address: at.address, innermost, rule };
            match walk.known(&at).rule {
                Rule::Root => {
                    steps.push(step(UnwindRow::Root));
                    break;
                }
                Rule::Offsets(offsets) => {
                    let Some(rule) = offsets.plain() else { break };
                    steps.push(step(rule));
                    match offsets.advance(&mut at.registers, &stack, innermost) {
                        Ok(address @ PAGE..) => at.address = address,
                        _ => break,
                    }
                    at.kind = FrameKind::ReturnAddress;
                }
                _ => break,
            }
        }
        steps
    }
}
