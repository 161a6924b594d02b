//! Which pages are resident: the ladder from PAGEMAP_SCAN over pagemap to smaps.

mod page_runs;
pub(super) mod pagemap;
mod pagemap_scan;
mod procmap_query;

use super::process_dir::ProcessDir;
use super::smaps::{ParsedSmaps, SmapsEntry, parse_smaps};
use crate::model::observation::{Residency, ResidencySource};
use crate::model::{Addr, AddrRange, Mapping};
use page_runs::{ResidentRuns, cut_to_mappings, hugetlb_candidates};
pub(super) use pagemap_scan::Scan;
use std::fs::File;

/// Address space above which plain pagemap is not read blindly (8 bytes a page: 32 MiB for
/// 16 GiB): smaps is read first, to leave out what has no pages at all.
const BLIND_LIMIT: u64 = 16 << 30;
/// Address space with pages in it above which plain pagemap is not read (512 MiB of entries):
/// the shadow of a sanitizer is terabytes.
const PAGEMAP_LIMIT: u64 = 256 << 30;
/// A hugetlb VMA begins and ends on a huge page; the smallest of any architecture is 64 KiB.
const SMALLEST_HUGE_PAGE: u64 = 64 << 10;

/// Reads the pages of one process; what cannot be read goes to `gaps`.
pub(super) struct PageReader<'a> {
    pub dir: &'a ProcessDir,
    /// An open pagemap, when it may be read.
    pub pagemap: Option<File>,
    /// VmSwap of status, when known.
    pub vm_swap: Option<u64>,
    pub gaps: &'a mut Vec<String>,
}

