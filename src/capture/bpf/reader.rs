//! Reads the rings: records in the order of time.

use super::BpfTracer;
use super::counter;
use super::drain::Drainer;
use super::queue::Frames;
use super::touches::Touches;
use crate::capture::{CaptureError, Counters, EventSource, viewer, wire};
use crate::sys::{poll, task};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// How long a record that is being written is waited for, and how often it is examined.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(1);

/// Reads until a ring was read up to `goal`. False where `pause` ended it before.
fn reaches(
    goal: u64,
    mut read: impl FnMut() -> Result<u64, CaptureError>,
    mut pause: impl FnMut() -> bool,
) -> Result<bool, CaptureError> {
    loop {
        if read()? >= goal {
            return Ok(true);
        }
        if !pause() {
            return Ok(false);
        }
    }
}

/// What takes each record.
pub(super) type Handler<'a> = Box<dyn FnMut(&[u8]) + 'a>;

/// Reads the rings of a [`BpfTracer`].
pub struct BpfReader<'a> {
    tracer: &'a BpfTracer,
    drainer: Drainer,
    /// Taken out of the queue, and not handled yet.
    calls: Frames,
    touches: Touches,
    handle: Handler<'a>,
    /// While there is much to do: the nice value from before.
    usual: Option<i32>,
    /// How often records were left behind that another one kept in the ring.
    stuck: u64,
}

impl Drop for BpfReader<'_> {
    fn drop(&mut self) {
        self.hurry(false);
    }
}

/// While there is much to do.
const URGENT: i32 = -15;

impl<'a> BpfReader<'a> {
    pub(super) fn of(tracer: &'a BpfTracer, drainer: Drainer, handle: Handler<'a>) -> BpfReader<'a> {
        let (calls, touches) = (Frames::default(), Touches::default());
        BpfReader { tracer, drainer, calls, touches, handle, usual: None, stuck: 0 }
    }

    /// With much to do, this thread goes before the targets, which would have still more for it.
    fn hurry(&mut self, much: bool) {
        match self.usual {
            None if much => {
                self.usual = Some(task::nice());
                task::set_nice(URGENT);
            }
            Some(nice) if !much => {
                self.usual = None;
                task::set_nice(nice);
            }
            _ => {}
        }
    }

    /// What was taken, in the order of time; false where `more` ended it.
    fn handle_taken(&mut self, more: &mut dyn FnMut() -> bool) -> bool {
        while more() {
            let Some(record) = self.calls.next() else {
                self.touches.due(&mut self.handle);
                return true;
            };
            self.touches.up_to(wire::time_of(record).unwrap_or(0), &mut self.handle);
            (self.handle)(record);
        }
        false
    }
}

impl EventSource for BpfReader<'_> {
    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.drainer.drain.moved()
    }

    /// A record that is being written keeps all later ones in the ring, also those of calls that have returned. Its
    /// writer may have lost its processor: it is waited for, and where it does not come back, something is lost.
    fn settle(&mut self) -> Result<(), CaptureError> {
        let goal = self.drainer.drain.written();
        let begun = Instant::now();
        let pause = || {
            poll::wait(&[], Some(PAUSE));
            begun.elapsed() < PATIENCE
        };
        let read = || {
            self.poll_while(&mut || true)?;
            Ok(self.drainer.drain.read())
        };
        if !reaches(goal, read, pause)? {
            self.stuck += 1;
        }
        Ok(())
    }

    fn poll_while(&mut self, more: &mut dyn FnMut() -> bool) -> Result<(), CaptureError> {
        self.drainer.drain.clear_moved();
        // What waits now, and not what comes meanwhile: a target may report faster than that is handled.
        let goal = self.drainer.drain.written();
        let mut reached = 0;
        while self.handle_taken(more) && reached < goal.max(1) {
            let drain = &self.drainer.drain;
            reached = drain.drain()?;
            let mut faults = Frames::default();
            let Some(until) = drain.take(&mut self.calls, &mut faults) else { break };
            self.touches.add(&mut faults, until);
            self.hurry(self.calls.left() > self.tracer.queue_bytes as usize / 8);
        }
        Ok(())
    }

    fn trouble(&self) -> Option<String> {
        self.tracer.has_hidden().then(viewer::hidden)
    }

    fn counters(&self) -> Result<Counters, CaptureError> {
        let counts = &self.tracer.counts;
        let missed = self.tracer.events.missed();
        Ok(Counters {
            seen: counts.sum(counter::SEEN) + missed,
            known_stacks: counts.sum(counter::KNOWN_SENT),
            without_stack: counts.sum(counter::EVENTS_WITHOUT_STACK) + self.drainer.drain.stripped(),
            lost: counts.sum(counter::LOST_EVENTS) + missed + self.stuck,
            lost_tasks: counts.sum(counter::LOST_TASKS),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_record_keeps_in_the_ring_is_waited_for() {
        // The first record is still being written when the ring is read for the third time.
        let positions = [0, 0, 0, 400, 800];
        let (mut reads, mut pauses) = (positions.into_iter(), 0);
        let read = || Ok(reads.next().unwrap_or(800));
        let reached = reaches(800, read, || {
            pauses += 1;
            pauses < 100
        });
        assert!(reached.is_ok_and(|reached| reached) && pauses == 4);
        assert!(reaches(800, || Ok(400), || false).is_ok_and(|reached| !reached), "it never comes");
    }
}
