//! The limits that a process lives under: its own (`/proc/PID/limits`, `status`) and the machine's
//! (`/proc/sys/vm`, `/proc/meminfo`). Those of its cgroups are `containers`' part.

use super::process_dir::ProcessDir;
use super::rollup::read_huge;
use super::status::{ProcessLimits, ProcessStatus};
use crate::model::{HugePages, Limits, Overcommit, Tid};
use crate::sys::file;
use crate::sys::recent::Recent;
use ::procfs::{FromRead, Meminfo};
use std::sync::{Mutex, PoisonError};

/// Reads what can be had; what cannot stays unknown. Some file operations on kernel memory, no locks of
/// the target but where the machine hands out huge pages unasked.
pub(super) fn read_limits(
    dir: &ProcessDir,
    tid: Tid,
    status: Option<&ProcessStatus>,
    limits: Option<ProcessLimits>,
) -> Limits {
    let machine = machine();
    Limits {
        known: true,
        address_space: limits.and_then(|limits| limits.address_space),
        data: limits.and_then(|limits| limits.data),
        vm_data: status.and_then(|status| status.vm_data),
        page_tables: status.and_then(|status| status.page_tables),
        max_map_count: machine.max_map_count,
        overcommit: machine.overcommit,
        commit_limit: machine.commit_limit,
        committed: machine.committed,
        memory: machine.memory,
        cgroup: None,
        thp: machine.thp,
        huge: if machine.thp == Some(HugePages::Always) { read_huge(dir) } else { None },
        cpus: allowed_cpus(tid),
        cpu_quota: None,
    }
}

/// What is so for all processes.
#[derive(Clone, Copy, Default)]
struct Machine {
    max_map_count: Option<u64>,
    overcommit: Option<Overcommit>,
    commit_limit: Option<u64>,
    committed: Option<u64>,
    memory: Option<u64>,
    thp: Option<HugePages>,
}

/// Processes that end one after the other, or are examined together, share it.
fn machine() -> Machine {
    static NEWEST: Mutex<Recent<(), Machine>> = Mutex::new(Recent::new());
    NEWEST.lock().unwrap_or_else(PoisonError::into_inner).of((), Machine::read)
}

impl Machine {
    fn read() -> Machine {
        let meminfo = file::read("/proc/meminfo").ok();
        let meminfo = meminfo.and_then(|text| Meminfo::from_read(text.as_slice()).ok());
        let thp = file::read("/sys/kernel/mm/transparent_hugepage/enabled").ok();
        Machine {
            max_map_count: number("/proc/sys/vm/max_map_count"),
            overcommit: number("/proc/sys/vm/overcommit_memory").and_then(Overcommit::from_number),
            commit_limit: meminfo.as_ref().and_then(|figures| figures.commit_limit),
            committed: meminfo.as_ref().map(|figures| figures.committed_as),
            memory: meminfo.as_ref().map(|figures| figures.mem_total),
            thp: thp.and_then(|text| parse_thp(&text)),
        }
    }
}

fn number(path: &str) -> Option<u64> {
    std::str::from_utf8(&file::read(path).ok()?).ok()?.trim().parse().ok()
}

/// `always [madvise] never`: the one in brackets (mm/huge_memory.c, `enabled_show`).
fn parse_thp(text: &[u8]) -> Option<HugePages> {
    let text = std::str::from_utf8(text).ok()?;
    let chosen = text.split_once('[')?.1.split_once(']')?.0;
    match chosen {
        "always" => Some(HugePages::Always),
        "madvise" => Some(HugePages::Madvise),
        "never" => Some(HugePages::Never),
        _ => None,
    }
}

/// Those that are online and allowed, as glibc counts them.
fn allowed_cpus(tid: Tid) -> Option<u64> {
    let set = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(tid)).ok()?;
    let count = (0..nix::sched::CpuSet::count()).filter(|&cpu| set.is_set(cpu) == Ok(true)).count();
    Some(count as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_in_brackets() {
        assert_eq!(parse_thp(b"always [madvise] never\n"), Some(HugePages::Madvise));
        assert_eq!(parse_thp(b"[always] madvise never\n"), Some(HugePages::Always));
        assert_eq!(parse_thp(b"always madvise [never]\n"), Some(HugePages::Never));
        assert_eq!(parse_thp(b"always madvise never\n"), None);
        assert_eq!(parse_thp(b"[\xff]"), None);
    }

    #[test]
    fn of_this_process() {
        let pid = std::process::id() as Tid;
        let dir = ProcessDir::open(pid, pid).expect("its own");
        let found = read_limits(&dir, pid, None, None);
        assert!(found.known && found.memory.is_some_and(|bytes| bytes > 1 << 24));
        assert!(found.max_map_count.is_some_and(|count| count > 1000));
        assert!(found.cpus.is_some_and(|cpus| cpus >= 1));
        assert!(found.overcommit.is_some());
    }
}
