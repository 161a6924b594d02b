//! Cgroups whose programs are targets from their execve on (bpf/cgroup.h).

use super::skel::VmauditSkel;
use super::skel::types::vmaudit_hierarchy as Number;
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

pub(super) fn number(hierarchy: CgroupHierarchy) -> u32 {
    let number = match hierarchy {
        CgroupHierarchy::Unified => Number::VMAUDIT_CGROUP_V2,
        CgroupHierarchy::Pids => Number::VMAUDIT_CGROUP_PIDS,
        CgroupHierarchy::Memory => Number::VMAUDIT_CGROUP_MEMORY,
        CgroupHierarchy::Cpu => Number::VMAUDIT_CGROUP_CPU,
        CgroupHierarchy::Cpuset => Number::VMAUDIT_CGROUP_CPUSET,
        CgroupHierarchy::Cpuacct => Number::VMAUDIT_CGROUP_CPUACCT,
        CgroupHierarchy::Devices => Number::VMAUDIT_CGROUP_DEVICES,
        CgroupHierarchy::Freezer => Number::VMAUDIT_CGROUP_FREEZER,
        CgroupHierarchy::Blkio => Number::VMAUDIT_CGROUP_BLKIO,
    };
    number.0
}

/// Before the programs are attached, so that no execve is missed.
pub(super) fn add(skel: &VmauditSkel<'_>, key: CgroupKey) -> Result<(), CaptureError> {
    let entered = &skel.maps.entered_cgroups;
    entered.update(&key.id.to_ne_bytes(), &[1], MapFlags::ANY).map_err(CaptureError::Cgroup)
}
