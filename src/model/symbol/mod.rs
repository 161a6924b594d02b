//! Stacks with names: what `symbolize` makes of [`crate::model::stack`] and the core reads.

pub mod function;

use crate::model::stack::{Frame, StackId};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;

/// A function's name that is proven to cover the address (`value <= address < value + size`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FunctionName {
    /// Demangled, for people.
    pub name: String,
    /// As in the symbol table: what rules match (`_rjem_je_base_block_alloc`, `__mmap64`).
    pub linkage: String,
    /// Bytes from the function's start.
    pub offset: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SourceLine {
    pub file: String,
    pub line: u32,
}

/// One line of a printed stack: a frame, or a function inlined into one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SymbolFrame {
    pub frame: Frame,
    pub function: Option<FunctionName>,
    /// Without a name: where the function starts (module's virtual address, from the FDE in
    /// `.eh_frame`) and the offset of the address in it, so that equal functions group.
    pub bounds: Option<(u64, u64)>,
    pub location: Option<SourceLine>,
    /// True when the compiler inlined this function into the next line's.
    pub inlined: bool,
}

/// Names for the requested stacks. Innermost first, inlined functions before the function that they were
/// inlined into.
#[derive(Default, Debug, Clone)]
pub struct SymbolizedStacks {
    /// Stacks share what is the same.
    pub stacks: HashMap<StackId, Vec<Arc<SymbolFrame>>>,
}

impl SymbolizedStacks {
    /// The named frames of a stack; empty when it was not symbolized.
    pub fn frames(&self, id: StackId) -> &[Arc<SymbolFrame>] {
        self.stacks.get(&id).map_or(&[], Vec::as_slice)
    }
}
