//! Sizes over time, from the first snapshot to the newest, in bounded memory.

/// Sizes at a moment; bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Point {
    pub time_ns: u64,
    pub virt: u64,
    pub rss: u64,
}

/// Points kept at most.
const MOST: usize = 128;

/// Every nth snapshot, n such that all of the time fits; and always the newest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct History {
    points: Vec<Point>,
    newest: Option<Point>,
    every: u64,
    seen: u64,
}

impl Default for History {
    fn default() -> History {
        History { points: Vec::new(), newest: None, every: 1, seen: 0 }
    }
}

impl History {
    pub fn add(&mut self, point: Point) {
        if self.seen.is_multiple_of(self.every) {
            if self.points.len() == MOST {
                let mut number = 0;
                self.points.retain(|_| {
                    number += 1;
                    number % 2 == 1
                });
                self.every *= 2;
            }
            if self.seen.is_multiple_of(self.every) {
                self.points.push(point);
            }
        }
        self.seen += 1;
        self.newest = Some(point);
    }

    /// `width` values, oldest first, at even steps of time; fewer while there are fewer snapshots.
    pub fn spread(&self, width: usize) -> Vec<Point> {
        let mut all = self.points.clone();
        all.extend(self.newest.filter(|newest| self.points.last() != Some(newest)));
        let (Some(first), Some(last)) = (all.first().copied(), all.last().copied()) else { return all };
        if all.len() <= width || width < 2 {
            all.drain(..all.len().saturating_sub(width.max(1)));
            return all;
        }
        let span = last.time_ns.saturating_sub(first.time_ns);
        let at = |column: usize| {
            let part = u128::from(span) * column as u128 / (width - 1) as u128;
            let time = first.time_ns.saturating_add(u64::try_from(part).unwrap_or(u64::MAX));
            let after = all.partition_point(|point| point.time_ns <= time);
            all.get(after.saturating_sub(1)).copied().unwrap_or(last)
        };
        (0..width).map(at).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_the_newest_stay_and_memory_is_bounded() {
        let mut history = History::default();
        assert!(history.spread(10).is_empty());
        for n in 0..10_000 {
            history.add(Point { time_ns: n * 7, virt: n, rss: 0 });
            assert!(history.points.len() <= MOST);
            let shown = history.spread(20);
            assert_eq!(shown.first().map(|point| point.virt), Some(0));
            assert_eq!(shown.last().map(|point| point.virt), Some(n));
            assert!(shown.len() <= 20 && shown.windows(2).all(|w| w[0].time_ns <= w[1].time_ns));
        }
        assert_eq!(history.spread(20).len(), 20);
        assert_eq!(history.spread(1).len(), 1);
    }
}
