//! Medians, spreads, and when two of them differ.

use serde::{Deserialize, Serialize};

/// One figure over the runs of a side.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Spread {
    pub runs: u32,
    pub median: u64,
    pub min: u64,
    pub max: u64,
}

/// What a difference of two medians is worth.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The medians are equal.
    #[default]
    Same,
    /// The ranges overlap.
    WithinNoise,
    /// The ranges are apart.
    Differs,
    /// A side has a single run: its spread is not known.
    SingleRun,
}

impl Spread {
    /// None of no values. The median of an even number is the mean of the two in the middle.
    pub fn of(mut values: Vec<u64>) -> Option<Spread> {
        values.sort_unstable();
        let (&min, &max) = (values.first()?, values.last()?);
        let low = *values.get((values.len() - 1) / 2)?;
        let high = *values.get(values.len() / 2)?;
        Some(Spread { runs: values.len() as u32, median: low + (high - low) / 2, min, max })
    }

    /// How much more `after` is.
    pub fn change(self, after: Spread) -> i64 {
        signed(self.median, after.median)
    }

    pub fn verdict(self, after: Spread) -> Verdict {
        if self.median == after.median {
            Verdict::Same
        } else if self.runs < 2 || after.runs < 2 {
            Verdict::SingleRun
        } else if self.min <= after.max && after.min <= self.max {
            Verdict::WithinNoise
        } else {
            Verdict::Differs
        }
    }
}

/// `after` - `before`.
pub fn signed(before: u64, after: u64) -> i64 {
    let difference = i128::from(after) - i128::from(before);
    i64::try_from(difference).unwrap_or(if difference < 0 { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(signed(0, u64::MAX), i64::MAX);
        assert_eq!(signed(u64::MAX, 0), i64::MIN);
    }
}
