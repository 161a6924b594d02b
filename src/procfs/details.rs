//! VmFlags, shares and huge pages of each VMA, from smaps: where that is cheap enough.

use super::process_dir::ProcessDir;
use super::smaps::{SmapsEntry, parse_smaps};
use crate::model::{Mapping, VmaDetail};

/// smaps walks all page tables, about 30 ns a resident page and 2 µs a VMA under the target's mmap lock:
/// beyond these it takes too much time for a snapshot.
const MAX_VMAS: usize = 4096;
const MAX_RESIDENT: u64 = 4 << 30;

/// Reads smaps of a process with these mappings and so many bytes resident. Empty, with the reason in
/// `gaps`, where it may not be read or would take too long.
pub(super) fn read_details(
    dir: &ProcessDir,
    mappings: &[Mapping],
    resident: Option<u64>,
    gaps: &mut Vec<String>,
) -> Vec<VmaDetail> {
    let resident = resident.unwrap_or(0);
    if mappings.len() > MAX_VMAS || resident > MAX_RESIDENT {
        gaps.push(format!(
            "smaps was not read, it would take too long ({} mappings, {} MiB resident): what VmFlags say is \
             not known",
            mappings.len(),
            resident >> 20
        ));
        return Vec::new();
    }
    let text = dir.open_file("smaps").and_then(|file| dir.read_open(&file, "smaps", 1 << 17));
    match text {
        Ok(text) => matching(mappings, parse_smaps(&text).entries),
        Err(error) => {
            gaps.push(error.to_string());
            Vec::new()
        }
    }
}

/// What smaps reports of those VMAs that have not changed since maps was read.
fn matching(mappings: &[Mapping], entries: Vec<SmapsEntry>) -> Vec<VmaDetail> {
    let mut details: Vec<VmaDetail> = Vec::with_capacity(entries.len());
    for entry in entries {
        let range = entry.mapping.range;
        let at = mappings.partition_point(|mapping| mapping.range.end <= range.start);
        let same =
            mappings.get(at).is_some_and(|m| m.range.contains(range.start) && m.prot == entry.mapping.prot);
        let after_last = details.last().is_none_or(|last| last.range.end <= range.start);
        if same && after_last {
            details.push(entry.into_detail());
        }
    }
    details
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Pid;
    use crate::procfs::maps::parse_maps;

    #[test]
    fn a_vma_that_changed_is_left_out() {
        let mappings = parse_maps(b"1000-5000 rw-p 0 00:00 0 \n5000-6000 r--p 0 00:00 0 \n").mappings;
        let smaps = parse_smaps(
            b"1000-3000 rw-p 0 00:00 0 \nVmFlags: rd wr nr \n3000-5000 ---p 0 00:00 0 \nVmFlags: nr \n\
              5000-6000 r--p 0 00:00 0 \nPss: 4 kB\nShared_Hugetlb: 8 kB\nPrivate_Hugetlb: 4 kB\n\
              5000-7000 r--p 0 00:00 0 \n9000-a000 r--p 0 00:00 0 \n",
        );
        let details = matching(&mappings, smaps.entries);
        let [first, second] = details.as_slice() else { panic!("{details:?}") };
        assert!(first.flags.has("nr") && first.range.len() == 0x2000);
        assert_eq!((second.pss, second.hugetlb), (4096, 12 << 10));
    }

    #[test]
    fn of_this_process_and_of_one_too_large() {
        let pid = std::process::id() as Pid;
        let dir = ProcessDir::open(pid, pid).expect("its own");
        let maps = parse_maps(&std::fs::read("/proc/self/maps").expect("maps")).mappings;
        let mut gaps = Vec::new();
        let details = read_details(&dir, &maps, None, &mut gaps);
        assert!(details.iter().any(|d| d.flags.has("ex") && d.page_size == 4096), "{details:?}");
        assert!(read_details(&dir, &maps, Some(1 << 40), &mut gaps).is_empty());
        assert!(gaps.len() == 1 && gaps[0].contains("too long"), "{gaps:?}");
    }
}
