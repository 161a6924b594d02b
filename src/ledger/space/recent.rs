//! Ranges that calls changed lately: a snapshot of maps taken meanwhile may show either state.

use super::range_set::RangeSet;
use crate::model::AddrRange;
use std::collections::VecDeque;

/// How far back is remembered: longer than any snapshot of maps takes.
const KEEP_NS: u64 = 30_000_000_000;
/// Neighbouring steps within this time are one entry: an arena that grows page by page.
const JOIN_NS: u64 = 10_000_000;
pub(in crate::ledger) const MAX_ENTRIES: usize = 1 << 18;

#[derive(Clone, Debug)]
struct Entry {
    first_ns: u64,
    last_ns: u64,
    range: AddrRange,
}

/// Oldest first.
#[derive(Clone, Default, Debug)]
pub(in crate::ledger) struct Recent {
    entries: VecDeque<Entry>,
    /// When what was forgotten last had happened.
    forgotten_ns: u64,
}

impl Recent {
    pub(in crate::ledger) fn note(&mut self, time_ns: u64, range: AddrRange) {
        if let Some(last) = self.entries.back_mut()
            && range.start <= last.range.end
            && last.range.start <= range.end
            && time_ns.saturating_sub(last.first_ns) < JOIN_NS
        {
            last.last_ns = time_ns.max(last.last_ns);
            last.range =
                AddrRange::new(last.range.start.0.min(range.start.0), last.range.end.0.max(range.end.0));
            return;
        }
        self.entries.push_back(Entry { first_ns: time_ns, last_ns: time_ns, range });
        while self.entries.len() > MAX_ENTRIES
            || self.entries.front().is_some_and(|e| e.last_ns.saturating_add(KEEP_NS) < time_ns)
        {
            let oldest = self.entries.pop_front();
            self.forgotten_ns =
                oldest.map_or(self.forgotten_ns, |entry| entry.last_ns.max(self.forgotten_ns));
        }
    }

    /// True when nothing since then was forgotten.
    pub(in crate::ledger) fn remembers(&self, since_ns: u64) -> bool {
        self.forgotten_ns < since_ns
    }

    /// Ranges touched by calls reported at or after `since_ns`.
    pub(in crate::ledger) fn since(&self, since_ns: u64) -> RangeSet {
        let mut set = RangeSet::default();
        for entry in self.entries.iter().filter(|e| e.last_ns >= since_ns) {
            set.insert(entry.range);
        }
        set
    }

    #[cfg(test)]
    pub(in crate::ledger) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_one_arena_are_one_entry_for_a_while() {
        let mut recent = Recent::default();
        let step = |i: u64| AddrRange::new(i * 4096, (i + 1) * 4096);
        for i in 0..100 {
            recent.note(i * 1000, step(i));
        }
        assert_eq!(recent.len(), 1);
        recent.note(JOIN_NS, step(100));
        assert_eq!(recent.len(), 2);
        assert_eq!(recent.since(JOIN_NS).iter().collect::<Vec<_>>(), vec![step(100)]);
        assert!(recent.remembers(1));
        recent.note(JOIN_NS + 2 * KEEP_NS, step(7));
        assert_eq!(recent.len(), 1);
        assert!(!recent.remembers(JOIN_NS) && recent.remembers(JOIN_NS + 1));
    }
}
