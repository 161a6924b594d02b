//! Call stacks, normalised to module + file offset, and their interning.

use std::collections::HashMap;

/// Index into [`StackTable::modules`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ModuleId(pub u32);

/// Index into [`StackTable::stack`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StackId(pub u32);

/// An executable file (or the vdso) that frames refer to.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ModuleInfo {
    /// Path as mapped, any bytes; `[vdso]` for the vdso.
    pub path: Vec<u8>,
    pub major: u32,
    pub minor: u32,
    pub inode: u64,
    /// GNU build id, hex, when the file has one and could be read.
    pub build_id: Option<String>,
}

impl ModuleInfo {
    /// Last path component, without " (deleted)"; lossy for display.
    pub fn short_name(&self) -> String {
        let path = self.path.strip_suffix(b" (deleted)").unwrap_or(&self.path);
        let base = path.rsplit(|&b| b == b'/').next().unwrap_or(path);
        String::from_utf8_lossy(base).into_owned()
    }
}

/// What a frame's address is: the next instruction to run, or where a call returns to (look
/// one byte before it for the calling instruction).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum FrameKind {
    InstructionPointer,
    ReturnAddress,
    /// A return address found by scanning the stack: likely, not proven.
    Guess,
}

/// One frame. With a module, `address` is the *file offset* of the address in that module
/// (for the vdso: the offset in its image); without one it is the absolute address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Frame {
    pub module: Option<ModuleId>,
    pub address: u64,
    pub kind: FrameKind,
}

/// Whether the outermost frame is the program's (or thread's) entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Completeness {
    /// Reached `_start`, `clone`, or another root without a caller.
    Complete,
    /// The copied stack bytes end before the root.
    Truncated,
    /// No unwind data for a frame, or it made no sense.
    Incomplete,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Stack {
    /// Innermost first.
    pub frames: Vec<Frame>,
    pub completeness: Completeness,
}

/// Each distinct module and stack once.
#[derive(Default, Debug)]
pub struct StackTable {
    modules: Vec<ModuleInfo>,
    module_ids: HashMap<ModuleInfo, ModuleId>,
    stacks: Vec<Stack>,
    stack_ids: HashMap<Stack, StackId>,
}

impl StackTable {
    pub fn intern_module(&mut self, info: ModuleInfo) -> ModuleId {
        if let Some(&id) = self.module_ids.get(&info) {
            return id;
        }
        let id = ModuleId(self.modules.len() as u32);
        self.modules.push(info.clone());
        self.module_ids.insert(info, id);
        id
    }

    pub fn intern(&mut self, stack: &Stack) -> StackId {
        if let Some(&id) = self.stack_ids.get(stack) {
            return id;
        }
        let id = StackId(self.stacks.len() as u32);
        self.stacks.push(stack.clone());
        self.stack_ids.insert(stack.clone(), id);
        id
    }

    pub fn stack(&self, id: StackId) -> &Stack {
        &self.stacks[id.0 as usize]
    }

    pub fn module(&self, id: ModuleId) -> &ModuleInfo {
        &self.modules[id.0 as usize]
    }

    pub fn modules(&self) -> &[ModuleInfo] {
        &self.modules
    }

    pub fn len(&self) -> usize {
        self.stacks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }
}
