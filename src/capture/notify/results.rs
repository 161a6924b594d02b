//! What the calls that were let go came to.

use super::effect::{Effect, Expected, Outcome};
use super::peek::{self, Place};
use super::server::{NOBODY_WAITS, Server};
use super::space::{InCall, Space, What};
use crate::capture::record::{Record, RecordWriter, flag, op};
use crate::model::HeldCalls;
use crate::sys::abi::MAP_ANONYMOUS;

/// A thread that has run for so long since it was let go, ns, is no longer in a call that has
/// changed nothing; nor in one that goes through all pages.
const SURELY_BACK: u64 = 50_000_000;
const SURELY_DONE: u64 = 2_000_000_000;

impl<C: HeldCalls> Server<C> {
    /// Tells of the call that runs in the address space, if its result is known by now. `returned`:
    /// it is over.
    pub fn conclude(&mut self, key: u64, returned: bool) {
        let Some(running) = self.tasks.spaces.get_mut(&key).and_then(|space| space.running.take()) else {
            return;
        };
        let returned = returned || self.has_left(&running);
        let InCall { call, what, .. } = &running;
        let is_over = match what {
            What::Fork => self.fork_is_over(key, call.tid, returned, running.since.elapsed()),
            What::Effect { expected, record, stack } => {
                let Some(Space { shadow, maps, .. }) = self.tasks.spaces.get_mut(&key) else { return };
                match expected.check(shadow, maps, returned) {
                    Outcome::Pending => false,
                    Outcome::Done(effect) => {
                        let name = match expected {
                            Expected::Name { name, .. } => name.clone(),
                            _ => None,
                        };
                        self.report(key, **record, stack, &effect, name);
                        true
                    }
                    Outcome::Unknown => {
                        self.tell.lost();
                        true
                    }
                    Outcome::Gone => true,
                }
            }
        };
        if is_over {
            return;
        }
        let running = timed(running);
        if let Some(space) = self.tasks.spaces.get_mut(&key) {
            space.running = Some(running);
        }
    }

    /// The thread is seen outside of the call, or was let go long ago.
    fn has_left(&self, running: &InCall) -> bool {
        let call = &running.call;
        let Some(task) = self.tasks.thread(call.tid) else { return true };
        match task.thread.place() {
            // That it cannot be read says nothing about a thread that is there.
            Place::Gone => peek::family(call.tid).is_none(),
            Place::Blocked { nr, first_args, .. } => {
                (nr != call.entry || first_args != call.args[..2]) && self.calls.has_begun(call.id)
            }
            Place::Running => {
                let limit = if running.what.takes_long() { SURELY_DONE } else { SURELY_BACK };
                running.since.elapsed() > NOBODY_WAITS
                    && running.processor_time.is_some_and(|then| {
                        peek::processor_time(call.tid).is_some_and(|now| now.saturating_sub(then) > limit)
                    })
            }
        }
    }

    /// Sends a call with its result.
    pub fn report(&mut self, key: u64, record: Record, stack: &[u8], effect: &Effect, name: Option<Vec<u8>>) {
        let mut record = record;
        record.ret = effect.ret;
        match (record.op, &effect.mapped) {
            (op::BRK, _) => {
                if let Some(space) = self.tasks.spaces.get_mut(&key) {
                    space.brk = effect.ret as u64;
                }
                record.aux[0] = effect.ret as u64;
                record.flags |= flag::HAS_AUX;
            }
            (op::MMAP, Some((_, Some(vma)))) if record.args[3] & MAP_ANONYMOUS == 0 => {
                self.tell.mapped_file(&mut record, vma);
            }
            (op::SHMAT | op::IO_SETUP, Some((range, _))) => {
                record.aux = [range.start.0, range.end.0];
                record.flags |= flag::HAS_AUX;
                if record.op == op::IO_SETUP {
                    record.ret = 0;
                }
            }
            (op::PRCTL, _) => {
                if let Some(name) = name {
                    self.tell.name(&record, &name);
                }
            }
            _ => {}
        }
        self.tell.event(record, stack);
    }
}

/// From now on it is known how long the thread has run.
fn timed(mut running: InCall) -> InCall {
    if running.processor_time.is_none() {
        running.processor_time = peek::processor_time(running.call.tid);
    }
    running
}
