//! After a loss: the ledger takes over what the kernel shows.

use super::copy::may_be;
use super::space::origins::FileTable;
use super::space::piece::Owner;
use super::space::range_set::RangeSet;
use super::space::{Ledger, Removal};
use crate::model::{AddrRange, Mapping, Observations};

impl Ledger {
    /// Outside ranges that calls changed since the look began, the map becomes the kernel's:
    /// what is gone is dropped, what nothing explains is `Unknown`. False where there were such ranges:
    /// what is wrong in them stays so until the next time.
    pub(super) fn resync(&mut self, seen: &Observations, files: &mut FileTable) -> bool {
        let busy = self.recent.since(seen.begun_ns);
        let mut outside = RangeSet::default();
        outside.insert(AddrRange::new(0, u64::MAX));
        for mapping in seen.mappings.iter().filter(|m| !m.is_special("[vsyscall]")) {
            outside.remove(mapping.range);
            for part in busy.gaps_of(mapping.range) {
                let other: Vec<AddrRange> = self
                    .pieces
                    .overlapping(part)
                    .filter(|(_, a)| !may_be(a, mapping))
                    .map(|(r, _)| r.intersect(part))
                    .collect();
                for range in other {
                    let gone = self.carve(range, Removal::Replaced);
                    self.release(gone, Removal::Replaced);
                    self.forget_history(range);
                }
                let prot = mapping.prot;
                if self.pieces.overlapping(part).any(|(_, a)| a.prot != prot) {
                    self.pieces.update(part, |a| a.prot = prot);
                }
                let offset = mapping.offset.wrapping_add(part.start.0 - mapping.range.start.0);
                let whole = Mapping { range: part, offset, ..mapping.clone() };
                self.fill_mapping(&whole, Owner::Unknown, files);
            }
        }
        let gone: Vec<AddrRange> = outside.iter().flat_map(|range| busy.gaps_of(range)).collect();
        for range in gone {
            if !self.pieces.is_free(range) {
                let pieces = self.carve(range, Removal::Unmapped);
                self.release(pieces, Removal::Unmapped);
            }
            self.forget_history(range);
        }
        // Calls that proved unmappings before the loss will not be reported for certain.
        let waiting = self.limbo.expire(u64::MAX, seen.ended_ns);
        self.release(waiting, Removal::Unmapped);
        if let Some(heap) = seen.mappings.iter().rfind(|m| m.is_special("[heap]"))
            && !busy.overlaps(heap.range)
        {
            self.brk = Some(heap.range.end);
        }
        self.unverified = false;
        busy.is_empty()
    }
}
