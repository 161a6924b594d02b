//! Sizes over time, in bounded memory: when there are too many points, every second goes.

use super::model;
use crate::model::timeline::stride;
use crate::model::{CategorySize, SizePoint};
use std::collections::BTreeMap;

/// Points kept of a process at most; never fewer than half of it once there were so many.
const MAX_POINTS: u64 = 1024;

/// The points of one process, in order: every nth of them, and the newest, where a timeline ends.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Timeline {
    /// Also the one before the newest, which may be taken away again.
    points: Vec<SizePoint>,
}

impl Timeline {
    /// The number of the next point.
    pub fn next_number(&self) -> u64 {
        self.newest() + 1
    }

    fn newest(&self) -> u64 {
        self.points.last().map_or(0, |point| point.number)
    }

    /// Adds a point whose number is larger than those before.
    pub fn add(&mut self, point: SizePoint) {
        let newest = point.number;
        self.points.push(point);
        let every = stride(newest.saturating_sub(1), MAX_POINTS);
        let is_kept =
            |point: &SizePoint| point.number.is_multiple_of(every) || point.number.saturating_add(2) > newest;
        if every != stride(newest.saturating_sub(2), MAX_POINTS) {
            self.points.retain(is_kept);
        } else if let Some(third) = self.points.len().checked_sub(3)
            && !self.points.get(third).is_none_or(is_kept)
        {
            self.points.remove(third);
        }
    }

    /// Takes the newest point away: the snapshot was worth nothing.
    pub fn discard_newest(&mut self) {
        self.points.pop();
    }

    /// Replaces what was found at that time, if it is the newest.
    pub fn correct(&mut self, time_ns: u64, categories: Vec<CategorySize>) {
        if let Some(newest) = self.points.last_mut().filter(|newest| newest.time_ns == time_ns) {
            newest.categories = categories;
        }
    }

    /// Every how manyth snapshot is kept.
    pub fn every(&self) -> u64 {
        stride(self.newest(), MAX_POINTS)
    }

    pub fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    /// True when a report shows the same of both.
    pub fn shows_the_same(&self, other: &Timeline) -> bool {
        self.kept().eq(other.kept())
    }

    fn kept(&self) -> impl Iterator<Item = &SizePoint> {
        let (every, newest) = (self.every(), self.newest());
        self.points.iter().filter(move |point| point.number.is_multiple_of(every) || point.number == newest)
    }

    pub(super) fn points(&self, began_ns: u64) -> Vec<model::TimelinePoint> {
        self.kept().map(|point| to_model(point, began_ns)).collect()
    }
}

fn to_model(point: &SizePoint, began_ns: u64) -> model::TimelinePoint {
    let sum = |of: fn(&CategorySize) -> u64| point.categories.iter().map(of).sum();
    let by = |of: fn(&CategorySize) -> u64| {
        let parts = point.categories.iter().map(|size| (size.category.to_string(), of(size)));
        parts.filter(|(_, bytes)| *bytes > 0).collect::<BTreeMap<String, u64>>()
    };
    model::TimelinePoint {
        t_ns: point.time_ns.saturating_sub(began_ns),
        virt: sum(|size| size.virt),
        rss: point.rss_known.then(|| sum(|size| size.rss)),
        by_category: by(|size| size.virt),
        rss_by_category: if point.rss_known { by(|size| size.rss) } else { BTreeMap::new() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(number: u64) -> SizePoint {
        SizePoint { pid: 1, number, time_ns: number, rss_known: true, categories: Vec::new() }
    }

    fn sizes(bytes: u64) -> Vec<CategorySize> {
        vec![CategorySize { category: "loader".into(), virt: bytes, rss: bytes }]
    }

    #[test]
    fn a_long_run_is_thinned_out_evenly_and_ends_at_its_end() {
        let mut timeline = Timeline::default();
        for at in 1..=10_000 {
            assert_eq!(timeline.next_number(), at);
            timeline.add(point(at));
            assert!(timeline.points.len() as u64 <= MAX_POINTS + 1);
            assert_eq!(timeline.points(0).last().map(|p| p.t_ns), Some(at), "the newest is always there");
        }
        assert_eq!(timeline.every(), 16);
        let times: Vec<u64> = timeline.points(0).iter().map(|point| point.t_ns).collect();
        assert!(times.len() as u64 >= MAX_POINTS / 2, "{}", times.len());
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] == 16), "even");
    }

    #[test]
    fn a_point_that_was_taken_away_was_never_there() {
        for end in (1..40).chain(1020..1030).chain(2044..2052).chain(8185..8200) {
            let (mut with, mut without) = (Timeline::default(), Timeline::default());
            // Thinned already, as a file may be.
            let every = stride(end, 4 * MAX_POINTS);
            (1..=end).for_each(|at| with.add(point(at)));
            (1..=end).filter(|at| at % every == 0 || *at == end).for_each(|at| without.add(point(at)));
            with.add(point(end + 1));
            with.discard_newest();
            assert_eq!((with.points(0), with.every()), (without.points(0), without.every()), "{end}");
        }
    }

    #[test]
    fn only_the_newest_point_is_corrected() {
        let mut timeline = Timeline::default();
        timeline.add(point(1));
        timeline.add(point(2));
        timeline.correct(1, sizes(5));
        assert!(timeline.points(0).iter().all(|p| p.virt == 0));
        timeline.correct(2, sizes(5));
        assert_eq!(timeline.points(0).last().map(|p| p.rss), Some(Some(5)));
    }
}
