//! What the ledger hands to attribution: regions of the final address space, each with the
//! event that created it.

use super::vma_names::VmaNames;
use crate::model::event::VmOp;
use crate::model::{Addr, AddrRange, Bytes, EventId, FileRef, NoStack, Prot, Sharing, StackId, Task};
use std::sync::Arc;

/// Index into [`Reconciled::origins`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OriginId(pub u32);

/// Where a byte of the address space comes from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Origin {
    /// A traced call.
    Event(OriginId),
    /// It was there before tracing began.
    Preexisting,
    /// The kernel mapped it itself: execve's images, stack and its growth, vdso, vvar,
    /// uprobes' xol area …
    Kernel,
    /// Nothing explains it.
    Unknown,
}

/// What is in doubt about a region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Doubt {
    /// Events were lost between the origin and now; one of them may have replaced this region.
    EventsLost,
    /// The call is known but its stack was lost (the ring was full).
    StackLost,
}

impl Doubt {
    /// Another call may be the origin: no doubt is cast on that by a stack that is missing.
    pub fn is_of_origin(self) -> bool {
        self == Doubt::EventsLost
    }
}

/// What kind of memory a region is, from the call that made it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RegionKind {
    Anonymous,
    /// MAP_SHARED | MAP_ANONYMOUS, /dev/zero
    SharedAnonymous,
    File,
    /// Grown by brk(2).
    Brk,
    /// The main thread's stack.
    Stack,
    SysvShm,
    AioRing,
    ShadowStack,
    /// MAP_HUGETLB or a file on hugetlbfs.
    HugeTlb,
    /// vdso, vvar, uprobes …
    Special,
}

/// The call that made a region, with what has happened to its range since.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OriginRecord {
    pub event: EventId,
    /// The call with its raw arguments.
    pub op: VmOp,
    /// Its result (an address).
    pub ret: i64,
    pub task: Task,
    pub time_ns: u64,
    pub stack: Result<StackId, NoStack>,
    /// Bytes mapped by the call, in whole pages.
    pub mapped: Bytes,
    /// Bytes of it unmapped again since (munmap, shrinking mremap or brk), and by how many calls.
    pub unmapped: Bytes,
    pub unmap_calls: u32,
    /// Bytes of it replaced by MAP_FIXED mappings since.
    pub replaced: Bytes,
    /// mprotect calls that touched it, and madvise calls that did.
    pub mprotect_calls: u32,
    pub madvise_calls: u32,
    /// Names given by PR_SET_VMA_ANON_NAME, also where the kernel refused them (EINVAL on kernels without
    /// CONFIG_ANON_VMA_NAME: the call still shows the name).
    pub anon_names: VmaNames,
}

/// A piece of the final address space with one origin: a VMA, or a part of one (the kernel merges
/// neighbours). Within `prot`, `sharing`, `range` the kernel's view decides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Region {
    pub range: AddrRange,
    pub prot: Prot,
    pub sharing: Sharing,
    pub kind: RegionKind,
    pub origin: Origin,
    pub doubt: Option<Doubt>,
    /// The file behind it, as the call saw it.
    pub file: Option<Arc<FileRef>>,
    /// Index into `Observations::mappings` of the VMA that holds it.
    pub vma: usize,
}

impl Region {
    /// What follows is the same.
    pub(super) fn extend(&mut self, end: Addr) {
        self.range = AddrRange::new(self.range.start.0, end.0);
    }
}
