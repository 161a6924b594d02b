//! The report as the page reads it: large tables by columns, everything else as in the JSON report, so that
//! fields added there are here, too.

use super::columns::{Column, NONE, Ranges, Regions, Strings};
use crate::model::number::signed;
use crate::render::clean;
use crate::report::model::{Finding, Frame, Process, Report, Role, Stack};
use crate::report::{PerFrame, category_color, category_name};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What the scripts read (`js/data.js`, `js/heap/data.js`).
#[derive(Serialize)]
pub(super) struct Page<P> {
    #[serde(flatten)]
    pub head: Map<String, Value>,
    /// The ids of what has a colour, categories or modules, and what they are called.
    pub names: BTreeMap<String, String>,
    /// `#rrggbb` of each of them.
    pub colors: BTreeMap<String, String>,
    pub processes: Vec<P>,
    pub stacks: Vec<PageStack>,
    pub frames: Frames,
    pub strings: Vec<String>,
}

#[derive(Serialize)]
pub(super) struct PageProcess {
    #[serde(flatten)]
    head: Map<String, Value>,
    regions: Regions,
    /// Of each finding.
    ranges: Vec<Ranges>,
}

/// `completeness`, numbers of frames, innermost first, and which of them is the caller.
#[derive(Serialize)]
pub(super) struct PageStack(String, Vec<usize>, i64);

/// Each distinct frame once.
#[derive(Serialize)]
pub(super) struct Frames {
    count: usize,
    module: Column,
    build_id: Column,
    /// Symbol; `fn@START` where only the function's bounds are known; `+OFFSET`.
    name: Column,
    /// In the function; -1: not known.
    offset: Column,
    file: Column,
    line: Column,
    /// 1 inlined, 2 a guess, 4 named by its symbol, 8 a system call's wrapper.
    flags: Column,
}

/// # Errors
/// None in practice, as with [`crate::render::to_json`].
pub(super) fn page(report: &Report) -> Result<Page<PageProcess>, serde_json::Error> {
    let mut strings = Strings::default();
    let (stacks, frames) = code(&report.stacks, &mut strings);
    let processes = report.processes.iter().map(|p| process(p, &mut strings)).collect::<Result<_, _>>()?;
    let head = Report {
        schema: report.schema,
        backend: report.backend.clone(),
        events: report.events,
        touch: report.touch,
        at_ns: report.at_ns,
        containers: report.containers.clone(),
        left_out: report.left_out,
        processes: Vec::new(),
        stacks: Vec::new(),
    };
    let mut head = object(serde_json::to_value(head)?);
    head.retain(|key, _| key != "processes" && key != "stacks");
    let names = names(report);
    let color = |id: &String| (id.clone(), format!("#{:06x}", category_color(id)));
    let colors = names.keys().map(color).collect();
    Ok(Page { head, names, colors, processes, stacks, frames, strings: strings.into_vec() })
}

/// Stacks as numbers of frames, and the frames.
pub(super) fn code(all: &[Stack], strings: &mut Strings) -> (Vec<PageStack>, Frames) {
    let mut known: PerFrame<'_, usize> = PerFrame::default();
    let mut numbers: HashMap<&Frame, usize> = HashMap::new();
    let mut distinct: Vec<&Frame> = Vec::new();
    let mut stacks = Vec::with_capacity(all.len());
    for Stack { frames, completeness, caller, .. } in all {
        let frames = frames.iter().map(|frame| {
            *known.of(frame, |frame| {
                *numbers.entry(frame).or_insert_with(|| {
                    distinct.push(frame);
                    distinct.len() - 1
                })
            })
        });
        stacks.push(PageStack(clean(completeness), frames.collect(), caller.map_or(NONE, signed)));
    }
    (stacks, frames(&distinct, strings))
}

fn process(p: &Process, strings: &mut Strings) -> Result<PageProcess, serde_json::Error> {
    let regions = Regions::of(&p.regions, strings);
    let ranges = p.findings.iter().map(|f| Ranges::of_finding(&f.ranges)).collect();
    let light = |f: &Finding| Finding { ranges: Vec::new(), ..f.clone() };
    // all fields, also those that are added later; but for the regions, which are large
    let light =
        Process { regions: Vec::new(), findings: p.findings.iter().map(light).collect(), ..p.clone() };
    let mut head = object(serde_json::to_value(light)?);
    head.remove("regions");
    Ok(PageProcess { head, regions, ranges })
}

fn frames(distinct: &[&Frame], strings: &mut Strings) -> Frames {
    let mut texts = |of: &dyn Fn(&Frame) -> Option<String>| -> Column {
        distinct.iter().map(|f| strings.optional(of(f).as_deref())).collect()
    };
    Frames {
        count: distinct.len(),
        module: texts(&|f| Some(f.module.clone())),
        build_id: texts(&|f| f.build_id.clone()),
        name: texts(&|f| Some(name(f))),
        offset: distinct.iter().map(|f| offset(f).map_or(NONE, signed)).collect(),
        file: texts(&|f| f.file.clone()),
        line: distinct.iter().map(|f| f.line.map_or(NONE, i64::from)).collect(),
        flags: distinct
            .iter()
            .map(|f| {
                let flags = [f.inlined, f.guess, f.symbol.is_some(), f.role == Role::Wrapper];
                flags.into_iter().rev().fold(0, |sum, flag| 2 * sum + i64::from(flag))
            })
            .collect(),
    }
}

fn name(f: &Frame) -> String {
    match (&f.symbol, &f.function_start) {
        (Some(symbol), _) => symbol.clone(),
        (None, Some(start)) => format!("fn@{start}"),
        (None, None) => format!("+{}", f.offset),
    }
}

fn offset(f: &Frame) -> Option<u64> {
    match (&f.symbol, &f.function_start) {
        (Some(_), _) => f.symbol_offset,
        (None, Some(_)) => f.function_offset,
        (None, None) => None,
    }
}

/// Of all categories that are mentioned.
fn names(report: &Report) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for p in &report.processes {
        let rows = p.categories.iter().map(|row| (row.id.as_str(), row.name.as_str()));
        names.extend(rows.map(|(id, name)| (clean(id), clean(name))));
        let sampled = p.timeline.iter().flat_map(|point| point.by_category.keys());
        let peak = p.peak.iter().flat_map(|peak| peak.by_category.keys());
        let touched =
            p.touch.iter().flat_map(|touch| touch.rows.iter().filter_map(|row| row.category.as_ref()));
        let others: BTreeSet<&String> = sampled.chain(peak).chain(touched).collect();
        for id in others {
            names.entry(clean(id)).or_insert_with(|| clean(category_name(id).unwrap_or(id)));
        }
    }
    names
}

/// An object with all texts made visible ([`clean`]).
pub(super) fn object(value: Value) -> Map<String, Value> {
    match cleaned(value) {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn cleaned(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(clean(&text)),
        Value::Array(all) => Value::Array(all.into_iter().map(cleaned).collect()),
        Value::Object(map) => {
            Value::Object(map.into_iter().map(|(key, value)| (clean(&key), cleaned(value))).collect())
        }
        other => other,
    }
}
