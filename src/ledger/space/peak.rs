//! The most that was ever mapped at once, and by which calls.
//!
//! Every change of the map is noted by the stack of the call that owns the bytes. At a new maximum
//! these notes are thrown away, so that they are always what changed *since* the maximum:
//!
//! ```text
//!   alive at the peak, by stack  =  alive now, by stack  −  changed since the peak, by stack
//! ```
//!
//! An event costs a map entry for each stack whose bytes it changes, and no more than a few stores
//! where it makes a new maximum. What is kept is bounded by the number of distinct stacks that have more or less than
//! they had then.
//!
//! The size is the kernel's own counter (`mm->total_vm`, what VmSize and VmPeak are made of), where
//! the backend reads it at each report, else what the calls add up to. What it has beyond them is
//! stacks that grew, which happens without a call (mm/vma.c, acct_stack_growth), and, with several
//! threads, calls that took effect and are not reported yet.

use super::origins::{Call, OriginEntry, OriginTable};
use super::piece::{Attributes, Owner, Piece};
use crate::model::event::VmOp;
use crate::model::hash::IntMap;
use crate::model::number::signed;
use crate::model::{NoStack, StackId};

/// What bytes owe their existence to: a kind of call with a stack, or what is no call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Maker(u64);

/// Calls that may own bytes; a maker's number is its place here, as is the number of what follows.
const CALLS: [&str; 7] =
    ["mmap", "mremap", "brk", "shmat", "remap_file_pages", "io_setup", "map_shadow_stack"];
const OTHER: u64 = 7;
const PREEXISTING: u64 = 8;
const KERNEL: u64 = 9;
const UNKNOWN: u64 = 10;
/// Numbers below this represent the reasons of [`NoStack`].
const FIRST_STACK: u64 = 3;

impl Maker {
    fn of_call(call: &Call) -> Maker {
        let op = match call.op {
            VmOp::Mmap { .. } => 0,
            VmOp::Mremap { .. } => 1,
            VmOp::Brk { .. } => 2,
            VmOp::Shmat { .. } => 3,
            VmOp::RemapFilePages { .. } => 4,
            VmOp::IoSetup { .. } => 5,
            VmOp::MapShadowStack { .. } => 6,
            _ => OTHER,
        };
        let stack = match call.stack {
            Ok(StackId(id)) => u64::from(id) + FIRST_STACK,
            Err(NoStack::NotTaken) => 0,
            Err(NoStack::Lost) => 1,
            Err(NoStack::Unreadable) => 2,
        };
        Maker(op << 40 | stack)
    }

    pub(super) fn of(attr: &Attributes, origins: &OriginTable) -> Maker {
        match attr.owner {
            Owner::Event(slot) => {
                origins.get(slot).map_or(Maker(UNKNOWN << 40), |o| Maker::of_call(o.call()))
            }
            Owner::Preexisting => Maker(PREEXISTING << 40),
            Owner::Kernel => Maker(KERNEL << 40),
            Owner::Unknown => Maker(UNKNOWN << 40),
        }
    }

    /// The call's name, `preexisting`, `kernel` or `unknown`: as the report spells origins.
    pub(super) fn name(self) -> &'static str {
        match self.0 >> 40 {
            PREEXISTING => "preexisting",
            KERNEL => "kernel",
            UNKNOWN => "unknown",
            op => CALLS.get(op as usize).copied().unwrap_or("other"),
        }
    }

    pub(super) fn stack(self) -> Option<StackId> {
        let stack = (self.0 & ((1 << 40) - 1)).checked_sub(FIRST_STACK)?;
        u32::try_from(stack).ok().map(StackId)
    }
}

/// One of the pieces that a maker lost since the peak: what its bytes were, when all are gone.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) entry: OriginEntry,
    pub(super) piece: Piece,
}

#[derive(Clone, Default, Debug)]
struct Change {
    bytes: i64,
    sample: Option<Box<Sample>>,
}

/// See the module.
#[derive(Clone, Default, Debug)]
pub(super) struct PeakTracker {
    /// Bytes in the map.
    mapped: u64,
    /// At the end of the event before.
    mapped_before: u64,
    /// The kernel's count less the map, when it was last reported.
    beyond: i64,
    /// The same, when it was last reported with a single thread.
    growth: u64,
    /// The kernel's count was reported at least once.
    reported: bool,
    virt: u64,
    time_ns: u64,
    /// `virt` less what the map held: stacks that grew, and calls not reported yet.
    beyond_at_peak: i64,
    /// One thread only, so that nothing was on its way.
    alone: bool,
    /// What this event has changed so far.
    pending: Vec<(Maker, i64)>,
    changes: IntMap<Maker, Change>,
}

/// When an event was reported, and what the kernel's counter said then.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    pub(super) time_ns: u64,
    /// mm->total_vm, bytes.
    pub(super) total_vm: Option<u64>,
    /// The address space has one thread.
    pub(super) alone: bool,
}

