//! The heap compared with the mapping audit: what was requested, what the allocator mapped for it, what of
//! that is in memory, and the differences between these.

use super::report::HeapProcess;
use crate::model::number::signed;
use crate::report::model::{Process, Region};
use crate::report::units::size;
use crate::report::{heap_description_of, own_blocks};
use serde::{Deserialize, Serialize};

/// Bytes of one process. `mapped` = `resident` + `swapped` + `purged` + `untouched`, and `resident` =
/// `asked` - `asked_absent` + `kept`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Comparison {
    /// Outstanding: what the program requested and did not free.
    pub asked: u64,
    /// Blocks of before vmaudit attached are missing in `asked`.
    pub asked_incomplete: bool,
    /// Of it, at least so much is not in memory: it was never touched, or is swapped out.
    pub asked_absent: u64,
    /// In memory, but not requested (any more): freed and kept, rounding, and the allocator's own
    /// bookkeeping.
    pub kept: u64,
    /// Of what the allocators mapped.
    pub resident: u64,
    pub swapped: u64,
    /// Given back by madvise (MADV_DONTNEED, MADV_FREE), still mapped, and not touched since.
    pub purged: u64,
    /// Mapped, and never touched.
    pub untouched: u64,
    pub mapped: u64,
    /// What `mapped` is the sum of: names of categories and their bytes, largest first.
    pub parts: Vec<Part>,
    /// The differences between neighbours, in order from `asked` to `mapped`; those of 0 left out.
    pub differences: Vec<Difference>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Part {
    /// As in the mapping report.
    pub category: String,
    pub name: String,
    pub mapped: u64,
    pub resident: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Difference {
    /// `asked-absent`, `kept`, `swapped`, `purged`, `untouched`.
    pub id: String,
    pub name: String,
    /// What is added between `asked` and `mapped`; below 0 where it is subtracted.
    pub bytes: i64,
    /// One sentence.
    pub why: String,
}

/// Joins the two reports of one process, taken at the same time. `None` where no mapping is an
/// allocator's.
pub fn compare(heap: &HeapProcess, mappings: &Process) -> Option<Comparison> {
    let own = mappings.categories.iter().filter(|row| heap_description_of(&row.id).is_some());
    let mut found = Comparison {
        asked: heap.totals.outstanding_bytes,
        asked_incomplete: heap.attached,
        ..Comparison::default()
    };
    for row in own {
        found.mapped += row.virt;
        found.resident += row.rss;
        found.swapped += row.swap;
        found.purged += row.purged;
        let (category, name) = (row.id.clone(), row.name.clone());
        found.parts.push(Part { category, name, mapped: row.virt, resident: row.rss });
    }
    if found.parts.is_empty() {
        return None;
    }
    found.parts.sort_by_key(|part| (std::cmp::Reverse(part.mapped), part.category.clone()));
    let absent = found.mapped.saturating_sub(found.resident).saturating_sub(found.swapped);
    found.purged = found.purged.min(absent);
    found.untouched = absent - found.purged;
    found.asked_absent = found.asked.saturating_sub(found.resident);
    found.kept = found.resident.saturating_sub(found.asked);
    found.differences = differences(&found);
    Some(found)
}

/// What a runtime in the process hands out itself, without the allocators whose calls are counted: sentences.
pub fn not_counted(mappings: &Process) -> Vec<String> {
    let mut all = Vec::new();
    for blocks in own_blocks() {
        let own = |region: &&Region| region.category == blocks.category && region.part == blocks.part;
        let bytes: u64 = mappings.regions.iter().filter(own).map(|region| region.virt).sum();
        if bytes > 0 {
            all.push(format!(
                "{}, {} in all, and does not call malloc for each: they are in no figure here; with {} in its \
                 environment, it does, and each is counted",
                blocks.what,
                size(bytes),
                blocks.counted_by
            ));
        }
    }
    all
}

fn differences(found: &Comparison) -> Vec<Difference> {
    // What was allocated before is in use as well as what was seen: nobody has freed it.
    let (kept, why) = match found.asked_incomplete {
        false => ("freed but kept", "in memory and no longer requested: "),
        true => (
            "older, or kept",
            "in memory, and in no block that is counted here: what was allocated before vmaudit attached, ",
        ),
    };
    let all = [
        (
            "asked-absent",
            "requested, not in memory",
            -signed(found.asked_absent),
            "the program requested it and has not touched it yet, or it is swapped out".to_owned(),
        ),
        (
            "kept",
            kept,
            signed(found.kept),
            format!(
                "{why}blocks that the allocator keeps for the next call, rounding to size classes, and its own \
                 bookkeeping"
            ),
        ),
        (
            "swapped",
            "swapped out",
            signed(found.swapped),
            "mapped by the allocator and moved to swap by the kernel".to_owned(),
        ),
        (
            "purged",
            "purged but kept",
            signed(found.purged),
            "given back to the kernel by madvise, while the addresses stay mapped for the next use"
                .to_owned(),
        ),
        (
            "untouched",
            "never touched",
            signed(found.untouched),
            "mapped ahead of use: reserved, or the ends of extents and arenas that nothing was put into"
                .to_owned(),
        ),
    ];
    let named = |(id, name, bytes, why): (&str, &str, i64, String)| Difference {
        id: id.to_owned(),
        name: name.to_owned(),
        bytes,
        why,
    };
    all.into_iter().filter(|(_, _, bytes, _)| *bytes != 0).map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::report::model::Totals;
    use crate::report::model::CategoryRow;

    fn row(id: &str, (virt, rss, swap, purged): (u64, u64, u64, u64)) -> CategoryRow {
        CategoryRow { id: id.into(), name: id.into(), virt, rss, swap, purged, ..CategoryRow::default() }
    }

    fn outstanding(bytes: u64) -> HeapProcess {
        let totals = Totals { outstanding_bytes: bytes, ..Totals::default() };
        HeapProcess { totals, ..HeapProcess::default() }
    }

    #[test]
    fn differences_lead_from_what_was_requested_to_what_is_mapped() {
        let categories = vec![
            row("loader", (900, 800, 0, 0)),
            row("jemalloc", (10_000, 4000, 500, 3000)),
            row("glibc-main-heap", (1000, 100, 0, 0)),
        ];
        let mappings = Process { categories, ..Process::default() };
        for bytes in [0, 3000, 4100, 4600, 20_000] {
            let found = compare(&outstanding(bytes), &mappings).expect("allocators");
            assert_eq!((found.mapped, found.resident, found.purged), (11_000, 4100, 3000));
            assert_eq!(found.mapped, found.resident + found.swapped + found.purged + found.untouched);
            let sum: i64 = found.differences.iter().map(|d| d.bytes).sum();
            assert_eq!(bytes as i64 + sum, found.mapped as i64, "{:?}", found.differences);
            assert!(found.kept == 0 || found.asked_absent == 0);
            assert_eq!(found.parts.iter().map(|part| part.mapped).sum::<u64>(), found.mapped);
        }
        let none = Process { categories: vec![row("loader", (900, 800, 0, 0))], ..Process::default() };
        assert_eq!(compare(&outstanding(7), &none), None);
    }
}
