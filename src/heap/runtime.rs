//! A runtime's own record of its heap, as a report: what was sampled is scaled, stacks get their roles.

use super::report::model::{Budget, BudgetPart, Function, RuntimeRecord};
use super::report::{HeapProcess, HeapReport, HeapRow, HeapSite};
use super::sampling::Sampling;
use crate::model::Mapping;
use crate::model::heap::runtime::{OwnBudget, OwnFrame, OwnHeap, OwnPart, OwnSite};
use crate::report::model::{Frame, Stack};
use std::cmp::Reverse;
use std::collections::HashMap;

/// The reports' stacks and functions, each once.
#[derive(Default)]
pub struct Shared {
    stacks: HashMap<Vec<OwnFrame>, u64>,
}

/// Of one stack and function.
#[derive(Clone, Copy, Default)]
struct Sum {
    allocations: u64,
    allocated: u64,
    blocks: u64,
    bytes: u64,
    samples: u64,
    variance: f64,
}

impl Sum {
    /// What samples of one size represent: divided by how likely one is, and cut to whole numbers, as
    /// runtimes that write such profiles themselves do it.
    fn add(&mut self, site: &OwnSite, sampling: Sampling) {
        let scale = 1.0 / sampling.probability(site.size);
        let scaled = |count: u64| match sampling.mean() {
            None => (count, count.saturating_mul(site.size)),
            Some(_) => ((count as f64 * scale) as u64, (count as f64 * site.size as f64 * scale) as u64),
        };
        let held = site.allocations.saturating_sub(site.frees);
        let (allocations, allocated) = scaled(site.allocations);
        let (blocks, bytes) = scaled(held);
        self.allocations += allocations;
        self.allocated = self.allocated.saturating_add(allocated);
        self.blocks += blocks;
        self.bytes = self.bytes.saturating_add(bytes);
        self.samples += held;
        self.variance += sampling.variance(site.size) * held as f64;
    }
}

/// Puts the profile into the report of its process.
pub fn add_profile(
    (report, shared): (&mut HeapReport, &mut Shared),
    process: &mut HeapProcess,
    heap: &OwnHeap,
    mappings: &[Mapping],
) {
    let sampling = Sampling::every(heap.sampled_every.unwrap_or(0));
    let mut sums: HashMap<(u64, u64), Sum> = HashMap::new();
    let mut all = Sum::default();
    for site in &heap.sites {
        let function = function_of(report, heap, &site.function);
        let stack = *shared.stacks.entry(site.frames.clone()).or_insert_with(|| {
            let frames = site.frames.iter().map(|frame| named(frame, mappings)).collect();
            report.stacks.push(Stack::new(frames, "complete"));
            (report.stacks.len() - 1) as u64
        });
        sums.entry((stack, function)).or_default().add(site, sampling);
        all.add(site, sampling);
    }
    for ((stack, function), sum) in sums {
        let frees = sum.allocations.saturating_sub(sum.blocks);
        let freed_bytes = sum.allocated.saturating_sub(sum.bytes);
        process.sites.push(HeapSite {
            stack: Some(stack),
            function,
            allocated_bytes: sum.allocated,
            allocations: sum.allocations,
            freed_bytes,
            frees,
            ..HeapSite::default()
        });
        if sum.samples > 0 {
            let mut row = HeapRow {
                stack: Some(stack),
                function,
                allocated_bytes: sum.allocated,
                allocations: sum.allocations,
                freed_bytes,
                frees,
                ..HeapRow::default()
            };
            (row.amount.bytes, row.amount.blocks) = (sum.bytes, sum.blocks);
            (row.amount.samples, row.amount.standard_error) = (sum.samples, error(sum.variance));
            process.rows.push(row);
        }
    }
    process.rows.sort_by_key(|row| (Reverse(row.amount.bytes), row.stack, row.function));
    process.sites.sort_by_key(|site| (Reverse(site.allocated_bytes), site.stack, site.function));
    let (totals, shown) = (&mut process.totals, &mut process.shown);
    (totals.outstanding_bytes, totals.outstanding_blocks) = (all.bytes, all.blocks);
    (totals.allocated_bytes, totals.allocations) = (all.allocated, all.allocations);
    totals.freed_bytes = all.allocated.saturating_sub(all.bytes);
    totals.frees = all.allocations.saturating_sub(all.blocks);
    (shown.bytes, shown.blocks) = (all.bytes, all.blocks);
    (shown.samples, shown.standard_error) = (all.samples, error(all.variance));
    report.sampling_bytes = report.sampling_bytes.or(sampling.mean());
    process.gaps.extend(heap.notes.iter().cloned());
    process.runtimes.push(RuntimeRecord {
        runtime: heap.runtime.clone(),
        what: Some(heap.what.clone()),
        sampling_bytes: heap.sampled_every,
        why: None,
        budget: None,
    });
}

/// Puts what a runtime answered into the report of its process.
pub fn add_budget(process: &mut HeapProcess, (runtime, what): (String, &str), budget: OwnBudget) {
    let part = |part: OwnPart| BudgetPart {
        name: part.name,
        reserved: part.reserved,
        committed: part.committed,
        malloc: part.malloc,
    };
    let parts = budget.parts.into_iter().map(part).collect();
    process.runtimes.push(RuntimeRecord {
        runtime,
        what: Some(what.to_owned()),
        budget: Some(Budget { reserved: budget.reserved, committed: budget.committed, parts }),
        ..RuntimeRecord::default()
    });
}

fn error(variance: f64) -> u64 {
    variance.sqrt().round() as u64
}

fn function_of(report: &mut HeapReport, heap: &OwnHeap, name: &str) -> u64 {
    let same = |known: &Function| known.name == name && known.module == heap.module;
    let at = report.functions.iter().position(same).unwrap_or_else(|| {
        report.functions.push(Function {
            name: name.to_owned(),
            module: heap.module.clone(),
            allocator: heap.runtime.clone(),
        });
        report.functions.len() - 1
    });
    at as u64
}

fn named(frame: &OwnFrame, mappings: &[Mapping]) -> Frame {
    let file = Mapping::holding(mappings, frame.at).filter(|mapping| mapping.file.is_some());
    let offset = file.map_or(frame.at.0, |mapping| frame.at.0 - mapping.range.start.0 + mapping.offset);
    let module = file.map(|mapping| String::from_utf8_lossy(&mapping.name).into_owned());
    Frame {
        module: module
            .map_or_else(|| "[unknown]".to_owned(), |path| crate::model::path::base_name(&path).to_owned()),
        offset: format!("{offset:#x}"),
        symbol: frame.function.as_ref().map(|function| function.name.clone()),
        symbol_offset: frame.function.as_ref().map(|function| function.offset),
        inlined: frame.function.as_ref().is_some_and(|function| function.inlined),
        file: frame.file.clone(),
        line: frame.line,
        ..Frame::default()
    }
}
