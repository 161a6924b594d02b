//! `-f svg` of a comparison of two heaps.

use super::FlameError;
use super::diff::{Words, two};
use crate::diff::HeapSide;
use crate::render::heap::diff_stacks::{self, Two};
use crate::render::style::clean;

/// As of two reports of mappings, by what is outstanding; `names` is what the two are called.
///
/// # Errors
/// When nothing is outstanding on either side.
pub fn heap_diff_to_svg(
    sides: (&HeapSide<'_>, &HeapSide<'_>),
    names: (&str, &str),
    (reverse, inverted): (bool, bool),
) -> Result<String, FlameError> {
    let (a, b) = sides;
    let first = b.processes().first().or(a.processes().first());
    let who = first.map_or_else(|| "no process".to_owned(), |process| clean(&process.comm));
    let words = Words {
        title: format!("{who}: change in outstanding heap"),
        a: clean(names.0),
        b: clean(names.1),
        what: "what is outstanding",
        inverted,
    };
    two(&diff_stacks::two(sides, reverse), |held: &Two| (held.a, held.b), &words)
}
