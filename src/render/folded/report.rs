//! A report as stacks: process, mapping stack and category. Each byte is in exactly one stack, so that widths
//! add up to the report's totals.

use super::{Folded, FrameNumber};
use crate::model::path::base_name;
use crate::report::LEFT_OUT;
use crate::report::model::{Frame, Process, Region, Report, Stack};
use clap::ValueEnum;
use std::collections::HashMap;
use std::ops::AddAssign;

/// The bytes that make a frame wide.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Width {
    /// Mapped: all of the address space
    Virt,
    /// Mapped with PROT_WRITE
    Writable,
    /// In memory
    Rss,
    /// Mapped, neither in memory nor swapped out: what VIRT has more than RSS
    #[default]
    Unused,
}

impl Width {
    pub fn name(self) -> &'static str {
        match self {
            Width::Virt => "VIRT",
            Width::Writable => "writable",
            Width::Rss => "RSS",
            Width::Unused => "unused",
        }
    }

    /// In a title.
    pub(in crate::render) fn title(self) -> &'static str {
        match self {
            Width::Virt => "address space (VIRT)",
            Width::Writable => "writable address space",
            Width::Rss => "resident memory (RSS)",
            Width::Unused => "unused address space",
        }
    }

    /// It is not known without residency.
    pub fn needs_residency(self) -> bool {
        matches!(self, Width::Rss | Width::Unused)
    }
}

/// What flame graphs show.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlameOptions {
    pub width: Width,
    /// Stacks from the inside out.
    pub reverse: bool,
    /// The root at the top.
    pub inverted: bool,
    /// A frame for the thread that called.
    pub threads: bool,
    /// Lines of a function are frames of their own.
    pub lines: bool,
}

/// The bytes of a stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bytes {
    pub virt: u64,
    pub writable: u64,
    pub rss: u64,
    pub swap: u64,
    pub unused: u64,
}

impl Bytes {
    pub fn of(region: &Region) -> Bytes {
        let is_writable = region.prot.as_bytes().get(1) == Some(&b'w');
        Bytes {
            virt: region.virt,
            writable: if is_writable { region.virt } else { 0 },
            rss: region.rss,
            swap: region.swap,
            unused: region.virt.saturating_sub(region.rss).saturating_sub(region.swap),
        }
    }

    pub fn get(&self, width: Width) -> u64 {
        match width {
            Width::Virt => self.virt,
            Width::Writable => self.writable,
            Width::Rss => self.rss,
            Width::Unused => self.unused,
        }
    }
}

impl AddAssign for Bytes {
    // Two reports' worth of address spaces fit; a report that was written by hand may not.
    fn add_assign(&mut self, other: Bytes) {
        self.virt = self.virt.saturating_add(other.virt);
        self.writable = self.writable.saturating_add(other.writable);
        self.rss = self.rss.saturating_add(other.rss);
        self.swap = self.swap.saturating_add(other.swap);
        self.unused = self.unused.saturating_add(other.unused);
    }
}

/// The kind of a frame: flame graphs are coloured by it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::render) enum Kind {
    Process,
    Thread,
    /// In the place of a stack: why there is none.
    Note,
    /// A function, and the module that it is in.
    Function(String),
    /// What the memory is: a category's id.
    Category(String),
    /// Of the category before it, a part, a file or a name.
    Part,
}

/// Stacks of a report, and what their frames are.
pub(in crate::render) struct Stacks<V> {
    pub folded: Folded<V>,
    pub kinds: HashMap<String, Kind>,
}

/// `-f folded`: a line a stack, frames joined by `;` from the root inwards, then bytes.
pub fn to_folded(report: &Report, options: FlameOptions) -> String {
    let stacks = stacks(report, options);
    let bytes = |bytes: &Bytes| Some(bytes.get(options.width)).filter(|&b| b > 0).map(|b| b.to_string());
    stacks.folded.to_text(bytes)
}

/// The stacks of all processes; with a width that needs it, of those of which it is known what is in
/// memory.
pub(in crate::render) fn stacks(report: &Report, options: FlameOptions) -> Stacks<Bytes> {
    let mut writer = StackWriter::new(report, options);
    let known = |process: &&Process| !options.width.needs_residency() || process.residency != NO_RESIDENCY;
    for process in report.processes.iter().filter(known) {
        let root = format!("{}-{}", process.comm, process.pid);
        writer.process(process, &root, |bytes| bytes);
    }
    writer.stacks
}

/// How a report says that it is not known what is in memory.
pub(in crate::render) const NO_RESIDENCY: &str = "none";
/// The backend of a report of processes that were not traced.
pub(in crate::render) const SNAPSHOT: &str = "snapshot";
/// Code outside of all modules: a JIT's.
pub(in crate::render) const NO_MODULE: &str = "[unknown]";

/// Writes the regions of a report's processes as stacks.
pub(super) struct StackWriter<'r, V> {
    report: &'r Report,
    options: FlameOptions,
    /// False: what the memory is, not which stack requested it.
    calls: bool,
    /// Of each of the report's stacks, root first; made at its first use.
    numbers: HashMap<u64, Vec<FrameNumber>>,
    pub stacks: Stacks<V>,
}

