//! Completes what the BPF program could not read of a call: it may only try the target's mmap lock, and under
//! contention that fails. User space can wait for it.

use crate::model::hash::IntMap;
use crate::model::{Addr, AddrRange, FileRef, Mapping, Pid, VmEvent, VmOp};
use crate::procfs;
use crate::sys::abi::MAP_ANONYMOUS;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// Reads the mappings of processes.
#[derive(Default)]
pub struct Completion {
    /// As they were read at the end of processes that are gone by now: their numbers may be others'.
    last: IntMap<Pid, Vec<Mapping>>,
}

impl Completion {
    /// From now on the process' mappings are these, until it is forgotten.
    pub fn ends(&mut self, pid: Pid, mappings: Vec<Mapping>) {
        self.last.insert(pid, mappings);
    }

    pub fn forget(&mut self, pid: Pid) {
        self.last.remove(&pid);
    }

    /// Fills in the range of a shared memory segment or AIO ring, and the file of a mapping.
    pub fn complete(&self, event: &mut VmEvent) {
        let (pid, tid) = (event.task.pid, event.task.tid);
        match self.last.get(&pid) {
            Some(last) => {
                complete(event, |at| last.iter().find(|mapping| mapping.range.contains(at)).cloned())
            }
            None => complete(event, |at| procfs::mapping_at(tid, at)),
        }
    }
}

fn complete(event: &mut VmEvent, mapping_at: impl Fn(Addr) -> Option<Mapping>) {
    if event.failed() {
        return;
    }
    let at = Addr(event.ret as u64);
    match &mut event.op {
        VmOp::Shmat { shmid, mapped, .. } if mapped.is_none_or(AddrRange::is_empty) => {
            *mapped = segment_size(*shmid)
                .map(|size| AddrRange::from_len(at, crate::model::addr::page_up(size)))
                .or_else(|| attached_at(mapping_at(at)?, at, *shmid));
        }
        VmOp::IoSetup { nr_events, mapped: Some(ring) } if ring.is_empty() => {
            let start = ring.start;
            let found = || mapping_at(start).filter(|mapping| mapping.name.starts_with(b"/[aio]"));
            *ring = match possible_cpus() {
                Some(cpus) => AddrRange::from_len(start, ring_size(*nr_events as u32, cpus)),
                None => found().map_or(*ring, |mapping| mapping.range),
            };
        }
        VmOp::Mmap { flags, offset, file: file @ None, .. } if *flags & MAP_ANONYMOUS == 0 => {
            *file = mapping_at(at).and_then(|mapping| file_at(&mapping, at, *offset));
        }
        // The record with the path found no space in the ring.
        VmOp::Mmap { offset, file: Some(file), .. } if file.path.is_empty() => {
            let found = mapping_at(at).and_then(|mapping| file_at(&mapping, at, *offset));
            if let Some(found) = found.filter(|found| found.inode == file.inode) {
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
fn attached_at(mapping: Mapping, at: Addr, shmid: i32) -> Option<AddrRange> {
    let Mapping { range, file, offset, .. } = mapping;
    let same = file?.inode == shmid as u32 as u64 && range.start == at && offset == 0;
    same.then_some(range)
}

/// The file mapped at `at`, if it is mapped there from `offset` on.
fn file_at(mapping: &Mapping, at: Addr, offset: u64) -> Option<FileRef> {
    let distance = at.0.wrapping_sub(mapping.range.start.0);
    if mapping.offset.wrapping_add(distance) != offset {
        return None;
    }
    mapping.file_ref()
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
