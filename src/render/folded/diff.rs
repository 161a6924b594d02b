//! Two reports as stacks with what each has of them, as difffolded.pl writes two profiles.

use super::Folded;
use super::report::{Bytes, FlameOptions, NO_RESIDENCY, StackWriter, Stacks};
use crate::diff::Side;
use crate::report::model::{Process, Report};
use std::collections::HashMap;
use std::ops::AddAssign;

/// Processes of a report that are compared.
#[derive(Clone, Debug)]
pub struct FlameSide<'a> {
    pub report: &'a Report,
    pub processes: Vec<&'a Process>,
    /// What it is called: a file, a moment.
    pub name: String,
}

impl<'a> FlameSide<'a> {
    pub fn of(side: &Side<'a>, name: String) -> FlameSide<'a> {
        FlameSide { report: side.report(), processes: side.processes().to_vec(), name }
    }

    /// All processes.
    pub fn whole(report: &'a Report, name: String) -> FlameSide<'a> {
        FlameSide { report, processes: report.processes.iter().collect(), name }
    }

    fn has_stacks(&self) -> bool {
        let mut regions = self.processes.iter().flat_map(|process| &process.regions);
        regions.any(|region| region.origin.as_ref().is_some_and(|origin| origin.stack.is_some()))
    }

    fn is_empty(&self) -> bool {
        self.processes.iter().all(|process| process.regions.is_empty())
    }
}

/// Before and after.
#[derive(Clone, Debug)]
pub struct FlameSides<'a> {
    pub a: FlameSide<'a>,
    pub b: FlameSide<'a>,
    /// Numbers of processes mean the same on both sides.
    pub same_pids: bool,
}

/// The bytes of a stack before and after.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::render) struct Pair {
    pub a: Bytes,
    pub b: Bytes,
}

impl AddAssign for Pair {
    fn add_assign(&mut self, other: Pair) {
        self.a += other.a;
        self.b += other.b;
    }
}

/// `-f folded` of a comparison: a stack and its bytes on both sides a line.
pub fn diff_to_folded(sides: &FlameSides<'_>, options: FlameOptions) -> String {
    diff_stacks(sides, options).folded.to_text(|pair| {
        match (pair.a.get(options.width), pair.b.get(options.width)) {
            (0, 0) => None,
            (a, b) => Some(format!("{a} {b}")),
        }
    })
}

pub(in crate::render) fn diff_stacks(sides: &FlameSides<'_>, options: FlameOptions) -> Stacks<Pair> {
    let FlameSides { a, b, .. } = sides;
    // Where one side knows no stack, it is compared what the memory is.
    let called = a.is_empty() || b.is_empty() || a.has_stacks() && b.has_stacks();
    let mut stacks = Stacks { folded: Folded::new(), kinds: HashMap::new() };
    for (side, is_a) in [(a, true), (b, false)] {
        let mut writer = StackWriter::going_on(side.report, options, stacks);
        if !called {
            writer.without_calls();
        }
        let known =
            |process: &&&Process| !options.width.needs_residency() || process.residency != NO_RESIDENCY;
        for process in side.processes.iter().filter(known) {
            let root = match sides.same_pids {
                true => format!("{}-{}", process.comm, process.pid),
                false => process.comm.clone(),
            };
            let pair = |bytes| match is_a {
                true => Pair { a: bytes, b: Bytes::default() },
                false => Pair { a: Bytes::default(), b: bytes },
            };
            writer.process(process, &root, pair);
        }
        stacks = writer.stacks;
    }
    stacks
}
