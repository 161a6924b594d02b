//! Outstanding blocks by the size that the allocator gives.

use crate::heap::report::model::SizeClass;
use crate::heap::sampling::{BLOCK, Weight, blocks};
use std::collections::BTreeMap;

/// Larger ones are put together by powers of two.
const LARGE: u64 = 64 << 10;

/// An allocator that has hardly begun may not know.
const UNKNOWN: u64 = 0;

/// Sums by class.
#[derive(Default)]
pub struct Sizes {
    classes: BTreeMap<u64, (u64, Sum)>,
    has_known: bool,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    /// As [`Weight::blocks`].
    blocks: u64,
    bytes: u64,
    rounding: u64,
}

impl Sizes {
    /// A block, its usable size, and what it represents.
    pub fn add(&mut self, size: u64, given: Option<u64>, weight: Weight) {
        let given = given.unwrap_or(UNKNOWN);
        self.has_known |= given != UNKNOWN;
        let (from, to) = match given {
            ..=LARGE => (given, given),
            _ => {
                let from = 1u64 << given.ilog2();
                (from, from.saturating_mul(2) - 1)
            }
        };
        let (_, sum) = self.classes.entry(from).or_insert((to, Sum::default()));
        sum.blocks += weight.blocks;
        sum.bytes += weight.bytes;
        sum.rounding += given.saturating_sub(size).saturating_mul(weight.blocks) / BLOCK;
    }

    /// None where the allocator reports no usable sizes.
    pub fn classes(self) -> Vec<SizeClass> {
        if !self.has_known {
            return Vec::new();
        }
        let class = |(from, (to, sum)): (u64, (u64, Sum))| SizeClass {
            from,
            to,
            blocks: blocks(sum.blocks),
            bytes: sum.bytes,
            rounding: sum.rounding,
        };
        self.classes.into_iter().map(class).collect()
    }
}
