//! Names for the stacks of a recording: those that it brought along; of one that was cut, from the
//! files as they are now.

use super::error::AppError;
use crate::model::{StackId, StackTable, SymbolizedStacks};
use crate::render::events::StackSource;
use crate::report::model::Stack;
use crate::report::named_stack;
use crate::store::{FrameNames, Recording};
use crate::symbolize::{Config, Symbolizer};
use crate::unwind::Unwinder;
use std::cell::OnceCell;

pub struct RecordedNames {
    pub stacks: StackTable,
    names: FrameNames,
    is_cut: bool,
    /// Names of all stacks at once, where files have to be read.
    from_files: OnceCell<SymbolizedStacks>,
}

impl RecordedNames {
    /// # Errors
    /// When the recording is damaged.
    pub fn of(recording: &Recording) -> Result<RecordedNames, AppError> {
        let stacks = recording.stacks()?;
        let names = recording.names(&stacks)?;
        let is_cut = recording.facts().is_none();
        Ok(RecordedNames { stacks, names, is_cut, from_files: OnceCell::new() })
    }

    pub fn symbolized(&self, ids: Vec<StackId>) -> SymbolizedStacks {
        if self.is_cut {
            return symbolize(&self.stacks, ids);
        }
        self.names.symbolized(ids, &self.stacks)
    }
}

fn symbolize(stacks: &StackTable, ids: Vec<StackId>) -> SymbolizedStacks {
    let mut symbolizer = Symbolizer::new(Config::default());
    let names = symbolizer.symbolize(stacks, ids, Unwinder::default().files_mut());
    for note in symbolizer.take_notes() {
        crate::session::say::say(note);
    }
    names
}

impl StackSource for RecordedNames {
    fn stack(&mut self, id: StackId) -> Stack {
        if !self.is_cut {
            return named_stack(id, &self.stacks, &self.symbolized(vec![id]));
        }
        let all = || symbolize(&self.stacks, (0..self.stacks.len()).map(|id| StackId(id as u32)).collect());
        named_stack(id, &self.stacks, self.from_files.get_or_init(all))
    }
}