impl PageReader<'_> {
    /// Scans at once, before maps is parsed: the two belong to the same moment. None (with the
    /// reason in `gaps`) when the kernel cannot.
    pub fn scan(&mut self, span: AddrRange) -> Option<Scan> {
        match pagemap_scan::scan(self.pagemap.as_ref()?, span) {
            Ok(scan) => Some(scan),
            Err(error) => {
                // An old kernel is no gap in what is known: the next rung gives the same figures.
                if !matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) {
                    self.gaps.push(self.dir.io_error("scan", "pagemap", error).to_string());
                }
                None
            }
        }
    }

    /// Residency from a scan: cut to the mappings, without hugetlb and zero pages.
    pub fn by_scan(&mut self, mappings: &[Mapping], mut scan: Scan) -> Residency {
        if !scan.recent_kernel
            && let Some(pagemap) = &self.pagemap
        {
            scan.runs = pagemap::without_huge_zero(pagemap, mappings, scan.runs);
        }
        let candidates = hugetlb_candidates(mappings, &scan.runs);
        let excluded = self.hugetlb_among(mappings, candidates);
        let mut cut = cut_to_mappings(mappings, &scan.runs, &excluded);
        // Before 6.15 a guard page appears as swapped; a process without swap entries has none.
        if !scan.recent_kernel && self.vm_swap == Some(0) {
            cut.swapped.clear();
        }
        page_exact(ResidencySource::PagemapScan, cut)
    }

    /// Residency from plain pagemap; None (with the reason in `gaps`) when it cannot be read or
    /// would take too long.
    pub fn by_pagemap(&mut self, mappings: &[Mapping]) -> Option<Residency> {
        let pagemap = self.pagemap.take()?;
        let candidates = (0..mappings.len()).filter(|&index| may_be_hugetlb(&mappings[index])).collect();
        let excluded = self.hugetlb_among(mappings, candidates);
        let mut populated: Vec<&Mapping> = mappings
            .iter()
            .enumerate()
            .filter(|(index, _)| excluded.binary_search(index).is_err())
            .map(|(_, mapping)| mapping)
            .collect();
        if total_length(&populated) > BLIND_LIMIT
            && let Some(smaps) = self.read_smaps()
        {
            populated.retain(|mapping| has_pages(&smaps.entries, mapping));
        }
        let length = total_length(&populated);
        if length > PAGEMAP_LIMIT {
            self.gaps.push(format!(
                "pagemap not read: {} GiB with pages in them are too much without PAGEMAP_SCAN (Linux 6.7)",
                length >> 30
            ));
            return None;
        }
        let zero_frame = pagemap::zero_page_frame();
        let mut runs = match pagemap::read_runs(&pagemap, &populated, zero_frame) {
            Ok(runs) => runs,
            Err(error) => {
                self.gaps.push(self.dir.io_error("read", "pagemap", error).to_string());
                return None;
            }
        };
        if zero_frame.is_none() {
            self.gaps.push(String::from(
                "pages of zeros that were only read count as resident: to distinguish them takes CAP_SYS_ADMIN or Linux 6.7",
            ));
        }
        if self.vm_swap == Some(0) {
            runs.swapped.clear();
        }
        Some(page_exact(ResidencySource::Pagemap, runs))
    }

    /// Rss and Swap of each VMA from smaps; `None` as source when that cannot be read either.
    pub fn by_smaps(&mut self, mappings: &[Mapping]) -> Residency {
        let Some(smaps) = self.read_smaps() else { return Residency::default() };
        let per_vma = match_to_mappings(mappings, &smaps.entries);
        Residency { source: ResidencySource::SmapsProportion, per_vma, ..Residency::default() }
    }

    fn read_smaps(&mut self) -> Option<ParsedSmaps> {
        let dir = self.dir;
        match dir.open_file("smaps").and_then(|file| dir.read_open(&file, "smaps", 1 << 20)) {
            Ok(bytes) => {
                let parsed = parse_smaps(&bytes);
                if let Some(first) = parsed.damaged.first() {
                    let (path, count) = (dir.path("smaps"), parsed.damaged.len());
                    self.gaps
                        .push(format!("{}: {count} damaged lines skipped, first {first}", path.display()));
                }
                Some(parsed)
            }
            Err(error) => {
                self.gaps.push(error.to_string());
                None
            }
        }
    }

    /// Those of the candidates (sorted indices) that are hugetlb: by PROCMAP_QUERY, one cheap
    /// ioctl each (6.11+), else by smaps, read once and only when there are candidates.
    fn hugetlb_among(&mut self, mappings: &[Mapping], candidates: Vec<usize>) -> Vec<usize> {
        if candidates.is_empty() {
            return candidates;
        }
        if let Some(answer) = self.hugetlb_by_query(mappings, &candidates) {
            return answer;
        }
        let Some(smaps) = self.read_smaps() else { return Vec::new() };
        hugetlb_by_flag(mappings, candidates, &smaps.entries)
    }

    fn hugetlb_by_query(&self, mappings: &[Mapping], candidates: &[usize]) -> Option<Vec<usize>> {
        let maps = self.dir.open_file("maps").ok()?;
        let mut hugetlb = Vec::new();
        for &index in candidates {
            match procmap_query::is_hugetlb(&maps, mappings[index].range.start) {
                Ok(true) => hugetlb.push(index),
                Ok(false) => {}
                // Unmapped since: what was there is not to be known any more.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(_) => return None,
            }
        }
        Some(hugetlb)
    }
}

fn page_exact(source: ResidencySource, runs: ResidentRuns) -> Residency {
    Residency { source, resident: runs.resident, swapped: runs.swapped, ..Residency::default() }
}

/// By shape alone: a hugetlb VMA has a file and begins and ends on a huge page.
fn may_be_hugetlb(mapping: &Mapping) -> bool {
    let aligned = |addr: Addr| addr.is_aligned(SMALLEST_HUGE_PAGE);
    mapping.file.is_some() && aligned(mapping.range.start) && aligned(mapping.range.end)
}

/// Those of the candidates that smaps marks "ht" (VM_HUGETLB).
fn hugetlb_by_flag(mappings: &[Mapping], candidates: Vec<usize>, entries: &[SmapsEntry]) -> Vec<usize> {
    let is_hugetlb = |&index: &usize| {
        let start = mappings[index].range.start;
        let at = entries.partition_point(|entry| entry.mapping.range.end <= start);
        entries.get(at).is_some_and(|entry| entry.mapping.range.contains(start) && entry.vm_flags.has("ht"))
    };
    candidates.into_iter().filter(is_hugetlb).collect()
}

fn total_length(mappings: &[&Mapping]) -> u64 {
    mappings.iter().map(|mapping| mapping.range.len()).fold(0, u64::saturating_add)
}

