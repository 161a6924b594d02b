//! Medians, spreads, and when two of them differ.

use crate::report::number::change;
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

/// The significance of a difference of two medians.
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
        change(self.median, after.median)
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
