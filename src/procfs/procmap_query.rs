//! The PROCMAP_QUERY ioctl (Linux 6.11+): one VMA by address, with its page size.
//!
//! Source: include/uapi/linux/fs.h (`struct procmap_query`), fs/proc/task_mmu.c
//! (`do_procmap_query`). Here it only answers "is this VMA hugetlb?".

use crate::model::{Addr, PAGE};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

#[repr(C)]
#[derive(Default)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

const _: () = assert!(size_of::<ProcmapQuery>() == 104);

nix::ioctl_readwrite!(procmap_query, b'f', 17, ProcmapQuery);

/// True when the VMA at `addr` is of hugetlb: its smallest page is larger than a page.
///
/// # Errors
/// ENOTTY before Linux 6.11, ENOENT when nothing is mapped there any more.
pub fn is_hugetlb(maps: &File, addr: Addr) -> io::Result<bool> {
    let mut query = ProcmapQuery {
        size: size_of::<ProcmapQuery>() as u64,
        query_addr: addr.0,
        ..ProcmapQuery::default()
    };
    // SAFETY: `query` has the layout the kernel declares (size checked above); no name and no
    // build id are asked for, so the kernel writes to nothing else.
    unsafe { procmap_query(maps.as_raw_fd(), &mut query) }?;
    Ok(query.vma_page_size > PAGE)
}
