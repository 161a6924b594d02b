//! A process that has ended and was small compared with others: its sums, without regions and stacks. What an
//! audit of thousands of short processes keeps of most of them.

use super::model::{CategoryRow, LeftOutTotals, Process, Region, Report};

/// A process' findings are shown next to the main one's if it has one part in this many of all unused bytes.
pub const WORTH_FINDINGS: u64 = 10;

/// The sums of one process, and what they were made of in numbers.
#[derive(Clone, Debug)]
pub struct Summary {
    process: Process,
    seen: Seen,
}

/// What the figures of a process rest on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Of its last snapshot, CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// It was held at its end then.
    pub held: bool,
    pub knows_residency: bool,
    /// On its calls alone.
    pub by_calls: bool,
}

impl Summary {
    /// The sums of what is known of a process.
    pub(super) fn of(mut process: Process, seen: Seen) -> Summary {
        process.left_out = process.regions.len() as u64;
        (process.regions, process.peak, process.verdict) = (Vec::new(), None, None);
        process.categories.shrink_to_fit();
        Summary { process, seen }
    }

    pub fn seen(&self) -> Seen {
        self.seen
    }

    pub(super) fn into_process(self) -> Process {
        self.process
    }
}

/// A stand-in's reason why no call is known that mapped it ([`Region::without_call`]).
pub const LEFT_OUT: &str = "left-out";

impl Report {
    /// For sums over all regions: each category of a process whose regions were left out becomes a few
    /// regions with its sums, at made-up addresses.
    pub fn with_stand_ins(mut self) -> Report {
        for process in self.processes.iter_mut().filter(|process| process.left_out > 0) {
            let mut start = 0;
            for (row, instance) in process.categories.iter().zip(0..) {
                for region in stand_ins(row, start) {
                    start += region.virt;
                    process.regions.push(Region { instance, ..region });
                }
            }
        }
        self
    }
}

/// What is writable, what is reserved and the rest, from `start` on.
fn stand_ins(row: &CategoryRow, mut start: u64) -> impl Iterator<Item = Region> {
    let rest = row.virt.saturating_sub(row.writable).saturating_sub(row.reserved);
    let (mut rss, mut swap) = (row.rss, row.swap);
    let parts = [("rw-p", row.writable), ("r--p", rest), ("---p", row.reserved)];
    let category = row.id.clone();
    parts.into_iter().filter(|(_, virt)| *virt > 0).map(move |(prot, virt)| {
        let resident = rss.min(virt);
        let swapped = swap.min(virt - resident);
        (rss, swap) = (rss - resident, swap - swapped);
        let end = start.saturating_add(virt);
        let region = Region {
            start: format!("{start:#x}"),
            end: format!("{end:#x}"),
            prot: prot.to_owned(),
            category: category.clone(),
            virt,
            rss: resident,
            swap: swapped,
            without_call: Some(LEFT_OUT.to_owned()),
            ..Region::default()
        };
        start = end;
        region
    })
}

/// The sums of those that have no regions; None where all have theirs.
pub(super) fn left_out(processes: &[Process]) -> Option<LeftOutTotals> {
    let mut sum = LeftOutTotals::default();
    for process in processes.iter().filter(|process| process.left_out > 0) {
        sum.processes += 1;
        sum.regions += process.left_out;
        sum.virt = sum.virt.saturating_add(process.totals.virt);
        sum.rss = sum.rss.saturating_add(process.totals.rss);
    }
    (sum.processes > 0).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::Totals;

    #[test]
    fn what_is_left_out_is_summed_up() {
        let whole = Process { totals: Totals { virt: 5, rss: 5, ..Totals::default() }, ..Process::default() };
        assert_eq!(left_out(std::slice::from_ref(&whole)), None);
        let small = Process {
            left_out: 23,
            totals: Totals { virt: 7, rss: 3, ..Totals::default() },
            ..Process::default()
        };
        let sum = LeftOutTotals { processes: 2, regions: 46, virt: 14, rss: 6 };
        assert_eq!(left_out(&[whole, small.clone(), small]), Some(sum));
    }
}
