//! Frames in code that was made at run time, and what that code was called then: later, other code may be at the
//! same address.

use super::{Frame, ModuleId, ModuleInfo, StackTable};
use crate::model::{FunctionName, SourceLine};
use std::collections::HashMap;

/// The path of the modules that represent such code. Their frames have absolute addresses.
pub const GENERATED: &[u8] = b"[generated code]";

/// By module and address.
pub(super) type GeneratedNames = HashMap<(ModuleId, u64), (FunctionName, Option<SourceLine>)>;

impl ModuleInfo {
    /// The code that was made at run time in one address space, during a time in which no code took the place of
    /// other code. `serial` is another one for each.
    pub fn generated(serial: u64) -> ModuleInfo {
        ModuleInfo { path: GENERATED.to_vec(), major: 0, minor: 0, inode: serial, build_id: None }
    }

    pub fn is_generated(&self) -> bool {
        self.path == GENERATED
    }
}

impl StackTable {
    /// From now on a frame in generated code has this name.
    pub fn name_generated(&mut self, frame: &Frame, function: FunctionName, begins: Option<SourceLine>) {
        if let Some(module) = frame.module {
            self.generated.insert((module, frame.address), (function, begins));
        }
    }

    /// What the code was called when the frame was there.
    pub fn generated_name(&self, frame: &Frame) -> Option<&(FunctionName, Option<SourceLine>)> {
        self.generated.get(&(frame.module?, frame.address))
    }
}
