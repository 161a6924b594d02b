//! The PROCMAP_QUERY ioctl (Linux 6.11+): one VMA by address.
//!
//! Source: include/uapi/linux/fs.h (`struct procmap_query`), fs/proc/task_mmu.c (`do_procmap_query`).

use nix::errno::Errno;
use std::fs::File;
use std::os::fd::AsRawFd;

/// In `query_flags`: where nothing is mapped, the next VMA above.
pub const COVERING_OR_NEXT_VMA: u64 = 0x10;

/// In `Vma::flags`: as maps has `s` instead of `p`.
pub const VMA_SHARED: u64 = 8;

/// `struct procmap_query`.
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

nix::ioctl_readwrite!(query_ioctl, b'f', 17, ProcmapQuery);

/// What the kernel tells of a VMA.
#[derive(Clone, Copy, Debug)]
pub struct Vma {
    pub start: u64,
    pub end: u64,
    /// Bits: readable, writable, executable, [`VMA_SHARED`].
    pub flags: u64,
    /// In bytes; larger than a page for hugetlb.
    pub page_size: u64,
    /// Into the file, in bytes.
    pub offset: u64,
    /// These three are 0 where there is no file.
    pub inode: u64,
    pub dev_major: u32,
    pub dev_minor: u32,
    /// How many bytes of the name were written, without the NUL behind them.
    pub name_len: usize,
}

/// The VMA at `address` behind an open `/proc/PID/maps`. Its name, as in maps, is written to `name`,
/// with a NUL behind it; no room at all: it is not asked for.
///
/// # Errors
/// ENOTTY before Linux 6.11 (EINVAL under some seccomp and compatibility layers), ENOENT where nothing
/// is mapped, ESRCH when the address space is gone, ENAMETOOLONG for too little room.
pub fn procmap_query(maps: &File, address: u64, query_flags: u64, name: &mut [u8]) -> Result<Vma, Errno> {
    let mut query = ProcmapQuery {
        size: size_of::<ProcmapQuery>() as u64,
        query_flags,
        query_addr: address,
        ..ProcmapQuery::default()
    };
    if !name.is_empty() {
        query.vma_name_size = u32::try_from(name.len()).unwrap_or(u32::MAX);
        query.vma_name_addr = name.as_mut_ptr() as u64;
    }
    // SAFETY: `query` has the layout the kernel declares (size checked above), and `name` room for
    // `vma_name_size` bytes; no build id is asked for, so the kernel writes to nothing else.
    unsafe { query_ioctl(maps.as_raw_fd(), &mut query) }?;
    Ok(Vma {
        start: query.vma_start,
        end: query.vma_end,
        flags: query.vma_flags,
        page_size: query.vma_page_size,
        offset: query.vma_offset,
        inode: query.inode,
        dev_major: query.dev_major,
        dev_minor: query.dev_minor,
        name_len: (query.vma_name_size as usize).saturating_sub(1).min(name.len()),
    })
}
