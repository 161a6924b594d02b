//! Queries a VMA's page size with the PROCMAP_QUERY ioctl (Linux 6.11+): "is this VMA hugetlb?".

use crate::model::{Addr, PAGE};
use crate::sys::procmap_query::procmap_query;
use std::fs::File;
use std::io;

/// True when the VMA at `addr` is of hugetlb: its smallest page is larger than a page.
///
/// # Errors
/// ENOTTY before Linux 6.11, ENOENT when nothing is mapped there any more.
pub fn is_hugetlb(maps: &File, addr: Addr) -> io::Result<bool> {
    Ok(procmap_query(maps, addr.0, 0, &mut [])?.page_size > PAGE)
}
