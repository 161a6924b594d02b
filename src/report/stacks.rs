//! The stacks of a report: their numbers, and their frames in words.

use super::frames::Judged;
use super::model;
use super::text::hex;
use crate::attribution::role::is_own_generated;
use crate::model::hash::IntMap;
use crate::model::{
    Completeness, Frame, FrameKind, FunctionName, StackId, StackTable, SymbolFrame, SymbolizedStacks,
};
use std::marker::PhantomData;
use std::sync::Arc;

/// Renumbers the stacks that the report refers to, in order of first use.
#[derive(Default)]
pub(super) struct StackNumbers {
    numbers: IntMap<StackId, u64>,
    used: Vec<StackId>,
}

impl StackNumbers {
    pub(super) fn number(&mut self, id: StackId) -> u64 {
        *self.numbers.entry(id).or_insert_with(|| {
            self.used.push(id);
            self.used.len() as u64 - 1
        })
    }

    pub(super) fn export(&self, table: &StackTable, names: &SymbolizedStacks) -> Vec<model::Stack> {
        let mut frames = SharedFrames::default();
        self.used.iter().map(|&id| frames.named_stack(id, table, names)).collect()
    }
}

/// A stack with what is known of its frames. One that the table does not have is `incomplete`.
pub fn named_stack(id: StackId, table: &StackTable, names: &SymbolizedStacks) -> model::Stack {
    SharedFrames::default().named_stack(id, table, names)
}

/// A frame that is in several stacks, and what it is to all of them.
type Shared = (Arc<model::Frame>, Judged);

/// The frames of several stacks, each made and judged once: deep stacks have most of theirs in common. Of one table and
/// its names.
#[derive(Default)]
pub struct SharedFrames<'a> {
    /// By the address of what they were made from, which is borrowed as long.
    named: IntMap<*const SymbolFrame, Shared>,
    /// Of stacks without names.
    unnamed: IntMap<Frame, Shared>,
    /// Of the stack that is being made.
    judged: Vec<Judged>,
    names: PhantomData<&'a SymbolizedStacks>,
}

impl<'a> SharedFrames<'a> {
    /// As [`named_stack`].
    pub fn named_stack(
        &mut self,
        id: StackId,
        table: &StackTable,
        names: &'a SymbolizedStacks,
    ) -> model::Stack {
        if id.0 as usize >= table.len() {
            return model::Stack::new(Vec::new(), "incomplete");
        }
        let (numbers, completeness) = table.frame_numbers(id);
        let lines = names.frames(id);
        let (named, unnamed, judged) = (&mut self.named, &mut self.unnamed, &mut self.judged);
        judged.clear();
        let mut share = |(frame, what): &Shared| {
            judged.push(*what);
            Arc::clone(frame)
        };
        let frames = if lines.is_empty() {
            let without_name = |number: u32| {
                let frame = table.frames()[number as usize];
                let line =
                    SymbolFrame { frame, function: None, bounds: None, location: None, inlined: false };
                share(unnamed.entry(frame).or_insert_with(|| shared(&line, table)))
            };
            numbers.map(without_name).collect()
        } else {
            let with_name = |line: &Arc<SymbolFrame>| {
                share(named.entry(Arc::as_ptr(line)).or_insert_with(|| shared(line, table)))
            };
            lines.iter().map(with_name).collect()
        };
        let completeness = match completeness {
            Completeness::Complete => "complete",
            Completeness::Truncated => "truncated",
            Completeness::Incomplete => "incomplete",
        };
        model::Stack::of_judged(frames, judged, completeness)
    }
}

fn shared(line: &SymbolFrame, table: &StackTable) -> Shared {
    let frame = frame(line, table);
    let judged = Judged::of(&frame);
    (Arc::new(frame), judged)
}

fn frame(line: &SymbolFrame, table: &StackTable) -> model::Frame {
    let module = line.frame.module.and_then(|m| table.modules().get(m.0 as usize));
    let interpreted = line.frame.kind == FrameKind::Managed;
    let of_program = |function: &FunctionName| !is_own_generated(&function.name);
    let generated =
        module.is_some_and(|m| m.is_generated()) && line.function.as_ref().is_some_and(of_program);
    let unnamed_bounds = line.bounds.filter(|_| line.function.is_none());
    let mut frame = model::Frame {
        module: module.map_or_else(|| "[unknown]".to_string(), |m| m.short_name()),
        build_id: module.and_then(|m| m.build_id.clone()),
        offset: hex(if interpreted {
            line.location.as_ref().map_or(0, |l| l.line.into())
        } else {
            line.frame.address
        }),
        symbol: line.function.as_ref().map(|f| f.name.clone()),
        symbol_offset: line.function.as_ref().map(|f| f.offset),
        role: model::Role::default(),
        file: line.location.as_ref().map(|l| l.file.clone()),
        line: line.location.as_ref().map(|l| l.line),
        inlined: line.inlined,
        function_start: unnamed_bounds.map(|b| hex(b.0)),
        function_offset: unnamed_bounds.map(|b| b.1),
        guess: line.frame.kind == FrameKind::Guess,
        managed: interpreted || generated,
    };
    frame.role = frame.true_role();
    frame
}
