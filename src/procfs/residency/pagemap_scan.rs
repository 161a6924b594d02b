//! Which pages of an address space are resident or swapped, by the PAGEMAP_SCAN ioctl (Linux 6.7+):
//! in one call for millions of them.
//!
//! VM_PFNMAP mappings (`[vvar]`, device memory) are skipped by the kernel, as smaps' Rss skips them
//! (fs/proc/task_mmu.c, `pagemap_scan_test_walk`).

use super::page_runs::{PageKind, PageRun};
use crate::model::AddrRange;
use crate::sys::pagemap_scan::{
    PAGE_IS_GUARD, PAGE_IS_HUGE, PAGE_IS_PFNZERO, PAGE_IS_PRESENT, PAGE_IS_SWAPPED, PageRegion, ScanRequest,
    pagemap_scan,
};
use std::fs::File;
use std::io;

/// Regions requested by the first call, and by each later one: 24 KiB of buffer are enough for most
/// processes, and 1.5 MiB cost more than scanning a small one.
const FIRST_REGIONS: usize = 1 << 10;
const REGIONS: usize = 1 << 16;

/// What a scan found.
#[derive(Debug, Default)]
pub struct Scan {
    /// Sorted and disjoint; not cut to mappings.
    pub runs: Vec<PageRun>,
    /// Guard pages, sorted and disjoint; none where the kernel does not report them.
    pub guards: Vec<AddrRange>,
    /// True on a kernel that knows guard pages (6.15+): they are left out of the swapped ones.
    /// Older ones may also show the huge zero page as resident.
    pub recent_kernel: bool,
}

impl Scan {
    /// This one and that of higher addresses.
    pub fn followed_by(mut self, higher: Scan) -> Scan {
        self.runs.extend(higher.runs);
        self.guards.extend(higher.guards);
        self
    }
}

/// Scans `span` of the address space behind an open `/proc/PID/pagemap`. Zero pages are left
/// out: they count in no Rss.
///
/// # Errors
/// ENOTTY before Linux 6.7, EINVAL where a seccomp or compatibility layer gives that instead.
pub fn scan(pagemap: &File, span: AddrRange) -> io::Result<Scan> {
    match scan_marking(pagemap, span, (PAGE_IS_PFNZERO, PAGE_IS_GUARD)) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            scan_marking(pagemap, span, (PAGE_IS_PFNZERO, 0))
        }
        scan => Ok(Scan { recent_kernel: true, ..scan? }),
    }
}

/// Leaves out the categories `excluded`, and returns the categories `returned` as well.
fn scan_marking(pagemap: &File, span: AddrRange, (excluded, returned): (u64, u64)) -> io::Result<Scan> {
    let mut buffer = vec![PageRegion::default(); FIRST_REGIONS];
    let mut found = Scan::default();
    let mut start = span.start.0;
    while start < span.end.0 {
        let request = ScanRequest {
            start,
            end: span.end.0,
            any_of: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
            none_of: excluded,
            returned: PAGE_IS_PRESENT | PAGE_IS_SWAPPED | PAGE_IS_HUGE | returned,
        };
        let scanned = pagemap_scan(pagemap, &request, &mut buffer)?;
        let filled = scanned.filled;
        for region in &buffer[..filled] {
            // A guard is an entry as of swapped pages, with a mark (include/linux/swapops.h).
            if region.categories & PAGE_IS_GUARD != 0 {
                push_joined(&mut found.guards, AddrRange::new(region.start, region.end));
            } else {
                found.runs.extend(run_of(region));
            }
        }
        // Fewer regions than requested: the whole span is done, and `walk_end` may be stale (going on from it
        // would report pages twice).
        if filled < buffer.len() || scanned.walk_end <= start {
            break;
        }
        start = scanned.walk_end;
        buffer.resize(REGIONS, PageRegion::default());
    }
    Ok(found)
}

fn push_joined(ranges: &mut Vec<AddrRange>, range: AddrRange) {
    match ranges.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}

fn run_of(region: &PageRegion) -> Option<PageRun> {
    let kind = if region.categories & PAGE_IS_PRESENT != 0 {
        PageKind::Resident
    } else if region.categories & PAGE_IS_SWAPPED != 0 {
        PageKind::Swapped
    } else {
        return None;
    };
    let huge = region.categories & PAGE_IS_HUGE != 0;
    Some(PageRun { range: AddrRange::new(region.start, region.end), kind, huge })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Addr;
    use crate::procfs::maps::parse_maps;
    use crate::procfs::residency::pagemap::without_huge_zero;

    const HUGE: u64 = 2 << 20;

    /// On a kernel that reports the huge zero page as such, leaving that category in shows what older kernels
    /// report.
    #[test]
    fn the_huge_zero_page_is_found_where_the_kernel_hides_it() {
        let length = 3 * HUGE as usize;
        // SAFETY: a new private anonymous mapping at an address that the kernel chooses.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(mapped, libc::MAP_FAILED);
        let start = Addr(mapped as u64 + HUGE - 1).align_down(HUGE);
        // SAFETY: `start .. start + 2 * HUGE` lies in the mapping above, which nothing else uses.
        unsafe {
            libc::madvise(start.0 as *mut _, 2 * HUGE as usize, libc::MADV_HUGEPAGE);
            std::ptr::read_volatile(start.0 as *const u8);
            std::ptr::write_volatile((start.0 + HUGE) as *mut u8, 1);
        }
        let pagemap = File::open("/proc/self/pagemap").expect("own pagemap");
        let span = AddrRange::from_len(start, 2 * HUGE);
        let result = scan_marking(&pagemap, span, (0, 0)).map(|scan| scan.runs);
        let maps = parse_maps(&std::fs::read("/proc/self/maps").expect("own maps")).mappings;
        let both_huge = result.as_ref().is_ok_and(|runs| runs.iter().all(|run| run.huge) && !runs.is_empty());
        if both_huge {
            let runs = result.unwrap_or_default();
            assert_eq!(runs.iter().map(|run| run.range.len()).sum::<u64>(), 2 * HUGE);
            let kept = without_huge_zero(&pagemap, &maps, runs);
            let kept: Vec<AddrRange> = kept.iter().map(|run| run.range).collect();
            assert_eq!(kept, [AddrRange::new(start.0 + HUGE, start.0 + 2 * HUGE)]);
        } else {
            crate::skip::skip_this(&format!("no PAGEMAP_SCAN or no transparent huge pages here: {result:?}"));
        }
        // SAFETY: the mapping made above.
        unsafe { libc::munmap(mapped, length) };
    }
}