/// False only where smaps is sure that there is nothing.
fn has_pages(entries: &[SmapsEntry], mapping: &Mapping) -> bool {
    let at = entries.partition_point(|entry| entry.mapping.range.end <= mapping.range.start);
    !entries
        .get(at)
        .is_some_and(|entry| entry.mapping.range == mapping.range && entry.rss == 0 && entry.swap == 0)
}

/// smaps' figures by mapping. A VMA that grew, shrank or was split since maps was read gives
/// its bytes to the mapping that holds most of it.
fn match_to_mappings(mappings: &[Mapping], entries: &[SmapsEntry]) -> Vec<(AddrRange, u64, u64)> {
    let mut per_vma: Vec<(AddrRange, u64, u64)> =
        mappings.iter().map(|mapping| (mapping.range, 0, 0)).collect();
    for entry in entries {
        let range = entry.mapping.range;
        let first = per_vma.partition_point(|(vma, _, _)| vma.end <= range.start);
        let holder = per_vma[first..]
            .iter_mut()
            .take_while(|(vma, _, _)| vma.start < range.end)
            .max_by_key(|(vma, _, _)| vma.intersect(range).len());
        if let Some((vma, rss, swap)) = holder {
            // Never more than the mapping is long: it may have shrunk.
            *rss = rss.saturating_add(entry.rss).min(vma.len());
            *swap = swap.saturating_add(entry.swap).min(vma.len() - *rss);
        }
    }
    per_vma
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maps(text: &[u8]) -> Vec<Mapping> {
        crate::procfs::maps::parse_maps(text).mappings
    }

    #[test]
    fn smaps_figures_follow_a_mapping_that_changed() {
        let mappings =
            maps(b"1000-5000 rw-p 0 00:00 0 \n5000-6000 r--p 0 00:00 0 \n8000-9000 r--p 0 00:00 0 \n");
        let smaps = parse_smaps(
            b"1000-3000 rw-p 0 00:00 0 \nRss: 8 kB\n3000-6000 rw-p 0 00:00 0 \nRss: 12 kB\nSwap: 4 kB\n\
              9000-a000 r--p 0 00:00 0 \nRss: 4 kB\n",
        );
        assert_eq!(
            match_to_mappings(&mappings, &smaps.entries),
            [
                (AddrRange::new(0x1000, 0x5000), 0x4000, 0),
                (AddrRange::new(0x5000, 0x6000), 0, 0),
                (AddrRange::new(0x8000, 0x9000), 0, 0)
            ]
        );
    }

    #[test]
    fn hugetlb_by_shape_and_by_flag() {
        let text = b"200000-400000 rw-s 0 00:0e 7 /memfd:a (deleted)\n\
            400000-600000 rw-s 0 00:01 8 /memfd:b (deleted)\n\
            600000-800000 rw-p 0 00:00 0 \n\
            800000-801000 rw-p 0 08:01 9 /lib\n";
        let mappings = maps(text);
        let candidates: Vec<usize> =
            (0..mappings.len()).filter(|&index| may_be_hugetlb(&mappings[index])).collect();
        assert_eq!(candidates, [0, 1]);
        let smaps = parse_smaps(
            b"200000-400000 rw-s 0 00:0e 7 x\nVmFlags: rd wr ht sd \n400000-600000 rw-s 0 00:01 8 x\nVmFlags: rd wr \n",
        );
        assert_eq!(hugetlb_by_flag(&mappings, candidates, &smaps.entries), [0]);
    }

    #[test]
    fn only_what_smaps_knows_to_be_empty_is_left_out() {
        let mappings =
            maps(b"1000-2000 rw-p 0 00:00 0 \n2000-3000 rw-p 0 00:00 0 \n4000-5000 rw-p 0 00:00 0 \n");
        let smaps =
            parse_smaps(b"1000-2000 rw-p 0 00:00 0 \nRss: 0 kB\n2000-3000 rw-p 0 00:00 0 \nSwap: 4 kB\n");
        let kept: Vec<bool> = mappings.iter().map(|mapping| has_pages(&smaps.entries, mapping)).collect();
        assert_eq!(kept, [false, true, true]);
    }
}
