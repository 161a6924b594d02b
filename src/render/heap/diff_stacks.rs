//! Two heaps as stacks with what each has outstanding of them: folded, and a differential flame graph.

use super::folded::HeapStacks;
use crate::diff::HeapSide;
use crate::render::folded::report::Stacks;
use std::ops::AddAssign;

/// Outstanding bytes before and after.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::render) struct Two {
    pub a: u64,
    pub b: u64,
}

impl AddAssign for Two {
    fn add_assign(&mut self, other: Two) {
        self.a = self.a.saturating_add(other.a);
        self.b = self.b.saturating_add(other.b);
    }
}

/// A line a stack, sorted: from the root to the allocator's function, and outstanding bytes on both sides.
pub fn heap_diff_to_folded(sides: (&HeapSide<'_>, &HeapSide<'_>), reverse: bool) -> String {
    two(sides, reverse).folded.to_text(|held| match (held.a, held.b) {
        (0, 0) => None,
        (a, b) => Some(format!("{a} {b}")),
    })
}

pub(in crate::render) fn two((a, b): (&HeapSide<'_>, &HeapSide<'_>), reverse: bool) -> Stacks<Two> {
    let mut all = HeapStacks::new(reverse);
    let several = a.processes().len() > 1 || b.processes().len() > 1;
    for (side, is_a) in [(a, true), (b, false)] {
        for process in side.processes() {
            for row in process.rows.iter().filter(|row| row.amount.bytes > 0) {
                let bytes = row.amount.bytes;
                let root = several.then_some(process.comm.as_str());
                let held = if is_a { Two { a: bytes, b: 0 } } else { Two { a: 0, b: bytes } };
                all.add(side.report(), row, root, held);
            }
        }
    }
    all.into_stacks()
}
