//! `--touch`: from the command line to the kernel side, and from the ledger to the report.

use super::error::AppError;
use super::pipeline::Pipeline;
use super::tracer::Tracer;
use crate::capture::bpf::TouchConfig;
use crate::cli::TouchArgs;
use crate::ledger::HeldBy;
use crate::model::{Pid, StackId};
use crate::report::NAMED_ROWS;
use crate::touch::{SpaceTouches, TouchTotals, Touches};

pub fn config(args: &TouchArgs) -> Option<TouchConfig> {
    args.touch.then_some(TouchConfig { budget: args.touch_budget, ring_bytes: args.touch_ring_bytes })
}

pub fn begin(args: &TouchArgs) -> Option<Touches> {
    args.touch.then(Touches::default)
}

/// What the kernel counted, for the report.
///
/// # Errors
/// When the counters cannot be read.
pub fn finish(pipeline: &mut Pipeline, tracer: &Tracer) -> Result<(), AppError> {
    if let (Some(touches), Some(counted)) = (&mut pipeline.touches, tracer.touch_counters()?) {
        touches.totals = TouchTotals { faults: counted.faults, sampled: counted.sampled, lost: counted.lost };
    }
    Ok(())
}

/// The page faults of a process.
pub fn touches_of(pipeline: &Pipeline, pid: Pid) -> Option<&SpaceTouches> {
    pipeline.touches.as_ref()?.of_space(pipeline.spaces.space_of_pid(pid)?)
}

/// The stacks of its rows, of those that touched and of those that reserved.
pub fn stacks(pipeline: &Pipeline, pid: Pid) -> Vec<StackId> {
    let (Some(touches), Some(space)) = (&pipeline.touches, touches_of(pipeline, pid)) else {
        return Vec::new();
    };
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
