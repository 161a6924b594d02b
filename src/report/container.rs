//! A container in the report (docs/report.md): the model, and its sums over the processes.

use super::model::Process;
use crate::model::cgroup::CgroupMemory;
use serde::{Deserialize, Serialize};

/// A container, or a cgroup, and the totals of its processes that live.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Container {
    /// The engine's name for it, the beginning of its ID, or the cgroup's path.
    pub name: String,
    pub id: Option<String>,
    /// `docker`, `podman`, `containerd`, `cri-o` …; null for a plain cgroup.
    pub engine: Option<String>,
    /// As in /proc/PID/cgroup.
    pub cgroup: String,
    /// Those that live; those of the report that have ended are in `ended`.
    pub processes: u64,
    pub ended: u64,
    pub threads: u64,
    pub virt: u64,
    /// Each process' own: a page that several have counts several times.
    pub rss: u64,
    pub swap: u64,
    /// A page that n processes have counts for one n-th in each; null where it could not be read of
    /// each of them.
    pub pss: Option<u64>,
    /// What the kernel's memory controller says; null where there is none.
    pub memory: Option<CgroupMemory>,
}

/// A thread as the host and its container know it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NamedThread {
    pub tid: i32,
    pub container_tid: Option<i32>,
    pub comm: String,
}

/// `found` with the sums over those of `processes` that are in it and live.
pub fn total(found: &Container, processes: &[Process]) -> Container {
    let inside = || processes.iter().filter(|p| p.container.as_deref() == Some(found.name.as_str()));
    let lives = |p: &&Process| p.exit_code.is_none() && p.signal.is_none();
    let sum = |of: fn(&Process) -> u64| inside().filter(lives).map(of).fold(0, u64::saturating_add);
    let count = inside().filter(lives).count() as u64;
    let shares: Option<Vec<u64>> = inside().filter(lives).map(|p| p.pss).collect();
    Container {
        processes: count,
        ended: inside().count() as u64 - count,
        threads: sum(|p| (p.threads.len() as u64).max(1)),
        virt: sum(|p| p.totals.virt),
        rss: sum(|p| p.totals.rss),
        swap: sum(|p| p.totals.swap),
        pss: shares.filter(|shares| !shares.is_empty()).map(|shares| shares.iter().sum()),
        ..found.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::Totals;

    fn process(container: &str, rss: u64, pss: Option<u64>, exit_code: Option<i32>) -> Process {
        let totals = Totals { virt: 10 * rss, rss, ..Totals::default() };
        Process { container: Some(container.to_owned()), totals, pss, exit_code, ..Process::default() }
    }

    #[test]
    fn those_that_live_and_are_inside_count() {
        let web = Container { name: "web".to_owned(), ..Container::default() };
        let mut all = vec![
            process("web", 4, Some(3), None),
            process("web", 6, Some(5), None),
            process("other", 100, Some(100), None),
            process("web", 50, None, Some(0)),
        ];
        let found = total(&web, &all);
        assert_eq!((found.processes, found.ended, found.threads), (2, 1, 2));
        assert_eq!((found.virt, found.rss, found.pss), (100, 10, Some(8)));
        all.push(process("web", 1, None, None));
        assert_eq!(total(&web, &all).pss, None);
        assert_eq!(total(&web, &[]).pss, None);
    }
}
