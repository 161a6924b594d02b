//! `compare::spread`.

use vmaudit::compare::spread::Spread;
use vmaudit::compare::spread::Verdict;
use vmaudit::report::number::change;

fn of(values: &[u64]) -> Spread {
    Spread::of(values.to_vec()).expect("values")
}

#[test]
fn medians_and_ranges() {
    assert_eq!(Spread::of(vec![]), None);
    assert_eq!(of(&[7]), Spread { runs: 1, median: 7, min: 7, max: 7 });
    assert_eq!(of(&[9, 1, 5]), Spread { runs: 3, median: 5, min: 1, max: 9 });
    assert_eq!(of(&[4, 1, 8, 5]).median, 4);
    assert_eq!(of(&[u64::MAX, u64::MAX - 2]).median, u64::MAX - 1);
}

#[test]
fn ranges_that_overlap_are_noise() {
    assert_eq!(of(&[1, 2, 3]).verdict(of(&[3, 4, 5])), Verdict::WithinNoise);
    assert_eq!(of(&[1, 2, 3]).verdict(of(&[4, 4, 5])), Verdict::Differs);
    assert_eq!(of(&[4, 4, 5]).verdict(of(&[1, 2, 3])), Verdict::Differs);
    assert_eq!(of(&[1, 2, 3]).verdict(of(&[0, 2, 9])), Verdict::Same);
    assert_eq!(of(&[1]).verdict(of(&[3, 4, 5])), Verdict::SingleRun);
    assert_eq!(of(&[5]).change(of(&[3])), -2);
    assert_eq!(change(0, u64::MAX), i64::MAX);
    assert_eq!(change(u64::MAX, 0), i64::MIN);
}
