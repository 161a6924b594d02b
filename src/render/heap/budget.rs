//! What a runtime says itself of its memory.

use crate::heap::report::model::{Budget, BudgetPart};
use crate::render::style::{clean, truncated};
use crate::report::units::size;

const NAME: usize = 28;

/// A row for each of its categories that has any, the largest first.
pub(super) fn table(budget: &Budget, out: &mut String) {
    let row = |name: &str, figures: [&str; 3]| {
        let [reserved, committed, malloc] = figures;
        let line =
            format!("  {:<NAME$} {reserved:>12} {committed:>12} {malloc:>12}", truncated(&clean(name), NAME));
        line.trim_end().to_owned() + "\n"
    };
    if !out.ends_with("\n\n") {
        *out += "\n";
    }
    *out += &row("as the runtime counts it", ["reserved", "committed", "of it malloc"]);
    let mut parts: Vec<&BudgetPart> = budget.parts.iter().filter(|part| part.reserved > 0).collect();
    parts.sort_by_key(|part| std::cmp::Reverse(part.reserved));
    for part in parts {
        let malloc = if part.malloc == 0 { "–".to_owned() } else { size(part.malloc) };
        *out += &row(&part.name, [&size(part.reserved), &size(part.committed), &malloc]);
    }
    *out += &row("total", [&size(budget.reserved), &size(budget.committed), ""]);
    *out += "\n";
}
