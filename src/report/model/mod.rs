//! The report as it is written and read: `"schema": 1`. Sizes are bytes, addresses `"0x…"`
//! strings. Fields marked "Added" are additions to the first contract (docs/report.md); readers
//! have to ignore what they do not know.

mod peak;
mod stack;
mod touch;

pub use super::container::{Container, NamedThread};
pub use super::frames::Role;
pub use crate::model::cgroup::CgroupMemory;
pub use peak::{Peak, PeakRest, PeakShare, TimelinePoint};
use serde::{Deserialize, Serialize};
pub use stack::{Frame, Stack};
pub use touch::{ProcessTouch, Touch, TouchRest, TouchRow, TouchShare};

/// The version of this model.
pub const SCHEMA: u32 = 1;

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    pub schema: u32,
    /// `bpf`, `perf`, `notify`, `snapshot`.
    pub backend: String,
    pub events: Events,
    /// Added: with --touch, page faults of all processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub touch: Option<Touch>,
    /// Added: with --at, the moment that is shown; as `t_ns` in [`TimelinePoint`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_ns: Option<u64>,
    /// Added: containers and cgroups given by the user.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<Container>,
    pub processes: Vec<Process>,
    /// Added: the sums of `left_out` over all processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<LeftOutTotals>,
    pub stacks: Vec<Stack>,
}

/// Processes that have their totals and categories, but not their regions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LeftOutTotals {
    pub processes: u64,
    pub regions: u64,
    pub virt: u64,
    pub rss: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Events {
    /// All calls and steps of life, whether they were recorded or not.
    pub seen: u64,
    /// Of these: not recorded. What they did is read anew, and what they may have done is doubtful.
    pub lost: u64,
    /// Of these: recorded, but for their stacks, for which there was no space.
    #[serde(skip_serializing_if = "is_zero")]
    pub without_stack: u64,
    /// Stacks whose copied bytes ended before the root.
    pub truncated_stacks: u64,
    /// Stacks with a frame that could not be unwound.
    pub unwind_incomplete: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    pub pid: i32,
    pub comm: String,
    pub exe: String,
    pub cmdline: Vec<String>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub container: Option<String>,
    /// Added: the process' number in its own PID namespace, where that is not the host's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_pid: Option<i32>,
    /// Added: of a process in a container, its share of what is resident (smaps_rollup, Pss).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pss: Option<u64>,
    /// Added: of a process in a container, its threads at the last snapshot.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<NamedThread>,
    pub threads_seen: u64,
    /// Added: how many of them there are, where the process still runs and some have ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads_alive: Option<u64>,
    pub aslr: bool,
    pub totals: Totals,
    /// Added: whether VIRT matters here; null where the limits are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// Added: null where they were not read (a saved file, an older recording).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub surroundings: Option<Surroundings>,
    pub coverage: Coverage,
    pub categories: Vec<CategoryRow>,
    pub regions: Vec<Region>,
    /// Added: it has ended and was small compared with others: how many `regions` it had, which are left out,
    /// as are its findings, its verdict and its peak.
    #[serde(skip_serializing_if = "is_zero")]
    pub left_out: u64,
    pub findings: Vec<Finding>,
    /// With `--interval`: the sizes at each snapshot.
    pub timeline: Vec<TimelinePoint>,
    /// Added: of all snapshots every nth is in `timeline`, evenly thinned out in long runs.
    #[serde(skip_serializing_if = "is_zero")]
    pub timeline_every: u64,
    /// Added: the most that was mapped at once; null without a record of calls.
    pub peak: Option<Peak>,
    /// Added: events applied to this address space.
    pub events: u64,
    /// Added: time zero of everything that counts from the start, on the clock of [`Origin::time_ns`];
    /// 0 where nothing was traced.
    #[serde(skip_serializing_if = "is_zero")]
    pub zero_ns: u64,
    /// Added: how long it was observed.
    pub wall_ns: Option<u64>,
    /// Added: it ran already when tracing began.
    pub attached: bool,
    /// Added: how residency was measured: `pagemap-scan`, `pagemap`, `smaps-estimate`, `none`.
    pub residency: String,
    /// Added: `exit` (held at its exit), `live`, `periodic` (ended after its last snapshot: `residency` is of
    /// that, what was mapped is of its end), `ledger` (it was not examined: what was mapped is known from its
    /// calls), or `file`.
    pub snapshot: String,
    /// Added: with `periodic`, how long before the death the snapshot was taken.
    pub snapshot_age_ns: Option<u64>,
    /// Added: faults and processor time up to the last snapshot; null where they could not be read.
    pub resources: Option<Resources>,
    /// Added: what could not be read, in words.
    pub gaps: Vec<String>,
    /// Added: with --touch, which stacks made resident what others reserved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub touch: Option<ProcessTouch>,
    /// Added: the saved smaps or maps file that it was read from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// Of the whole process, its ended threads included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Resources {
    pub minor_faults: u64,
    /// Waited for I/O.
    pub major_faults: u64,
    /// Processor time.
    pub cpu_ns: u64,
    /// Of it; the kernel counts these two in steps of 10 ms.
    pub user_ns: u64,
    pub system_ns: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    pub virt: u64,
    pub rss: u64,
    pub swap: u64,
    /// virt - rss - swap.
    pub unused: u64,
    /// Mapped with PROT_WRITE.
    pub writable: u64,
    /// Mapped PROT_NONE.
    pub reserved: u64,
    /// VmPeak.
    pub vm_peak: u64,
    /// Added: given back by madvise and not touched since; part of `unused`.
    pub purged: u64,
    /// Added: part of `unused`: changed by calls after the last snapshot, how much of it was in memory is not
    /// known.
    #[serde(skip_serializing_if = "is_zero")]
    pub residency_unknown: u64,
}

