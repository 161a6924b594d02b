//! Page faults (`--touch`): from the kernel's side to the report.

use super::error::SessionError;
use super::sink::{Context, Sink};
use super::tracer::Tracer;
use crate::ledger::{AddressSpaces, HeldBy};
use crate::model::{Pid, StackId, Touch, VmEvent};
use crate::report::NAMED_ROWS;
use crate::touch::{SpaceTouches, TouchTotals, Touches};

impl Sink for Touches {
    fn event(&mut self, event: &VmEvent, context: &mut Context<'_>) {
        self.follow(event, context.spaces);
    }

    fn touched(&mut self, touch: &Touch, context: &mut Context<'_>) {
        self.touch(touch, context.spaces);
    }
}

/// What the kernel counted, for the report.
///
/// # Errors
/// When the counters cannot be read.
pub fn finish(touches: &mut Touches, tracer: &Tracer) -> Result<(), SessionError> {
    if let Some(counted) = tracer.touch_counters()? {
        touches.totals = TouchTotals { faults: counted.faults, sampled: counted.sampled, lost: counted.lost };
    }
    Ok(())
}

/// The page faults of a process.
pub fn touches_of<'t>(touches: &'t Touches, spaces: &AddressSpaces, pid: Pid) -> Option<&'t SpaceTouches> {
    touches.of_space(spaces.space_of_pid(pid)?)
}

/// The stacks of its rows, of those that touched and of those that reserved.
pub fn stacks(touches: &Touches, spaces: &AddressSpaces, pid: Pid) -> Vec<StackId> {
    let Some(space) = touches_of(touches, spaces, pid) else { return Vec::new() };
    let rows = space.largest(NAMED_ROWS).into_iter().filter_map(|(id, _)| touches.row(id));
    rows.flat_map(|row| {
        let reserved = match row.reserved {
            HeldBy::Call(stack) => stack,
            HeldBy::Preexisting | HeldBy::Kernel | HeldBy::Unknown => None,
        };
        [row.touched, reserved].into_iter().flatten()
    })
    .collect()
}