impl PeakTracker {
    /// Bytes in the map.
    pub(super) fn mapped(&self) -> u64 {
        self.mapped
    }

    /// The most that was mapped.
    pub(super) fn virt(&self) -> u64 {
        self.virt
    }

    /// When that was reached first.
    pub(super) fn time_ns(&self) -> u64 {
        self.time_ns
    }

    /// What the peak had beyond the map: stacks that grew, and calls not reported yet (negative: reported
    /// too late).
    pub(super) fn beyond(&self) -> (u64, i64) {
        match self.beyond_at_peak {
            grown @ 0.. if self.alone => (grown as u64, 0),
            other => (0, other),
        }
    }

    /// What stacks had grown by when that was certain last.
    pub(super) fn stack_growth(&self) -> u64 {
        self.growth
    }

    pub(super) fn added(&mut self, piece: &Piece, origins: &OriginTable) {
        let len = piece.range.len();
        self.mapped = self.mapped.saturating_add(len);
        self.pending.push((Maker::of(&piece.attr, origins), signed(len)));
    }

    pub(super) fn removed(&mut self, piece: &Piece, origins: &OriginTable) {
        let len = piece.range.len();
        self.mapped = self.mapped.saturating_sub(len);
        let maker = Maker::of(&piece.attr, origins);
        if let Owner::Event(slot) = piece.attr.owner
            && self.changes.get(&maker).is_none_or(|change| change.sample.is_none())
            && let Some(entry) = origins.get(slot)
        {
            let sample = Some(Box::new(Sample { entry: entry.clone(), piece: piece.clone() }));
            self.changes.entry(maker).or_default().sample = sample;
        }
        self.pending.push((maker, -signed(len)));
    }

    /// The event's effect is complete.
    pub(super) fn settle(&mut self, now: Moment) {
        if let Some(total) = now.total_vm {
            self.reported = true;
            let beyond = signed(total).saturating_sub(signed(self.mapped));
            let before = signed(self.mapped_before).saturating_add(beyond);
            // A stack grew since the event before, and so before this one took effect.
            if now.alone && beyond > self.beyond && before > signed(self.virt) {
                // What this event took away was there, and its samples with it.
                let pending = &self.pending;
                self.changes.retain(|maker, change| {
                    change.bytes = 0;
                    pending.iter().any(|(changed, _)| changed == maker)
                });
                (self.virt, self.beyond_at_peak) = (before as u64, beyond);
                (self.time_ns, self.alone) = (now.time_ns, true);
            }
            self.beyond = beyond;
            if now.alone {
                self.growth = u64::try_from(beyond).unwrap_or(0);
            }
        }
        let virt = self.mapped.saturating_add_signed(self.beyond);
        // Without the kernel's count in this event, the figure beyond the map is outdated.
        let known = now.total_vm.is_some() || !self.reported;
        let better = virt == self.virt && self.beyond.unsigned_abs() < self.beyond_at_peak.unsigned_abs();
        let first = self.time_ns == 0;
        if known && (virt > self.virt || better || first) {
            self.restart(now, virt);
        } else {
            for &(maker, bytes) in &self.pending {
                let change = self.changes.entry(maker).or_default();
                change.bytes = change.bytes.saturating_add(bytes);
            }
            // Who has as much as at the peak needs no note, and no sample of what is gone: a million stacks that each
            // mapped and unmapped a page had 500 MB of them.
            for (maker, _) in self.pending.drain(..) {
                if self.changes.get(&maker).is_some_and(|change| change.bytes == 0) {
                    self.changes.remove(&maker);
                }
            }
        }
        self.mapped_before = self.mapped;
    }

    fn restart(&mut self, now: Moment, virt: u64) {
        self.pending.clear();
        self.forget_changes();
        (self.virt, self.beyond_at_peak) = (virt, self.beyond);
        (self.time_ns, self.alone) = (now.time_ns, now.alone);
    }

    /// Clearing a table costs its capacity: a large one is not kept for a small number of entries.
    fn forget_changes(&mut self) {
        if self.changes.is_empty() {
            return;
        }
        if self.changes.capacity() > 8 * self.changes.len().max(16) {
            self.changes = IntMap::default();
        } else {
            self.changes.clear();
        }
    }

    /// The same map in a new address space, whose maximum is what it has now (kernel/fork.c,
    /// dup_mm sets hiwater_vm).
    pub(super) fn for_copy(&self, time_ns: u64) -> PeakTracker {
        PeakTracker {
            mapped: self.mapped,
            mapped_before: self.mapped,
            virt: self.mapped,
            time_ns,
            alone: true,
            ..PeakTracker::default()
        }
    }

    /// What changed since the peak, with one of the pieces that are gone. A maker may come twice.
    pub(super) fn changes(&self) -> impl Iterator<Item = (Maker, i64, Option<&Sample>)> {
        let settled = self.changes.iter().map(|(m, change)| (*m, change.bytes, change.sample.as_deref()));
        settled.chain(self.pending.iter().map(|(maker, bytes)| (*maker, *bytes, None)))
    }
}
