//! Pages with their categories to sorted runs of resident and swapped memory. No I/O.

use crate::model::{AddrRange, Mapping};

/// A run of pages as the kernel reports it, with what matters of it here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageRun {
    pub range: AddrRange,
    pub kind: PageKind,
    /// Mapped by a huge page-table entry: a transparent huge page or hugetlb.
    pub huge: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageKind {
    Resident,
    Swapped,
}

/// Sorted, disjoint ranges, neighbours joined.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ResidentRuns {
    pub resident: Vec<AddrRange>,
    pub swapped: Vec<AddrRange>,
}

impl ResidentRuns {
    /// Adds a run that begins at or after the end of every run before it.
    pub fn push(&mut self, range: AddrRange, kind: PageKind) {
        if range.is_empty() {
            return;
        }
        let runs = match kind {
            PageKind::Resident => &mut self.resident,
            PageKind::Swapped => &mut self.swapped,
        };
        match runs.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => runs.push(range),
        }
    }
}

/// The mappings that may be hugetlb, as indices: those with a file (a hugetlb VMA always has one, be it a
/// kernel-internal file) in which the kernel found a huge entry. They have to be distinguished from
/// transparent huge pages of shmem and of files, which count as Rss.
pub fn hugetlb_candidates(mappings: &[Mapping], runs: &[PageRun]) -> Vec<usize> {
    let mut candidates = Vec::new();
    for_each_piece(mappings, runs, |index, _, run| {
        if run.huge && mappings[index].file.is_some() && candidates.last() != Some(&index) {
            candidates.push(index);
        }
    });
    candidates
}

/// Cuts `runs` to the mappings (the address space may have changed since maps was read) and
/// leaves out the mappings in `excluded` (sorted indices), whose pages are no part of Rss.
pub fn cut_to_mappings(mappings: &[Mapping], runs: &[PageRun], excluded: &[usize]) -> ResidentRuns {
    let mut cut = ResidentRuns::default();
    for_each_piece(mappings, runs, |index, piece, run| {
        if excluded.is_empty() || excluded.binary_search(&index).is_err() {
            cut.push(piece, run.kind);
        }
    });
    cut
}

/// Calls `visit` with each non-empty intersection of a mapping and a run, in address order.
/// Both lists are sorted and disjoint, so one walk over both is enough.
fn for_each_piece(mappings: &[Mapping], runs: &[PageRun], mut visit: impl FnMut(usize, AddrRange, &PageRun)) {
    let mut index = 0;
    for run in runs {
        while index < mappings.len() && mappings[index].range.end <= run.range.start {
            index += 1;
        }
        let mut at = index;
        while at < mappings.len() && mappings[at].range.start < run.range.end {
            visit(at, mappings[at].range.intersect(run.range), run);
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{MappingFile, Prot, Sharing};

    fn mapping(start: u64, end: u64, with_file: bool) -> Mapping {
        Mapping {
            range: AddrRange::new(start, end),
            prot: Prot::RW,
            sharing: Sharing::Private,
            offset: 0,
            file: with_file.then_some(MappingFile { major: 0, minor: 15, inode: 3 }),
            name: Vec::new(),
        }
    }

    fn run(start: u64, end: u64, kind: PageKind, huge: bool) -> PageRun {
        PageRun { range: AddrRange::new(start, end), kind, huge }
    }

    #[test]
    fn runs_are_cut_joined_and_split_by_kind() {
        use PageKind::{Resident, Swapped};
        let mappings =
            [mapping(0x1000, 0x4000, false), mapping(0x4000, 0x6000, false), mapping(0x9000, 0xa000, true)];
        let runs = [
            run(0x0, 0x2000, Resident, false),
            run(0x2000, 0x3000, Swapped, false),
            run(0x3000, 0x7000, Resident, false),
            run(0x8000, 0xb000, Resident, true),
        ];
        let cut = cut_to_mappings(&mappings, &runs, &[]);
        assert_eq!(
            cut.resident,
            [AddrRange::new(0x1000, 0x2000), AddrRange::new(0x3000, 0x6000), AddrRange::new(0x9000, 0xa000)]
        );
        assert_eq!(cut.swapped, [AddrRange::new(0x2000, 0x3000)]);
        assert_eq!(hugetlb_candidates(&mappings, &runs), [2]);
        assert_eq!(cut_to_mappings(&mappings, &runs, &[1, 2]).resident[1], AddrRange::new(0x3000, 0x4000));
    }

    #[test]
    fn huge_pages_of_anonymous_memory_are_never_hugetlb() {
        let mappings = [mapping(0x200000, 0x600000, false)];
        let runs = [run(0x200000, 0x400000, PageKind::Resident, true)];
        assert!(hugetlb_candidates(&mappings, &runs).is_empty());
    }
}
