//! A heap as stacks: folded, as flame graph programs read them (`main;run;malloc 4096`), and for `-f svg`.

use super::{HeapView, function, function_module, no_stack, rows_by, stack};
use crate::heap::HeapBy;
use crate::heap::report::{HeapProcess, HeapReport, HeapRow};
use crate::render::folded::report::{Kind, Stacks};
use crate::render::folded::{Folded, frame_text};
use crate::report::model::Frame;
use std::collections::HashMap;
use std::ops::AddAssign;

/// What a stack has: bytes, or calls where the view is about calls; and in how many blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::render) struct Held {
    pub amount: u64,
    pub blocks: u64,
}

impl AddAssign for Held {
    fn add_assign(&mut self, other: Held) {
        self.amount = self.amount.saturating_add(other.amount);
        self.blocks = self.blocks.saturating_add(other.blocks);
    }
}

/// One line for each distinct line of names, sorted: from the root to the allocator's function, frames
/// apart by `;`, then outstanding bytes, bytes at the peak, or calls. All stacks are there; the values add up to what
/// is shown.
/// `reverse`: from the allocator's function to the root. With several processes, the outermost frame is
/// the process.
pub fn heap_to_folded(report: &HeapReport, view: HeapView) -> String {
    stacks(report, view).folded.to_text(|held| Some(held.amount.to_string()))
}

/// The stacks of all processes.
pub(in crate::render) fn stacks(report: &HeapReport, HeapView { by, reverse }: HeapView) -> Stacks<Held> {
    let mut folded: Folded<Held> = Folded::new();
    let mut kinds = HashMap::new();
    for process in &report.processes {
        for row in rows_by(process, by).iter().filter(|row| row.amount.bytes > 0) {
            let mut names = names(report, process, row);
            if reverse {
                names.reverse();
            }
            let frames: Vec<_> = names.iter().map(|(name, _)| folded.frame(name)).collect();
            kinds.extend(names.into_iter().map(|(name, kind)| (frame_text(&name), kind)));
            folded.add(&frames, Held { amount: row.amount.bytes, blocks: row.amount.blocks });
        }
    }
    Stacks { folded, kinds }
}

/// Whether the amounts of a view are calls.
pub(in crate::render) fn counts_calls(by: HeapBy) -> bool {
    matches!(by, HeapBy::Allocations | HeapBy::Temporary)
}

/// Outermost first.
fn names(report: &HeapReport, process: &HeapProcess, row: &HeapRow) -> Vec<(String, Kind)> {
    let mut names = frames_of(report, row);
    if report.processes.len() > 1 {
        names.insert(0, process_name(&format!("{} ({})", process.comm, process.pid)));
    }
    names
}

pub(super) fn process_name(name: &str) -> (String, Kind) {
    (name.to_owned(), Kind::Process)
}

/// Without the process.
pub(super) fn frames_of(report: &HeapReport, row: &HeapRow) -> Vec<(String, Kind)> {
    let mut names = Vec::new();
    match stack(report, row) {
        Some(stack) => {
            if stack.completeness != "complete" {
                names.push((format!("[{} stack]", stack.completeness), Kind::Note));
            }
            let frames = stack.frames.iter().rev();
            names.extend(frames.map(|frame| (name(frame), Kind::Function(frame.module.clone()))));
        }
        None => names.push((format!("[{}]", no_stack(row)), Kind::Note)),
    }
    names.push((function(report, row), Kind::Function(function_module(report, row).to_owned())));
    names
}

/// `leak(int)`, `libc.so.6 fn@0x27200`, `prog+0x1234`.
pub(super) fn name(frame: &Frame) -> String {
    match (&frame.symbol, &frame.function_start) {
        (Some(symbol), _) => symbol.clone(),
        (None, Some(start)) => format!("{} fn@{start}", frame.module),
        (None, None) => format!("{}+{}", frame.module, frame.offset),
    }
}
