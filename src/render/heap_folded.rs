//! Folded stacks, as flame graph programs read them: `main;run;malloc 4096`.

use super::heap::{function, no_stack, stack};
use super::style::clean;
use crate::heap::report::{HeapProcess, HeapReport, Row};
use crate::report::model::Frame;
use std::collections::BTreeMap;

/// One line for each distinct line of names, sorted: from the root to the allocator's function, frames
/// apart by `;`, then outstanding bytes. All stacks are there; the values add up to what is shown.
/// `reverse`: from the allocator's function to the root. With several processes, the outermost frame is
/// the process.
pub fn heap_to_folded(report: &HeapReport, reverse: bool) -> String {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for process in &report.processes {
        for row in process.rows.iter().filter(|row| row.amount.bytes > 0) {
            let mut names = names(report, process, row);
            if reverse {
                names.reverse();
            }
            let bytes = lines.entry(names.join(";")).or_default();
            *bytes = bytes.saturating_add(row.amount.bytes);
        }
    }
    lines.into_iter().map(|(names, bytes)| format!("{names} {bytes}\n")).collect()
}

/// Outermost first.
fn names(report: &HeapReport, process: &HeapProcess, row: &Row) -> Vec<String> {
    let mut names = Vec::new();
    if report.processes.len() > 1 {
        names.push(sane(&format!("{} ({})", process.comm, process.pid)));
    }
    match stack(report, row) {
        Some(stack) => {
            if stack.completeness != "complete" {
                names.push(format!("[{} stack]", sane(&stack.completeness)));
            }
            names.extend(stack.frames.iter().rev().map(|frame| sane(&name(frame))));
        }
        None => names.push(format!("[{}]", sane(&no_stack(row)))),
    }
    names.push(sane(&function(report, row)));
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

/// `;` separates frames and the line's end separates stacks: no name may hold them. Empty frames would
/// vanish.
fn sane(name: &str) -> String {
    let name = clean(name).replace(';', ":");
    if name.trim().is_empty() { "?".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::sane;

    #[test]
    fn names_cannot_break_a_line_or_a_frame() {
        assert_eq!(sane("operator new(unsigned long)"), "operator new(unsigned long)");
        assert_eq!(sane("[T; 4]::drop"), "[T: 4]::drop");
        assert_eq!(sane("a\nb 5\r\t"), "a\\nb 5\\r\\t");
        assert_eq!((sane(""), sane(" ")), ("?".to_owned(), "?".to_owned()));
    }
}
