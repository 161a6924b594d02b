//! `heap -f html`: a heap report as one HTML file, in the style of the audit's page and scripts of its own
//! (`js/heap/`).

use super::Template;
use super::columns::{Column, NONE, Strings};
use super::compact::{Page, code, object};
use crate::heap::fragmentation::Holder;
use crate::heap::report::{HeapProcess, HeapReport};
use crate::model::number::signed;
use crate::render::clean;
use crate::render::heap::by::{module, thread};
use crate::render::heap::whole::{Whole, wholes};
use crate::render::heap::{function, no_stack, notes, who};
use crate::report::category_color;
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

const PAGE: Template = Template(include_str!(concat!(env!("OUT_DIR"), "/heap.html")));

/// Of a stack's line in the table.
pub(super) const WHO_COLUMNS: usize = 76;

/// As many holders of pages are shown with their stacks (`js/heap/arenas.js`).
const HOLDERS: usize = 10;

/// The whole page; ends with a newline.
///
/// # Errors
/// None in practice: the model holds nothing that JSON cannot say.
pub fn heap_to_html(report: &HeapReport) -> Result<String, serde_json::Error> {
    let first = report.processes.first();
    let title = first.map(|p| format!("{} ({}) · heap · vmaudit", clean(&p.comm), p.pid));
    Ok(PAGE.filled(title.as_deref().unwrap_or("vmaudit"), &serde_json::to_string(&page(report)?)?))
}

#[derive(Serialize)]
struct PageProcess {
    #[serde(flatten)]
    head: Map<String, Value>,
    notes: Vec<String>,
    /// Of each holder of pages, its stack's line; null for what the filter leaves out.
    holders: Vec<Option<String>>,
    sites: Sites,
}

/// All stacks by column; those of which most is outstanding first. Texts are numbers of strings, -1 is null.
#[derive(Serialize)]
struct Sites {
    count: usize,
    stack: Column,
    /// Why there is no stack.
    why: Column,
    function: Column,
    who: Column,
    module: Column,
    thread: Column,
    bytes: Column,
    blocks: Column,
    error: Column,
    growth: Column,
    leak: Column,
    peak_bytes: Column,
    peak_blocks: Column,
    calls: Column,
    allocated: Column,
    temporary: Column,
}

fn page(report: &HeapReport) -> Result<Page<PageProcess>, serde_json::Error> {
    let mut strings = Strings::default();
    let (stacks, frames) = code(&report.stacks, &mut strings);
    let mut modules = BTreeSet::new();
    let processes = report.processes.iter().enumerate();
    let processes = processes.map(|(at, p)| process(report, p, at == 0, &mut strings, &mut modules));
    let processes = processes.collect::<Result<_, _>>()?;
    let light = HeapReport { processes: Vec::new(), stacks: Vec::new(), ..report.clone() };
    let mut head = object(serde_json::to_value(light)?);
    head.retain(|key, _| key != "processes" && key != "stacks");
    let names = modules.iter().map(|name| (name.clone(), name.clone())).collect();
    let color = |name: &String| (name.clone(), format!("#{:06x}", category_color(name)));
    let colors = modules.iter().map(color).collect();
    Ok(Page { head, names, colors, processes, stacks, frames, strings: strings.into_vec() })
}

fn process(
    report: &HeapReport,
    p: &HeapProcess,
    first: bool,
    strings: &mut Strings,
    modules: &mut BTreeSet<String>,
) -> Result<PageProcess, serde_json::Error> {
    let light = HeapProcess { rows: Vec::new(), sites: Vec::new(), ..p.clone() };
    let mut head = object(serde_json::to_value(light)?);
    head.retain(|key, _| key != "rows" && key != "sites");
    let all = wholes(p);
    modules.extend(all.iter().map(|whole| clean(&module(report, &whole.row))));
    let mut texts = |of: &dyn Fn(&Whole) -> Option<String>| -> Column {
        all.iter().map(|whole| strings.optional(of(whole).as_deref())).collect()
    };
    let numbers = |of: fn(&Whole) -> u64| -> Column { all.iter().map(|whole| signed(of(whole))).collect() };
    let or_none = |of: fn(&Whole) -> Option<u64>| -> Column {
        all.iter().map(|whole| of(whole).map_or(NONE, signed)).collect()
    };
    let sites = Sites {
        count: all.len(),
        stack: or_none(|whole| whole.row.stack),
        why: texts(&|whole| whole.row.stack.is_none().then(|| no_stack(&whole.row))),
        function: texts(&|whole| Some(function(report, &whole.row))),
        who: texts(&|whole| Some(who(report, &whole.row, WHO_COLUMNS))),
        module: texts(&|whole| Some(module(report, &whole.row))),
        thread: texts(&|whole| Some(thread(report, &whole.row))),
        bytes: numbers(|whole| whole.row.amount.bytes),
        blocks: numbers(|whole| whole.row.amount.blocks),
        error: numbers(|whole| whole.row.amount.standard_error),
        growth: all.iter().map(|whole| whole.row.growth).collect(),
        leak: numbers(|whole| u64::from(whole.row.leak)),
        peak_bytes: or_none(|whole| whole.site.peak_bytes),
        peak_blocks: or_none(|whole| whole.site.peak_blocks),
        calls: numbers(|whole| whole.site.allocations),
        allocated: numbers(|whole| whole.site.allocated_bytes),
        temporary: or_none(|whole| whole.site.temporary),
    };
    let holders = p.fragmentation.iter().flat_map(|found| &found.holders).take(HOLDERS);
    let row = |holder: &Holder| holder.row.and_then(|row| p.rows.get(usize::try_from(row).ok()?));
    let holders = holders.map(|holder| Some(who(report, row(holder)?, WHO_COLUMNS))).collect();
    Ok(PageProcess { head, notes: notes(report, p, first), holders, sites })
}
