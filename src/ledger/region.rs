//! What the ledger hands to attribution: regions of the final address space, each with the
//! event that created it.

use crate::model::event::VmOp;
use crate::model::{
    Addr, AddrRange, Bytes, EventId, FileRef, NoStack, Pid, Prot, Sharing, StackId, Task, Tid,
};
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

/// Why an origin may be wrong.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Doubt {
    /// Events were lost between the origin and now; one of them may have replaced this region.
    EventsLost,
    /// The call is known but its stack was lost (the ring was full).
    StackLost,
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
    /// Name given by PR_SET_VMA_ANON_NAME, also where the kernel refused it (EINVAL on kernels
    /// without CONFIG_ANON_VMA_NAME: the call still tells).
    pub anon_name: Option<Arc<[u8]>>,
}

/// A piece of the final address space with one origin: a VMA, or a part of one (the kernel
/// merges neighbours). Within `prot`, `sharing`, `range` the kernel's word stands.
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

/// A thread seen during tracing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ThreadRecord {
    pub pid: Pid,
    pub tid: Tid,
    /// Latest name.
    pub comm: Vec<u8>,
    /// User stack pointer given to clone: it lies in the thread's stack mapping. None for the
    /// first thread and for threads older than tracing.
    pub initial_sp: Option<Addr>,
    pub created_ns: Option<u64>,
    pub exited_ns: Option<u64>,
}

/// The ledger's view joined with one look at /proc/PID/maps.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reconciled {
    /// Sorted, disjoint; together exactly the kernel's mappings.
    pub regions: Vec<Region>,
    /// Those that `regions` refer to.
    pub origins: Vec<OriginRecord>,
    /// Bytes on which ledger and kernel disagree (mapped in one only, or with another
    /// protection), outside ranges that calls changed while maps was being read.
    pub drift: Bytes,
    /// The disagreeing ranges, at most a few hundred, for `-v` and tests.
    pub drift_ranges: Vec<AddrRange>,
    /// Ranges purged by MADV_DONTNEED/FREE/… and still mapped, sorted and disjoint, whether or
    /// not they were touched again since.
    pub purged: Vec<AddrRange>,
    /// Threads of the process, living and gone.
    pub threads: Vec<ThreadRecord>,
    /// Events applied to this address space, failed ones included.
    pub events: u64,
}
