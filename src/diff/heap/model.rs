//! The comparison of two heaps as it is written (docs/diff.md). Sizes are bytes.

use crate::diff::model::{Kind, SideSource, Width};
use crate::report::model::Stack;
use serde::{Deserialize, Serialize};

/// The version of this model.
pub const SCHEMA: u32 = 1;

/// The figures of one thing. Of samples, all of them are estimates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct HeapWidths {
    /// Allocated and not freed.
    pub outstanding: Width,
    pub blocks: Width,
    pub allocated: Width,
    /// Calls.
    pub allocations: Width,
    /// Outstanding when all together had the most; null where a side does not know it.
    pub peak: Option<Width>,
    /// One standard error of the change of `outstanding`; null where both sides saw every allocation.
    pub standard_error: Option<u64>,
}

impl HeapWidths {
    pub fn is_equal(&self) -> bool {
        let all = [
            Some(self.outstanding),
            Some(self.blocks),
            Some(self.allocated),
            Some(self.allocations),
            self.peak,
        ];
        all.iter().flatten().all(|width| width.change == 0)
    }

    /// Of samples: chance makes such a change of `outstanding` in one of twenty comparisons of the same heap.
    pub fn is_within_error(&self) -> bool {
        let change = self.outstanding.change.unsigned_abs();
        self.standard_error.is_some_and(|error| change > 0 && change <= error.saturating_mul(2))
    }

    pub fn kind(&self) -> Kind {
        match (self.outstanding.a, self.outstanding.b) {
            (0, b) if b > 0 => Kind::New,
            (a, 0) if a > 0 => Kind::Gone,
            (a, b) if b > a => Kind::Grown,
            (a, b) if b < a => Kind::Shrunk,
            _ if self.is_equal() => Kind::Equal,
            _ => Kind::Changed,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HeapDiff {
    pub schema: u32,
    /// Always `diff`: distinguishes it from a report.
    pub kind: String,
    /// Always `heap`: distinguishes it from a comparison of mappings.
    pub command: String,
    /// True when no figure differs.
    pub equal: bool,
    pub a: HeapSideFacts,
    pub b: HeapSideFacts,
    /// What has to be known before trusting the comparison, in words.
    pub notes: Vec<String>,
    pub totals: HeapWidths,
    /// What changed, largest change of `outstanding` first; those of `outstanding` and `blocks` add up to `totals`.
    pub changes: Vec<HeapChange>,
    /// As in the report; `changes[].stack` is an index into it.
    pub stacks: Vec<Stack>,
}

/// One of the two heaps.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HeapSideFacts {
    #[serde(flatten)]
    pub of: SideSource,
    /// Processes in the file, and how many of them are compared.
    pub processes: u64,
    pub compared: u64,
    /// Of the first one.
    pub watched_ns: Option<u64>,
    /// As in the report.
    pub sampling_bytes: Option<u64>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct HeapChange {
    pub kind: Kind,
    /// The allocator's function.
    pub function: String,
    #[serde(flatten)]
    pub widths: HeapWidths,
    /// The change of `outstanding` is at most twice its standard error.
    pub within_error: bool,
    /// Index into `HeapDiff::stacks`.
    pub stack: Option<u64>,
    /// Why there is none, as in the report.
    pub no_stack: Option<String>,
}
