//! After a loss: the ledger takes over what the kernel shows.

use super::Ledger;
use super::brk::heap_of;
use super::copy::may_be;
use super::origins::{FileTable, Removal};
use super::piece::Owner;
use super::range_set::RangeSet;
use crate::model::{AddrRange, Mapping, Observations};

impl Ledger {
    /// Outside ranges that calls changed since the snapshot began, the map becomes the kernel's:
    /// what is gone is dropped, what nothing explains is `Unknown`. False where there were such ranges:
    /// what is wrong in them stays so until the next time.
    pub(in crate::ledger) fn resync(&mut self, seen: &Observations, files: &mut FileTable) -> bool {
        let busy = self.recent.since(seen.begun_ns);
        let mut outside = RangeSet::from_iter([AddrRange::new(0, u64::MAX)]);
        for mapping in seen.mappings.iter().filter(|m| !m.is_special("[vsyscall]")) {
            outside.remove(mapping.range);
            for part in busy.gaps_of(mapping.range) {
                let other: Vec<AddrRange> = self
                    .mapped
                    .pieces()
                    .overlapping(part)
                    .filter(|(_, a)| !may_be(a, mapping))
                    .map(|(r, _)| r.intersect(part))
                    .collect();
                for range in other {
                    self.discard(range, Removal::Replaced);
                    self.forget_notes(range);
                }
                self.mapped.take_prot(part, mapping.prot);
                let offset = mapping.offset.wrapping_add(part.start.0 - mapping.range.start.0);
                let whole = Mapping { range: part, offset, ..mapping.clone() };
                self.mapped.fill(&whole, Owner::Unknown, files);
            }
        }
        for range in outside.iter().flat_map(|range| busy.gaps_of(range)) {
            self.discard(range, Removal::Unmapped);
            self.forget_notes(range);
        }
        // Calls that proved unmappings before the loss will not be reported for certain.
        self.mapped.expire(u64::MAX, seen.ended_ns);
        if heap_of(&seen.mappings).is_some_and(|heap| !busy.overlaps(heap)) {
            self.brk.see(&seen.mappings);
        }
        self.doubts.verified();
        busy.is_empty()
    }
}
