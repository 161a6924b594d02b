//! A creating stack as rules read it: module names, proven function names, and nothing else.

use super::code::{is_wrapper, plain_name};
use crate::model::{Completeness, Frame, FrameKind, StackId, StackTable, SymbolizedStacks};

/// One line of a stack: a frame, or a function inlined into one.
#[derive(Clone, Debug)]
pub struct Line {
    /// Base name of the module ("libc.so.6"); empty outside all modules.
    pub module: String,
    /// Linkage name that covers the address, without the compiler's suffixes (`.isra.0`,
    /// `.part.1`, `.cold`) and symbol version. None in stripped code.
    pub function: Option<String>,
    /// Demangled name.
    pub display: Option<String>,
    pub frame: Frame,
}

impl Line {
    pub fn is(&self, names: &[&str]) -> bool {
        self.function.as_deref().is_some_and(|f| names.contains(&f))
    }

    /// True for a thin wrapper around a system call.
    pub fn is_wrapper(&self) -> bool {
        self.function.as_deref().is_some_and(is_wrapper)
    }

    /// True if the linkage or demangled name contains `part`.
    pub fn mentions(&self, part: &str) -> bool {
        self.function.as_deref().is_some_and(|f| f.contains(part))
            || self.display.as_deref().is_some_and(|f| f.contains(part))
    }
}

/// A stack, innermost line first.
#[derive(Clone, Debug)]
pub struct CallPath {
    pub id: StackId,
    pub lines: Vec<Line>,
    pub complete: bool,
    /// Functions of managed languages, each with the number of the line that follows it: their names say nothing
    /// of an allocator.
    managed: Vec<(usize, Frame)>,
}

impl CallPath {
    /// Joins the raw stack with its names; without names the modules are still known.
    pub fn new(id: StackId, table: &StackTable, symbols: &SymbolizedStacks) -> CallPath {
        if id.0 as usize >= table.len() {
            return CallPath { id, lines: Vec::new(), complete: false, managed: Vec::new() };
        }
        let stack = table.stack(id);
        let module_name = |frame: &Frame| {
            frame.module.and_then(|m| table.modules().get(m.0 as usize)).map(|m| m.short_name())
        };
        let named = symbols.frames(id);
        let lines = if named.is_empty() {
            let bare = |frame: &Frame| Line {
                module: module_name(frame).unwrap_or_default(),
                function: None,
                display: None,
                frame: *frame,
            };
            stack.frames.iter().map(bare).collect::<Vec<Line>>()
        } else {
            let with_names = named.iter().map(|f| Line {
                module: module_name(&f.frame).unwrap_or_default(),
                function: f.function.as_ref().map(|n| plain_name(&n.linkage).to_string()),
                display: f.function.as_ref().map(|n| n.name.clone()),
                frame: f.frame,
            });
            with_names.collect()
        };
        let is_generated = |frame: &Frame| {
            frame.module.and_then(|m| table.modules().get(m.0 as usize)).is_some_and(|m| m.is_generated())
        };
        let is_managed = |line: &Line| line.frame.kind == FrameKind::Managed || is_generated(&line.frame);
        let mut managed = Vec::new();
        let mut own = 0;
        for line in &lines {
            match is_managed(line) {
                true => managed.push((own, line.frame)),
                false => own += 1,
            }
        }
        let lines = lines.into_iter().filter(|line| !is_managed(line)).collect();
        CallPath { id, lines, complete: stack.completeness == Completeness::Complete, managed }
    }

    /// Index of the first line that is no system call wrapper.
    pub fn caller(&self) -> usize {
        self.lines.iter().take_while(|l| l.is_wrapper()).count()
    }

    pub fn caller_line(&self) -> Option<&Line> {
        self.lines.get(self.caller())
    }

    /// True if the caller has a name: shapes do not decide then.
    pub fn caller_is_named(&self) -> bool {
        self.caller_line().is_some_and(|l| l.function.is_some())
    }

    /// The lines from `from` on while `keep` holds: an allocator's own frames.
    pub fn run(&self, from: usize, keep: impl Fn(&Line) -> bool) -> &[Line] {
        let rest = self.lines.get(from..).unwrap_or(&[]);
        let count = rest.iter().take_while(|l| keep(l)).count();
        rest.get(..count).unwrap_or(&[])
    }

    /// True if nothing but `own` lines and wrappers lies between the call and line `at`. What somebody else maps who was
    /// called from there is not the caller's.
    pub fn is_direct(&self, at: usize, own: impl Fn(&Line) -> bool) -> bool {
        self.lines.get(..at).is_some_and(|inner| inner.iter().all(|line| line.is_wrapper() || own(line)))
    }

    /// The raw frames from line `from` outwards, to compare callers.
    pub fn frames_from(&self, from: usize) -> Vec<Frame> {
        let mut frames: Vec<Frame> = Vec::new();
        let mut managed = self.managed.iter().filter(|(before, _)| *before >= from).peekable();
        for (at, line) in self.lines.iter().enumerate().skip(from) {
            while let Some((_, frame)) = managed.next_if(|(before, _)| *before <= at) {
                frames.push(*frame);
            }
            if frames.last() != Some(&line.frame) {
                frames.push(line.frame);
            }
        }
        frames
    }

    pub fn any(&self, test: impl Fn(&Line) -> bool) -> bool {
        self.lines.iter().any(test)
    }
}
