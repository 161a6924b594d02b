//! Which pages are resident: the ladder from PAGEMAP_SCAN over pagemap to smaps.

use super::page_runs::{PageRun, cut_to_mappings, hugetlb_candidates};
use super::process_dir::ProcessDir;
use super::smaps::{ParsedSmaps, SmapsEntry, parse_smaps};
use super::{pagemap, pagemap_scan, procmap_query};
use crate::model::observation::{Residency, ResidencySource};
use crate::model::{AddrRange, Mapping};
use std::fs::File;

/// Address space above which plain pagemap is not read blindly (8 bytes a page: 32 MiB for
/// 16 GiB): smaps is read first, to leave out what has no pages at all.
const BLIND_LIMIT: u64 = 16 << 30;
/// Address space with pages in it above which plain pagemap is not read (512 MiB of entries):
/// the shadow of a sanitizer is terabytes.
const PAGEMAP_LIMIT: u64 = 256 << 30;
/// A hugetlb VMA begins and ends on a huge page; the smallest of any architecture is 64 KiB.
const SMALLEST_HUGE_PAGE: u64 = 64 << 10;

/// What a rung needs while maps is still warm, before parsing: the raw scan.
pub(super) struct RawScan {
    runs: Vec<PageRun>,
    guards_known: bool,
}

/// Scans at once; None (with the reason in `gaps`) when the kernel cannot.
pub(super) fn scan_now(
    dir: &ProcessDir,
    pagemap: &File,
    span: AddrRange,
    gaps: &mut Vec<String>,
) -> Option<RawScan> {
    match pagemap_scan::scan(pagemap, span) {
        Ok(scan) => Some(RawScan { runs: scan.runs, guards_known: scan.guards_known }),
        Err(error) => {
            // Not a gap in what is known: the next rung gives the same figures.
            if !matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) {
                gaps.push(dir.io_error("scan", "pagemap", error).to_string());
            }
            None
        }
    }
}

/// Residency from a scan: cut to the mappings, without hugetlb. `vm_swap` is status' VmSwap.
pub(super) fn from_scan(
    dir: &ProcessDir,
    mappings: &[Mapping],
    scan: RawScan,
    vm_swap: Option<u64>,
    gaps: &mut Vec<String>,
) -> Residency {
    let runs = &scan.runs;
    let candidates = hugetlb_candidates(mappings, runs);
    let excluded = hugetlb_among(dir, mappings, candidates, gaps);
    let cut = cut_to_mappings(mappings, runs, &excluded);
    // Without the guard category (before 6.15) a guard page looks swapped; a process without
    // swap entries has none swapped.
    let swapped = if !scan.guards_known && vm_swap == Some(0) { Vec::new() } else { cut.swapped };
    Residency { source: ResidencySource::PagemapScan, resident: cut.resident, swapped, per_vma: Vec::new() }
}

/// Residency from plain pagemap; None (with the reason in `gaps`) when it cannot be read or
/// would take too long.
pub(super) fn from_pagemap(
    dir: &ProcessDir,
    mappings: &[Mapping],
    pagemap: &File,
    vm_swap: Option<u64>,
    gaps: &mut Vec<String>,
) -> Option<Residency> {
    let candidates: Vec<usize> = (0..mappings.len())
        .filter(|&index| {
            let mapping = &mappings[index];
            let aligned = |addr: crate::model::Addr| addr.is_aligned(SMALLEST_HUGE_PAGE);
            mapping.file.is_some() && aligned(mapping.range.start) && aligned(mapping.range.end)
        })
        .collect();
    let excluded = hugetlb_among(dir, mappings, candidates, gaps);
    let mut wanted: Vec<&Mapping> = mappings
        .iter()
        .enumerate()
        .filter(|(index, _)| excluded.binary_search(index).is_err())
        .map(|(_, mapping)| mapping)
        .collect();
    if total_length(&wanted) > BLIND_LIMIT
        && let Some(smaps) = read_smaps(dir, gaps)
    {
        wanted.retain(|mapping| has_pages(&smaps.entries, mapping));
    }
    let length = total_length(&wanted);
    if length > PAGEMAP_LIMIT {
        gaps.push(format!(
            "pagemap not read: {} GiB with pages in them are too much for a kernel without PAGEMAP_SCAN",
            length >> 30
        ));
        return None;
    }
    match pagemap::read_runs(pagemap, &wanted, pagemap::zero_page_frame()) {
        Ok(mut runs) => {
            if vm_swap == Some(0) {
                runs.swapped.clear();
            }
            Some(Residency {
                source: ResidencySource::Pagemap,
                resident: runs.resident,
                swapped: runs.swapped,
                per_vma: Vec::new(),
            })
        }
        Err(error) => {
            gaps.push(dir.io_error("read", "pagemap", error).to_string());
            None
        }
    }
}

