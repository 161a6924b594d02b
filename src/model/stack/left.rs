//! Stacks that a thread leaves for its own: a runtime works there, and what called it is on the one that it left.

use super::{CodeFile, FoundInterpreter, NotReadable};

/// Where a runtime keeps the stack that its thread has left, as offsets in bytes; bpf/vmaudit.h says what each is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeftStackLayout {
    pub running: Running,
    pub thread: u16,
    pub current: u16,
    pub stack_pointer: u16,
    pub instruction: u16,
    pub frame_pointer: u16,
}

/// How far from the thread's control block a thread has what it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Running {
    Offset(i32),
    /// As far as this word says, by its virtual address: the loader writes it (R_X86_64_TPOFF64).
    Word(u64),
}

/// How a rule finds it in a file; None: no runtime is in there that does so.
pub type FindLeftStacks = fn(&dyn CodeFile) -> Option<Result<LeftStackLayout, NotReadable>>;

/// What a file has of which the stacks of its processes are longer than a thread's own stack shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FoundRuntime {
    Interpreter(FoundInterpreter),
    LeavesStacks(LeftStackLayout),
}

impl FoundRuntime {
    /// The virtual address of what leads to all the rest; 0 where none does.
    pub fn address(&self) -> u64 {
        match self {
            FoundRuntime::Interpreter(found) => found.runtime,
            FoundRuntime::LeavesStacks(LeftStackLayout { running: Running::Word(at), .. }) => *at,
            FoundRuntime::LeavesStacks(_) => 0,
        }
    }
}
