//! Names while a session goes on: from symbol tables alone, because reading DWARF may take seconds, during
//! which the ring would overflow. Each stack is looked up once.

use super::pipeline::Pipeline;
use crate::model::{StackId, SymbolizedStacks};
use crate::symbolize::{Config, Symbolizer};
use std::collections::HashSet;

/// Stacks whose names are kept from one time to the next, beyond those that are asked for.
const MAX_NAMED: usize = 8192;

pub struct SymbolNames {
    symbolizer: Symbolizer,
    names: SymbolizedStacks,
}

impl Default for SymbolNames {
    fn default() -> SymbolNames {
        let config = Config { lines: None, ..Config::default() };
        SymbolNames { symbolizer: Symbolizer::new(config), names: SymbolizedStacks::default() }
    }
}

impl SymbolNames {
    /// Names of (at least) these stacks.
    pub fn of(
        &mut self,
        stacks: impl Iterator<Item = StackId>,
        pipeline: &mut Pipeline,
    ) -> &SymbolizedStacks {
        let wanted: HashSet<StackId> = stacks.collect();
        if self.names.stacks.len() > MAX_NAMED {
            self.names.stacks.retain(|id, _| wanted.contains(id));
        }
        let new: Vec<StackId> = wanted.into_iter().filter(|id| !self.names.stacks.contains_key(id)).collect();
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
