//! The PAGEMAP_SCAN ioctl (Linux 6.7+): pages of an address space by category.
//!
//! Source: include/uapi/linux/fs.h (`struct pm_scan_arg`), fs/proc/task_mmu.c (`do_pagemap_scan`,
//! `pagemap_page_category`).

use linux_raw_sys::general::{self, pm_scan_arg};
use nix::errno::Errno;
use std::fs::File;
use std::os::fd::AsRawFd;

pub const PAGE_IS_PRESENT: u64 = general::PAGE_IS_PRESENT as u64;
pub const PAGE_IS_SWAPPED: u64 = general::PAGE_IS_SWAPPED as u64;
pub const PAGE_IS_PFNZERO: u64 = general::PAGE_IS_PFNZERO as u64;
pub const PAGE_IS_HUGE: u64 = general::PAGE_IS_HUGE as u64;
/// Since Linux 6.15; before, a guard page (MADV_GUARD_INSTALL, 6.13) cannot be distinguished from a
/// swapped one.
pub const PAGE_IS_GUARD: u64 = general::PAGE_IS_GUARD as u64;

/// `struct page_region`: neighbouring pages of the same categories.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct PageRegion {
    pub start: u64,
    pub end: u64,
    /// `PAGE_IS_*`.
    pub categories: u64,
}

const _: () = assert!(size_of::<PageRegion>() == size_of::<general::page_region>());

nix::ioctl_readwrite!(scan_ioctl, b'f', 16, pm_scan_arg);

/// What to search for. The masks are of `PAGE_IS_*`.
#[derive(Clone, Copy, Debug)]
pub struct ScanRequest {
    /// Addresses, from a page's first byte to behind a page's last.
    pub start: u64,
    pub end: u64,
    /// Pages of any of these …
    pub any_of: u64,
    /// … and of none of these.
    pub none_of: u64,
    /// Which categories to return for each region.
    pub returned: u64,
}

/// How far a scan came.
#[derive(Clone, Copy, Debug)]
pub struct Scanned {
    /// Regions that were written.
    pub filled: usize,
    /// Where the scan ended. Stale when fewer regions were filled than there was space for: then all of
    /// it was scanned.
    pub walk_end: u64,
}

/// Scans the address space behind an open `/proc/PID/pagemap`; the regions found are written to
/// `found`.
///
/// # Errors
/// ENOTTY before Linux 6.7; EINVAL for a category that the kernel does not know, or where a seccomp
/// or compatibility layer gives that instead of ENOTTY.
pub fn pagemap_scan(
    pagemap: &File,
    request: &ScanRequest,
    found: &mut [PageRegion],
) -> Result<Scanned, Errno> {
    let mut arg = pm_scan_arg {
        size: size_of::<pm_scan_arg>() as u64,
        flags: 0,
        start: request.start,
        end: request.end,
        vec: found.as_mut_ptr() as u64,
        vec_len: found.len() as u64,
        // Each category of `category_mask` is required, inverted for those excluded.
        category_inverted: request.none_of,
        category_mask: request.none_of,
        category_anyof_mask: request.any_of,
        return_mask: request.returned,
        walk_end: 0,
        max_pages: 0,
    };
    // SAFETY: `arg` has the layout the kernel declares, `vec` points to `vec_len`
    // regions that stay alive and unshared during the call.
    let filled = unsafe { scan_ioctl(pagemap.as_raw_fd(), &mut arg) }?;
    let filled = usize::try_from(filled).unwrap_or(0).min(found.len());
    Ok(Scanned { filled, walk_end: arg.walk_end })
}
