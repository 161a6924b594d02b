//! The points of a timeline that show what happened: straight lines between them are close to all the others.

use crate::report::model::TimelinePoint;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Closer to the line than one part in this many of the curve's height is close enough.
const CLOSE: u128 = 50;

/// Indices of at most `most` (at least 3) points, ascending: the first, the last, the largest VIRT, and
/// those farthest from the lines between the others (Ramer, Douglas, Peucker), in VIRT or in RSS.
pub(super) fn turning_points(points: &[TimelinePoint], most: usize) -> Vec<usize> {
    let Some(last) = points.len().checked_sub(1) else { return Vec::new() };
    let largest = (0..=last).rev().max_by_key(|&at| points.get(at).map(|point| point.virt));
    let mut chosen: BTreeSet<usize> = [0, last].into_iter().chain(largest).collect();
    let curves = [Curve::of(points, |p| p.virt), Curve::of(points, |p| p.rss.unwrap_or(p.virt))];
    while chosen.len() < most {
        let gaps = chosen.iter().zip(chosen.iter().skip(1));
        let farthest = gaps.filter_map(|(&from, &to)| farthest(&curves, from, to)).max();
        let Some((distance, Reverse(at))) = farthest else { break };
        if distance * CLOSE < SCALE {
            break;
        }
        chosen.insert(at);
    }
    chosen.into_iter().collect()
}

/// The height of a curve, from its lowest to its highest point.
const SCALE: u128 = 1 << 20;

/// Times, and values from 0 to `SCALE`.
struct Curve(Vec<(u64, u128)>);

impl Curve {
    fn of(points: &[TimelinePoint], value: impl Fn(&TimelinePoint) -> u64) -> Curve {
        let values = || points.iter().map(&value);
        let (low, high) = (values().min().unwrap_or(0), values().max().unwrap_or(0));
        let height = u128::from(high - low).max(1);
        let scaled = |point| u128::from(value(point) - low) * SCALE / height;
        Curve(points.iter().map(|point| (point.t_ns, scaled(point))).collect())
    }

    /// How far the point at `at` is from the straight line between two others.
    fn distance(&self, at: usize, from: usize, to: usize) -> Option<u128> {
        let (&(t, value), &(t0, v0), &(t1, v1)) = (self.0.get(at)?, self.0.get(from)?, self.0.get(to)?);
        let whole = u128::from(t1.saturating_sub(t0)).max(1);
        let part = u128::from(t.saturating_sub(t0)).min(whole);
        Some(((v0 * (whole - part) + v1 * part) / whole).abs_diff(value))
    }
}

/// The point between two others that is farthest from the line between them (the earliest of several),
/// and how far it is.
fn farthest(curves: &[Curve], from: usize, to: usize) -> Option<(u128, Reverse<usize>)> {
    let distance =
        |at: usize| curves.iter().filter_map(|curve| curve.distance(at, from, to)).max().unwrap_or(0);
    (from + 1..to).map(|at| (distance(at), Reverse(at))).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(values: &[(u64, u64)]) -> Vec<TimelinePoint> {
        let point = |(at, &(virt, rss)): (usize, &(u64, u64))| TimelinePoint {
            t_ns: at as u64 * 1_000_000_000,
            virt,
            rss: Some(rss),
            ..TimelinePoint::default()
        };
        values.iter().enumerate().map(point).collect()
    }

    #[test]
    fn steps_are_shown_from_both_sides() {
        let mut values = vec![(50, 10); 600];
        values.extend([(90, 10), (110, 60), (110, 60), (110, 20), (110, 20)]);
        assert_eq!(turning_points(&points(&values), 12), [0, 599, 600, 601, 602, 603, 604]);
    }

    #[test]
    fn quiet_ones_are_short_and_lively_ones_bounded() {
        assert_eq!(turning_points(&points(&[(50, 10); 100]), 12), [0, 99]);
        let straight: Vec<(u64, u64)> = (0..100).map(|at| (at * 1000, at)).collect();
        assert_eq!(turning_points(&points(&straight), 12), [0, 99]);
        let lively: Vec<(u64, u64)> = (0..500).map(|at| (at * 7919 % 1009, at * 104_729 % 997)).collect();
        let chosen = turning_points(&points(&lively), 12);
        assert_eq!(chosen.len(), 12);
        let largest = lively.iter().map(|point| point.0).max();
        assert!(chosen.iter().any(|&at| Some(lively[at].0) == largest));
        assert!(turning_points(&[], 12).is_empty());
        assert_eq!(turning_points(&points(&[(1, 1)]), 12), [0]);
    }
}
