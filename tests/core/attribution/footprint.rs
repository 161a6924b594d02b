//! `attribution::footprint`.

use vmaudit::attribution::footprint::covered;
use vmaudit::attribution::footprint::difference;
use vmaudit::attribution::footprint::resident_and_swapped;
use vmaudit::model::AddrRange;
use vmaudit::model::PAGE;
use vmaudit::model::observation::Residency;
use vmaudit::model::observation::ResidencySource;

fn r(start: u64, end: u64) -> AddrRange {
    AddrRange::new(start * PAGE, end * PAGE)
}

#[test]
fn covered_counts_only_the_common_part() {
    let sorted = [r(1, 3), r(5, 6), r(8, 20)];
    assert_eq!(covered(&sorted, r(2, 10)), (1 + 1 + 2) * PAGE);
    assert_eq!(covered(&sorted, r(3, 5)), 0);
    assert_eq!(covered(&[], r(3, 5)), 0);
}

#[test]
fn difference_punches_holes() {
    assert_eq!(
        difference(&[r(0, 10), r(12, 20)], &[r(2, 3), r(9, 13)], r(1, 15)),
        [r(1, 2), r(3, 9), r(13, 15)]
    );
}

#[test]
fn shares_of_a_vma_add_up() {
    let residency = Residency {
        source: ResidencySource::SmapsProportion,
        resident: vec![],
        swapped: vec![],
        per_vma: vec![(r(10, 17), 5 * PAGE, 2 * PAGE)],
    };
    let pieces = [r(10, 11), r(11, 12), r(12, 16), r(16, 17)];
    let (mut rss, mut swap) = (0, 0);
    for piece in pieces {
        let (a, b) = resident_and_swapped(&residency, piece);
        assert!(a + b <= piece.len());
        rss += a;
        swap += b;
    }
    assert_eq!((rss, swap), (5 * PAGE, 2 * PAGE));
}
