//! What is read for one frame.

use crate::report::model::Stack;
use std::rc::Rc;

/// A process for as long as the machine runs: its number alone may have a new owner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProcessId {
    pub pid: i32,
    /// Clock ticks since boot.
    pub start_ticks: u64,
}

/// Bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Figures {
    pub virt: u64,
    pub rss: u64,
    pub swap: u64,
    /// In memory in huge pages that were set aside for that (hugetlb): no part of `rss`.
    pub huge: u64,
}

impl Figures {
    /// As in the report: mapped, and neither in memory nor in swap.
    pub fn unused(self) -> u64 {
        [self.rss, self.swap, self.huge].into_iter().fold(self.virt, u64::saturating_sub)
    }
}

/// One process as one frame found it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessSample {
    pub id: ProcessId,
    /// Changes with each execve, where that can be detected; else 0.
    pub program: u64,
    /// May hold control characters.
    pub name: String,
    pub user: String,
    pub threads: u64,
    pub figures: Figures,
    /// Its container's name.
    pub container: Option<String>,
}

/// All that one frame found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sample {
    /// Since vmaudit began.
    pub time_ns: u64,
    /// How long reading took.
    pub took_ns: u64,
    pub processes: Vec<ProcessSample>,
    pub group: Option<Group>,
    /// Whether swapped bytes were read, or nothing on this machine is swapped out.
    pub swap: Swap,
}

/// Where the figures of what is swapped out come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Swap {
    /// No swap is in use on this machine.
    #[default]
    None,
    /// VmSwap of each process.
    Read,
}

/// The container or cgroup given by the user.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Group {
    /// `container web`, `cgroup /x`.
    pub title: String,
    /// `podman · 71ea9a710512`
    pub subtitle: String,
    /// Shared pages counted once, bytes, and when that was read; None: not of each process.
    pub pss: Option<(u64, u64)>,
    pub cgroup: Option<Cgroup>,
}

/// The memory controller's figures, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cgroup {
    pub current: u64,
    /// None: no limit.
    pub max: Option<u64>,
    pub peak: Option<u64>,
    pub anon: Option<u64>,
    pub file: Option<u64>,
    pub kernel: Option<u64>,
}

/// What tracing has come to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tracing {
    pub backend: String,
    pub events: u64,
    pub lost: u64,
}

/// A call that reserved addresses.
#[derive(Clone, PartialEq, Debug)]
pub struct Call {
    /// Ascending; names it.
    pub number: u64,
    /// Since vmaudit began.
    pub time_ns: u64,
    pub pid: i32,
    pub tid: i32,
    /// The thread's name.
    pub comm: String,
    /// `mmap`, `brk` …
    pub op: &'static str,
    /// Reserved by it; None where that is not known (brk of a heap whose end was not known).
    pub bytes: Option<u64>,
    /// The call as strace would print it.
    pub text: String,
    /// None: lost, or not taken.
    pub stack: Option<Rc<Stack>>,
}
