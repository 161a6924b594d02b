//! What was read from outside about one process, as plain data: gathered by the adapters while
//! the process is held (or alive), used by the pure core later.

pub mod limits;
pub mod marks;

use crate::model::addr::{Addr, AddrRange};
use crate::model::event::{Pid, Tid};
use crate::model::mapping::Mapping;
use crate::model::mapping::vma_detail::VmaDetails;
use crate::model::observation::limits::Limits;
use crate::model::observation::marks::CodeMarks;

/// How page-exact the residency is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ResidencySource {
    /// PAGEMAP_SCAN ioctl (Linux 6.7+): exact.
    PagemapScan,
    /// /proc/PID/pagemap present and swap bits: exact but for the zero page.
    Pagemap,
    /// smaps' Rss shared out in proportion over each VMA: an estimate.
    SmapsProportion,
    /// Nothing could be read, or nothing was requested.
    #[default]
    None,
}

/// Resident and swapped pages of an address space.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Residency {
    pub source: ResidencySource,
    /// Sorted, disjoint, page-aligned ranges of resident pages (for `SmapsProportion`: none).
    pub resident: Vec<AddrRange>,
    /// Sorted, disjoint, page-aligned ranges of swapped pages.
    pub swapped: Vec<AddrRange>,
    /// For `SmapsProportion`: (VMA, Rss bytes, Swap bytes).
    pub per_vma: Vec<(AddrRange, u64, u64)>,
}

impl Residency {
    /// Pages were examined one by one.
    pub fn is_page_exact(&self) -> bool {
        matches!(self.source, ResidencySource::PagemapScan | ResidencySource::Pagemap)
    }

    /// The parts of a range that are in memory.
    pub fn resident_in(&self, range: AddrRange) -> impl Iterator<Item = AddrRange> {
        let first = self.resident.partition_point(|run| run.end <= range.start);
        let runs = self.resident.get(first..).unwrap_or_default();
        runs.iter().take_while(move |run| run.start < range.end).map(move |run| run.intersect(range))
    }
}

/// What headers in a process' memory prove to be one thing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    pub range: AddrRange,
    pub kind: BlockKind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockKind {
    /// One block to which malloc gave a mapping of its own.
    Large,
    /// An arena full of pools of small objects.
    PoolArena,
    /// A mapping that the allocator keeps a description of, which it points back at.
    Group,
    /// A page of objects, which the runtime keeps a description of that points back at it.
    ObjectPage,
    /// An arena full of blocks that are chained to each other.
    ChainedArena,
    /// What an allocator keeps of its own: a block with a header that says how long it is.
    Bookkeeping,
    /// Where such descriptions lie, read whole: what they do not describe is not the allocator's.
    GroupTable,
}

/// A living thread at the time of the snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ThreadObservation {
    pub tid: Tid,
    pub comm: Vec<u8>,
    /// From /proc/PID/task/TID/syscall; None when it says "running" or is unreadable.
    pub stack_pointer: Option<Addr>,
}

/// Where the C library keeps its block for a thread: at the top of the thread's stack, whoever provided that, and
/// wherever its stack pointer is (a fibre's stack, a goroutine's, a signal handler's).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ThreadBlocks {
    /// Of living threads, an address inside of the block, from the kernel (get_robust_list).
    pub living: Vec<(Tid, Addr)>,
    /// Of threads that have ended, the block, by what it says of itself; sorted.
    pub ended: Vec<Addr>,
    /// All stacks that a thread may have left were examined for such blocks.
    pub searched: bool,
    /// None where the C library has none, or they could not be read whole.
    pub lists: Option<StackLists>,
}

/// What the C library's own lists say of threads' stacks. Blocks; each sorted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StackLists {
    /// Memory that the program gave to a thread as its stack.
    pub given: Vec<GivenStack>,
    /// The C library mapped the stack, its thread has ended, and nobody has joined it.
    pub unjoined: Vec<Addr>,
    /// Kept for the next threads.
    pub cached: Vec<Addr>,
}

/// A stack that the C library did not map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GivenStack {
    /// None where the thread has ended, and nobody has joined it.
    pub tid: Option<Tid>,
    pub block: Addr,
    /// As it was given; None where the block did not show it.
    pub stack: Option<AddrRange>,
}

/// glibc's `heap_info` (malloc/arena.c) read at a multiple of 64 MiB (HEAP_MAX_SIZE).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeapInfo {
    pub at: Addr,
    pub ar_ptr: Addr,
    pub prev: Addr,
    pub size: u64,
    pub mprotect_size: u64,
    pub pagesize: u64,
}

/// What a process has used since it began, its ended threads included (/proc/PID/stat).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ResourceUse {
    /// Page faults that needed no I/O.
    pub minor_faults: u64,
    /// Page faults that waited for I/O.
    pub major_faults: u64,
    /// Processor time, nanoseconds (the process's CPU clock).
    pub cpu_ns: u64,
    /// Of it, by the kernel's ticks of 10 ms.
    pub user_ns: u64,
    pub system_ns: u64,
}

/// Figures of /proc/PID/status in bytes, and of /proc/PID/stat.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StatusFigures {
    pub vm_size: u64,
    pub vm_peak: u64,
    pub vm_rss: u64,
    pub vm_swap: u64,
    pub vm_hwm: u64,
    pub threads: u64,
    /// None where it could not be read.
    pub resources: Option<ResourceUse>,
}

/// Which moment a snapshot shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SnapshotMoment {
    /// The process was held at its exit: this is its final state.
    HeldAtExit,
    /// The process went on running.
    #[default]
    Live,
}

/// One consistent snapshot of a process; by default nothing is known of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Observations {
    pub pid: Pid,
    pub moment: SnapshotMoment,
    /// CLOCK_MONOTONIC just before and just after maps were read, nanoseconds: calls reported
    /// in between may or may not be in `mappings`.
    pub begun_ns: u64,
    pub ended_ns: u64,
    /// /proc/PID/maps, sorted, without vsyscall.
    pub mappings: Vec<Mapping>,
    pub residency: Residency,
    pub details: VmaDetails,
    pub threads: Vec<ThreadObservation>,
    pub thread_blocks: ThreadBlocks,
    pub heap_infos: Vec<HeapInfo>,
    pub status: StatusFigures,
    pub comm: Vec<u8>,
    pub exe: Vec<u8>,
    pub cmdline: Vec<Vec<u8>>,
    /// RLIMIT_STACK's soft limit, None for unlimited or unreadable.
    pub stack_limit: Option<u64>,
    pub limits: Limits,
    /// By headers in its memory; sorted, disjoint.
    pub blocks: Vec<Block>,
    /// Allocators and runtimes in the files with code.
    pub code: CodeMarks,
    /// From personality: ADDR_NO_RANDOMIZE is off and kernel.randomize_va_space is not 0.
    pub aslr: bool,
    /// What could not be read, in words for the report ("smaps of 4123: permission denied").
    pub gaps: Vec<String>,
}

impl Observations {
    /// The moment that they show, CLOCK_MONOTONIC, ns. A process that is held at its exit has come
    /// to its end when the snapshot begins; what follows is vmaudit's time.
    pub fn at_ns(&self) -> u64 {
        match self.moment {
            SnapshotMoment::HeldAtExit => self.begun_ns,
            _ => self.ended_ns,
        }
    }
}
