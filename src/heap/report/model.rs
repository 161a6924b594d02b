//! The heap report, as JSON shows it (docs/heap.md). Fields may be added, none renamed.

use crate::heap::fragmentation::Fragmentation;
pub use crate::heap::ledger::Doubts;
use crate::heap::mappings::Comparison;
use crate::report::model::{Events, Stack};
use serde::{Deserialize, Serialize};

/// The version of this model.
pub const SCHEMA: u32 = 1;
/// The `backend` of a report of arenas alone (`--arenas`): nothing was counted.
pub const FROM_MEMORY: &str = "memory";
/// The `backend` of a report of what runtimes keep themselves (`--runtime`).
pub const FROM_RUNTIME: &str = "runtime";

/// What is outstanding. With `sampling_bytes`, all figures of bytes, blocks, allocations and frees are
/// estimates of all from those that were seen.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HeapReport {
    pub schema: u32,
    /// `heap`.
    pub command: String,
    pub backend: String,
    /// Names of the descriptions that were used.
    pub allocators: Vec<String>,
    /// What was probed; rows name them by index.
    pub functions: Vec<Function>,
    /// `--sample`: bytes between two marks on average; null: every allocation was seen.
    pub sampling_bytes: Option<u64>,
    /// `--combined`: counted in the kernel.
    pub combined: bool,
    pub filter: Filter,
    pub events: Events,
    /// Of the events that were seen and not lost: allocations whose stack found no space in the buffer. They
    /// are in rows of their own.
    pub without_stack: u64,
    pub processes: Vec<HeapProcess>,
    pub stacks: Vec<Stack>,
}

/// A probed function.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Function {
    /// Demangled.
    pub name: String,
    /// Base name of the file.
    pub module: String,
    /// The description that names it.
    pub allocator: String,
}

/// Which blocks the rows are about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Filter {
    pub older_ns: Option<u64>,
    pub min_size: Option<u64>,
    pub max_size: Option<u64>,
    pub leaks_only: bool,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HeapProcess {
    pub pid: i32,
    pub comm: String,
    pub exe: String,
    pub cmdline: Vec<String>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub container: Option<String>,
    /// It ran already when watching began: what it had allocated before is not in here.
    pub attached: bool,
    pub watched_ns: Option<u64>,
    pub totals: Totals,
    /// What the filter takes: `rows` add up to it, and so do `contexts`, where there are any.
    pub shown: Amount,
    /// What the filter leaves out: with `shown` all that is outstanding.
    pub left_out: Amount,
    /// Most bytes first.
    pub rows: Vec<HeapRow>,
    /// Empty where no block is in a context.
    pub contexts: Vec<Context>,
    /// All that allocated, also what is freed since, whatever the filter; most bytes at the peak first. Their
    /// allocations and frees add up to `totals`.
    pub sites: Vec<HeapSite>,
    /// What is outstanding by the size that the allocator gives, smallest first, whatever the filter. Empty where
    /// that is not known (counted by probes).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<SizeClass>,
    pub doubts: Doubts,
    /// Intervals that have ended (`--interval`).
    pub intervals: u32,
    /// What `growth` is about: this long before the end. Null while no interval has ended.
    pub growth_ns: Option<u64>,
    /// Outstanding when each interval ended; thinned out in long runs.
    pub timeline: Vec<Point>,
    /// What could not be read or seen, in words.
    pub gaps: Vec<String>,
    /// Not a single allocation was seen: why not. Absent where there were some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nothing_seen: Option<NothingSeen>,
    /// It was forked by a process that counted: its copy of what that one had allocated is in no figure.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub forked: bool,
    /// What counting takes of its memory; absent where it takes none (counted by probes).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own: Option<Own>,
    /// Compared with the mapping audit; null where that was not made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beside: Option<Comparison>,
    /// The allocator's arenas, where the process still lived; absent where none could be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fragmentation: Option<Fragmentation>,
    /// What runtimes in it keep of their heaps; empty where that was not requested, or there is none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub runtimes: Vec<RuntimeRecord>,
}

/// A runtime's own record of its heap.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RuntimeRecord {
    /// With its version.
    pub runtime: String,
    /// What the record is, and of when: `rows` and `sites` are made of it. Null where it could not be read.
    pub what: Option<String>,
    /// Bytes between two samples on average; 1: all allocations; null: not known, and nothing was scaled.
    pub sampling_bytes: Option<u64>,
    /// Why there is no record, or it could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Added: what it says itself that it has reserved and committed; `rows` and `sites` have nothing of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
}

