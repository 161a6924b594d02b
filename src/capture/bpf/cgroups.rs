//! Cgroups whose programs are targets from their execve on (bpf/cgroup.h).

use super::skel::VmauditSkel;
use crate::capture::CaptureError;
use crate::model::{CgroupHierarchy, CgroupKey};
use libbpf_rs::{MapCore, MapFlags};

/// Programs that are executed in a cgroup, or below it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entering {
    pub cgroup: CgroupKey,
    /// Only those that are put there from outside (`docker exec`), not those that its own processes
    /// start.
    pub from_outside: bool,
}

/// `enum vmaudit_hierarchy`.
pub(super) fn number(hierarchy: CgroupHierarchy) -> u32 {
    match hierarchy {
        CgroupHierarchy::Unified => 1,
        CgroupHierarchy::Pids => 2,
        CgroupHierarchy::Memory => 3,
        CgroupHierarchy::Cpu => 4,
        CgroupHierarchy::Cpuset => 5,
        CgroupHierarchy::Cpuacct => 6,
        CgroupHierarchy::Devices => 7,
        CgroupHierarchy::Freezer => 8,
        CgroupHierarchy::Blkio => 9,
    }
}

/// Before the programs are attached, so that no execve is missed.
pub(super) fn add(skel: &VmauditSkel<'_>, key: CgroupKey) -> Result<(), CaptureError> {
    let entered = &skel.maps.entered_cgroups;
    entered.update(&key.id.to_ne_bytes(), &[1], MapFlags::ANY).map_err(CaptureError::Cgroup)
}
