//! What the kernel allows a process, and by which figures: whether VIRT, or something else, can make a
//! call of it fail. As plain data, read by the adapters with a snapshot of the process.

/// None: not known, or (limits) none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// False for a snapshot that did not read them, of an older recording, of a saved file.
    pub known: bool,
    /// RLIMIT_AS, soft, bytes: counts all of VIRT.
    pub address_space: Option<u64>,
    /// RLIMIT_DATA, soft, bytes: counts what is private and writable (VmData).
    pub data: Option<u64>,
    /// VmData, bytes.
    pub vm_data: Option<u64>,
    /// Page tables, bytes (VmPTE). They are the price of what is touched, in sparse address spaces most.
    pub page_tables: Option<u64>,
    /// vm.max_map_count.
    pub max_map_count: Option<u64>,
    pub overcommit: Option<Overcommit>,
    /// vm.overcommit_memory 2: bytes that may be promised, and those that are (CommitLimit, Committed_AS).
    pub commit_limit: Option<u64>,
    pub committed: Option<u64>,
    /// MemTotal.
    pub memory: Option<u64>,
    /// The tightest memory limit of the process' cgroup and those above it.
    pub cgroup: Option<CgroupLimit>,
    pub thp: Option<HugePages>,
    /// Of what is resident: in transparent huge pages (AnonHugePages of smaps_rollup).
    pub huge: Option<u64>,
    /// Processors that it may run on; what glibc sizes its number of arenas by (`sched_getaffinity`).
    pub cpus: Option<u64>,
    /// The tightest CPU quota of its cgroups, in thousandths of a processor.
    pub cpu_quota: Option<u64>,
}

/// vm.overcommit_memory (Documentation/mm/overcommit-accounting.rst).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overcommit {
    /// 0: a single request larger than all memory and swap is refused.
    Heuristic,
    /// 1: nothing is refused.
    Always,
    /// 2: writable private memory counts from the moment it is mapped.
    Never,
}

/// A memory cgroup with a limit: it counts what is resident, never VIRT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CgroupLimit {
    pub limit: u64,
    pub current: u64,
}

/// /sys/kernel/mm/transparent_hugepage/enabled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HugePages {
    Always,
    /// Where the program requested it (MADV_HUGEPAGE).
    Madvise,
    Never,
}

impl Limits {
    /// Name and value of all that is known, for a recording.
    pub fn to_pairs(self) -> Vec<(&'static str, u64)> {
        let overcommit = self.overcommit.map(|mode| match mode {
            Overcommit::Heuristic => 0,
            Overcommit::Always => 1,
            Overcommit::Never => 2,
        });
        let thp = self.thp.map(|mode| match mode {
            HugePages::Never => 0,
            HugePages::Madvise => 1,
            HugePages::Always => 2,
        });
        let all = [
            ("known", self.known.then_some(1)),
            ("address-space-limit", self.address_space),
            ("data-limit", self.data),
            ("vm-data", self.vm_data),
            ("page-tables", self.page_tables),
            ("max-map-count", self.max_map_count),
            ("overcommit-memory", overcommit),
            ("commit-limit", self.commit_limit),
            ("committed", self.committed),
            ("memory", self.memory),
            ("cgroup-limit", self.cgroup.map(|cgroup| cgroup.limit)),
            ("cgroup-current", self.cgroup.map(|cgroup| cgroup.current)),
            ("transparent-hugepage", thp),
            ("huge-pages", self.huge),
            ("cpus", self.cpus),
            ("cpu-quota", self.cpu_quota),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// The other way round; names that this version does not know are left out.
    pub fn from_pairs<'n>(pairs: impl IntoIterator<Item = (&'n str, u64)>) -> Limits {
        let mut out = Limits::default();
        let (mut limit, mut current) = (None, None);
        for (name, value) in pairs {
            match name {
                "known" => out.known = value != 0,
                "address-space-limit" => out.address_space = Some(value),
                "data-limit" => out.data = Some(value),
                "vm-data" => out.vm_data = Some(value),
                "page-tables" => out.page_tables = Some(value),
                "max-map-count" => out.max_map_count = Some(value),
                "overcommit-memory" => out.overcommit = Overcommit::from_number(value),
                "commit-limit" => out.commit_limit = Some(value),
                "committed" => out.committed = Some(value),
                "memory" => out.memory = Some(value),
                "cgroup-limit" => limit = Some(value),
                "cgroup-current" => current = Some(value),
                "transparent-hugepage" => {
                    out.thp = match value {
                        0 => Some(HugePages::Never),
                        1 => Some(HugePages::Madvise),
                        2 => Some(HugePages::Always),
                        _ => None,
                    }
                }
                "huge-pages" => out.huge = Some(value),
                "cpus" => out.cpus = Some(value),
                "cpu-quota" => out.cpu_quota = Some(value),
                _ => {}
            }
        }
        out.cgroup = limit.zip(current).map(|(limit, current)| CgroupLimit { limit, current });
        out
    }
}

impl Overcommit {
    pub fn from_number(mode: u64) -> Option<Overcommit> {
        match mode {
            0 => Some(Overcommit::Heuristic),
            1 => Some(Overcommit::Always),
            2 => Some(Overcommit::Never),
            _ => None,
        }
    }
}
