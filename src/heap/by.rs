//! The views of a heap.

use clap::ValueEnum;

/// What a heap's report is ordered by, and shows stacks of: as `--by` names it, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum HeapBy {
    /// Bytes that are outstanding
    #[default]
    Outstanding,
    /// Bytes that were outstanding when all together had the most
    Peak,
    /// Calls that allocated, whatever was freed since
    Allocations,
    /// Calls whose block was freed before the thread's next allocation
    Temporary,
    /// The program or library whose function called the allocator
    Module,
    /// The function that the thread began with
    Thread,
    /// What the allocator gives for a block, with what rounding takes
    Size,
}
