//! A runtime's own record of allocating stacks, as it is found in the memory of its process.

use crate::model::Addr;
use crate::model::arenas::{ReadMemory, Surroundings};

/// What is known of a process before its runtime's own record is searched for.
#[derive(Clone, Copy)]
pub struct RuntimeSurroundings<'a> {
    pub process: &'a Surroundings<'a>,
    /// The address of a variable of the program, where its file has symbols.
    pub variable: &'a dyn Fn(&str) -> Option<Addr>,
}

/// How a runtime's record is read: pure, the caller reads the memory. None: the process has no such runtime.
pub type ReadOwnHeap =
    fn(&RuntimeSurroundings<'_>, &mut ReadMemory<'_>) -> Option<Result<OwnHeap, Unreadable>>;

/// The runtime is there, and its record is not, or is in a form that is not known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unreadable {
    /// With its version, as far as that is known.
    pub runtime: String,
    /// A sentence.
    pub why: String,
}

/// A runtime's own profile of its heap.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OwnHeap {
    /// With its version.
    pub runtime: String,
    /// What the record is, and of when: a sentence.
    pub what: String,
    /// Bytes between two samples on average; 1: every allocation is in it. None: not known, nothing can be scaled.
    pub sampled_every: Option<u64>,
    /// Base name of the file that has its functions.
    pub module: String,
    /// Several may have one stack.
    pub sites: Vec<OwnSite>,
    /// What the reader has to know: sentences.
    pub notes: Vec<String>,
}

/// What one stack allocated of one size, as it was sampled.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OwnSite {
    /// Bytes of each.
    pub size: u64,
    pub allocations: u64,
    pub frees: u64,
    /// The runtime's function that was called.
    pub function: String,
    /// Its caller first.
    pub frames: Vec<OwnFrame>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct OwnFrame {
    /// Where the call returns to.
    pub at: Addr,
    pub function: Option<OwnFunction>,
    pub file: Option<String>,
    pub line: Option<u32>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct OwnFunction {
    pub name: String,
    /// Bytes from the beginning of the function that it was compiled into.
    pub offset: u64,
    /// It was compiled into its caller.
    pub inlined: bool,
}

/// What a runtime itself says that it has reserved and committed, and for what. Bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OwnBudget {
    pub reserved: u64,
    pub committed: u64,
    /// In the runtime's own order and words.
    pub parts: Vec<OwnPart>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OwnPart {
    pub name: String,
    pub reserved: u64,
    pub committed: u64,
    /// Of it, what the C library's malloc has handed out.
    pub malloc: u64,
}

/// How a runtime is queried: by a socket that it listens on after a file was created and it got a signal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Door {
    /// With its version.
    pub runtime: String,
    /// It opens the door when it gets SIGQUIT.
    pub signals: bool,
    /// Names in the process' `/tmp`, before its number as it knows it itself.
    pub trigger: &'static str,
    pub socket: &'static str,
    pub request: &'static [u8],
}

/// Finds the door of a process that is proven to have one, by variables that its files export. None: it has no such
/// runtime.
pub type FindDoor =
    fn(&mut dyn FnMut(&str) -> Option<Addr>, &mut ReadMemory<'_>) -> Option<Result<Door, Unreadable>>;

/// A runtime that reports its memory categories on request.
#[derive(Clone, Copy)]
pub struct BudgetQuery {
    /// A variable that the file with the runtime exports.
    pub mark: &'static str,
    pub find: FindDoor,
    /// What the record is: a sentence.
    pub what: &'static str,
    /// Of the answer; what is wrong with it is a sentence.
    pub parse: fn(&str) -> Result<OwnBudget, String>,
}
