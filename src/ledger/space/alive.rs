//! The owners of the mapped bytes at the peak, by call and stack.

use super::Ledger;
use super::peak::{Maker, Sample};
use crate::ledger::region::{OriginRecord, RegionKind};
use crate::model::{FileRef, Prot, Sharing, StackId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The most that was mapped at once in an address space.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Peak {
    pub virt: u64,
    /// CLOCK_MONOTONIC of the call that reached it first.
    pub time_ns: u64,
    /// Stacks that had grown without a call, bytes.
    pub stack_growth: u64,
    /// Several threads: bytes by which the kernel was ahead of the reports (negative: behind).
    pub on_the_way: i64,
    /// Largest first. With `stack_growth` and `on_the_way` they add up to `virt`.
    pub shares: Vec<PeakShare>,
}

/// A part of the peak.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeakShare {
    /// As the report spells origins: `mmap`, `brk` …, or `preexisting`, `kernel`, `unknown`.
    pub op: &'static str,
    pub stack: Option<StackId>,
    /// At the peak.
    pub bytes: u64,
    /// What calls of this kind with this stack own now.
    pub now: u64,
    /// One of those calls of which something was unmapped since.
    pub gone: Option<Box<GoneCall>>,
}

/// A call whose bytes were unmapped, with what they were like.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GoneCall {
    pub record: OriginRecord,
    pub kind: RegionKind,
    pub prot: Prot,
    pub sharing: Sharing,
    pub file: Option<Arc<FileRef>>,
}

impl Ledger {
    fn bytes_by_maker(&self) -> BTreeMap<Maker, u64> {
        let mut alive: BTreeMap<Maker, u64> = BTreeMap::new();
        for (range, attr) in self.mapped.pieces().iter() {
            *alive.entry(Maker::of(attr, self.mapped.origins())).or_default() += range.len();
        }
        alive
    }

    /// The most that was mapped at once since the address space began (or tracing, if later), and which
    /// stacks had mapped it.
    pub fn peak(&self) -> Peak {
        let tracker = self.mapped.peak();
        let now = self.bytes_by_maker();
        let mut then: BTreeMap<Maker, (i64, Option<&Sample>)> =
            now.iter().map(|(&maker, &bytes)| (maker, (bytes as i64, None))).collect();
        for (maker, change, sample) in tracker.changes() {
            let (bytes, of) = then.entry(maker).or_default();
            *bytes -= change;
            *of = of.or(sample);
        }
        let mut shares: Vec<PeakShare> = then
            .into_iter()
            .filter(|(_, (bytes, _))| *bytes > 0)
            .map(|(maker, (bytes, sample))| PeakShare {
                op: maker.name(),
                stack: maker.stack(),
                bytes: bytes as u64,
                now: now.get(&maker).copied().unwrap_or(0),
                gone: sample.map(|sample| Box::new(gone(sample))),
            })
            .collect();
        shares.sort_by_key(|share| std::cmp::Reverse(share.bytes));
        let (stack_growth, on_the_way) = tracker.beyond();
        Peak { virt: tracker.virt(), time_ns: tracker.time_ns(), stack_growth, on_the_way, shares }
    }
}

fn gone(sample: &Sample) -> GoneCall {
    let attr = &sample.piece.attr;
    GoneCall {
        record: sample.entry.record(),
        kind: attr.kind,
        prot: attr.prot,
        sharing: attr.sharing,
        file: attr.file.clone(),
    }
}
