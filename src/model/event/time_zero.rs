//! What the times that are shown count from.

use crate::model::event::journal::Step;
use crate::model::event::{Pid, VmEvent, VmOp};
use crate::model::observation::Observations;

/// Time zero of a run: the execve that started the command, or the first snapshot of the first process
/// that ran already. A command that executes another one (a shell script that ends with `exec`) has
/// one zero, that of its first program, as with time(1).
///
/// All times that vmaudit shows count from it, so that one can be typed where another was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TimeZero {
    /// The process of the first event, and when that was: the command, not yet executed.
    first: Option<(Pid, u64)>,
    known_ns: Option<u64>,
}

impl TimeZero {
    /// To be called for each step, in order.
    pub fn see(&mut self, step: &Step) {
        match step {
            Step::Event(event) => self.see_event(event),
            Step::Found { seen, .. } => self.see_found(seen),
            _ => {}
        }
    }

    /// As [`TimeZero::see`].
    pub fn see_event(&mut self, event: &VmEvent) {
        if self.known_ns.is_some() {
            return;
        }
        let (command, _) = *self.first.get_or_insert((event.task.pid, event.time_ns));
        if command == event.task.pid && matches!(event.op, VmOp::Exec { .. }) {
            self.known_ns = Some(event.time_ns);
        }
    }

    /// As [`TimeZero::see`], of a process that ran already.
    pub fn see_found(&mut self, seen: &Observations) {
        self.known_ns.get_or_insert(seen.begun_ns);
    }

    /// CLOCK_MONOTONIC, ns; None before the command was executed. It never changes.
    pub fn known_ns(&self) -> Option<u64> {
        self.known_ns
    }

    /// The best that is known: where no execve succeeded, the first event; 0 before that.
    pub fn ns(&self) -> u64 {
        self.known_ns.or(self.first.map(|(_, time_ns)| time_ns)).unwrap_or_default()
    }
}
