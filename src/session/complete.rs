//! What the kernel side could not tell of a call: it may only try the target's mmap lock, and
//! under contention that fails. User space can wait for it.

use crate::model::mapping::MappingFile;
use crate::model::{Addr, AddrRange, FileRef, Mapping, Tid, VmEvent, VmOp};
use crate::procfs::mapping_at;
use crate::sys::abi::MAP_ANONYMOUS;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// Fills in the range of a shared memory segment or AIO ring, and the file of a mapping.
pub fn complete(event: &mut VmEvent) {
    if event.failed() {
        return;
    }
    let (tid, at) = (event.task.tid, Addr(event.ret as u64));
    match &mut event.op {
        VmOp::Shmat { shmid, mapped, .. } if mapped.is_none_or(AddrRange::is_empty) => {
            *mapped = segment_size(*shmid)
                .map(|size| AddrRange::from_len(at, crate::model::addr::page_up(size)))
                .or_else(|| attached_at(tid, at, *shmid));
        }
        VmOp::IoSetup { nr_events, mapped: Some(ring) } if ring.is_empty() => {
            let start = ring.start;
            let found = || mapping_at(tid, start).filter(|mapping| mapping.name.starts_with(b"/[aio]"));
            *ring = match possible_cpus() {
                Some(cpus) => AddrRange::from_len(start, ring_size(*nr_events as u32, cpus)),
                None => found().map_or(*ring, |mapping| mapping.range),
            };
        }
        VmOp::Mmap { flags, offset, file: file @ None, .. } if *flags & MAP_ANONYMOUS == 0 => {
            *file = file_at(tid, at, *offset);
        }
        // The record with the path found no room in the ring.
        VmOp::Mmap { offset, file: Some(file), .. } if file.path.is_empty() => {
            if let Some(found) = file_at(tid, at, *offset).filter(|found| found.inode == file.inode) {
                file.path = found.path;
            }
        }
        _ => {}
    }
}

/// Bytes of an AIO ring (fs/aio.c, ioctx_alloc and aio_setup_ring): maps may show none or another by now.
fn ring_size(nr_events: u32, possible_cpus: u64) -> u64 {
    const EVENT: u64 = 32; // struct io_event; struct aio_ring is as large
    let events = 2 * u64::from(nr_events).max(4 * possible_cpus) + 2;
    crate::model::addr::page_up(EVENT + EVENT * events)
}

/// num_possible_cpus(); None where that may not be read.
fn possible_cpus() -> Option<u64> {
    static KNOWN: OnceLock<Option<u64>> = OnceLock::new();
    *KNOWN.get_or_init(|| count_of(&std::fs::read_to_string("/sys/devices/system/cpu/possible").ok()?))
}

/// How many are in a list such as `0-3,8`.
fn count_of(list: &str) -> Option<u64> {
    let count = |part: &str| -> Option<u64> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        last.parse::<u64>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)
    };
    list.trim().split(',').map(count).sum()
}

/// shm_segsz of a segment in vmaudit's own IPC namespace, bytes. Right also for a segment that
/// was detached again since.
fn segment_size(shmid: i32) -> Option<u64> {
    let mut segment = MaybeUninit::<libc::shmid_ds>::zeroed();
    // SAFETY: IPC_STAT fills the shmid_ds that the pointer leads to.
    let result = unsafe { libc::shmctl(shmid, libc::IPC_STAT, segment.as_mut_ptr()) };
    // SAFETY: filled by the call, and zeroed before.
    (result == 0).then(|| unsafe { segment.assume_init() }.shm_segsz as u64)
}

/// The attachment that begins at `at`, if it is still the one of this segment: shared memory's
/// inode number is the segment's id (ipc/shm.c, newseg). Something else may be there by now.
fn attached_at(tid: Tid, at: Addr, shmid: i32) -> Option<AddrRange> {
    let Mapping { range, file, offset, .. } = mapping_at(tid, at)?;
    let same = file?.inode == shmid as u32 as u64 && range.start == at && offset == 0;
    same.then_some(range)
}

/// The file mapped at `at` now, if it is mapped there from `offset` on.
fn file_at(tid: Tid, at: Addr, offset: u64) -> Option<FileRef> {
    let Mapping { file, name, range, offset: first, .. } = mapping_at(tid, at)?;
    if first.wrapping_add(at.0.wrapping_sub(range.start.0)) != offset {
        return None;
    }
    let MappingFile { major, minor, inode } = file?;
    let (path, deleted) = match name.strip_suffix(b" (deleted)") {
        Some(path) => (path.to_vec(), true),
        None => (name, false),
    };
    Some(FileRef { major, minor, inode, path, deleted })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_have_the_kernels_size() {
        assert_eq!([ring_size(128, 2), ring_size(1, 2), ring_size(1, 64)], [3 * 4096, 4096, 5 * 4096]);
    }

    #[test]
    fn lists_of_cpus_are_counted() {
        let counts = ["0", "0-1\n", "0-3,8", "0-3,8-15\n", "", "3-1", "x"].map(count_of);
        assert_eq!(counts, [Some(1), Some(2), Some(5), Some(12), None, None, None]);
    }
}
