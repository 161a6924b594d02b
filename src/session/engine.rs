//! A traced run, from the first event to the last snapshot: one loop over the ring and the target.

use super::audits::{Audits, Snapshot, StaleSnapshot};
use super::error::SessionError;
use super::exits::{Exits, has_generated_code, keeps_segments, open_files};
use super::load::Load;
use super::pipeline::Pipeline;
use super::reporting;
use super::say::say;
use super::schedule::SnapshotTimes;
pub use super::schedule::{AT_THE_END, End, NEVER, Schedule};
use super::spaces::{is_audited, living};
use super::watched::{SessionEvent, Watched};
use crate::capture::EventSource;
use crate::launch::HeldExit;
use crate::model::observation::SnapshotMoment;
use crate::model::{Observations, Pid};
use crate::procfs::{ObserveError, ObserveOptions, observe};
use crate::sys::clock::monotonic_ns;
use crate::sys::poll;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// How long the loop sleeps at most while nothing happens. Records do not wake it one by one.
const NAP: Duration = Duration::from_millis(10);
/// How often events of the targets are handled while many records are processed: a process at its exit waits.
const GLANCE: Duration = Duration::from_millis(1);
/// How many records are processed before the clock is read for that.
const RECORDS_A_GLANCE: u32 = 16;
/// How often a process that executes another program under a snapshot is examined.
const ATTEMPTS: u32 = 3;

pub struct Session<'a> {
    watched: Box<dyn Watched + 'a>,
    pub reader: &'a mut (dyn EventSource + 'a),
    /// The process that comes first.
    pub main: Pid,
    pub pipeline: &'a RefCell<Pipeline>,
    pub audits: Audits,
    schedule: Schedule,
    snapshots: SnapshotTimes,
    /// What drives the command: its end is the end of the run.
    pub load: Option<Load>,
    lost: u64,
    /// Processes whose last resync left ranges out, because calls changed them meanwhile.
    unsettled: BTreeSet<Pid>,
    exits: Exits,
    /// Some reported records are not processed yet, because something else was to be done.
    is_behind: bool,
}

