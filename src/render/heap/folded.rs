//! A heap as stacks: folded, as flame graph programs read them (`main;run;malloc 4096`), and for `-f svg`.

use super::{HeapView, function, function_module, no_stack, rows_by, stack};
use crate::heap::HeapBy;
use crate::heap::report::{HeapReport, HeapRow};
use crate::render::folded::report::{Kind, Stacks};
use crate::render::folded::{Folded, FrameNumber};
use crate::report::PerFrame;
use crate::report::model::Frame;
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
    let mut all = HeapStacks::new(reverse);
    for process in &report.processes {
        let root = (report.processes.len() > 1).then(|| format!("{} ({})", process.comm, process.pid));
        for row in rows_by(process, by).iter().filter(|row| row.amount.bytes > 0) {
            let held = Held { amount: row.amount.bytes, blocks: row.amount.blocks };
            all.add(report, row, root.as_deref(), held);
        }
    }
    all.into_stacks()
}

/// Whether the amounts of a view are calls.
pub(in crate::render) fn counts_calls(by: HeapBy) -> bool {
    matches!(by, HeapBy::Allocations | HeapBy::Temporary)
}

/// Rows of reports as stacks. What a frame is called is found out once for all stacks that it is in.
pub(super) struct HeapStacks<'r, V> {
    folded: Folded<V>,
    reverse: bool,
    frames: PerFrame<'r, FrameNumber>,
    /// By the number of a name: several things may have it, and the last one counts.
    kinds: Vec<Of<'r>>,
    /// The row that is being put together.
    row: Vec<(FrameNumber, Of<'r>)>,
}

/// A [`Kind`] without memory of its own: one is noted for each frame of each stack.
#[derive(Clone, Copy)]
enum Of<'r> {
    Process,
    Note,
    Function(&'r str),
}

impl<'r, V: AddAssign + Default> HeapStacks<'r, V> {
    pub fn new(reverse: bool) -> HeapStacks<'r, V> {
        let (frames, kinds, row) = (PerFrame::default(), Vec::new(), Vec::new());
        HeapStacks { folded: Folded::new(), reverse, frames, kinds, row }
    }

    /// A row of one of the report's processes; `root`: the process, as the outermost frame.
    pub fn add(&mut self, report: &'r HeapReport, row: &HeapRow, root: Option<&str>, value: V) {
        let HeapStacks { folded, reverse, frames, kinds, row: names } = self;
        names.clear();
        if let Some(root) = root {
            names.push((folded.frame(root), Of::Process));
        }
        match stack(report, row) {
            Some(stack) => {
                if stack.completeness != "complete" {
                    let note = format!("[{} stack]", stack.completeness);
                    names.push((folded.frame(&note), Of::Note));
                }
                for frame in stack.frames.iter().rev() {
                    let number = *frames.of(frame, |frame| folded.frame(&name(frame)));
                    names.push((number, Of::Function(&frame.module)));
                }
            }
            None => names.push((folded.frame(&format!("[{}]", no_stack(row))), Of::Note)),
        }
        names.push((folded.frame(&function(report, row)), Of::Function(function_module(report, row))));
        if *reverse {
            names.reverse();
        }
        kinds.resize(folded.texts().len(), Of::Note);
        for (number, of) in names.iter() {
            if let Some(kind) = kinds.get_mut(number.index()) {
                *kind = *of;
            }
        }
        let numbers: Vec<FrameNumber> = names.iter().map(|(number, _)| *number).collect();
        folded.add(&numbers, value);
    }

    pub fn into_stacks(self) -> Stacks<V> {
        let kind = |of| match of {
            Of::Process => Kind::Process,
            Of::Note => Kind::Note,
            Of::Function(module) => Kind::Function(module.to_owned()),
        };
        let kinds = self.folded.texts().iter().cloned().zip(self.kinds.into_iter().map(kind)).collect();
        Stacks { folded: self.folded, kinds }
    }
}

/// `leak(int)`, `libc.so.6 fn@0x27200`, `prog+0x1234`.
pub(super) fn name(frame: &Frame) -> String {
    match (&frame.symbol, &frame.function_start) {
        (Some(symbol), _) => symbol.clone(),
        (None, Some(start)) => format!("{} fn@{start}", frame.module),
        (None, None) => format!("{}+{}", frame.module, frame.offset),
    }
}
