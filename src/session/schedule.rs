//! When snapshots are taken, and how a session ends.

use crate::launch::ExitStatus;
use std::time::{Duration, Instant};

/// Snapshots may take one part in this many of the time; more where the user requests a timeline.
const SNAPSHOT_SHARE: u32 = 50;
const TIMELINE_SHARE: u32 = 10;
/// What reading a mapping takes, more or less, before it was measured.
const READ_MAPPING: Duration = Duration::from_micros(15);
/// As `Schedule::interval`: no snapshots, because nothing is reported of the processes.
pub const NEVER: Duration = Duration::from_secs(31_536_000);
/// As `Schedule::interval`: a snapshot when the run ends, and none before.
pub const AT_THE_END: Duration = Duration::from_secs(31_535_999);

/// How the run ended for vmaudit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The command ended.
    Exited(ExitStatus),
    /// All processes that vmaudit was attached to ended.
    NoneLeft,
    /// `--duration` is over, or the user requested the report: the targets go on.
    LeftRunning,
    /// The load ended with this exit code: the command goes on.
    LoadEnded(u8),
}

impl End {
    /// vmaudit's own exit code, where nothing failed.
    pub fn exit_code(self) -> u8 {
        match self {
            End::Exited(status) => status.exit_code(),
            End::LoadEnded(code) => code,
            End::NoneLeft | End::LeftRunning => 0,
        }
    }
}

/// When to take snapshots and when to stop.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    pub duration: Option<Duration>,
    /// The first one of the running targets, and the time from one to the next.
    pub first_snapshot: Duration,
    pub interval: Duration,
    /// Each snapshot becomes a point of a timeline.
    pub timeline: bool,
    pub verbose: bool,
}

impl Schedule {
    /// A snapshot each `interval`, until the targets end.
    pub fn each(interval: Duration) -> Schedule {
        Schedule { duration: None, first_snapshot: interval, interval, timeline: false, verbose: false }
    }
}

/// The times of the snapshots of one session.
pub(super) struct SnapshotTimes {
    schedule: Schedule,
    started: Instant,
    next: Instant,
    /// Snapshots left out because they took too long, and how long at most.
    left_out: (u128, Duration),
}

impl SnapshotTimes {
    /// From now on.
    pub(super) fn of(schedule: Schedule) -> SnapshotTimes {
        let started = Instant::now();
        let next = started + schedule.first_snapshot.min(schedule.interval);
        SnapshotTimes { schedule, started, next, left_out: (0, Duration::ZERO) }
    }

    /// The session's own time is over.
    pub(super) fn is_over(&self) -> bool {
        self.schedule.duration.is_some_and(|limit| self.started.elapsed() >= limit)
    }

    /// Where something else is to be done, a snapshot is put off once.
    pub(super) fn is_due(&self, now: Instant, is_busy: bool) -> bool {
        now >= self.next && (!is_busy || now >= self.next + self.schedule.interval)
    }

    /// Reading so many mappings now would take its part of the time since the beginning at most. Otherwise the next one
    /// comes when it does: a process that ends before is reported from its end.
    pub(super) fn is_affordable(&mut self, now: Instant, mappings: usize) -> bool {
        let expected = READ_MAPPING * u32::try_from(mappings).unwrap_or(u32::MAX);
        let soonest = self.started + expected * SNAPSHOT_SHARE;
        if self.schedule.timeline || now >= soonest {
            return true;
        }
        self.next = soonest;
        false
    }

    /// One was taken, which began at `begun`, and read the processes for so long (what follows may have read a program's
    /// symbols, which takes long, but only once). The next one: at even steps, unless they take too large a part of the
    /// time.
    pub(super) fn taken(&mut self, begun: Instant, took: Duration) {
        let share = if self.schedule.timeline { TIMELINE_SHARE } else { SNAPSHOT_SHARE };
        let soonest = begun + took * share;
        let interval = self.schedule.interval.max(Duration::from_nanos(1));
        let number = |at: Instant| at.duration_since(self.started).as_nanos() / interval.as_nanos();
        let after = |number: u128| {
            let nanos = u64::try_from((number + 1) * interval.as_nanos()).unwrap_or(u64::MAX);
            self.started + Duration::from_nanos(nanos)
        };
        let planned = after(number(self.next));
        self.next = if soonest > planned + interval / 2 {
            let (count, longest) = self.left_out;
            let skipped = number(soonest) - number(self.next);
            self.left_out = (count + skipped, longest.max(took));
            after(number(soonest))
        } else {
            planned.max(soonest)
        };
    }

    /// What a timeline lacks, in words.
    pub(super) fn left_out_of_timeline(&self) -> Option<String> {
        let (count, took) = self.left_out;
        let snapshots = match count {
            1 => "1 snapshot was".to_owned(),
            _ => format!("{count} snapshots were"),
        };
        (count > 0 && self.schedule.timeline).then(|| {
            format!(
                "{snapshots} left out of the timeline (one each {:?}): they took up to {took:.1?}, and may take no \
                 more than a tenth of the time",
                self.schedule.interval
            )
        })
    }
}
