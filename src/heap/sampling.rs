//! Figures of all blocks from some of them.

/// Units of [`Weight::blocks`] for one block.
pub const BLOCK: u64 = 1024;

/// Which allocations are seen. Each byte is drawn by itself, as if a mark were set every so many bytes on
/// average (a Poisson process): large blocks are nearly always seen, and the weight of one that is seen makes
/// up for those that are not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sampling {
    /// Bytes between two marks, on average; `None`: every allocation is seen.
    mean: Option<u64>,
}

/// What one sampled block represents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Weight {
    pub bytes: u64,
    /// In units of 1 / [`BLOCK`].
    pub blocks: u64,
}

impl Sampling {
    pub const EXACT: Sampling = Sampling { mean: None };

    /// A mark every `mean` bytes on average; 0 and 1: every allocation is seen.
    pub fn every(mean: u64) -> Sampling {
        Sampling { mean: Some(mean).filter(|&mean| mean > 1) }
    }

    pub fn mean(self) -> Option<u64> {
        self.mean
    }

    /// How likely a block of `size` bytes is seen: 1 - e^(-size / mean); an empty block as one of a byte.
    pub fn probability(self, size: u64) -> f64 {
        match self.mean {
            None => 1.0,
            // exp_m1 keeps the digits of small quotients
            Some(mean) => -(-(size.max(1) as f64) / mean as f64).exp_m1(),
        }
    }

    /// What a sampled block of `size` bytes represents: size / probability bytes, rounded to whole ones
    /// (which is less than one part in twice the mean), so that sums of rows are exact.
    pub fn weight(self, size: u64) -> Weight {
        if self.mean.is_none() {
            return Weight { bytes: size, blocks: BLOCK };
        }
        let p = self.probability(size);
        Weight { bytes: (size as f64 / p).round() as u64, blocks: (BLOCK as f64 / p).round() as u64 }
    }

    /// What a block that was seen adds to the variance of an estimate of bytes: size² (1 - p) / p².
    pub fn variance(self, size: u64) -> f64 {
        let p = self.probability(size);
        let size = size as f64;
        size * size * (1.0 - p) / (p * p)
    }
}

/// Whole blocks.
pub fn blocks(weight: u64) -> u64 {
    weight.saturating_add(BLOCK / 2) / BLOCK
}