impl<'r, V: AddAssign + Default> StackWriter<'r, V> {
    pub fn new(report: &'r Report, options: FlameOptions) -> StackWriter<'r, V> {
        StackWriter::going_on(report, options, Stacks { folded: Folded::new(), kinds: HashMap::new() })
    }

    /// Adds to what another report gave.
    pub fn going_on(report: &'r Report, options: FlameOptions, stacks: Stacks<V>) -> StackWriter<'r, V> {
        let calls = report.backend != SNAPSHOT;
        StackWriter { report, options, calls, numbers: HashMap::new(), stacks }
    }

    /// Shows what the memory is, and not which stack requested it.
    pub fn without_calls(&mut self) {
        self.calls = false;
    }

    /// Adds all regions of a process, below a root frame.
    pub fn process(&mut self, process: &Process, root: &str, value: impl Fn(Bytes) -> V) {
        let names: HashMap<&str, &str> =
            process.categories.iter().map(|row| (row.id.as_str(), row.name.as_str())).collect();
        let root = self.frame(root, Kind::Process);
        for region in &process.regions {
            let mut called = vec![root];
            self.callers(region, &mut called);
            let name = names.get(region.category.as_str()).copied();
            let what = self.what(region, name.unwrap_or(&region.category));
            let stack: Vec<FrameNumber> = if self.options.reverse {
                // What it is comes first as a whole: a "guard" of nothing in particular says nothing.
                what.into_iter().chain(called.into_iter().rev()).collect()
            } else {
                called.into_iter().chain(what).collect()
            };
            self.stacks.folded.add(&stack, value(Bytes::of(region)));
        }
    }

    fn frame(&mut self, name: &str, kind: Kind) -> FrameNumber {
        let number = self.stacks.folded.frame(name);
        self.stacks.kinds.entry(super::frame_text(name)).or_insert(kind);
        number
    }

    /// The stack that requested it: the frames of the call, or why there are none.
    fn callers(&mut self, region: &Region, out: &mut Vec<FrameNumber>) {
        let Some(origin) = region.origin.as_ref().filter(|_| self.calls) else {
            if self.calls {
                out.push(self.frame(no_call(region), Kind::Note));
            }
            return;
        };
        if self.options.threads {
            out.push(self.frame(&format!("{}-{}", origin.comm, origin.tid), Kind::Thread));
        }
        if origin.inherited_from.is_some() {
            out.push(self.frame("[inherited by fork]", Kind::Note));
        }
        let stack =
            origin.stack.and_then(|at| Some((at, self.report.stacks.get(usize::try_from(at).ok()?)?)));
        let Some((at, stack)) = stack else {
            return out.push(self.frame(&format!("[{}: its stack was lost]", origin.op), Kind::Note));
        };
        if let Some(known) = self.numbers.get(&at) {
            return out.extend(known);
        }
        let numbers = self.called(stack);
        out.extend(&numbers);
        self.numbers.insert(at, numbers);
    }

    /// A stack's frames, root first.
    fn called(&mut self, stack: &Stack) -> Vec<FrameNumber> {
        let mut numbers = Vec::with_capacity(stack.frames.len() + 1);
        if let Some(note) = ending(stack) {
            numbers.push(self.frame(&note, Kind::Note));
        }
        let lines = self.options.lines;
        let shown = stack.without_aliases();
        for (at, frame) in shown.iter().enumerate().rev() {
            let is_part = |inner: &Frame, outer: &Frame| {
                !lines && inner.inlined && inner.symbol.is_some() && inner.symbol == outer.symbol
            };
            if shown.get(at + 1).is_some_and(|outer| is_part(frame, outer)) {
                continue;
            }
            let number = self.frame(&label(frame, lines), Kind::Function(frame.module.clone()));
            // Addresses of a JIT's code say nothing, and differ in each run.
            let nowhere = frame.module == NO_MODULE && frame.symbol.is_none();
            if !(nowhere && numbers.last() == Some(&number)) {
                numbers.push(number);
            }
        }
        numbers
    }

    /// What it is: the category, its part, and the file or name.
    fn what(&mut self, region: &Region, name: &str) -> Vec<FrameNumber> {
        let mut out = vec![self.frame(&format!("[{name}]"), Kind::Category(region.category.clone()))];
        if !region.part.is_empty() && region.part != name {
            out.push(self.frame(&format!("[{}]", region.part), Kind::Part));
        }
        if let Some(path) = region.path.as_deref().filter(|path| !path.is_empty()) {
            out.push(self.frame(path, Kind::Part));
        }
        out
    }
}

/// In the place of a stack, where no call is known.
pub(in crate::render) fn no_call(region: &Region) -> &'static str {
    match region.without_call.as_deref() {
        Some("preexisting") => "[mapped before tracing]",
        Some("kernel") => "[mapped by the kernel]",
        Some(LEFT_OUT) => "[small and ended: its stacks were not kept]",
        Some(_) => "[no call was seen that mapped it]",
        // written by a vmaudit without this field
        None => "[mapped without a call]",
    }
}

/// In the place of a root that a stack does not reach.
pub(in crate::render) fn ending(stack: &Stack) -> Option<String> {
    match (stack.completeness.as_str(), stack.on_behalf_of()) {
        ("truncated", _) => Some("[stack not copied further]".to_owned()),
        ("incomplete", Some(who)) => Some(format!("[on behalf of a {who}]")),
        ("incomplete", None) => Some("[stack not unwound further]".to_owned()),
        _ => None,
    }
}

/// `malloc (libc.so.6)`, `fn@0x954f0 (libc.so.6)`, with lines `main (silly) silly.c:57`.
fn label(frame: &Frame, lines: bool) -> String {
    let mut text = match (&frame.symbol, &frame.function_start) {
        (Some(symbol), _) => symbol.clone(),
        (None, _) if frame.module == NO_MODULE => return "[code outside of all files]".to_owned(),
        (None, Some(start)) => format!("fn@{start}"),
        (None, None) => format!("+{}", frame.offset),
    };
    let guess = if frame.guess { ", guess" } else { "" };
    if frame.module != NO_MODULE {
        text += &format!(" ({}{guess})", frame.module);
    }
    if lines && let (Some(file), Some(line)) = (&frame.file, frame.line) {
        text += &format!(" {}:{line}", base_name(file));
    }
    text
}
