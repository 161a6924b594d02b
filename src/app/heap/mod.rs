//! Which stacks hold the heap, for all commands that count it: `heap`, and `run --heap`.

pub mod identity;
pub mod mappings;
pub mod preload;
pub mod request;
pub mod resolve;

use crate::heap::describe::{DEFAULT_ALLOCATORS, Description, built_in};
use crate::model::Pid;
use crate::symbolize::{Config, Symbolizer};
use std::collections::HashMap;

/// In which rows of each process sites are.
pub type RowsBySite = HashMap<Pid, HashMap<u32, u64>>;

/// # Errors
/// When a description that is built in cannot be read.
pub fn default_descriptions() -> Result<Vec<Description>, String> {
    let found = DEFAULT_ALLOCATORS.iter().filter_map(|name| built_in(name));
    found.map(|description| description.map_err(|error| error.to_string())).collect()
}

pub fn symbolizer() -> Symbolizer {
    Symbolizer::new(Config::default())
}
