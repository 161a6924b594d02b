//! Sizes over time, in bounded memory: when there are too many points, every second goes.

use super::model;
use crate::attribution::{Category, Footprint};
use std::collections::BTreeMap;

/// Points kept of a process at most; never fewer than half of it once there were so many.
const MAX_POINTS: usize = 1024;

/// One look at a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Look {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// What is resident was read, too.
    pub rss_known: bool,
    pub categories: BTreeMap<Category, Footprint>,
}

/// The looks at one process, in order, every nth of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Timeline {
    looks: Vec<Look>,
    every: u64,
    /// Looks since the last one in `looks`.
    skipped: u64,
    /// The newest look, where it is not in `looks`: a timeline ends where the report is made.
    last: Option<Look>,
}

impl Default for Timeline {
    fn default() -> Timeline {
        Timeline { looks: Vec::new(), every: 1, skipped: 0, last: None }
    }
}

impl Timeline {
    pub fn add(&mut self, look: Look) {
        self.skipped += 1;
        if !self.looks.is_empty() && self.skipped < self.every {
            self.last = Some(look);
            return;
        }
        (self.skipped, self.last) = (0, None);
        self.looks.push(look);
        if self.looks.len() >= MAX_POINTS {
            let mut index = 0;
            // The newest stays: the next is counted from it.
            let odd = (self.looks.len() - 1) % 2;
            self.looks.retain(|_| {
                index += 1;
                (index - 1) % 2 == odd
            });
            self.every *= 2;
        }
    }

    /// Replaces what was found at `time_ns`, if there was a look.
    pub fn correct(&mut self, look: Look) {
        let newest = self.last.as_mut().or(self.looks.last_mut());
        if let Some(newest) = newest.filter(|newest| newest.time_ns == look.time_ns) {
            *newest = look;
        }
    }

    /// Every how manyth look is kept.
    pub fn every(&self) -> u64 {
        self.every
    }

    pub fn is_empty(&self) -> bool {
        self.looks.is_empty()
    }

    pub(super) fn points(&self, began_ns: u64) -> Vec<model::TimelinePoint> {
        self.looks.iter().chain(&self.last).map(|look| point(look, began_ns)).collect()
    }
}

fn point(look: &Look, began_ns: u64) -> model::TimelinePoint {
    let sum = |of: fn(&Footprint) -> u64| look.categories.values().map(of).sum();
    let by = |of: fn(&Footprint) -> u64| {
        let parts = look.categories.iter().map(|(category, f)| (category.id.to_owned(), of(f)));
        parts.filter(|(_, bytes)| *bytes > 0).collect::<BTreeMap<String, u64>>()
    };
    model::TimelinePoint {
        t_ns: look.time_ns.saturating_sub(began_ns),
        virt: sum(|f| f.virt),
        rss: look.rss_known.then(|| sum(|f| f.rss)),
        by_category: by(|f| f.virt),
        rss_by_category: if look.rss_known { by(|f| f.rss) } else { BTreeMap::new() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(time_ns: u64) -> Look {
        Look { time_ns, rss_known: false, categories: BTreeMap::new() }
    }

    #[test]
    fn a_long_run_is_thinned_out_evenly_and_ends_at_its_end() {
        let mut timeline = Timeline::default();
        for at in 1..=10_000 {
            timeline.add(look(at));
            assert!(timeline.looks.len() < MAX_POINTS);
            let points = timeline.points(0);
            assert_eq!(points.last().map(|p| p.t_ns), Some(at), "the newest is always there");
        }
        assert_eq!(timeline.every(), 16);
        let times: Vec<u64> = timeline.looks.iter().map(|look| look.time_ns).collect();
        assert!(times.len() >= MAX_POINTS / 2, "{}", times.len());
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] == 16), "even");
    }

    #[test]
    fn only_the_newest_look_is_corrected() {
        let mut timeline = Timeline::default();
        timeline.add(look(1));
        timeline.add(look(2));
        timeline.correct(Look { rss_known: true, ..look(1) });
        assert!(timeline.points(0).iter().all(|p| p.rss.is_none()));
        timeline.correct(Look { rss_known: true, ..look(2) });
        assert_eq!(timeline.points(0).last().map(|p| p.rss), Some(Some(0)));
    }
}
