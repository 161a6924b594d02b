//! What the times that are shown count from.

use super::event::{Pid, VmEvent, VmOp};
use super::journal::Step;
use super::observation::Observations;

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
    /// To be told of each step, in order.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Addr, EventId, MmKey, NoStack, Task};

    fn event(time_ns: u64, pid: Pid, op: VmOp) -> Step {
        Step::Event(VmEvent {
            id: EventId(time_ns),
            time_ns,
            task: Task { pid, tid: pid, comm: Vec::new() },
            mm: MmKey(1),
            op,
            ret: 0,
            stack: Err(NoStack::NotTaken),
            total_vm: None,
        })
    }

    fn exec(time_ns: u64, pid: Pid) -> Step {
        let (start_brk, brk, start_stack) = (Addr(0), Addr(0), Addr(0));
        event(
            time_ns,
            pid,
            VmOp::Exec { exe: None, start_brk, brk, start_stack, compat: false, mappings: None },
        )
    }

    fn zero(steps: &[Step]) -> TimeZero {
        let mut zero = TimeZero::default();
        steps.iter().for_each(|step| zero.see(step));
        zero
    }

    #[test]
    fn the_first_execve_of_the_command() {
        assert_eq!(TimeZero::default().ns(), 0);
        let only = zero(&[event(10, 1, VmOp::Rename)]);
        assert_eq!((only.known_ns(), only.ns()), (None, 10));
        let run = zero(&[event(10, 1, VmOp::Rename), exec(12, 1), exec(90, 1), exec(95, 2)]);
        assert_eq!((run.known_ns(), run.ns()), (Some(12), 12));
    }

    #[test]
    fn not_that_of_a_child() {
        let run = zero(&[event(10, 1, VmOp::Rename), exec(12, 2)]);
        assert_eq!((run.known_ns(), run.ns()), (None, 10));
    }
}
