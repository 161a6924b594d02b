//! The PROCMAP_QUERY ioctl (Linux 6.11+): one VMA by address.
//!
//! Source: include/uapi/linux/fs.h (`struct procmap_query`), fs/proc/task_mmu.c (`do_procmap_query`).

use linux_raw_sys::general::{self, procmap_query_flags as Flags};
use nix::errno::Errno;
use std::fs::File;
use std::os::fd::AsRawFd;

/// In `query_flags`: where nothing is mapped, the next VMA above.
pub const COVERING_OR_NEXT_VMA: u64 = Flags::PROCMAP_QUERY_COVERING_OR_NEXT_VMA as u64;

/// In `Vma::flags`: as maps has `s` instead of `p`.
pub const VMA_SHARED: u64 = Flags::PROCMAP_QUERY_VMA_SHARED as u64;

nix::ioctl_readwrite!(query_ioctl, b'f', 17, general::procmap_query);

/// What the kernel reports of a VMA.
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

/// The VMA at `address` behind an open `/proc/PID/maps`. Its name, as in maps, is written to `name`, with a
/// NUL behind it; with an empty buffer it is not requested.
///
/// # Errors
/// ENOTTY before Linux 6.11 (EINVAL under some seccomp and compatibility layers), ENOENT where nothing is
/// mapped, ESRCH when the address space is gone, ENAMETOOLONG if the buffer is too small.
pub fn procmap_query(maps: &File, address: u64, query_flags: u64, name: &mut [u8]) -> Result<Vma, Errno> {
    // SAFETY: a structure of integers, for which zeroes are sound.
    let mut query: general::procmap_query = unsafe { std::mem::zeroed() };
    query.size = size_of::<general::procmap_query>() as u64;
    query.query_flags = query_flags;
    query.query_addr = address;
    if !name.is_empty() {
        query.vma_name_size = u32::try_from(name.len()).unwrap_or(u32::MAX);
        query.vma_name_addr = name.as_mut_ptr() as u64;
    }
    // SAFETY: `query` has the layout the kernel declares, and `name` space for `vma_name_size` bytes; no
    // build id is requested, so the kernel writes nothing else.
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
