//! `diff -f html` of two heaps as one HTML file, in the style of a heap's page (`js/heap/diff.js`).

use super::Template;
use super::columns::Strings;
use super::compact::{Frames, PageStack, code, object};
use super::heap::WHO_COLUMNS;
use crate::diff::HeapDiff;
use crate::heap::report::model::Function;
use crate::heap::report::{HeapReport, HeapRow};
use crate::render::clean;
use crate::render::heap::by::module;
use crate::render::heap::who;
use crate::report::category_color;
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

const PAGE: Template = Template(include_str!(concat!(env!("OUT_DIR"), "/heap-diff.html")));

/// The whole page; ends with a newline.
///
/// # Errors
/// None in practice: the model holds nothing that JSON cannot say.
pub fn heap_diff_to_html(diff: &HeapDiff) -> Result<String, serde_json::Error> {
    let title = format!("{} · change of the heap · vmaudit", clean(&diff.b.of.comm));
    Ok(PAGE.filled(&title, &serde_json::to_string(&page(diff)?)?))
}

/// What the scripts read.
#[derive(Serialize)]
struct Page {
    #[serde(flatten)]
    head: Map<String, Value>,
    /// Of modules.
    colors: BTreeMap<String, String>,
    changes: Vec<PageChange>,
    stacks: Vec<PageStack>,
    frames: Frames,
    strings: Vec<String>,
}

#[derive(Serialize)]
struct PageChange {
    #[serde(flatten)]
    change: Map<String, Value>,
    who: String,
    module: String,
}

fn page(diff: &HeapDiff) -> Result<Page, serde_json::Error> {
    let mut strings = Strings::default();
    let (stacks, frames) = code(&diff.stacks, &mut strings);
    let changes = changes(diff)?;
    let light = HeapDiff { changes: Vec::new(), stacks: Vec::new(), ..diff.clone() };
    let mut head = object(serde_json::to_value(light)?);
    head.retain(|key, _| key != "changes" && key != "stacks");
    let color =
        |change: &PageChange| (change.module.clone(), format!("#{:06x}", category_color(&change.module)));
    let colors = changes.iter().map(color).collect();
    Ok(Page { head, colors, changes, stacks, frames, strings: strings.into_vec() })
}

/// Each with its stack's line, as a heap's report has it.
fn changes(diff: &HeapDiff) -> Result<Vec<PageChange>, serde_json::Error> {
    let functions = diff.changes.iter().map(|c| Function { name: c.function.clone(), ..Function::default() });
    let report =
        HeapReport { functions: functions.collect(), stacks: diff.stacks.clone(), ..HeapReport::default() };
    let each = diff.changes.iter().zip(0..).map(|(change, function)| {
        let (stack, no_stack) = (change.stack, change.no_stack.clone());
        let row = HeapRow { function, stack, no_stack, ..HeapRow::default() };
        Ok(PageChange {
            change: object(serde_json::to_value(change)?),
            who: clean(&who(&report, &row, WHO_COLUMNS)),
            module: clean(&module(&report, &row)),
        })
    });
    each.collect()
}
