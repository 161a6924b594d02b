//! Folded stacks, as flame graph programs read them: `main;run;malloc 4096`.

use super::{HeapView, function, no_stack, rows_by, stack};
use crate::heap::report::{HeapProcess, HeapReport, HeapRow};
use crate::render::folded::Folded;
use crate::report::model::Frame;

/// One line for each distinct line of names, sorted: from the root to the allocator's function, frames
/// apart by `;`, then outstanding bytes, bytes at the peak, or calls. All stacks are there; the values add up to what
/// is shown.
/// `reverse`: from the allocator's function to the root. With several processes, the outermost frame is
/// the process.
pub fn heap_to_folded(report: &HeapReport, HeapView { by, reverse }: HeapView) -> String {
    let mut folded: Folded<u64> = Folded::new();
    for process in &report.processes {
        for row in rows_by(process, by).iter().filter(|row| row.amount.bytes > 0) {
            let mut names = names(report, process, row);
            if reverse {
                names.reverse();
            }
            let frames: Vec<_> = names.iter().map(|name| folded.frame(name)).collect();
            folded.add(&frames, row.amount.bytes);
        }
    }
    folded.to_text(|bytes| Some(bytes.to_string()))
}

/// Outermost first.
fn names(report: &HeapReport, process: &HeapProcess, row: &HeapRow) -> Vec<String> {
    let mut names = Vec::new();
    if report.processes.len() > 1 {
        names.push(format!("{} ({})", process.comm, process.pid));
    }
    match stack(report, row) {
        Some(stack) => {
            if stack.completeness != "complete" {
                names.push(format!("[{} stack]", stack.completeness));
            }
            names.extend(stack.frames.iter().rev().map(name));
        }
        None => names.push(format!("[{}]", no_stack(row))),
    }
    names.push(function(report, row));
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
