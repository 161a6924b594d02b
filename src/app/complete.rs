//! What the kernel side could not tell of a call: it may only try the target's mmap lock, and
//! under contention that fails. User space can wait for it.

use crate::model::mapping::MappingFile;
use crate::model::{Addr, AddrRange, FileRef, Mapping, Tid, VmEvent, VmOp};
use crate::procfs::mapping_at;
use std::mem::MaybeUninit;

const MAP_ANONYMOUS: u64 = 0x20;

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
                .or_else(|| segment_at(tid, at, *shmid));
        }
        VmOp::IoSetup { mapped: Some(ring), .. } if ring.is_empty() => {
            let start = ring.start;
            *ring = mapping_at(tid, start).map_or(*ring, |mapping| mapping.range);
        }
        VmOp::Mmap { flags, file: file @ None, .. } if *flags & MAP_ANONYMOUS == 0 => {
            *file = file_at(tid, at);
        }
        // The record with the path found no room in the ring.
        VmOp::Mmap { file: Some(file), .. } if file.path.is_empty() => {
            if let Some(found) = file_at(tid, at).filter(|found| found.inode == file.inode) {
                file.path = found.path;
            }
        }
        _ => {}
    }
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

/// The segment's mapping, if it is still what lies there: maps shows the id as its inode
/// (ipc/shm.c, newseg).
fn segment_at(tid: Tid, at: Addr, shmid: i32) -> Option<AddrRange> {
    let mapping = mapping_at(tid, at)?;
    let inode = mapping.file?.inode;
    (inode == shmid as u64 && mapping.range.start == at).then_some(mapping.range)
}

fn file_at(tid: Tid, at: Addr) -> Option<FileRef> {
    let Mapping { file, name, .. } = mapping_at(tid, at)?;
    let MappingFile { major, minor, inode } = file?;
    let (path, deleted) = match name.strip_suffix(b" (deleted)") {
        Some(path) => (path.to_vec(), true),
        None => (name, false),
    };
    Some(FileRef { major, minor, inode, path, deleted })
}
