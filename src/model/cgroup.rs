//! Which tasks are in a container, according to the kernel.

use serde::{Deserialize, Serialize};

/// The kinds of hierarchy that tasks can be distinguished by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CgroupHierarchy {
    /// The one of cgroup v2.
    Unified,
    /// That of a controller of cgroup v1.
    Pids,
    Memory,
    Cpu,
    Cpuset,
    Cpuacct,
    Devices,
    Freezer,
    Blkio,
}

impl CgroupHierarchy {
    /// The hierarchies of cgroup v1, those that engines always use first.
    pub const V1: [CgroupHierarchy; 8] = [
        CgroupHierarchy::Pids,
        CgroupHierarchy::Memory,
        CgroupHierarchy::Cpu,
        CgroupHierarchy::Cpuset,
        CgroupHierarchy::Cpuacct,
        CgroupHierarchy::Devices,
        CgroupHierarchy::Freezer,
        CgroupHierarchy::Blkio,
    ];

    /// As /proc/PID/cgroup and mount options spell it; cgroup v2 has none.
    pub fn controller(self) -> &'static str {
        match self {
            CgroupHierarchy::Unified => "",
            CgroupHierarchy::Pids => "pids",
            CgroupHierarchy::Memory => "memory",
            CgroupHierarchy::Cpu => "cpu",
            CgroupHierarchy::Cpuset => "cpuset",
            CgroupHierarchy::Cpuacct => "cpuacct",
            CgroupHierarchy::Devices => "devices",
            CgroupHierarchy::Freezer => "freezer",
            CgroupHierarchy::Blkio => "blkio",
        }
    }
}

/// A cgroup: the number is its directory's inode, which is what the kernel calls its id
/// (include/linux/kernfs.h, `kernfs_ino`; 64-bit kernels).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CgroupKey {
    pub hierarchy: CgroupHierarchy,
    pub id: u64,
}

/// The memory controller's figures, bytes. None where the kernel does not report them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CgroupMemory {
    /// What is charged to it now: `memory.current`, `memory.usage_in_bytes`.
    pub current: Option<u64>,
    /// Its limit; None where there is none.
    pub max: Option<u64>,
    /// The most that was charged at once.
    pub peak: Option<u64>,
    /// Private memory of its processes.
    pub anon: Option<u64>,
    /// Page cache, that of shared memory and tmpfs included.
    pub file: Option<u64>,
    /// Of it: shared memory and tmpfs.
    pub shmem: Option<u64>,
    /// Kernel memory: stacks, page tables, slab, socket buffers.
    pub kernel: Option<u64>,
    pub swap: Option<u64>,
}
