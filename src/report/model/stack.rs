//! Stacks, as they are written.

use crate::report::frames::Role;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Stack {
    /// Innermost first. Stacks share what is the same frame: most are in many of them.
    pub frames: Vec<Arc<Frame>>,
    pub truncated: bool,
    /// Added: `complete`, `truncated`, `incomplete`.
    pub completeness: String,
    /// Added: the frame that requested the memory, from a reader's point of view.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<u64>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Frame {
    /// Base name of the file; `[unknown]` outside all modules.
    pub module: String,
    pub build_id: Option<String>,
    /// File offset in the module (an absolute address outside all modules).
    pub offset: String,
    /// Demangled.
    pub symbol: Option<String>,
    pub symbol_offset: Option<u64>,
    /// Added.
    pub role: Role,
    pub file: Option<String>,
    pub line: Option<u32>,
    pub inlined: bool,
    /// Added: start of the function where its name is not known, and the offset in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function_start: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function_offset: Option<u64>,
    /// Added: found by scanning the stack, not by unwinding.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub guess: bool,
    /// Added: a function of a managed language; the frame after the last of its run evaluates it. `module` is its
    /// source file, `offset` its line.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub managed: bool,
}
