//! Names while a session runs. Each stack is symbolized once.

use super::pipeline::Pipeline;
use crate::model::{StackId, SymbolizedStacks};
use crate::symbolize::{Config, Symbolizer};
use std::collections::HashSet;

/// Stacks whose names are kept from one time to the next, beyond those that are requested.
const MAX_NAMED: usize = 8192;

pub struct SymbolNames {
    symbolizer: Symbolizer,
    names: SymbolizedStacks,
}

impl Default for SymbolNames {
    /// From symbol tables alone: reading DWARF may take seconds, during which the ring would overflow.
    fn default() -> SymbolNames {
        SymbolNames::new(Config { lines: None, ..Config::default() })
    }
}

impl SymbolNames {
    pub fn new(config: Config) -> SymbolNames {
        SymbolNames { symbolizer: Symbolizer::new(config), names: SymbolizedStacks::default() }
    }

    /// The next request drops all that are not part of it.
    pub fn are_many(&self) -> bool {
        self.names.stacks.len() > MAX_NAMED
    }

    /// All that were named and kept.
    pub fn known(&self) -> &SymbolizedStacks {
        &self.names
    }

    /// What the user should know about the latest ones.
    pub fn take_notes(&mut self) -> Vec<String> {
        self.symbolizer.take_notes()
    }

    /// Names of (at least) these stacks.
    pub fn of(
        &mut self,
        stacks: impl Iterator<Item = StackId>,
        pipeline: &mut Pipeline,
    ) -> &SymbolizedStacks {
        let requested: HashSet<StackId> = stacks.collect();
        if self.are_many() {
            self.names.stacks.retain(|id, _| requested.contains(id));
        }
        let new: Vec<StackId> =
            requested.into_iter().filter(|id| !self.names.stacks.contains_key(id)).collect();
        if !new.is_empty() {
            let named = match &pipeline.recorded_names {
                Some(names) => names.symbolized_without_inlined(new, &pipeline.stacks),
                None => {
                    let files = pipeline.unwinder.files_mut();
                    self.symbolizer.symbolize(&pipeline.stacks, new, files)
                }
            };
            self.names.stacks.extend(named.stacks);
        }
        &self.names
    }
}
