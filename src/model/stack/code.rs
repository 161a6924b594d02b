//! What a runtime itself knows of the code that it has made: whose it is, and how its frames are laid out.

use crate::model::Addr;
use crate::model::SourceLine;
use crate::model::arenas::ReadMemory;

/// How a frame of such code leads to its caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CodeFrame {
    /// So many bytes from the stack pointer, as it is while another function is called, to the caller's: the last
    /// words are the caller's rbp and the return address.
    Sized(u64),
    /// `[rbp]` is the caller's rbp, `[rbp + 8]` the return address.
    Linked,
    /// The same, of an interpreter: what it runs is found in words of the frame, at these distances from rbp.
    Interpreted {
        function: i64,
        /// The instruction of the interpreted program.
        instruction: i64,
        /// The caller's stack pointer.
        caller: i64,
    },
}

/// Code at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CodeAt {
    pub frame: CodeFrame,
    /// Another one for other code at the same address.
    pub what: u64,
}

/// A function of the program whose code was made at run time, or is interpreted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GeneratedFunction {
    pub name: String,
    /// Of an interpreted function, where it is. Of a compiled one, where it begins.
    pub place: Option<SourceLine>,
}

/// A runtime's own tables of its code in one process. They may change at any time: a result is returned only
/// after all that it depends on was read.
pub trait CodeTables: Send {
    /// None: not the runtime's, or what is found is not what it should be.
    fn code_at(&self, address: u64, memory: &mut ReadMemory<'_>) -> Option<CodeAt>;

    /// What code is called that was found there ([`CodeAt::what`]).
    fn name(&self, what: u64, memory: &mut ReadMemory<'_>) -> Option<GeneratedFunction>;

    /// What an interpreter runs, by the two words of its frame. None, too, where the instruction is not the function's.
    fn interpreted(
        &self,
        function: u64,
        instruction: u64,
        memory: &mut ReadMemory<'_>,
    ) -> Option<GeneratedFunction>;
}

/// How such tables are found: by variables that a file of the process exports. None: it is not that runtime, or one
/// that is not known.
pub type FindCodeTables =
    fn(&mut dyn FnMut(&str) -> Option<Addr>, &mut ReadMemory<'_>) -> Option<Box<dyn CodeTables>>;