/// Rss and Swap of each VMA from smaps; `None` as source when that cannot be read either.
/// The figures are matched to `mappings` by address: a VMA that grew, shrank or was split
/// since maps was read gives its bytes to the mapping that holds most of it.
pub(super) fn from_smaps(dir: &ProcessDir, mappings: &[Mapping], gaps: &mut Vec<String>) -> Residency {
    let Some(smaps) = read_smaps(dir, gaps) else { return unknown() };
    let per_vma = match_to_mappings(mappings, &smaps.entries);
    Residency { source: ResidencySource::SmapsProportion, resident: Vec::new(), swapped: Vec::new(), per_vma }
}

/// Nothing could be read.
pub(super) fn unknown() -> Residency {
    Residency {
        source: ResidencySource::None,
        resident: Vec::new(),
        swapped: Vec::new(),
        per_vma: Vec::new(),
    }
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

fn read_smaps(dir: &ProcessDir, gaps: &mut Vec<String>) -> Option<ParsedSmaps> {
    let bytes = dir.open_file("smaps").and_then(|file| dir.read_open(file, "smaps", 1 << 20));
    match bytes {
        Ok(bytes) => {
            let parsed = parse_smaps(&bytes);
            if let Some(first) = parsed.damaged.first() {
                gaps.push(format!(
                    "{}: {} damaged lines skipped, first {first}",
                    dir.path("smaps").display(),
                    parsed.damaged.len()
                ));
            }
            Some(parsed)
        }
        Err(error) => {
            gaps.push(error.to_string());
            None
        }
    }
}

/// Those of the candidates (sorted indices) that are hugetlb: by PROCMAP_QUERY, one cheap
/// ioctl each (6.11+), else by smaps' flag "ht", read once and only when there are candidates.
fn hugetlb_among(
    dir: &ProcessDir,
    mappings: &[Mapping],
    candidates: Vec<usize>,
    gaps: &mut Vec<String>,
) -> Vec<usize> {
    if candidates.is_empty() {
        return candidates;
    }
    if let Ok(maps) = dir.open_file("maps") {
        let mut hugetlb = Vec::new();
        let mut answered = true;
        for &index in &candidates {
            match procmap_query::is_hugetlb(&maps, mappings[index].range.start) {
                Ok(true) => hugetlb.push(index),
                Ok(false) => {}
                // Unmapped since: whatever was there is not to be known.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(_) => {
                    answered = false;
                    break;
                }
            }
        }
        if answered {
            return hugetlb;
        }
    }
    let Some(smaps) = read_smaps(dir, gaps) else { return Vec::new() };
    candidates
        .into_iter()
        .filter(|&index| {
            let start = mappings[index].range.start;
            let at = smaps.entries.partition_point(|entry| entry.mapping.range.end <= start);
            smaps
                .entries
                .get(at)
                .is_some_and(|entry| entry.mapping.range.contains(start) && entry.vm_flags.has("ht"))
        })
        .collect()
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
    fn only_what_smaps_knows_to_be_empty_is_left_out() {
        let mappings =
            maps(b"1000-2000 rw-p 0 00:00 0 \n2000-3000 rw-p 0 00:00 0 \n4000-5000 rw-p 0 00:00 0 \n");
        let smaps =
            parse_smaps(b"1000-2000 rw-p 0 00:00 0 \nRss: 0 kB\n2000-3000 rw-p 0 00:00 0 \nSwap: 4 kB\n");
        let kept: Vec<bool> = mappings.iter().map(|mapping| has_pages(&smaps.entries, mapping)).collect();
        assert_eq!(kept, [false, true, true]);
    }
}