/// A runtime's own figures of its memory, bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Budget {
    pub reserved: u64,
    pub committed: u64,
    /// In the runtime's order and words. They add up to the sums, but for what it leaves out itself.
    pub parts: Vec<BudgetPart>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BudgetPart {
    pub name: String,
    pub reserved: u64,
    pub committed: u64,
    /// Of it, blocks of the C library's malloc.
    pub malloc: u64,
}

/// Of the preloaded library, in the process' own address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Own {
    /// Bytes in memory: part of its RSS, and charged to its control group.
    pub memory: u64,
    /// Bytes mapped: part of its VIRT.
    pub mapped: u64,
}

/// Why no allocation of a process was seen, as far as that is proven.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NothingSeen {
    /// `not-called`, `not-counted`, `no-function`, `other-functions`, `refused`, `not-probed`, `probes-do-not-work`.
    pub reason: String,
    /// In words.
    pub why: String,
    /// Of blocks whose allocation was not seen.
    pub frees: u64,
    /// Mapped by the allocators that are watched since the process began. Where this or `frees` is above 0, it did
    /// allocate.
    pub allocator_bytes: u64,
}

/// `inherited` + `allocated` - `freed` = `outstanding`, in bytes; in blocks with `allocations` and `frees`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    pub outstanding_bytes: u64,
    pub outstanding_blocks: u64,
    pub allocated_bytes: u64,
    pub allocations: u64,
    pub freed_bytes: u64,
    pub frees: u64,
    /// Copied by fork.
    pub inherited_bytes: u64,
    pub inherited_blocks: u64,
    /// The most that was outstanding; null where it is not known.
    pub peak_bytes: Option<u64>,
    /// When, since watching began.
    pub peak_ns: Option<u64>,
    /// Freed before the thread that allocated it allocated again; null where that is not known.
    pub temporary: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Amount {
    pub bytes: u64,
    pub blocks: u64,
    /// Blocks that were seen; `blocks` estimates all.
    pub samples: u64,
    /// Standard error of `bytes`: 0 where every allocation was seen.
    pub standard_error: u64,
    /// Age of the oldest block; null where ages are not kept.
    pub oldest_ns: Option<u64>,
}

/// What one stack has outstanding.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HeapRow {
    /// Index into `HeapReport::stacks`: the caller of `function`, innermost first.
    pub stack: Option<u64>,
    /// Why there is no stack: `lost`, `unreadable`, `not-taken`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_stack: Option<String>,
    /// Index into `HeapReport::functions`.
    pub function: u64,
    #[serde(flatten)]
    pub amount: Amount,
    /// Of all its blocks, whatever the filter; as in [`Totals`].
    pub allocated_bytes: u64,
    pub allocations: u64,
    pub freed_bytes: u64,
    pub frees: u64,
    /// Of all its outstanding bytes, in `growth_ns`.
    pub growth: i64,
    /// None of its blocks was ever freed, and it grew in two intervals or more, the newest of them in
    /// the second half of all.
    pub leak: bool,
}

/// What one stack allocated in all.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HeapSite {
    /// As in [`HeapRow`].
    pub stack: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_stack: Option<String>,
    pub function: u64,
    pub allocated_bytes: u64,
    pub allocations: u64,
    pub freed_bytes: u64,
    pub frees: u64,
    /// Outstanding when all together had the most ([`Totals::peak_ns`]); null where that is not known. Of several
    /// threads, each may be up to 64 KiB off.
    pub peak_bytes: Option<u64>,
    pub peak_blocks: Option<u64>,
    /// As in [`Totals`].
    pub temporary: Option<u64>,
}

/// Blocks of `from` to `to` bytes as malloc_usable_size(3) has it: one size, or for large blocks a power of
/// two and what lies below the next. From 0 to 0: the allocator does not report it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SizeClass {
    pub from: u64,
    pub to: u64,
    pub blocks: u64,
    /// Requested bytes.
    pub bytes: u64,
    /// Bytes that the allocator gave beyond: of blocks of 64 KiB and less, the least that it gave for such a size.
    pub rounding: u64,
}

/// What the contexts with one path of names have outstanding.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Context {
    /// From the outermost known ancestor; null for a name that is not known. Empty: in no context.
    pub path: Vec<Option<String>>,
    /// How many, those without blocks left out.
    pub contexts: u64,
    #[serde(flatten)]
    pub amount: Amount,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Point {
    /// Since watching began.
    pub t_ns: u64,
    pub bytes: u64,
    pub blocks: u64,
}
