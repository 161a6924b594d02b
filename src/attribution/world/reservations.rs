//! Calls that reserved addresses (PROT_NONE), to be found by what they contain.

use crate::ledger::OriginRecord;
use crate::model::{Addr, AddrRange, Prot, VmOp};

/// Calls by the addresses that they reserved.
pub(super) struct Reservations<'a> {
    /// Sorted by their starts; with the place in the list of origins.
    calls: Vec<(AddrRange, usize, &'a OriginRecord)>,
    /// The largest end of the first calls, this one included.
    ends: Vec<Addr>,
}

impl<'a> Reservations<'a> {
    pub(super) fn of(origins: &'a [OriginRecord]) -> Reservations<'a> {
        let range = |record: &OriginRecord| match record.op {
            VmOp::Mmap { len, prot, .. } if Prot::from_mmap_bits(prot).is_none() => {
                Some(AddrRange::from_len(Addr(u64::try_from(record.ret).ok()?), len))
            }
            _ => None,
        };
        let calls = origins.iter().enumerate().filter_map(|(at, record)| Some((range(record)?, at, record)));
        let mut calls: Vec<_> = calls.collect();
        calls.sort_by_key(|(range, at, _)| (*range, *at));
        let highest = |end: &mut Addr, (range, ..): &(AddrRange, usize, &OriginRecord)| {
            *end = range.end.max(*end);
            Some(*end)
        };
        let ends = calls.iter().scan(Addr(0), highest).collect();
        Reservations { calls, ends }
    }

    /// Those that hold all of `range`.
    pub(super) fn containing(&self, range: AddrRange) -> impl Iterator<Item = (usize, &'a OriginRecord)> {
        let begun = self.calls.partition_point(|(reserved, ..)| reserved.start <= range.start);
        let first = self.ends[..begun].partition_point(|&end| end < range.end);
        let begun = self.calls[first..begun].iter();
        begun.filter(move |(reserved, ..)| reserved.contains_range(range)).map(|(_, at, call)| (*at, *call))
    }
}