impl<'a> Session<'a> {
    pub fn new(
        watched: Box<dyn Watched + 'a>,
        reader: &'a mut (dyn EventSource + 'a),
        pipeline: &'a RefCell<Pipeline>,
        schedule: Schedule,
    ) -> Session<'a> {
        Session {
            watched,
            reader,
            main: 0,
            pipeline,
            audits: Audits::new(schedule.timeline),
            schedule,
            snapshots: SnapshotTimes::of(schedule),
            load: None,
            lost: 0,
            unsettled: BTreeSet::new(),
            exits: Exits::default(),
            is_behind: false,
        }
    }

    /// Until the targets have ended, the time is over, or the user requests the report.
    ///
    /// # Errors
    /// When events cannot be read any more.
    pub fn run(&mut self) -> Result<End, SessionError> {
        self.run_while(|| ControlFlow::Continue(()))
    }

    /// As [`Session::run`]; `each_turn` is called now and then, and may end it.
    ///
    /// # Errors
    /// The same.
    pub fn run_while(&mut self, mut each_turn: impl FnMut() -> ControlFlow<()>) -> Result<End, SessionError> {
        loop {
            let end = match self.turn()? {
                None if each_turn().is_break() => Some(End::LeftRunning),
                other => other,
            };
            if let Some(end) = end {
                reporting::begin(self.watched.take_requests()?);
                return self.finish(end);
            }
        }
    }

    /// Processes records, and waits for a nap at most; returns what ends the session, if something does.
    pub fn turn(&mut self) -> Result<Option<End>, SessionError> {
        self.take_in()?;
        self.recover_from_loss()?;
        self.audits.note_ended(&mut self.pipeline.borrow_mut());
        self.audits.reduce_small(&mut self.pipeline.borrow_mut());
        let goes_on = self.pipeline.borrow_mut().turn();
        if !goes_on {
            return Ok(Some(End::LeftRunning));
        }
        if !self.is_behind && !self.watched.has_pending() {
            self.wait();
        }
        match self.watched.next()? {
            SessionEvent::Held(held) => self.at_exit(held)?,
            SessionEvent::Over(end) => return Ok(Some(end)),
            SessionEvent::Joined(newcomers) => {
                let mut pipeline = self.pipeline.borrow_mut();
                newcomers.iter().for_each(|(mm, seen)| pipeline.found(*mm, seen));
            }
            SessionEvent::StopRequested { now } => {
                self.snapshot_all();
                if now {
                    return Ok(Some(End::LeftRunning));
                }
            }
            SessionEvent::Nothing => {}
        }
        if self.snapshots.is_over() {
            return Ok(Some(End::LeftRunning));
        }
        if let Some(code) = self.load.as_mut().map(Load::ended).transpose()?.flatten() {
            return Ok(Some(End::LoadEnded(code)));
        }
        let begun = Instant::now();
        // Processes that are held at their exit come first, with the records that they need; but not for
        // ever.
        let is_busy = self.is_behind || self.watched.has_pending();
        if self.snapshots.is_due(begun, is_busy) && self.snapshots.is_affordable(begun, self.live_mappings())
        {
            let took = self.snapshot_all();
            self.snapshots.taken(begun, took);
        }
        Ok(None)
    }

    fn live_mappings(&self) -> usize {
        let spaces = &self.pipeline.borrow().spaces;
        let ledgers = living(spaces).into_iter().filter_map(|pid| spaces.ledger_of_pid(pid));
        ledgers.map(|ledger| ledger.pieces().count()).sum()
    }

    /// Processes records until the targets have an event.
    fn take_in(&mut self) -> Result<(), SessionError> {
        let (watched, pipeline, exits) = (&self.watched, self.pipeline, &self.exits);
        let mut glance = Instant::now() + GLANCE;
        let mut is_behind = false;
        let mut records = 0u32;
        self.reader.poll_while(&mut || {
            // To read the clock each time took a thirtieth of the whole.
            records = records.wrapping_add(1);
            if records % RECORDS_A_GLANCE == 1 {
                let now = Instant::now();
                if now >= glance {
                    glance = now + GLANCE;
                    is_behind = watched.has_pending() || !poll::events(watched.as_fd()).is_empty();
                }
            }
            !is_behind && (exits.is_empty() || !pipeline.borrow().is_holding())
        })?;
        self.is_behind = is_behind;
        // Where a later record waits, or none is left, all records up to then are processed.
        if !self.exits.is_empty() && (!is_behind || self.pipeline.borrow().is_holding()) {
            self.finish_exit()?;
            self.is_behind |= !self.exits.is_empty();
        }
        Ok(())
    }

    /// Until the target has something to say, the ring has filled up a good deal, or a nap is over.
    fn wait(&self) {
        poll::wait(&[self.watched.as_fd(), self.reader.wake_fd()], Some(NAP));
    }

    /// When events were lost altogether, the ledger reads from maps what is there now, and marks every origin
    /// older than the loss as doubtful.
    fn recover_from_loss(&mut self) -> Result<(), SessionError> {
        let lost = self.reader.counters()?.lost;
        if lost == self.lost {
            return Ok(());
        }
        self.lost = lost;
        self.pipeline.borrow_mut().note_lost_events();
        let pids = living(&self.pipeline.borrow().spaces);
        // What has ended meanwhile cannot be read any more.
        let taken_ns = self.pipeline.borrow().spaces.taken_ns();
        for time_ns in [taken_ns, monotonic_ns()] {
            self.pipeline.borrow_mut().note_loss(time_ns);
        }
        while !self.exits.is_empty() {
            self.catch_up(None)?;
            let Some(snapshot) = self.exits.pop() else { break };
            self.pipeline.borrow_mut().note_loss(snapshot.observations.begun_ns);
            self.resync(&snapshot.observations);
            self.conclude(snapshot);
        }
        for pid in pids {
            let Some(seen) = self.mappings_of(pid, pid)? else { continue };
            self.pipeline.borrow_mut().note_loss(seen.begun_ns);
            self.resync(&seen);
        }
        Ok(())
    }

    /// What the kernel shows of a process, with all records up to then processed.
    fn mappings_of(&mut self, pid: Pid, tid: Pid) -> Result<Option<Observations>, SessionError> {
        let options = ObserveOptions::mappings_only();
        let Ok(seen) = observe(pid, tid, options) else { return Ok(None) };
        if self.watched.has_ended(pid) {
            return Ok(None);
        }
        self.reader.settle()?;
        Ok(Some(seen))
    }

    fn resync(&mut self, seen: &Observations) {
        if self.pipeline.borrow_mut().resync(seen) {
            self.unsettled.remove(&seen.pid);
        } else {
            self.unsettled.insert(seen.pid);
        }
    }

    /// What a resync left out is taken over by the last one, before the last snapshot.
    fn resync_rest(&mut self, pid: Pid, tid: Pid) -> Result<(), SessionError> {
        if self.unsettled.remove(&pid)
            && let Some(seen) = self.mappings_of(pid, tid)?
        {
            self.resync(&seen);
        }
        Ok(())
    }

    /// A process is held at its very end: a snapshot, then let it go.
    fn at_exit(&mut self, held: HeldExit) -> Result<(), SessionError> {
        if !self.is_behind && !self.catch_up(Some(GLANCE))? {
            self.is_behind = true;
        }
        // Its code and its files are there now, and not later.
        self.pipeline.borrow_mut().open_perf_map(held.pid);
        self.pipeline.borrow_mut().name_all_generated();
        let Some(held) = self.let_go_early(held)? else { return Ok(()) };
        self.settle()?;
        self.recover_from_loss()?;
        self.resync_rest(held.pid, held.tid)?;
        if is_audited(&self.pipeline.borrow().spaces, held.pid) {
            let seen = self.snapshot(held.pid, held.tid, SnapshotMoment::HeldAtExit);
            // Killed while it was held: what was read may be another process by now.
            if seen && !self.watched.is_held(&held) {
                self.audits.discard(held.pid);
                self.pipeline.borrow_mut().discard_snapshot(held.pid);
            }
        }
        self.pipeline.borrow_mut().name_all_generated();
        self.watched.release(held)?;
        self.audits.reduce_small(&mut self.pipeline.borrow_mut());
        Ok(())
    }

    /// With many records unprocessed: reads the process and continues it. What was read is compared when the
    /// ledger has caught up. None where that was done.
    fn let_go_early(&mut self, held: HeldExit) -> Result<Option<HeldExit>, SessionError> {
        let lost = self.reader.counters()?.lost != self.lost;
        if !self.is_behind || lost || !self.exits.has_space() || self.unsettled.contains(&held.pid) {
            return Ok(Some(held));
        }
        let Ok(snapshot) = self.read(held.pid, held.tid, SnapshotMoment::HeldAtExit) else {
            return Ok(Some(held));
        };
        if keeps_segments(&snapshot.observations) || has_generated_code(&snapshot.observations) {
            return Ok(Some(held));
        }
        open_files(&snapshot.observations, &mut self.pipeline.borrow_mut());
        self.audits.containers.note(&snapshot.observations);
        // Killed while it was held: what was read may be another process by now.
        if self.watched.is_held(&held) {
            let mappings = snapshot.observations.mappings.clone();
            self.pipeline.borrow_mut().completion.ends(held.pid, mappings);
            self.exits.push(snapshot);
            if self.schedule.verbose {
                say(format_args!("{} ends before all its calls were taken in", held.pid));
            }
        }
        self.hold_for_exits();
        self.watched.release(held)?;
        Ok(None)
    }

    /// All records from before the first snapshot that waits are processed.
    fn finish_exit(&mut self) -> Result<(), SessionError> {
        if self.reader.counters()?.lost != self.lost {
            return self.recover_from_loss();
        }
        if let Some(snapshot) = self.exits.pop() {
            self.conclude(snapshot);
        }
        Ok(())
    }

    /// Of a process that was continued.
    fn conclude(&mut self, snapshot: Snapshot) {
        let pid = snapshot.observations.pid;
        if is_audited(&self.pipeline.borrow().spaces, pid) {
            // Printed with `-v`.
            let _ = self.compare(snapshot);
        } else {
            self.hold_for_exits();
        }
        self.pipeline.borrow_mut().completion.forget(pid);
    }

    /// Records from after the first exit that waits are not processed before it.
    fn hold_for_exits(&self) {
        self.pipeline.borrow_mut().hold_after(self.exits.next_ns());
    }

    /// Processes the records until the first snapshot that waits, or all. False where the time was over
    /// before.
    fn catch_up(&mut self, limit: Option<Duration>) -> Result<bool, SessionError> {
        let (begun, mut in_time, pipeline) = (Instant::now(), true, self.pipeline);
        self.reader.poll_while(&mut || {
            in_time = limit.is_none_or(|limit| begun.elapsed() < limit);
            in_time && !pipeline.borrow().is_holding()
        })?;
        Ok(in_time)
    }

    fn finish_exits(&mut self) -> Result<(), SessionError> {
        while !self.exits.is_empty() {
            self.catch_up(None)?;
            self.finish_exit()?;
        }
        Ok(())
    }

    /// Processes all records up to now.
    fn settle(&mut self) -> Result<(), SessionError> {
        self.finish_exits()?;
        self.reader.settle()?;
        self.is_behind = false;
        Ok(())
    }

    fn snapshot(&mut self, pid: Pid, tid: Pid, moment: SnapshotMoment) -> bool {
        self.read(pid, tid, moment).is_ok_and(|snapshot| self.compare(snapshot).is_ok())
    }

    fn read(&self, pid: Pid, tid: Pid, moment: SnapshotMoment) -> Result<Snapshot, ObserveError> {
        let snapshot = Snapshot::take((pid, tid), moment);
        snapshot.inspect_err(|error| self.say_verbose(pid, error))
    }

    fn say_verbose(&self, pid: Pid, error: &dyn std::error::Error) {
        if self.schedule.verbose {
            say(format_args!("snapshot of {pid}: {error}"));
        }
    }

    /// Joins a snapshot with the calls that were reported by then. An error was printed.
    fn compare(&mut self, snapshot: Snapshot) -> Result<(), StaleSnapshot> {
        let (pid, moment) = (snapshot.observations.pid, snapshot.observations.moment);
        let (reader, watched, pipeline) = (&mut *self.reader, &self.watched, self.pipeline);
        let mut drain = || {
            // A failing ring ends the run at the next poll of the loop.
            drop(reader.poll_while(&mut || !pipeline.borrow().is_holding()));
            !watched.has_ended(pid)
        };
        let added = self.audits.add(snapshot, pipeline, &mut drain);
        self.hold_for_exits();
        match added {
            Ok(cost) if self.schedule.verbose => say(format_args!(
                "{moment:?} of {pid}: {} mappings read in {:.1?}, reconciled in {:.1?}",
                cost.mappings, cost.read, cost.reconcile
            )),
            Ok(_) => {}
            Err(void) => {
                self.say_verbose(pid, &void);
                return Err(void);
            }
        }
        Ok(())
    }

    /// Takes a snapshot of every running process that was not examined at its end. All are read before the
    /// first is compared: reports that arrive meanwhile are processed once, not for each. How long reading took.
    pub fn snapshot_all(&mut self) -> Duration {
        if self.schedule.interval == NEVER {
            return Duration::ZERO;
        }
        let mut pids = living(&self.pipeline.borrow().spaces);
        pids.retain(|&pid| !self.audits.is_final(pid));
        let took = self.snapshot_processes(pids);
        self.audits.containers.read_memory();
        took
    }

    /// Takes snapshots of these processes, whatever the schedule says. What cannot be examined keeps its last
    /// one. How long reading took.
    pub fn snapshot_processes(&mut self, mut pids: Vec<Pid>) -> Duration {
        let mut took = Duration::ZERO;
        // A failing ring ends the run at the next poll of the loop.
        drop(self.finish_exits());
        self.pipeline.borrow_mut().spaces.snapshot_begins();
        for _ in 0..ATTEMPTS {
            let begun = Instant::now();
            let snapshots: Vec<_> =
                pids.into_iter().map(|pid| (pid, self.read(pid, pid, SnapshotMoment::Live))).collect();
            took += begun.elapsed();
            pids = Vec::new();
            for (pid, snapshot) in snapshots {
                let again = match snapshot {
                    Ok(snapshot) => self.compare(snapshot) == Err(StaleSnapshot::Replaced),
                    // Its address space ended under the snapshot: so does execve.
                    Err(error) => matches!(error, ObserveError::Gone { .. }),
                };
                if again {
                    pids.push(pid);
                }
            }
            if pids.is_empty() {
                break;
            }
        }
        self.pipeline.borrow_mut().spaces.snapshots_compared();
        took
    }

    /// Processes the last records, and takes snapshots of the processes that go on.
    fn finish(&mut self, end: End) -> Result<End, SessionError> {
        self.settle()?;
        self.recover_from_loss()?;
        for pid in self.unsettled.clone() {
            self.resync_rest(pid, pid)?;
        }
        self.snapshot_all();
        if let Some(trouble) = self.reader.trouble() {
            say(trouble);
        }
        self.audits.containers.read_shares();
        if let Some(note) = self.snapshots.left_out_of_timeline() {
            say(note);
        }
        self.reader.stop();
        Ok(end)
    }
}
