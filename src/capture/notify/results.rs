//! The results of the calls that were continued.

use super::effect::{Effect, Expected, Outcome, Over};
use super::peek::{self, Maps, Place};
use super::server::{NOBODY_WAITS, Server};
use super::shadow::Change;
use super::space::{InCall, QueuedCall, Space, Unproven};
use super::view::View;
use crate::capture::record::{Record, RecordWriter, flag, op};
use crate::model::{HeldCalls, PAGE, Tid};
use crate::sys::abi::{MAP_ANONYMOUS, MREMAP_DONTUNMAP, MREMAP_FIXED, MREMAP_MAYMOVE};

/// A thread that has run for so long since it was continued, ns, is hardly still in a call that has changed
/// nothing. But the kernel takes time in which a virtual machine's processor does not run for the thread's.
pub const LIKELY_BACK: u64 = 50_000_000;
/// Longer than any call, or such a pause: waiting calls go on. What the call did is compared later.
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
    /// Reports the call that runs in the address space, if its result is known by now. `returned`: it is
    /// over.
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
                let mut view = View { shadow, maps, tid: call.tid };
                let mut outcome = expected.check(&mut view, over);
                if outcome == Outcome::Pending && others_wait && goes_on(&running) {
                    unproven.push(Unproven { tid: call.tid, ranges: expected.ranges() });
                    outcome = expected.check(&mut view, Over::Surely);
                } else if evidence == Evidence::RanVeryLong {
                    unproven.push(Unproven { tid: call.tid, ranges: expected.ranges() });
                }
                match outcome {
                    Outcome::Pending => false,
                    Outcome::Done(effect) => {
                        let name = match &**expected {
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

    /// Whether the thread is seen outside of the call, or was continued long ago.
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
                    // No call waits: the thread's next one will show it.
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
        let (over, rest) = std::mem::take(&mut space.unproven).into_iter().partition(|call| call.tid == tid);
        let over: Vec<Unproven> = over;
        space.to_compare.extend(over);
        space.unproven = rest;
    }

    /// Nothing runs in the address space, and a call that was taken for over has come to its end, or never
    /// will: what it did after all is lost.
    pub fn compare(&mut self, key: u64) {
        let Some(space) = self.tasks.spaces.get_mut(&key) else { return };
        let compared = std::mem::take(&mut space.to_compare);
        let Space { shadow, maps, .. } = space;
        let unchanged = |call: &Unproven, maps: &mut Maps| {
            peek::total_vm(call.tid) == Some(shadow.bytes() / PAGE)
                && call
                    .ranges
                    .iter()
                    .all(|&range| maps.areas(range).is_ok_and(|now| shadow.changes(range, &now).is_empty()))
        };
        if compared.iter().all(|call| unchanged(call, maps)) {
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
        for change in &effect.in_part {
            self.report_part(record, stack, *change);
        }
    }

    /// What a refused call has changed all the same: as if a call that does just that had been made in its place.
    fn report_part(&mut self, of: Record, stack: &[u8], change: Change) {
        let (op, args, ret) = match change {
            Change::Unmapped(range) => (op::MUNMAP, [range.start.0, range.len(), 0, 0, 0, 0], 0),
            Change::Protected(range, access) => {
                (op::MPROTECT, [range.start.0, range.len(), access, 0, 0, 0], 0)
            }
            Change::Moved { from, to, keeps_old } => {
                let flags = MREMAP_MAYMOVE | MREMAP_FIXED | if keeps_old { MREMAP_DONTUNMAP } else { 0 };
                (op::MREMAP, [from.start.0, from.len(), from.len(), flags, to, 0], to as i64)
            }
            Change::Mapped(_) => return,
        };
        let flags = of.flags & !(flag::HAS_AUX | flag::HAS_FILE);
        self.records.event(Record { op, args, flags, ret, ..of }, stack);
    }
}

/// The thread has written below where its stack ended when it made the call: it calls functions by now.
fn goes_on(running: &InCall) -> bool {
    let before = &running.below_stack;
    !before.is_empty() && {
        let now = peek::below_stack(running.call.tid, running.sp);
        !now.is_empty() && now != *before
    }
}

/// From now on it is known how long the thread has run.
fn timed(mut running: InCall) -> InCall {
    if running.processor_time.is_none() {
        running.processor_time = peek::processor_time(running.call.tid);
    }
    running
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::HeldCall;
    use std::time::Instant;

    #[test]
    fn a_thread_that_writes_below_its_stack_has_returned() {
        // The thread's memory is the test's own: a buffer serves as the stack.
        let mut stack = vec![7u8; 4096];
        let tid = nix::unistd::gettid().as_raw();
        let sp = stack.as_ptr() as u64 + 2048;
        let call = HeldCall { id: 1, tid, nr: 9, entry: 9, is_32_bit: false, args: [0; 6], ip: 0 };
        let below_stack = peek::below_stack(tid, sp);
        let since = Instant::now();
        let running = InCall {
            call,
            since,
            processor_time: None,
            sleeps: None,
            below_stack,
            sp,
            what: QueuedCall::Fork,
        };
        assert!(!goes_on(&running));
        // Above it lies what it came from.
        stack[2048] = 8;
        assert!(!goes_on(&running));
        stack[2040] = 8;
        assert!(goes_on(&running));
        // Where nothing can be read nothing is known.
        assert!(!goes_on(&InCall { below_stack: peek::below_stack(tid, 8), sp: 8, ..running }));
    }
}
