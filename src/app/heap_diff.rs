//! What changed between two heaps, in each of its formats: of two files, or of two moments of a recording.

use super::error::AppError;
use super::flame;
use super::output::Destination;
use crate::cli::{DiffFormat, FlameArgs};
use crate::diff::{HeapSide, compare_heaps};
use crate::render::{heap_diff_to_folded, heap_diff_to_html, heap_diff_to_svg, heap_diff_to_text, to_json};

/// Whether nothing differs.
///
/// # Errors
/// When the switches are not for that, or it cannot be written.
pub fn write(
    (a, b): (&HeapSide<'_>, &HeapSide<'_>),
    (format, args): (DiffFormat, FlameArgs),
    to: &Destination,
) -> Result<bool, AppError> {
    args.check_heap_diff().map_err(AppError::Usage)?;
    let result = compare_heaps(a, b);
    match format {
        DiffFormat::Text => to.put(heap_diff_to_text(&result, to.options()).as_bytes())?,
        DiffFormat::Json => to.put(to_json(&result)?.as_bytes())?,
        DiffFormat::Html => to.put(heap_diff_to_html(&result)?.as_bytes())?,
        DiffFormat::Folded => to.put(heap_diff_to_folded((a, b), args.reverse).as_bytes())?,
        DiffFormat::Svg => {
            let (of_a, of_b) = flame::side_names(a.source(), b.source());
            let turned = (args.reverse, args.inverted);
            to.put(heap_diff_to_svg((a, b), (&of_a, &of_b), turned)?.as_bytes())?;
        }
    }
    Ok(result.equal)
}
