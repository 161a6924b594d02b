//! Where a perf map has new functions: ranges, of which a program may write any number.

/// How many are collected before those that overlap are joined.
const MANY: usize = 1 << 16;

#[derive(Default)]
pub struct NewCode {
    /// Start and end; sorted and disjoint up to `joined`.
    ranges: Vec<(u64, u64)>,
    joined: usize,
}

impl NewCode {
    pub fn add(&mut self, start: u64, end: u64) {
        self.ranges.push((start, end));
        if self.ranges.len() - self.joined >= MANY.max(self.joined) {
            self.join();
        }
    }

    /// To be called before [`NewCode::covers`].
    pub fn join(&mut self) {
        self.ranges.sort_unstable();
        self.ranges.dedup_by(|next, before| {
            let overlaps = next.0 < before.1;
            if overlaps {
                before.1 = before.1.max(next.1);
            }
            overlaps
        });
        self.joined = self.ranges.len();
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// A return address is behind the call that it belongs to: one at the very end of a function is the function's, one
    /// at its start is not.
    pub fn covers(&self, address: u64) -> bool {
        let after = self.ranges.partition_point(|&(start, _)| start < address);
        after.checked_sub(1).and_then(|at| self.ranges.get(at)).is_some_and(|&(_, end)| address <= end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn as_a_list_that_is_searched_whole(written in prop::collection::vec((0..200u64, 1..20u64), 0..60)) {
            let mut new = NewCode::default();
            written.iter().for_each(|&(start, size)| new.add(start, start + size));
            new.join();
            for at in 0..240 {
                let expected = written.iter().any(|&(start, size)| (start + 1..=start + size).contains(&at));
                prop_assert_eq!(new.covers(at), expected, "{}", at);
            }
        }
    }

    #[test]
    fn the_same_place_written_without_end_is_kept_once() {
        let mut new = NewCode::default();
        (0..10 * MANY as u64).for_each(|n| new.add(0x1000 + n % 7, 0x1010));
        assert!(new.ranges.len() <= 2 * MANY);
        new.join();
        assert_eq!(new.ranges, [(0x1000, 0x1010)]);
    }
}
