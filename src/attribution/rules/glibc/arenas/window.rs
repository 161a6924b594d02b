//! Memory read in pieces that grow while it is read from one end to the other.

use super::state::word;
use crate::model::arenas::ReadMemory;
use crate::model::observation::Residency;
use crate::model::{Addr, AddrRange, PAGE};

/// Bytes read at once, at most.
const LARGEST: u64 = 1 << 20;

/// Why a word is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Absent {
    Swapped,
    Unreadable,
}

/// Part of a range of memory.
pub struct Window<'a, 'm> {
    read: &'a mut ReadMemory<'m>,
    residency: &'a Residency,
    within: AddrRange,
    start: Addr,
    bytes: Vec<u8>,
    /// What is read next at once.
    reach: u64,
}

impl<'a, 'm> Window<'a, 'm> {
    pub fn new(read: &'a mut ReadMemory<'m>, residency: &'a Residency, within: AddrRange) -> Window<'a, 'm> {
        Window { read, residency, within, start: within.start, bytes: Vec::new(), reach: PAGE }
    }

    /// The word at an address, a multiple of 8.
    pub fn word(&mut self, at: Addr) -> Result<u64, Absent> {
        match self.held(at) {
            Some(word) => Ok(word),
            None => {
                self.fill(at)?;
                self.held(at).ok_or(Absent::Unreadable)
            }
        }
    }

    fn held(&self, at: Addr) -> Option<u64> {
        word(&self.bytes, at.0.checked_sub(self.start.0)?)
    }

    /// What is held from an address on.
    pub fn held_from(&self, at: Addr) -> &[u8] {
        let skipped = at.0.checked_sub(self.start.0).and_then(|skipped| usize::try_from(skipped).ok());
        skipped.and_then(|skipped| self.bytes.get(skipped..)).unwrap_or_default()
    }

    /// Pages that were never touched are not read except for the requested one, and none that is in swap:
    /// reading would change what the process has in memory.
    fn fill(&mut self, at: Addr) -> Result<(), Absent> {
        if !self.within.contains(at) {
            return Err(Absent::Unreadable);
        }
        if holding(&self.residency.swapped, at).is_some() {
            return Err(Absent::Swapped);
        }
        let end = self.start.saturating_add(self.bytes.len() as u64);
        let follows = at >= end && at.0 - end.0 <= self.reach;
        self.reach = if follows { (self.reach * 4).min(LARGEST) } else { PAGE };
        let page = at.page_down();
        let run = holding(&self.residency.resident, at).map_or(page.saturating_add(PAGE), |run| run.end);
        let end = page.saturating_add(self.reach).min(run).min(self.within.end);
        let start = page.max(self.within.start);
        self.start = start;
        self.bytes.resize(end.0.saturating_sub(start.0) as usize, 0);
        if !(self.read)(start, &mut self.bytes) {
            // What is behind may be gone by now.
            self.bytes.truncate((page.0 + PAGE).min(end.0).saturating_sub(start.0) as usize);
            if !(self.read)(start, &mut self.bytes) {
                self.bytes.clear();
                return Err(Absent::Unreadable);
            }
        }
        Ok(())
    }
}

/// The run that an address is in.
pub fn holding(runs: &[AddrRange], at: Addr) -> Option<AddrRange> {
    let next = runs.partition_point(|run| run.end <= at);
    runs.get(next).copied().filter(|run| run.contains(at))
}

/// Bytes of `range` in sorted runs.
pub fn bytes_in(runs: &[AddrRange], range: AddrRange) -> u64 {
    let first = runs.partition_point(|run| run.end <= range.start);
    let here = runs.iter().skip(first).take_while(|run| run.start < range.end);
    here.map(|run| run.intersect(range).len()).sum()
}
