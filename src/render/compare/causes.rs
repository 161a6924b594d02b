//! What a change did, by category and by cause.

use super::figures::signed;
use crate::compare::figures::Unit;
use crate::compare::model::{CategoryChange, CauseChange, Effect, Footprints, Side};
use crate::render::style::{Tone, clean, truncated};
use crate::render::text::TextOptions;
use crate::report::units::{size, thousands};

const LABEL: usize = 46;
/// Changes of less than one part in this many of the largest are noise to a reader.
const NEARLY_NOTHING: u64 = 500;

/// One row a category, under it what changed in it; the categories add up to the change of the two
/// runs, byte for byte.
pub(super) fn causes(base: &Side, side: &Side, options: TextOptions, out: &mut String) {
    let Some(effect) = &side.effect else { return };
    let of = |side: &Side| format!("VIRT of {}", side.name);
    *out += "\n";
    let head = line("by cause", [&of(base), &of(side), "change", "RSS change"]);
    *out += &format!("{}\n", options.color.paint(Tone::Dim, &head));
    let most = effect.categories.iter().map(|row| row.size.largest_change()).max().unwrap_or(0);
    let little = most / NEARLY_NOTHING;
    let (changed, rest): (Vec<&CategoryChange>, Vec<&CategoryChange>) =
        effect.categories.iter().partition(|row| row.size.largest_change() > little);
    for row in &changed {
        let text = sized(&truncated(&clean(&row.name), LABEL), &row.size);
        *out += &format!("{}\n", options.color.paint(Tone::Heading, &text));
        details(row, little, options, out);
    }
    let mut sum = Footprints::default();
    rest.iter().for_each(|row| sum.add(row.size));
    match rest.as_slice() {
        [] => {}
        [one] => *out += &format!("{}\n", sized(&truncated(&clean(&one.name), LABEL), &one.size)),
        many => {
            let nearly = if many.iter().all(|row| row.causes.is_empty()) { "" } else { "nearly " };
            *out += &format!("{}\n", sized(&format!("{} others, {nearly}unchanged", many.len()), &sum));
        }
    }
    *out += &format!("{}\n", options.color.paint(Tone::Key, &sized("together", &effect.total)));
    *out += &format!("{}\n", options.color.paint(Tone::Dim, &remark(base, side, effect)));
}

/// The largest, and what the rest adds up to.
fn details(row: &CategoryChange, little: u64, options: TextOptions, out: &mut String) {
    let notable = row.causes.iter().take_while(|cause| cause.size.largest_change() > little).count();
    let (first, rest) = row.causes.split_at(notable.min(options.top));
    for cause in first {
        let title = if cause.title.is_empty() { "no stack" } else { &cause.title };
        let label = format!("  {}", truncated(&clean(title), LABEL - 2));
        *out += &format!("{}\n", options.color.paint(Tone::Dim, &sized(&label, &cause.size)));
    }
    if !rest.is_empty() && !first.is_empty() {
        let mut sum = Footprints::default();
        rest.iter().for_each(|cause: &CauseChange| sum.add(cause.size));
        let label = format!("  … {} more", thousands(rest.len() as u64));
        *out += &format!("{}\n", options.color.paint(Tone::Dim, &sized(&label, &sum)));
    }
}

fn remark(base: &Side, side: &Side, effect: &Effect) -> String {
    let [a, b] = effect.pair;
    let of = |side: &Side, run: u32| match side.runs.len() {
        1 => format!("run {run} ({})", side.name),
        _ => format!("run {run} ({})", side.name),
    };
    format!(
        "  ({} and {}: those nearest to the medians; rows add up, byte for byte)",
        of(base, a),
        of(side, b)
    )
}

fn sized(label: &str, bytes: &Footprints) -> String {
    let [before, after] = bytes.virt.map(size);
    let virt = signed(Unit::Bytes, bytes.virt_change());
    let rss = signed(Unit::Bytes, bytes.rss_change());
    line(label, [&before, &after, &virt, &rss])
}

fn line(label: &str, [before, after, virt, rss]: [&str; 4]) -> String {
    format!("  {label:<LABEL$}{before:>12}{after:>12}{virt:>13}{rss:>13}")
}
