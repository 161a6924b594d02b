//! Plain `/proc/PID/pagemap`: eight bytes for each page, for kernels before 6.7.
//!
//! Source: Documentation/admin-guide/mm/pagemap.rst, fs/proc/task_mmu.c (`pte_to_pagemap_entry`).
//! Present and swap bits need no privilege. The frame number does (CAP_SYS_ADMIN); only with
//! it the zero page, which is no part of Rss, can be told from others.

use super::page_runs::{PageKind, ResidentRuns};
use crate::model::{Addr, AddrRange, Mapping, PAGE, Sharing};
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

/// Reads the entries of `mappings` (sorted) from an open pagemap.
///
/// # Errors
/// What reading the file gives.
pub fn read_runs(pagemap: &File, mappings: &[&Mapping], zero_frame: Option<u64>) -> io::Result<ResidentRuns> {
    let mut buffer = vec![0u8; ENTRIES * 8];
    let mut runs = ResidentRuns::default();
    for mapping in mappings {
        let anonymous = is_plain_anonymous(mapping);
        let mut at = mapping.range.start;
        while at < mapping.range.end {
            let pages = ((mapping.range.end.0 - at.0) / PAGE).min(ENTRIES as u64) as usize;
            let filled = pagemap.read_at(&mut buffer[..pages * 8], at.0 / PAGE * 8)?;
            if filled < 8 {
                break;
            }
            for entry in buffer[..filled].as_chunks::<8>().0 {
                let next = at.saturating_add(PAGE);
                if let Some(kind) = decode_entry(u64::from_ne_bytes(*entry), anonymous, zero_frame) {
                    runs.push(AddrRange { start: at, end: next }, kind);
                }
                at = next;
            }
        }
    }
    Ok(runs)
}

/// Private memory without a file that user space asked for: not the kernel's special mappings
/// (`[vdso]`, `[uprobes]`), whose pages are not anonymous either.
pub fn is_plain_anonymous(mapping: &Mapping) -> bool {
    let name = mapping.name.as_slice();
    mapping.file.is_none()
        && mapping.sharing == Sharing::Private
        && (name.is_empty() || name.starts_with(b"[anon") || matches!(name, b"[heap]" | b"[stack]"))
}

/// The frame number of the page of zeros, learnt from a page of our own that was only read.
/// None without CAP_SYS_ADMIN. x86 has a single such page.
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
    // SAFETY: the mapping made above, used by nobody else.
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