/// Limits, C library and environment of a process when it was examined: where two runs of a program differ in
/// it, their memory may.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Surroundings {
    /// `glibc 2.36`; null where the C library does not say.
    pub libc: Option<String>,
    /// `NAME=value` of the environment that it was started with: those that the rules know, no others.
    pub variables: Vec<String>,
    /// Soft limits, bytes; null: none.
    pub stack_limit: Option<u64>,
    pub address_space_limit: Option<u64>,
    pub data_limit: Option<u64>,
    /// The tightest memory limit of its cgroups; null: none.
    pub cgroup_limit: Option<u64>,
    /// Of the machine.
    pub memory: Option<u64>,
    /// Processors that it may run on, and the tightest quota of its cgroups in thousandths of one.
    pub processors: Option<u64>,
    pub cpu_quota: Option<u64>,
}

/// Judged by what the kernel counts and limits.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Verdict {
    /// Some limit counts VIRT, or what is writable of it.
    pub matters: bool,
    /// In one sentence.
    pub text: String,
    pub checks: Vec<Check>,
}

/// Something that the kernel counts.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Check {
    /// `address-space`, `data`, `overcommit`, `mappings`, `cgroup-memory`, `page-tables`, `huge-pages`.
    pub id: String,
    /// Bytes; a number for `mappings`.
    pub used: u64,
    /// Null: none.
    pub limit: Option<u64>,
    /// False for what counts only what is resident.
    pub counts_virt: bool,
    /// `free`, `limited`, `near` (80 % or more of a limit; or worth a word).
    pub state: String,
    pub text: String,
}

/// Bytes by origin. All but `ledger_drift` and `doubtful` add up to `totals.virt`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Coverage {
    pub traced: u64,
    pub preexisting: u64,
    pub kernel: u64,
    pub unknown: u64,
    /// Bytes on which ledger and kernel disagree.
    pub ledger_drift: u64,
    /// Added: bytes in regions with the `doubt` that another call made them (`events-lost`).
    pub doubtful: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CategoryRow {
    pub id: String,
    pub name: String,
    pub virt: u64,
    pub writable: u64,
    pub rss: u64,
    pub swap: u64,
    pub unused: u64,
    /// Things, not address ranges: an arena with its used and its reserved part is one, so is
    /// a stack with its guard and a library with its segments.
    pub regions: u64,
    /// Added: entries of `Process::regions` with this category.
    pub pieces: u64,
    /// Added, see [`Totals`].
    pub reserved: u64,
    /// Added, see [`Totals`].
    pub purged: u64,
    /// Added, see [`Totals`].
    #[serde(skip_serializing_if = "is_zero")]
    pub residency_unknown: u64,
}

