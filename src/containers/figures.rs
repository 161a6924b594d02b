//! What the kernel's memory controller says of a cgroup, all that is below it included. Bytes in,
//! values out; only [`read_memory`] opens files.

use crate::model::CgroupHierarchy;
use crate::model::cgroup::CgroupMemory;
use std::path::Path;

/// cgroup v1 says "no limit" with the largest number of whole pages (mm/memcontrol-v1.c,
/// `mem_cgroup_read_u64`: PAGE_COUNTER_MAX pages).
const NO_LIMIT: u64 = 1 << 62;

/// What is charged to a cgroup now, and its limit: two small files. memory.stat, which makes the kernel add
/// up the counters of all that is below, is not read.
pub(super) fn read_limit(hierarchy: CgroupHierarchy, directory: &Path) -> (Option<u64>, Option<u64>) {
    let number = |file: &str| read_number(directory, file);
    match hierarchy {
        CgroupHierarchy::Unified => (number("memory.current"), number("memory.max")),
        _ => (
            number("memory.usage_in_bytes"),
            number("memory.limit_in_bytes").filter(|&bytes| bytes < NO_LIMIT),
        ),
    }
}

fn read_number(directory: &Path, file: &str) -> Option<u64> {
    parse_number(&std::fs::read(directory.join(file)).ok()?)
}

/// Reads the figures in a cgroup's directory. What is not there stays None.
pub fn read_memory(hierarchy: CgroupHierarchy, directory: &Path) -> CgroupMemory {
    let number = |file: &str| read_number(directory, file);
    let (current, max) = read_limit(hierarchy, directory);
    let stat = std::fs::read(directory.join("memory.stat")).unwrap_or_default();
    let row = |name: &str| stat_row(&stat, name);
    if hierarchy == CgroupHierarchy::Unified {
        return CgroupMemory {
            current,
            max,
            peak: number("memory.peak"),
            anon: row("anon"),
            file: row("file"),
            shmem: row("shmem"),
            kernel: row("kernel").or_else(|| kernel_parts(&stat)),
            swap: number("memory.swap.current"),
        };
    }
    let with_swap = number("memory.memsw.usage_in_bytes");
    CgroupMemory {
        current,
        max,
        peak: number("memory.max_usage_in_bytes"),
        anon: row("total_rss"),
        file: row("total_cache"),
        shmem: row("total_shmem"),
        kernel: number("memory.kmem.usage_in_bytes"),
        swap: row("total_swap").or_else(|| Some(with_swap?.saturating_sub(current?))),
    }
}

/// `max` is no number.
fn parse_number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

fn stat_row(stat: &[u8], name: &str) -> Option<u64> {
    let text = std::str::from_utf8(stat).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// memory.stat has a row `kernel` since Linux 5.18.
fn kernel_parts(stat: &[u8]) -> Option<u64> {
    let parts = ["kernel_stack", "pagetables", "percpu", "slab", "sock"];
    parts.into_iter().filter_map(|name| stat_row(stat, name)).reduce(u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).expect("written");
        }
        folder
    }

    #[test]
    fn version_two() {
        let folder = folder(&[
            ("memory.current", "12288\n"),
            ("memory.max", "max\n"),
            ("memory.peak", "20480\n"),
            ("memory.stat", "anon 4096\nfile 8192\nkernel_stack 16\nslab 84\nanon_thp 7\n"),
        ]);
        let found = read_memory(CgroupHierarchy::Unified, folder.path());
        assert_eq!((found.current, found.max, found.peak), (Some(12288), None, Some(20480)));
        assert_eq!((found.anon, found.file, found.kernel), (Some(4096), Some(8192), Some(100)));
        assert_eq!((found.shmem, found.swap), (None, None));
    }

    #[test]
    fn version_one() {
        let folder = folder(&[
            ("memory.usage_in_bytes", "12288\n"),
            ("memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory.memsw.usage_in_bytes", "13312\n"),
            ("memory.kmem.usage_in_bytes", "512\n"),
            ("memory.stat", "rss 1\ntotal_rss 4096\ntotal_cache 8192\n"),
        ]);
        let found = read_memory(CgroupHierarchy::Memory, folder.path());
        assert_eq!((found.current, found.max, found.swap), (Some(12288), None, Some(1024)));
        assert_eq!((found.anon, found.file, found.kernel), (Some(4096), Some(8192), Some(512)));
        assert_eq!(read_memory(CgroupHierarchy::Unified, Path::new("/nowhere")), CgroupMemory::default());
    }
}
