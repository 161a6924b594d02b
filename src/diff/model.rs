//! The comparison as it is written (docs/diff.md). Sizes are bytes.

use crate::model::number::change;
use crate::report::model::{Fix, Range, Stack};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The version of this model.
pub const SCHEMA: u32 = 1;

/// What changes are grouped by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// The table of categories alone
    Category,
    /// The stack of the call that mapped it, as module + offset: holds across runs, hosts and
    /// containers with the same build
    #[default]
    Stack,
    /// The findings of the two reports
    Finding,
    /// Where it is: exact for two runs with --aslr off, and for one process seen twice
    Address,
}

/// What became of one thing from A to B.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    New,
    Gone,
    /// Larger; or equally large with more of it in memory.
    Grown,
    Shrunk,
    /// As large and as resident as before, but not the same (rights, swap).
    Changed,
    #[default]
    Equal,
}

/// A figure on both sides; `change` is `b - a`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Width {
    pub a: u64,
    pub b: u64,
    pub change: i64,
}

impl Width {
    /// Sides are checked to hold less than 2^63 bytes.
    pub fn new(a: u64, b: u64) -> Width {
        Width { a, b, change: change(a, b) }
    }
}

/// The figures of one thing. Those that rest on residency are null where a side does not know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Widths {
    pub virt: Width,
    pub rss: Option<Width>,
    pub swap: Option<Width>,
    pub unused: Option<Width>,
    pub writable: Width,
    pub reserved: Width,
}

impl Widths {
    pub fn is_equal(&self) -> bool {
        let same = |width: Option<Width>| width.is_none_or(|w| w.change == 0);
        self.virt.change == 0
            && self.writable.change == 0
            && self.reserved.change == 0
            && same(self.rss)
            && same(self.swap)
    }

    /// What it is sorted by: the larger of the changes in VIRT and in RSS.
    pub fn weight(&self) -> u64 {
        self.virt.change.unsigned_abs().max(self.rss.map_or(0, |rss| rss.change.unsigned_abs()))
    }

    pub fn kind(&self) -> Kind {
        let rss = self.rss.map_or(0, |rss| rss.change);
        match (self.virt.a, self.virt.b) {
            (0, 0) => Kind::Equal,
            (0, _) => Kind::New,
            (_, 0) => Kind::Gone,
            _ if self.is_equal() => Kind::Equal,
            (a, b) if b > a || (a == b && rss > 0) => Kind::Grown,
            (a, b) if b < a || rss < 0 => Kind::Shrunk,
            _ => Kind::Changed,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Diff {
    pub schema: u32,
    /// Always `diff`: distinguishes it from a report.
    pub kind: String,
    pub by: By,
    /// True when no figure differs.
    pub equal: bool,
    pub a: SideFacts,
    pub b: SideFacts,
    /// What has to be known before trusting the comparison, in words.
    pub notes: Vec<String>,
    /// Differences in the two processes' limits, C library and environment, largest explained change first.
    pub reasons: Vec<Reason>,
    pub totals: Widths,
    /// Every category that either side has; they add up to `totals`.
    pub categories: Vec<CategoryChange>,
    /// With several processes on a side: which processes were compared.
    pub processes: Vec<ProcessPair>,
    /// What changed, largest change first; the changes add up to those of `totals`.
    pub changes: Vec<Change>,
    /// As in the report; `changes[].stack` is an index into it.
    pub stacks: Vec<Stack>,
}

/// A difference in limits, C library or environment, and the memory that it affects.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Reason {
    /// `libc`, `threads`, `stack limit`, `address-space limit`, `data limit`, `memory`, `processors`, or a variable's name.
    pub what: String,
    /// In words; null: not set, no limit.
    pub a: Option<String>,
    pub b: Option<String>,
    /// Of the change in VIRT, what it explains: null where it bears on nothing that changed.
    pub explains: Option<i64>,
    /// The categories that it bears on and that changed.
    pub categories: Vec<String>,
    /// Other reasons (`what`) that bear on one of them, too: `explains` is theirs together.
    pub shared_with: Vec<String>,
}

/// What a side was read from, and the first of the processes compared.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SideSource {
    /// The file.
    pub source: String,
    /// `recording`, `report`, `smaps`.
    pub kind: String,
    /// `bpf`, `snapshot` …; of a heap `preload`, `bpf`.
    pub backend: String,
    pub pid: i32,
    pub comm: String,
    pub exe: String,
    pub cmdline: Vec<String>,
}

impl SideSource {
    pub(super) fn of_process(pid: i32, (comm, exe): (&str, &str), cmdline: &[String]) -> SideSource {
        let (comm, exe) = (comm.to_owned(), exe.to_owned());
        SideSource { pid, comm, exe, cmdline: cmdline.to_vec(), ..SideSource::default() }
    }

    /// Of a report by this backend.
    pub(super) fn read_from(self, (source, kind): (&str, &str), backend: &str) -> SideSource {
        let (source, kind, backend) = (source.to_owned(), kind.to_owned(), backend.to_owned());
        SideSource { source, kind, backend, ..self }
    }
}

/// One of the two things compared.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SideFacts {
    #[serde(flatten)]
    pub of: SideSource,
    /// Randomisation was on for one of them at least.
    pub aslr: bool,
    /// Processes in the file, and how many of them are compared.
    pub processes: u64,
    pub compared: u64,
    /// Bytes whose creating call has a stack.
    pub with_stack: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CategoryChange {
    pub id: String,
    pub name: String,
    pub kind: Kind,
    #[serde(flatten)]
    pub widths: Widths,
    /// Things, as in the report.
    pub regions: Width,
}

/// Processes that were taken for the same; one side may have no such process.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ProcessPair {
    pub comm: String,
    pub exe: String,
    pub pid_a: Option<i32>,
    pub pid_b: Option<i32>,
    pub kind: Kind,
    #[serde(flatten)]
    pub widths: Widths,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Change {
    pub kind: Kind,
    pub category: String,
    /// The category's name.
    pub name: String,
    /// A path, a name of the kernel's, a finding's title; null where the category says it all.
    pub label: Option<String>,
    #[serde(flatten)]
    pub widths: Widths,
    /// Things, as in the report.
    pub regions: Width,
    /// Index into `Diff::stacks`: of the larger side's largest piece.
    pub stack: Option<u64>,
    /// Names of the threads that requested it, on the larger side.
    pub threads: Vec<String>,
    /// Where it is, neighbours joined.
    pub ranges_a: Vec<Range>,
    pub ranges_b: Vec<Range>,
    /// From the larger side's finding.
    pub why: Option<String>,
    pub fix: Vec<Fix>,
}
