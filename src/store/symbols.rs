//! Names of frames: written as each frame's lines, given back as stacks with names.

use super::error::Fault;
use super::op::narrow;
use super::read::{each_row, same_count};
use super::row::Row;
use super::sum;
use crate::model::hash::IntMap;
use crate::model::{
    Frame, FrameKind, FunctionName, SourceLine, StackId, StackTable, SymbolFrame, SymbolizedStacks,
};
use rusqlite::{Connection, params};
use std::sync::Arc;

pub(super) fn kind_number(kind: FrameKind) -> i64 {
    match kind {
        FrameKind::InstructionPointer => 0,
        FrameKind::ReturnAddress => 1,
        FrameKind::Guess => 2,
        FrameKind::Managed => 3,
    }
}

pub(super) fn kind_of(number: i64) -> Result<FrameKind, Fault> {
    match number {
        0 => Ok(FrameKind::InstructionPointer),
        1 => Ok(FrameKind::ReturnAddress),
        2 => Ok(FrameKind::Guess),
        3 => Ok(FrameKind::Managed),
        _ => Err(Fault::damaged(format!("a frame is of kind {number}"))),
    }
}

/// Which frames have names already. All lines of a frame come from one lookup, the first that found it:
/// another may know of other lines and inlined functions (the time for reading DWARF is limited), and halves
/// of both would name calls that never happened.
#[derive(Default)]
pub(super) struct NamedFrames(Vec<bool>);

impl NamedFrames {
    /// The lines of each frame that has none yet: a frame has the same name in all stacks.
    pub(super) fn rows(&mut self, names: &SymbolizedStacks, stacks: &StackTable, out: &mut Vec<Row>) {
        self.0.resize(stacks.frames().len().max(self.0.len()), false);
        for (&id, lines) in &names.stacks {
            if id.0 as usize >= stacks.len() {
                continue;
            }
            let mut lines = lines.as_slice();
            for number in stacks.frame_numbers(id).0 {
                // Inlined functions come before the line of the frame itself.
                let own = lines.iter().position(|line| !line.inlined).map_or(lines.len(), |own| own + 1);
                let (of_frame, rest) = lines.split_at(own);
                lines = rest;
                let Some(done) = self.0.get_mut(number as usize) else { continue };
                if *done || of_frame.is_empty() {
                    continue;
                }
                *done = true;
                out.extend(of_frame.iter().zip(0..).map(|(line, n)| Row::Symbol {
                    frame: i64::from(number),
                    n,
                    named: Box::new(line.as_ref().clone()),
                }));
            }
        }
    }
}

pub(super) fn insert(db: &Connection, (frame, n): (i64, i64), named: &SymbolFrame) -> Result<usize, Fault> {
    let function = named.function.as_ref();
    sum::insert(
        db,
        "symbol",
        params![
            frame,
            n,
            function.map(|f| &f.name),
            function.map(|f| &f.linkage),
            function.map(|f| f.offset as i64),
            named.bounds.map(|(start, _)| start as i64),
            named.bounds.map(|(_, offset)| offset as i64),
            named.location.as_ref().map(|l| &l.file),
            named.location.as_ref().map(|l| l.line),
            named.inlined
        ],
    )
}

/// What the frames of a recording are called.
#[derive(Default, Debug)]
pub struct FrameNames {
    /// By index into [`StackTable::frames`].
    lines: IntMap<u32, Vec<Arc<SymbolFrame>>>,
}

impl FrameNames {
    pub(super) fn read(db: &Connection, frames: &[Frame]) -> Result<FrameNames, Fault> {
        let mut names = FrameNames::default();
        let mut count = 0;
        each_row(db, "SELECT * FROM symbol ORDER BY frame, n", [], |row| {
            let number: u32 = narrow(row.int(0)?, "a frame's number")?;
            let known = names.lines.get(&number).map_or(0, Vec::len);
            if row.int(1)? != known as i64 {
                return Err(Fault::damaged(format!("a name of frame {number} is missing")));
            }
            let Some(frame) = frames.get(number as usize) else {
                return Err(Fault::damaged(format!("names of frame {number}, which is not there")));
            };
            let function = match (row.text(2)?, row.text(3)?) {
                (Some(name), Some(linkage)) => {
                    Some(FunctionName { name, linkage, offset: row.int(4)? as u64 })
                }
                _ => None,
            };
            let bounds = match (row.maybe(5)?, row.maybe(6)?) {
                (Some(start), Some(offset)) => Some((start as u64, offset as u64)),
                _ => None,
            };
            let location = match (row.text(7)?, row.maybe(8)?) {
                (Some(file), Some(line)) => Some(SourceLine { file, line: narrow(line, "a source line")? }),
                _ => None,
            };
            let inlined = row.flag(9)?;
            let line = SymbolFrame { frame: *frame, function, bounds, location, inlined };
            names.lines.entry(number).or_default().push(Arc::new(line));
            count += 1;
            Ok(())
        })?;
        same_count(db, "symbol_rows", count)?;
        Ok(names)
    }

    /// The lines of a stack, innermost first; None where a frame of it was not resolved.
    pub fn stack(&self, id: StackId, stacks: &StackTable) -> Option<Vec<Arc<SymbolFrame>>> {
        if id.0 as usize >= stacks.len() {
            return None;
        }
        let mut lines = Vec::new();
        for number in stacks.frame_numbers(id).0 {
            lines.extend_from_slice(self.lines.get(&number)?);
        }
        Some(lines)
    }

    /// As [`FrameNames::symbolized`], as they are without debugging information.
    pub fn symbolized_without_inlined(
        &self,
        ids: impl IntoIterator<Item = StackId>,
        stacks: &StackTable,
    ) -> SymbolizedStacks {
        let mut names = self.symbolized(ids, stacks);
        names.stacks.values_mut().for_each(|lines| lines.retain(|line| !line.inlined));
        names
    }

    /// Names of the requested stacks, in the form that the core reads.
    pub fn symbolized(
        &self,
        ids: impl IntoIterator<Item = StackId>,
        stacks: &StackTable,
    ) -> SymbolizedStacks {
        let named = ids.into_iter().filter_map(|id| Some((id, self.stack(id, stacks)?)));
        SymbolizedStacks { stacks: named.collect() }
    }
}
