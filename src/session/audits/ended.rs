//! Which of the processes that have ended keep their regions. What is kept is bounded, however many end:
//! the largest keep theirs, the others their sums.

use crate::model::Pid;
use crate::model::hash::IntMap;
use crate::report::WORTH_FINDINGS;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Regions of ended processes that are kept together: of some 340 that did nothing but start, of one with
/// many times as much.
const KEPT_REGIONS: usize = 8192;

#[derive(Clone, Copy, Debug)]
struct Size {
    unused: u64,
    regions: usize,
}

/// The sizes of those that keep their regions, and the sum of all.
#[derive(Debug)]
pub struct Ended {
    sizes: IntMap<Pid, Size>,
    /// By unused bytes; of equal ones the text report names the smaller number first.
    order: BTreeSet<(u64, Reverse<Pid>)>,
    regions: usize,
    /// Unused bytes of all that ended.
    unused: u64,
    at_most: usize,
}

impl Default for Ended {
    fn default() -> Ended {
        Ended::keeping(KEPT_REGIONS)
    }
}

impl Ended {
    /// `regions` together, and what has to be kept all the same.
    pub fn keeping(regions: usize) -> Ended {
        Ended { sizes: IntMap::default(), order: BTreeSet::new(), regions: 0, unused: 0, at_most: regions }
    }

    /// A process has ended; gives those that are to keep their sums only. The text report shows the findings
    /// of the largest, and of those with a tenth of all unused bytes: they never go.
    pub fn add(&mut self, pid: Pid, unused: u64, regions: usize) -> Vec<Pid> {
        self.remove(pid);
        self.unused = self.unused.saturating_add(unused);
        self.regions += regions;
        self.sizes.insert(pid, Size { unused, regions });
        self.order.insert((unused, Reverse(pid)));
        let mut gone = Vec::new();
        while self.regions > self.at_most && self.order.len() > 1 {
            let Some(&(unused, Reverse(smallest))) = self.order.first() else { break };
            if unused >= self.unused / WORTH_FINDINGS {
                break;
            }
            self.forget(smallest);
            gone.push(smallest);
        }
        gone
    }

    /// Its number is another process' now, or it has not ended after all.
    pub fn remove(&mut self, pid: Pid) {
        if let Some(size) = self.forget(pid) {
            self.unused = self.unused.saturating_sub(size.unused);
        }
    }

    fn forget(&mut self, pid: Pid) -> Option<Size> {
        let size = self.sizes.remove(&pid)?;
        self.order.remove(&(size.unused, Reverse(pid)));
        self.regions -= size.regions;
        Some(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_keep_their_regions() {
        let mut ended = Ended::keeping(100);
        for pid in 1..=20 {
            assert_eq!(ended.add(pid, 1000, 5), Vec::<Pid>::new());
        }
        // Equal sizes: the larger number goes.
        assert_eq!(ended.add(30, 2000, 7), vec![20, 19]);
        assert_eq!(ended.add(31, 10, 1), Vec::<Pid>::new());
        assert_eq!(ended.add(32, 500, 3), vec![31]);
        assert_eq!(ended.regions, 100);
    }

    #[test]
    fn a_tenth_of_all_is_never_left_out() {
        let mut ended = Ended::keeping(100);
        for pid in 1..=10 {
            assert_eq!(ended.add(pid, 1 << 20, 5000), Vec::<Pid>::new());
        }
        assert_eq!(ended.add(11, 1 << 20, 5000), (2..=11).rev().collect::<Vec<Pid>>());
        assert_eq!(ended.add(12, 1 << 30, 5000), vec![1]);
    }

    #[test]
    fn a_number_that_is_used_again_counts_once() {
        let mut ended = Ended::keeping(10);
        for _ in 0..100 {
            assert_eq!(ended.add(1, 4096, 6), Vec::<Pid>::new());
        }
        assert_eq!((ended.unused, ended.regions), (4096, 6));
        ended.remove(1);
        assert_eq!((ended.unused, ended.regions, ended.order.len()), (0, 0, 0));
    }
}
