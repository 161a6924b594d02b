//! Plain `/proc/PID/pagemap`: eight bytes for each page, for kernels before 6.7.
//!
//! Source: Documentation/admin-guide/mm/pagemap.rst, fs/proc/task_mmu.c (`pte_to_pagemap_entry`).
//! Present and swap bits need no privilege. The frame number does (CAP_SYS_ADMIN); only with
//! it the zero page, which is no part of Rss, can be distinguished from others.

use super::page_runs::{PageKind, PageRun, ResidentRuns};
use crate::model::{Addr, AddrRange, Mapping, PAGE};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
/// "File-mapped or shared anonymous": a page that is not anonymous.
const FILE_PAGE: u64 = 1 << 61;
/// Guard page, since Linux 6.15.
const GUARD: u64 = 1 << 58;
const FRAME: u64 = (1 << 55) - 1;

/// Entries read at a time: 512 KiB for 256 MiB of address space.
const ENTRIES: usize = 1 << 16;
/// Unmapped pages that are cheaper read than skipped by another system call.
const NEAR_PAGES: u64 = 64;
/// What one page-middle-directory entry maps (x86-64 with 4 KiB pages).
const HUGE_PAGE: u64 = 2 << 20;

/// What one entry means, given the frame number of the zero page (None when unknown).
/// `anonymous`: the page belongs to private memory without a file, where the only page that
/// is not anonymous is the huge zero page.
pub fn decode_entry(entry: u64, anonymous: bool, zero_frame: Option<u64>) -> Option<PageKind> {
    if entry & PRESENT != 0 {
        let huge_zero = anonymous && entry & FILE_PAGE != 0;
        let zero = zero_frame.is_some_and(|frame| entry & FRAME == frame);
        return (!huge_zero && !zero).then_some(PageKind::Resident);
    }
    (entry & SWAPPED != 0 && entry & GUARD == 0).then_some(PageKind::Swapped)
}

/// Reads the entries of `mappings` (sorted) from an open pagemap. Neighbours and what is near
/// are read together: a thousand mappings of a page each are one read.
///
/// # Errors
/// What reading the file gives.
pub fn read_runs(pagemap: &File, mappings: &[&Mapping], zero_frame: Option<u64>) -> io::Result<ResidentRuns> {
    let mut window = EntryWindow { pagemap, buffer: vec![0; ENTRIES * 8], first: 0, filled: 0 };
    let mut runs = ResidentRuns::default();
    for (index, mapping) in mappings.iter().enumerate() {
        let anonymous = mapping.is_plain_anonymous();
        let last_page = mapping.range.end.0 / PAGE;
        let mut page = mapping.range.start.0 / PAGE;
        while page < last_page {
            let entries = match window.entries(page) {
                [] => window.fill(page, reach(&mappings[index..], page))?,
                entries => entries,
            };
            if entries.is_empty() {
                break;
            }
            let here = entries.len().min((last_page - page) as usize);
            for entry in &entries[..here] {
                if let Some(kind) = decode_entry(u64::from_ne_bytes(*entry), anonymous, zero_frame) {
                    runs.push(AddrRange::from_len(Addr(page * PAGE), PAGE), kind);
                }
                page += 1;
            }
        }
    }
    Ok(runs)
}

/// How many pages from `page` on are worth reading at once: up to the first large gap.
fn reach(mappings: &[&Mapping], page: u64) -> usize {
    let limit = page + ENTRIES as u64;
    let mut end = page;
    for mapping in mappings {
        let (start, stop) = (mapping.range.start.0 / PAGE, mapping.range.end.0 / PAGE);
        if start > end + NEAR_PAGES || end >= limit {
            break;
        }
        end = stop;
    }
    (end.min(limit) - page) as usize
}

/// The entries read last.
struct EntryWindow<'a> {
    pagemap: &'a File,
    buffer: Vec<u8>,
    /// Page number of the first entry.
    first: u64,
    /// Valid bytes of `buffer`, whole entries.
    filled: usize,
}

