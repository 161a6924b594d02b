//! What smaps and pagemap report of an address space beyond maps: VmFlags, shares, guard pages.

use crate::model::addr::{Addr, AddrRange};
use std::fmt;

/// The two-letter flags of a VMA, in the kernel's order (fs/proc/task_mmu.c, `show_smap_vma_flags`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VmFlags(pub Vec<[u8; 2]>);

impl VmFlags {
    /// From the line's text after the colon; what is no pair of letters is left out.
    pub fn parse(text: &[u8]) -> VmFlags {
        VmFlags(text.split(|&b| b == b' ').filter_map(|word| <[u8; 2]>::try_from(word).ok()).collect())
    }

    /// True when the kernel printed `flag`: "nr", "nh", "ht" …
    pub fn has(&self, flag: &str) -> bool {
        self.0.iter().any(|pair| pair == flag.as_bytes())
    }
}

/// As the kernel prints them: `rd wr mr mw me ac sd`.
impl fmt::Display for VmFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, pair) in self.0.iter().enumerate() {
            let space = if at == 0 { "" } else { " " };
            write!(f, "{space}{}", String::from_utf8_lossy(pair))?;
        }
        Ok(())
    }
}

/// One VMA of smaps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VmaDetail {
    pub range: AddrRange,
    pub flags: VmFlags,
    /// Its resident pages, each divided by the number of processes that have it; bytes.
    pub pss: u64,
    /// Bytes; more than a page only of hugetlb.
    pub page_size: u64,
    /// Huge pages of hugetlb that are in use here (Private_Hugetlb + Shared_Hugetlb), bytes: no part of Rss.
    pub hugetlb: u64,
}

/// Empty where it was not read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VmaDetails {
    /// Sorted, disjoint. Without what smaps showed otherwise than maps.
    pub vmas: Vec<VmaDetail>,
    /// Pages that MADV_GUARD_INSTALL made inaccessible inside of VMAs, which maps does not show (Linux
    /// 6.15+, PAGE_IS_GUARD of PAGEMAP_SCAN). Sorted, disjoint.
    pub guards: Vec<AddrRange>,
}

impl VmaDetails {
    /// The VMA that holds `addr`.
    pub fn at(&self, addr: Addr) -> Option<&VmaDetail> {
        let at = self.vmas.partition_point(|vma| vma.range.end <= addr);
        self.vmas.get(at).filter(|vma| vma.range.contains(addr))
    }
}
