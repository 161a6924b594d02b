//! `-f svg` of a comparison: a differential flame graph.

use super::colors;
use super::paint::{Frame, FrameStyle, paint};
use super::tree::{Box, Row, boxes};
use super::{FlameError, width_of};
use crate::model::number::signed;
use crate::render::folded::diff::{FlameSides, Pair, diff_stacks};
use crate::render::folded::report::{FlameOptions, Stacks};
use crate::render::style::{clean, signed_size};
use crate::report::units::size;
use std::ops::AddAssign;

/// The comparison as a flame graph, an SVG document. A box is as wide as the stack was when it was
/// larger, so that nothing that is gone or new is missing, and coloured by what it gained or lost.
///
/// # Errors
/// When the selected figure is 0 everywhere on both sides.
pub fn diff_to_svg(sides: &FlameSides<'_>, options: FlameOptions) -> Result<String, FlameError> {
    let of = |pair: &Pair| (pair.a.get(options.width), pair.b.get(options.width));
    let words = Words {
        title: format!("{}: change in {}", who(sides), options.width.title()),
        a: clean(&sides.a.name),
        b: clean(&sides.b.name),
        what: options.width.name(),
        inverted: options.inverted,
    };
    two(&diff_stacks(sides, options), of, &words)
}

/// What is said of a differential flame graph.
pub(super) struct Words {
    pub title: String,
    pub a: String,
    pub b: String,
    /// In a sentence: "no stack has a byte of …".
    pub what: &'static str,
    pub inverted: bool,
}

/// `of`: bytes before and after.
pub(super) fn two<V: AddAssign + Default + Copy>(
    Stacks { folded, kinds }: &Stacks<V>,
    of: impl Fn(&V) -> (u64, u64),
    words: &Words,
) -> Result<String, FlameError> {
    let larger = |pair: &V| of(pair).0.max(of(pair).1);
    let change = |pair: &V| 0i64.saturating_add_unsigned(of(pair).1).saturating_sub_unsigned(of(pair).0);
    let rows: Vec<Row<'_, V>> = folded
        .sorted()
        .into_iter()
        .map(|(frames, pair)| Row { frames, width: larger(pair), value: *pair })
        .collect();
    let boxes = boxes(&rows, kinds);
    width_of(&boxes, words.what)?;
    let total = boxes.first().map(|all| all.value).unwrap_or_default();
    let subtitle = format!(
        "{} {} → {} {} · {} · boxes are as wide as the larger of the two",
        words.a,
        size(of(&total).0),
        words.b,
        size(of(&total).1),
        signed_size(change(&total))
    );
    let most = boxes.iter().map(|found| change(&found.value).unsigned_abs()).max().unwrap_or(0);
    let style = |found: &Box<'_, V>| {
        let (a, b) = of(&found.value);
        let change = change(&found.value);
        let words = match (a, b) {
            (a, b) if a == b => format!("{} on both sides", size(a)),
            (0, b) => format!("new, {}", size(b)),
            (a, 0) => format!("gone, {}", size(a)),
            (a, b) => format!("{} → {}, {}", size(a), size(b), signed_size(change)),
        };
        FrameStyle { color: colors::change(change, most), title: format!("{} ({words})", found.name) }
    };
    let amount = |part: i64| signed_size(signed(most) / part);
    let chip = |sign: i64, words: String| (colors::change(sign, 1), words);
    let legend = vec![
        chip(1, format!("grew: {}", amount(1))),
        (colors::change(1, 8), format!("by {}", amount(8))),
        (colors::change(0, 1), "as before".to_owned()),
        (colors::change(-1, 8), format!("by {}", amount(-8))),
        chip(-1, format!("shrank: {}", amount(-1))),
    ];
    let frame = Frame { title: &words.title, subtitle: &subtitle, inverted: words.inverted, legend };
    Ok(paint(&boxes, &style, &frame))
}

fn who(sides: &FlameSides<'_>) -> String {
    let first = sides.b.processes.first().or(sides.a.processes.first());
    first.map(|process| clean(&process.comm)).unwrap_or_else(|| "no process".to_owned())
}
