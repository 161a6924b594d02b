//! What the calls that were let go came to.

use super::effect::{Effect, Expected, Outcome, Over};
use super::peek::{self, Place};
use super::server::{NOBODY_WAITS, Server};
use super::space::{InCall, QueuedCall, Space};
use crate::capture::record::{Record, RecordWriter, flag, op};
use crate::model::{HeldCalls, Tid};
use crate::sys::abi::MAP_ANONYMOUS;

/// A thread that has run for so long since it was let go, ns, is hardly still in a call that has changed
/// nothing. But the kernel takes time in which a virtual machine's processor does not run for the thread's.
pub const LIKELY_BACK: u64 = 50_000_000;
/// Longer than any call, or such a pause: those who wait go on. What the call did is compared later.
pub const SURELY_BACK: u64 = 2_000_000_000;

/// What says that a call is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Evidence {
    None,
    /// Its thread has run for `LIKELY_BACK`.
    RanLong,
    /// … for `SURELY_BACK`, and others wait.
    RanVeryLong,
    /// Its thread is elsewhere, or gone.
    Elsewhere,
}

impl<C: HeldCalls> Server<C> {
    /// Tells of the call that runs in the address space, if its result is known by now. `returned`:
    /// it is over.
    pub fn conclude(&mut self, key: u64, returned: bool) {
        let Some(space) = self.tasks.spaces.get_mut(&key) else { return };
        let others_wait = !space.waiting.is_empty();
        let Some(running) = space.running.take() else { return };
        let evidence = if returned { Evidence::Elsewhere } else { self.has_left(&running, others_wait) };
        let over = match evidence {
            Evidence::None => Over::NotYet,
            Evidence::RanLong => Over::Likely,
            Evidence::RanVeryLong | Evidence::Elsewhere => Over::Surely,
        };
        let InCall { call, what, .. } = &running;
        let is_over = match what {
            QueuedCall::Fork => {
                self.fork_is_over(key, call.tid, over == Over::Surely, running.since.elapsed())
            }
            QueuedCall::Effect { expected, record, stack } => {
                let Some(Space { shadow, maps, unproven, .. }) = self.tasks.spaces.get_mut(&key) else {
                    return;
                };
                if evidence == Evidence::RanVeryLong {
                    unproven.push(call.tid);
                }
                match expected.check(shadow, maps, over) {
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
                        self.records.lost();
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

    /// Whether the thread is seen outside of the call, or was let go long ago.
    fn has_left(&self, running: &InCall, others_wait: bool) -> Evidence {
        let call = &running.call;
        let Some(task) = self.tasks.thread(call.tid) else { return Evidence::Elsewhere };
        let is_elsewhere = match task.thread.place() {
            // That it cannot be read says nothing about a thread that is there.
            Place::Gone => peek::family(call.tid).is_none(),
            Place::Blocked { nr, first_args, .. } => {
                (nr != call.entry || first_args != call.args[..2]) && self.calls.has_begun(call.id)
            }
            Place::Running => {
                let then = running.processor_time.filter(|_| running.since.elapsed() > NOBODY_WAITS);
                let ran = then
                    .and_then(|then| Some(peek::processor_time(call.tid)?.saturating_sub(then)))
                    .unwrap_or(0);
                return match ran {
                    // Nobody is kept: its next call will tell.
                    SURELY_BACK.. if others_wait => Evidence::RanVeryLong,
                    LIKELY_BACK.. => Evidence::RanLong,
                    _ => Evidence::None,
                };
            }
        };
        if is_elsewhere { Evidence::Elsewhere } else { Evidence::None }
    }

    /// A thread makes its next call: one that was taken for over by the clock is over now.
    pub fn has_returned(&mut self, key: u64, tid: Tid) {
        let Some(space) = self.tasks.spaces.get_mut(&key) else { return };
        let known = space.unproven.len();
        space.unproven.retain(|&unproven| unproven != tid);
        space.to_compare |= space.unproven.len() < known;
    }

    /// Nothing runs in the address space, and a call that was taken for over has come to its end, or never
    /// will: what it did after all is lost.
    pub fn compare(&mut self, key: u64) {
        let Some(space) = self.tasks.spaces.get_mut(&key) else { return };
        if !std::mem::take(&mut space.to_compare) {
            return;
        }
        if let Ok(mappings) = space.maps.read()
            && !space.shadow.agrees_with(&mappings)
        {
            space.shadow.renew(&mappings);
            self.records.lost();
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
                self.records.mapped_file(&mut record, vma);
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
                    self.records.name(&record, &name);
                }
            }
            _ => {}
        }
        self.records.event(record, stack);
    }
}

/// From now on it is known how long the thread has run.
fn timed(mut running: InCall) -> InCall {
    if running.processor_time.is_none() {
        running.processor_time = peek::processor_time(running.call.tid);
    }
    running
}
