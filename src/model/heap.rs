//! Allocations, as probes on an allocator's functions report them.

pub mod runtime;

use super::event::{MmKey, NoStack, Pid, Tid};
use super::{Addr, StackId};
use serde::Deserialize;

/// What vmaudit puts into processes whose heap it counts.
pub mod own {
    /// The category of such memory, in reports.
    pub const CATEGORY: &str = "vmaudit";
    /// The memory file (memfd_create(2)) that the library writes and vmaudit reads.
    pub const AREA: &str = "vmaudit-heap";
    /// The library's own tables in a process, as the kernel names them (prctl(2), PR_SET_VMA_ANON_NAME).
    pub const TABLES: &str = "[anon:vmaudit-heap]";
    /// The library.
    pub const LIBRARY: &str = "libvmaudit-heap.so";
}

/// One step in the life of an allocation, or of a context that holds several.
///
/// Only the outermost of nested calls is reported (realloc that calls malloc, `operator new` that calls
/// malloc), so each byte is counted once. Contexts are the exception: each reset and deletion is
/// reported, since the outermost covers only itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeapEvent {
    /// CLOCK_MONOTONIC, nanoseconds.
    pub time_ns: u64,
    pub pid: Pid,
    pub tid: Tid,
    pub mm: MmKey,
    /// Index into the list of probed functions.
    pub function: u32,
    pub op: HeapOp,
    /// Of the caller of the allocator's function. Frees have none unless requested.
    pub stack: Result<StackId, NoStack>,
}

/// A memory context (arena, pool, region) of a program's own allocator: the address of its descriptor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ContextKey(pub u64);

/// Which contexts a reset or deletion of one empties; descriptions of allocators name them so.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Covers {
    /// It alone.
    Itself = 0,
    /// Those below it, at any depth, but not itself.
    Descendants = 1,
    /// It and those below it.
    Tree = 2,
}

/// What happened. Sizes are those requested by the program, in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HeapOp {
    /// Reported when the function has returned; never for a null pointer.
    Allocated {
        address: Addr,
        size: u64,
        context: Option<ContextKey>,
    },
    /// Reported before the function frees: from then on another thread may get the address.
    Freed {
        address: Addr,
    },
    /// As `Freed`, but the call may still fail and leave the old block as it was.
    ResizeBegun {
        address: Addr,
    },
    /// The end of the same thread's newest `ResizeBegun`: `new` is `None` when it failed, and for size 0.
    ResizeEnded {
        old: Addr,
        new: Option<Addr>,
        size: u64,
        context: Option<ContextKey>,
        failed: bool,
    },
    /// The function refused: no memory.
    Refused {
        size: u64,
    },
    ContextCreated {
        context: ContextKey,
        parent: Option<ContextKey>,
        name: Option<Vec<u8>>,
    },
    /// The allocations of what it covers are gone; the contexts stay.
    ContextReset {
        context: ContextKey,
        covers: Covers,
    },
    /// As a reset, and the contexts are gone, too.
    ContextDeleted {
        context: ContextKey,
        covers: Covers,
    },
    ContextMoved {
        context: ContextKey,
        parent: Option<ContextKey>,
    },
}