impl EntryWindow<'_> {
    /// The entries from `page` on that have been read; maybe none.
    fn entries(&self, page: u64) -> &[[u8; 8]] {
        let read = self.buffer[..self.filled].as_chunks::<8>().0;
        let skipped = page.checked_sub(self.first).and_then(|pages| usize::try_from(pages).ok());
        skipped.and_then(|skipped| read.get(skipped..)).unwrap_or(&[])
    }

    /// Reads up to `pages` entries from `page` on. None at all beyond the address space.
    fn fill(&mut self, page: u64, pages: usize) -> io::Result<&[[u8; 8]]> {
        let read = self.pagemap.read_at(&mut self.buffer[..pages * 8], page * 8)?;
        (self.first, self.filled) = (page, read / 8 * 8);
        Ok(self.entries(page))
    }
}

/// `runs` without the huge zero page, which PAGEMAP_SCAN took for resident memory before its
/// PAGE_IS_PFNZERO covered it (Linux 6.16 and stable kernels of that time). Plain pagemap
/// gives it away: a page that is not anonymous in anonymous memory. One entry is read for each
/// huge page; if that fails, the run stays.
pub fn without_huge_zero(pagemap: &File, mappings: &[Mapping], runs: Vec<PageRun>) -> Vec<PageRun> {
    let is_zero = |at: Addr| {
        let anonymous = Mapping::holding(mappings, at).is_some_and(Mapping::is_plain_anonymous);
        let mut entry = [0u8; 8];
        anonymous
            && pagemap.read_exact_at(&mut entry, at.0 / PAGE * 8).is_ok()
            && u64::from_ne_bytes(entry) & (PRESENT | FILE_PAGE) == PRESENT | FILE_PAGE
    };
    let mut kept = Vec::with_capacity(runs.len());
    for run in runs {
        if !run.huge || run.kind != PageKind::Resident {
            kept.push(run);
            continue;
        }
        let mut at = run.range.start;
        while at < run.range.end {
            // A run may begin or end inside of a huge page, where a mapping does.
            let next = Addr(at.align_down(HUGE_PAGE).0 + HUGE_PAGE).min(run.range.end);
            if !is_zero(at) {
                kept.push(PageRun { range: AddrRange { start: at, end: next }, ..run });
            }
            at = next;
        }
    }
    kept
}

/// The frame number of the zero page, found by a page of our own that was only read. None without
/// CAP_SYS_ADMIN. x86 has a single such page.
pub fn zero_page_frame() -> Option<u64> {
    // SAFETY: a new private anonymous mapping of one page at an address the kernel chooses.
    let mapped = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            PAGE as usize,
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if mapped == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the page was just mapped readable; the read makes the kernel map its zero page.
    unsafe { std::ptr::read_volatile(mapped.cast::<u8>()) };
    let mut entry = [0u8; 8];
    let at = Addr(mapped as u64).0 / PAGE * 8;
    let read = File::open("/proc/self/pagemap").and_then(|own| own.read_exact_at(&mut entry, at));
    // SAFETY: the mapping made above, used by nothing else.
    unsafe { libc::munmap(mapped, PAGE as usize) };
    read.ok()?;
    let entry = u64::from_ne_bytes(entry);
    let frame = entry & FRAME;
    (entry & PRESENT != 0 && frame != 0).then_some(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_by_their_bits() {
        let resident = Some(PageKind::Resident);
        assert_eq!(decode_entry(0, true, None), None);
        assert_eq!(decode_entry(PRESENT | 77, true, None), resident);
        assert_eq!(decode_entry(PRESENT | 77, true, Some(77)), None, "the zero page");
        assert_eq!(decode_entry(PRESENT | 78, true, Some(77)), resident);
        assert_eq!(decode_entry(PRESENT | FILE_PAGE, true, None), None, "the huge zero page");
        assert_eq!(decode_entry(PRESENT | FILE_PAGE, false, None), resident);
        assert_eq!(decode_entry(SWAPPED | 77, false, Some(77)), Some(PageKind::Swapped));
        assert_eq!(decode_entry(SWAPPED | GUARD, true, None), None);
    }
}
