//! The rules along a stack, for a walker that knows only the simplest ones: the kernel's side of
//! `vmaudit heap --combined`, and the preloaded library.

use super::registers::{Registers, StackBytes};
use super::rule::Rule;
use super::walk::{Position, Walk};
use super::{Unwinder, space::Space};
use crate::model::{Frame, FrameKind, MmKey, PAGE, StackSample, UnwindRow};

/// A rule at a code address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlainStep {
    pub address: u64,
    /// Of the innermost frame: the address is the next instruction's, not one that a call returns to.
    /// The two may have different rules.
    pub innermost: bool,
    pub frame: Frame,
    /// None: it is not plain, and the last step.
    pub rule: Option<UnwindRow>,
}

/// Frames that a walk is followed through.
const MOST: usize = 128;

impl Unwinder {
    /// The rules that lead through the captured stack, from its innermost frame on, up to the first that
    /// is not plain, and as far as the stack was copied. None of them is a guess.
    pub fn plain_rules(&mut self, mm: MmKey, captured: &StackSample<'_>) -> Vec<PlainStep> {
        let Some(space) = self.spaces.get(&mm) else { return Vec::new() };
        let space: &Space = space;
        let mut frames = Vec::new();
        let stack = StackBytes::of(captured);
        let mut walk = Walk { space, scratch: &mut self.scratch, stack, left: None, frames: &mut frames };
        let mut at = Position {
            address: captured.ip,
            kind: match captured.returned {
                true => FrameKind::ReturnAddress,
                false => FrameKind::InstructionPointer,
            },
            registers: Registers::of(captured),
            by_frame_pointer: false,
            linked: false,
        };
        let mut steps = Vec::new();
        while steps.len() < MOST {
            let innermost = at.kind == FrameKind::InstructionPointer;
            let known = walk.known(&at);
            let address = at.address.wrapping_add(known.delta);
            let frame = Frame { module: known.module, address, kind: at.kind };
            let step = |rule| PlainStep { address: at.address, innermost, frame, rule };
            match known.rule {
                Rule::Root => {
                    steps.push(step(Some(UnwindRow::Root)));
                    break;
                }
                Rule::Offsets(offsets) => {
                    let rule = offsets.plain();
                    steps.push(step(rule));
                    if rule.is_none() {
                        break;
                    }
                    match offsets.advance(&mut at.registers, &stack, innermost) {
                        Ok(address @ PAGE..) => at.address = address,
                        _ => break,
                    }
                    at.kind = FrameKind::ReturnAddress;
                }
                _ => {
                    steps.push(step(None));
                    break;
                }
            }
        }
        steps
    }
}
