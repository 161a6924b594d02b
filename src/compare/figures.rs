//! What of one run is counted, measured and compared.

use crate::report::Report;
use crate::report::model::Process;
use serde::{Deserialize, Serialize};

/// All processes of a run together; the time is that of the command's own process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Figures {
    pub processes: u64,
    pub virt: u64,
    pub vm_peak: u64,
    /// null where a process ended before it could be examined.
    pub rss: Option<u64>,
    pub unused: Option<u64>,
    pub swap: Option<u64>,
    pub minor_faults: Option<u64>,
    pub major_faults: Option<u64>,
    pub wall_ns: Option<u64>,
    pub cpu_ns: Option<u64>,
    pub user_ns: Option<u64>,
    pub system_ns: Option<u64>,
    /// Calls that change an address space.
    pub calls: u64,
}

/// In which unit a figure is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    Bytes,
    Count,
    Nanoseconds,
}

/// One figure: how it is called and where it is.
pub struct Metric {
    pub id: &'static str,
    pub label: &'static str,
    pub unit: Unit,
    pub get: fn(&Figures) -> Option<u64>,
    /// Shown where a run has at least this much of it.
    pub least: u64,
}

const fn metric(
    id: &'static str,
    label: &'static str,
    unit: Unit,
    get: fn(&Figures) -> Option<u64>,
) -> Metric {
    Metric { id, label, unit, get, least: 0 }
}

impl Metric {
    const fn from(mut self, least: u64) -> Metric {
        self.least = least;
        self
    }
}

/// Below this the kernel's ticks of 10 ms say little.
const MANY_TICKS: u64 = 200_000_000;

/// In the order in which they are shown.
pub const METRICS: &[Metric] = &[
    metric("virt", "VIRT", Unit::Bytes, |f| Some(f.virt)),
    metric("vm_peak", "peak VIRT", Unit::Bytes, |f| Some(f.vm_peak)),
    metric("rss", "RSS", Unit::Bytes, |f| f.rss),
    metric("unused", "unused", Unit::Bytes, |f| f.unused),
    metric("swap", "swap", Unit::Bytes, |f| f.swap).from(1),
    metric("minor_faults", "page faults", Unit::Count, |f| f.minor_faults),
    metric("major_faults", "from disk", Unit::Count, |f| f.major_faults).from(1),
    metric("calls", "calls", Unit::Count, |f| Some(f.calls)),
    metric("wall_ns", "run time", Unit::Nanoseconds, |f| f.wall_ns),
    metric("cpu_ns", "CPU time", Unit::Nanoseconds, |f| f.cpu_ns),
    metric("user_ns", "  user", Unit::Nanoseconds, |f| f.user_ns).from(MANY_TICKS),
    metric("system_ns", "  system", Unit::Nanoseconds, |f| f.system_ns).from(MANY_TICKS),
];

impl Figures {
    pub fn of(report: &Report) -> Figures {
        let all = &report.processes;
        let seen = all.iter().all(|p| p.residency != "none");
        let sum = |get: fn(&Process) -> u64| all.iter().map(get).fold(0, u64::saturating_add);
        let resident = |get: fn(&Process) -> u64| seen.then(|| sum(get));
        // faults of a process that ended unseen are missing: the others' sum would be no sum
        let used = |get: fn(&crate::report::model::Resources) -> u64| {
            all.iter().map(|p| p.resources.as_ref().map(get)).sum::<Option<u64>>()
        };
        Figures {
            processes: all.len() as u64,
            virt: sum(|p| p.totals.virt),
            vm_peak: sum(|p| p.totals.vm_peak),
            rss: resident(|p| p.totals.rss),
            unused: resident(|p| p.totals.unused),
            swap: resident(|p| p.totals.swap),
            minor_faults: used(|r| r.minor_faults),
            major_faults: used(|r| r.major_faults),
            wall_ns: all.first().and_then(|p| p.wall_ns),
            cpu_ns: used(|r| r.cpu_ns),
            user_ns: used(|r| r.user_ns),
            system_ns: used(|r| r.system_ns),
            calls: report.events.seen,
        }
    }
}
