//! Calls that their ring had no space for.
//!
//! The kernel reports them in the ring itself, together with the next record that finds space there
//! (PERF_RECORD_LOST: kernel/events/ring_buffer.c, __perf_output_begin). No such record may come any more:
//! the task goes on on another CPU, or ends. Since Linux 6.0 each event counts them as well, which read(2)
//! returns immediately (PERF_FORMAT_LOST). That takes a system call per event: only CPUs whose ring was so
//! full that a record may have found no space are read.

use crate::sys::perf;
use std::os::fd::OwnedFd;

/// What writes to one CPU's ring of calls.
struct Writers<'a> {
    owner: &'a OwnedFd,
    others: &'a [OwnedFd],
    /// As they said last.
    lost: u64,
}

impl Writers<'_> {
    /// An event whose count cannot be read adds nothing.
    fn count(&self) -> u64 {
        std::iter::once(self.owner).chain(self.others).map(|event| perf::lost(event).unwrap_or(0)).sum()
    }
}

pub struct Losses<'a> {
    cpus: Vec<Writers<'a>>,
    /// The events count their losses.
    counted: bool,
    /// By the records in the rings.
    recorded: u64,
    /// Where nothing reports it in time: how often a ring was found so full that a record may be missing.
    assumed: u64,
}

impl<'a> Losses<'a> {
    /// Of each CPU: the owners of both rings, and all others that write to the ring of calls. `counted` on
    /// kernels that count for each event.
    pub fn of(owners: &'a [[OwnedFd; 2]], others: &'a [Vec<OwnedFd>], counted: bool) -> Losses<'a> {
        let writers = |(owners, others): (&'a [OwnedFd; 2], &'a Vec<OwnedFd>)| {
            let [owner, _] = owners;
            Writers { owner, others, lost: 0 }
        };
        Losses { cpus: owners.iter().zip(others).map(writers).collect(), counted, recorded: 0, assumed: 0 }
    }

    /// The ring of calls of this CPU (by number of its rings) was so full that a record may be missing.
    pub fn suspect(&mut self, cpu: usize) {
        let Some(writers) = self.cpus.get_mut(cpu) else { return };
        if self.counted {
            writers.lost = writers.lost.max(writers.count());
        } else {
            self.assumed += 1;
        }
    }

    /// A ring's record reported losses.
    pub fn recorded(&mut self, count: u64) {
        self.recorded += count;
    }

    /// Calls that were lost until now. Where the kernel does not count, that many at most, and
    /// never 0 where some were.
    pub fn total(&self) -> u64 {
        if self.counted {
            let lost: u64 = self.cpus.iter().map(|writers| writers.lost).sum();
            lost.max(self.recorded)
        } else {
            self.recorded + self.assumed
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_counters_a_full_ring_is_a_loss_before_any_record_reports_it() {
        let event = || -> OwnedFd { std::fs::File::open("/dev/null").expect("/dev/null").into() };
        let (owners, others) = ([[event(), event()]], [vec![event()]]);
        let mut losses = Losses::of(&owners, &others, false);
        assert_eq!(losses.total(), 0);
        losses.suspect(0);
        assert_eq!(losses.total(), 1);
        losses.recorded(7);
        assert_eq!(losses.total(), 8);
    }

    #[test]
    fn records_are_not_counted_twice() {
        let mut losses = Losses::of(&[], &[], true);
        losses.recorded(7);
        assert_eq!(losses.total(), 7);
        losses.suspect(3);
        assert_eq!(losses.total(), 7);
    }
}