/// A piece of the final address space; sorted, and together all of it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Region {
    pub start: String,
    pub end: String,
    /// `rw-p`
    pub prot: String,
    pub category: String,
    /// `stack`, `name`, `header`, `thread`, `shape`, `kernel`.
    pub evidence: String,
    pub virt: u64,
    pub rss: u64,
    pub swap: u64,
    pub path: Option<String>,
    pub origin: Option<Origin>,
    /// Added: where no call is known that mapped it, why: `preexisting`, `kernel`, `unknown`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_call: Option<String>,
    /// Added: which part of the thing it is ("arena reserved part", "guard").
    pub part: String,
    /// Added: regions with the same number belong to one thing; unique within the process.
    pub instance: u64,
    /// Added: the thread it belongs to.
    pub thread: Option<i32>,
    /// Added: `events-lost`, `stack-lost`: the origin may be wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub doubt: Option<String>,
    /// Added, see [`Totals`].
    #[serde(skip_serializing_if = "is_zero")]
    pub residency_unknown: u64,
    /// Added: the id of the rule (docs/rules.md) that says what it is in particular.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
}

/// The call that mapped it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Origin {
    pub event: u64,
    pub op: String,
    pub tid: i32,
    pub comm: String,
    pub time_ns: u64,
    /// Index into `Report::stacks`; null where the stack was lost or never taken.
    pub stack: Option<u64>,
    /// Added: the process that made the call, where it was another one (inherited by fork).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inherited_from: Option<i32>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Finding {
    pub category: String,
    pub virt: u64,
    pub rss: u64,
    pub unused: u64,
    /// Things, as in [`CategoryRow::regions`].
    pub regions: u64,
    /// Of the largest call, where several by one caller are merged.
    pub stack: Option<u64>,
    /// Added: the frame of `stack` from which outwards the merged calls agree; null: all of it.
    pub caller: Option<u64>,
    pub title: String,
    pub why: String,
    pub fix: Vec<Fix>,
    /// Added: settings that people reach for and that do nothing here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub no_help: Vec<NoHelp>,
    /// Added: where it is, neighbours of one thing joined.
    pub ranges: Vec<Range>,
    /// How many more there are, in a report that was made for its text only.
    #[serde(skip)]
    pub more_ranges: u64,
    /// Added: whose it is.
    pub threads: Vec<Thread>,
    /// Added: bytes of it that were mapped before tracing began: no stack is known for them.
    pub preexisting: u64,
    /// Added: its parts, by name.
    pub parts: Vec<Part>,
    /// Added: the life of the (largest) reservation in one line.
    pub story: Option<String>,
    /// Added: the process that made it, where it was another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inherited_from: Option<i32>,
    /// Added: some of its regions have the `doubt` that another call made them (`events-lost`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub doubtful: bool,
    /// Added, see [`Totals`].
    #[serde(skip_serializing_if = "is_zero")]
    pub residency_unknown: u64,
    /// Added: with --touch, which stacks made it resident, the largest shares.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub touched_by: Vec<TouchShare>,
    /// Added: as [`Region::rule`]; also of a rule that only explains what another one's memory is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
}

/// Something to change; what it saves is an upper bound, measured from this run.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Fix {
    pub knob: String,
    pub saves_virt: u64,
    pub saves_rss: u64,
    pub note: String,
}

/// A setting that does nothing here, and why.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NoHelp {
    pub knob: String,
    pub why: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Range {
    pub start: String,
    pub end: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Thread {
    pub tid: i32,
    pub comm: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Part {
    pub name: String,
    pub virt: u64,
    pub rss: u64,
    pub unused: u64,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}
