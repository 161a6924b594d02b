//! What the cgroups of a process leave it: the tightest memory limit and CPU quota of its own and of
//! those above it. Bytes in, values out; only [`limits_of`] opens files.

use super::figures::read_limit;
use super::find::memberships_of;
use super::hierarchy::{Membership, Mounts};
use crate::model::{CgroupHierarchy, CgroupLimit, Pid};
use crate::sys::recent::Recent;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

/// None: no limit, or not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CgroupLimits {
    /// The limit with the least left.
    pub memory: Option<CgroupLimit>,
    /// In thousandths of a processor.
    pub cpu_quota: Option<u64>,
}

/// Reads the limits of a process' cgroups, as far as this mount namespace shows them.
pub fn limits_of(pid: Pid) -> CgroupLimits {
    // Hierarchies are mounted once, at boot; reading all mounts at each snapshot would cost more than the snapshot.
    static MOUNTS: OnceLock<Mounts> = OnceLock::new();
    static NEWEST: Mutex<Recent<Vec<Membership>, CgroupLimits>> = Mutex::new(Recent::new());
    let mounts = MOUNTS.get_or_init(|| Mounts::read().unwrap_or_default());
    let memberships = memberships_of(pid).unwrap_or_default();
    let read = || limits_of_memberships(mounts, &memberships);
    NEWEST.lock().unwrap_or_else(PoisonError::into_inner).of(memberships.clone(), read)
}

fn limits_of_memberships(mounts: &Mounts, memberships: &[Membership]) -> CgroupLimits {
    let mut limits = CgroupLimits::default();
    for membership in memberships {
        for &hierarchy in &membership.hierarchies {
            let Some(own) = mounts.directory(hierarchy, &membership.path) else { continue };
            let top = mounts
                .0
                .iter()
                .find(|mount| own.starts_with(&mount.at) && mount.hierarchies.contains(&hierarchy));
            let Some(top) = top else { continue };
            for directory in own.ancestors().take_while(|directory| directory.starts_with(&top.at)) {
                tighten(&mut limits, hierarchy, directory);
            }
        }
    }
    limits
}

fn tighten(limits: &mut CgroupLimits, hierarchy: CgroupHierarchy, directory: &Path) {
    if matches!(hierarchy, CgroupHierarchy::Memory | CgroupHierarchy::Unified)
        && let (Some(current), Some(limit)) = read_limit(hierarchy, directory)
    {
        let left = |limits: &CgroupLimit| limits.limit.saturating_sub(limits.current);
        let found = CgroupLimit { limit, current };
        if limits.memory.as_ref().is_none_or(|known| left(&found) < left(known)) {
            limits.memory = Some(found);
        }
    }
    if matches!(hierarchy, CgroupHierarchy::Cpu | CgroupHierarchy::Unified) {
        let read = |file: &str| std::fs::read_to_string(directory.join(file)).unwrap_or_default();
        let quota = match hierarchy {
            CgroupHierarchy::Unified => parse_quota(&read("cpu.max")),
            _ => parse_quota(&format!("{} {}", read("cpu.cfs_quota_us").trim(), read("cpu.cfs_period_us"))),
        };
        limits.cpu_quota = [limits.cpu_quota, quota].into_iter().flatten().min();
    }
}

/// `max 100000`, `150000 100000`; cgroup v1 says no quota with -1 (kernel/sched/core.c, `cpu_max_show`,
/// `cpu_cfs_quota_read_s64`).
fn parse_quota(text: &str) -> Option<u64> {
    let mut words = text.split_whitespace();
    let quota: u64 = words.next()?.parse().ok()?;
    let period: u64 = words.next()?.parse().ok().filter(|&period| period > 0)?;
    Some(quota.saturating_mul(1000) / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas() {
        assert_eq!(parse_quota("150000 100000\n"), Some(1500));
        assert_eq!(parse_quota("max 100000\n"), None);
        assert_eq!(parse_quota("-1 100000"), None);
        assert_eq!(parse_quota("1 0"), None);
        assert_eq!(parse_quota(""), None);
    }

    #[test]
    fn the_limit_with_the_least_left_counts() {
        let outer = tempfile::tempdir().expect("a folder");
        let inner = outer.path().join("inner");
        std::fs::create_dir(&inner).expect("a folder");
        let write =
            |path: &Path, file: &str, text: &str| std::fs::write(path.join(file), text).expect("written");
        write(&inner, "memory.max", "1000\n");
        write(&inner, "memory.current", "100\n");
        write(&inner, "cpu.max", "max 100000\n");
        write(outer.path(), "memory.max", "2000\n");
        write(outer.path(), "memory.current", "1950\n");
        write(outer.path(), "cpu.max", "50000 100000\n");
        let mut limits = CgroupLimits::default();
        tighten(&mut limits, CgroupHierarchy::Unified, &inner);
        assert_eq!(
            limits,
            CgroupLimits { memory: Some(CgroupLimit { limit: 1000, current: 100 }), cpu_quota: None }
        );
        tighten(&mut limits, CgroupHierarchy::Unified, outer.path());
        let memory = Some(CgroupLimit { limit: 2000, current: 1950 });
        assert_eq!(limits, CgroupLimits { memory, cpu_quota: Some(500) });
    }
}
