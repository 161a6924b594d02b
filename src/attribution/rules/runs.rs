//! Neighbours: mappings without a gap between them, as the layouts of runtimes are read.

use crate::model::{Addr, AddrRange, Mapping};

/// What lies at some place.
pub(super) trait HasRange {
    fn range(&self) -> AddrRange;
}

impl HasRange for Mapping {
    fn range(&self) -> AddrRange {
        self.range
    }
}

/// How many of the first pass the test and adjoin each other.
pub(super) fn run_length<T: HasRange>(all: &[T], fits: impl Fn(&T) -> bool) -> usize {
    let mut end = None;
    let joins = |each: &&T| {
        let range = each.range();
        let joined = end.is_none_or(|end| end == range.start);
        end = Some(range.end);
        joined && fits(each)
    };
    all.iter().take_while(joins).count()
}

/// The runs of neighbours that pass the test, each as long as can be.
pub(super) fn runs<T: HasRange>(all: &[T], fits: impl Fn(&T) -> bool) -> Vec<&[T]> {
    let mut runs = Vec::new();
    let mut rest = all;
    while let Some(first) = rest.iter().position(&fits) {
        let (_, from) = rest.split_at(first);
        let (run, behind) = from.split_at(run_length(from, &fits));
        runs.push(run);
        rest = behind;
    }
    runs
}

/// From the start of the first to the end of the last.
pub(super) fn extent<T: HasRange>(run: &[T]) -> AddrRange {
    let start = run.first().map_or(Addr(0), |first| first.range().start);
    AddrRange { start, end: run.last().map_or(start, |last| last.range().end) }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl HasRange for AddrRange {
        fn range(&self) -> AddrRange {
            *self
        }
    }

    #[test]
    fn gaps_and_misfits_end_a_run() {
        let all: Vec<AddrRange> =
            [(1, 2), (2, 3), (4, 5), (5, 60), (60, 61)].map(|(from, to)| AddrRange::new(from, to)).into();
        let lengths = |fits: &dyn Fn(&AddrRange) -> bool| -> Vec<usize> {
            runs(&all, fits).iter().map(|run| run.len()).collect()
        };
        assert_eq!(lengths(&|_| true), [2, 3]);
        assert_eq!(lengths(&|range| range.len() == 1), [2, 1, 1]);
        assert!(lengths(&|_| false).is_empty());
        assert_eq!(extent(&all[2..]), AddrRange::new(4, 61));
        assert!(extent::<AddrRange>(&[]).is_empty());
    }
}
