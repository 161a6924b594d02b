//! One process, from the first frame that showed it to the newest.

use super::history::{History, Point};
use super::sample::{Figures, ProcessSample};

/// For how many frames a process that has ended is still shown.
const SHOWN_AFTER_END: u32 = 3;

/// What a process' address space mostly is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mostly {
    pub known: Known,
    /// When it was examined, since vmaudit began.
    pub at_ns: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Known {
    /// The category with most VIRT.
    Category(String),
    /// Its maps may not be read by this user.
    Forbidden,
    /// It could not be examined this time.
    Failed,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Track {
    pub newest: ProcessSample,
    /// Figures of the first frame; after an execve, of the first one since.
    first: Figures,
    /// Of the frame before.
    previous: Figures,
    /// Time of the frame that `growth` counts from.
    pub since_ns: u64,
    pub history: History,
    pub mostly: Option<Mostly>,
    /// Frames since it was seen last; 0: it lives.
    missing: u32,
}

impl Track {
    pub fn new(sample: ProcessSample, time_ns: u64) -> Track {
        let mut track = Track {
            first: sample.figures,
            previous: sample.figures,
            newest: sample,
            since_ns: time_ns,
            history: History::default(),
            mostly: None,
            missing: 0,
        };
        track.remember(time_ns);
        track
    }

    /// A newer frame shows it again.
    pub fn update(&mut self, sample: ProcessSample, time_ns: u64) {
        let same = match (self.newest.program, sample.program) {
            (0, _) | (_, 0) => self.newest.name == sample.name,
            (before, now) => before == now,
        };
        self.previous = self.newest.figures;
        if !same {
            // execve: another address space
            self.first = sample.figures;
            self.previous = sample.figures;
            self.since_ns = time_ns;
            self.history = History::default();
            self.mostly = None;
        }
        self.newest = sample;
        self.missing = 0;
        self.remember(time_ns);
    }

    /// A newer frame does not show it. False when it need not be shown any longer.
    pub fn miss(&mut self) -> bool {
        self.missing += 1;
        self.previous = self.newest.figures;
        self.missing <= SHOWN_AFTER_END
    }

    pub fn has_ended(&self) -> bool {
        self.missing > 0
    }

    /// Change of VIRT since the first frame.
    pub fn growth(&self) -> i64 {
        difference(self.newest.figures.virt, self.first.virt)
    }

    /// Change of VIRT since the frame before.
    pub fn last_growth(&self) -> i64 {
        difference(self.newest.figures.virt, self.previous.virt)
    }

    fn remember(&mut self, time_ns: u64) {
        let Figures { virt, rss, .. } = self.newest.figures;
        self.history.add(Point { time_ns, virt, rss });
    }
}

pub(super) fn difference(now: u64, before: u64) -> i64 {
    i64::try_from(i128::from(now) - i128::from(before)).unwrap_or(if now > before {
        i64::MAX
    } else {
        i64::MIN
    })
}
