//! Which stack touched what another stack reserved: page faults joined with the ledger at their moment. Pure.
//!
//! A *touch* is a page fault that the program (or the kernel on its behalf, in a system call) took
//! on an address that is mapped for such an access: the first one on a page, the write that gives
//! the page a copy of its own after it was only read or after fork, the first after
//! MADV_DONTNEED, the return from swap. Each counts. What is resident in the end belongs to the
//! *last* touch of its page, which made it what it is.

mod pages;

pub use pages::{BLOCK, Pages, RowId, Sample};

use crate::ledger::{AddressSpaces, HeldBy, SpaceId};
use crate::model::hash::IntMap;
use crate::model::{AddrRange, MmKey, Sharing, StackId, Touch, VmEvent, VmOp, addr::page_up};
use crate::sys::abi::{
    MADV_DONTNEED, MADV_DONTNEED_LOCKED, MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_REMOVE, MAP_LOCKED,
    MAP_POPULATE,
};
use std::collections::HashMap;

/// Different pairs of stacks kept at most; what comes later is counted without its stacks.
const MAX_ROWS: usize = 1 << 18;
/// Pages remembered over all address spaces at most, beyond which forks inherit none.
const MAX_PAGES_IN_ALL: usize = 4 << 20;
/// Faults of an execve that is not reported yet.
const MAX_EARLY: usize = 256;

/// The reserving and the touching stack.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TouchKey {
    pub reserved: HeldBy,
    pub touched: Option<StackId>,
}

/// What was counted in the kernel, over all processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TouchTotals {
    pub faults: u64,
    pub sampled: u64,
    pub lost: u64,
}

/// How often.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count {
    /// Faults, including those that a sample represents.
    pub faults: u64,
    pub samples: u64,
    /// Sum of weight × (weight − 1): the variance of `faults`, for samples that are picked
    /// independently. 0 where every fault was recorded.
    pub variance: u64,
}

impl Count {
    pub fn add(&mut self, weight: u32) {
        let weight = u64::from(weight);
        self.faults += weight;
        self.samples += 1;
        self.variance = self.variance.saturating_add(weight.saturating_mul(weight.saturating_sub(1)));
    }

    pub fn merge(&mut self, other: Count) {
        self.faults += other.faults;
        self.samples += other.samples;
        self.variance = self.variance.saturating_add(other.variance);
    }

    /// Half the width of the 95 % interval of `faults`, relative to it; 0 where it is exact.
    pub fn error(&self) -> f64 {
        if self.faults == 0 { 0.0 } else { 1.96 * (self.variance as f64).sqrt() / self.faults as f64 }
    }
}

/// The touches of one address space.
#[derive(Clone, Debug, Default)]
pub struct SpaceTouches {
    pub counts: IntMap<RowId, Count>,
    pub pages: Pages,
    pub total: Count,
    /// Faults on an address where nothing is known to be mapped.
    pub outside: u64,
    /// Faults that the mapping's protection forbids.
    pub refused: u64,
}

impl SpaceTouches {
    /// The rows with the most faults, at most `limit`: largest first.
    pub fn largest(&self, limit: usize) -> Vec<(RowId, Count)> {
        let mut rows: Vec<(RowId, Count)> = self.counts.iter().map(|(&id, &count)| (id, count)).collect();
        rows.sort_unstable_by_key(|&(id, count)| (std::cmp::Reverse(count.faults), id));
        rows.truncate(limit);
        rows
    }
}

/// The touches of all address spaces.
#[derive(Debug, Default)]
pub struct Touches {
    rows: Vec<TouchKey>,
    row_ids: HashMap<TouchKey, RowId>,
    spaces: IntMap<SpaceId, SpaceTouches>,
    early: Vec<Touch>,
    /// To be set at the end.
    pub totals: TouchTotals,
    unplaced: u64,
}

impl Touches {
    pub fn row(&self, id: RowId) -> Option<TouchKey> {
        self.rows.get(id.0 as usize).copied()
    }

    pub fn of_space(&self, id: SpaceId) -> Option<&SpaceTouches> {
        self.spaces.get(&id)
    }

    /// Faults in address spaces that are not known, or no longer: what a child did before its
    /// execve.
    pub fn unplaced(&self) -> u64 {
        self.unplaced + self.early.iter().map(|touch| u64::from(touch.weight)).sum::<u64>()
    }

    /// Takes one touch; all events before it have been applied to `spaces` and followed.
    pub fn touch(&mut self, touch: &Touch, spaces: &AddressSpaces) {
        let Some(id) = spaces.space_of_mm(touch.mm) else {
            // execve's own work in the new address space, before it is reported.
            if self.early.len() < MAX_EARLY {
                self.early.push(*touch);
            } else {
                self.unplaced += u64::from(touch.weight);
            }
            return;
        };
        let holder = spaces.ledger_of_mm(touch.mm).and_then(|ledger| ledger.holder(touch.address));
        let Some(holder) = holder else {
            self.spaces.entry(id).or_default().outside += u64::from(touch.weight);
            return;
        };
        if holder.prot.is_none() || touch.write && !holder.prot.write {
            self.spaces.entry(id).or_default().refused += u64::from(touch.weight);
            return;
        }
        let row = self.intern(TouchKey { reserved: holder.by, touched: touch.stack.ok() });
        let space = self.spaces.entry(id).or_default();
        space.total.add(touch.weight);
        space.counts.entry(row).or_default().add(touch.weight);
        // The first write to a shared page that is there already only marks it dirty.
        let only_marks = touch.present && holder.sharing == Sharing::Shared;
        if !only_marks {
            space.pages.note(touch.address, Sample { row, weight: touch.weight });
        }
    }

    fn intern(&mut self, row: TouchKey) -> RowId {
        if let Some(&id) = self.row_ids.get(&row) {
            return id;
        }
        if self.rows.len() >= MAX_ROWS && row.touched.is_some() {
            return self.intern(TouchKey { reserved: HeldBy::Unknown, touched: None });
        }
        let id = RowId(self.rows.len() as u32);
        self.rows.push(row);
        self.row_ids.insert(row, id);
        id
    }

    /// Follows an event that was just applied to `spaces`: pages that went, moved or came without
    /// a fault.
    pub fn follow(&mut self, event: &VmEvent, spaces: &AddressSpaces) {
        if event.failed() {
            return;
        }
        match event.op {
            VmOp::Fork { child_mm, is_thread: false, .. } if child_mm != event.mm => {
                self.fork(event.mm, child_mm, spaces);
            }
            VmOp::Exec { .. } => {
                let early = std::mem::take(&mut self.early);
                let (mine, others) = early.into_iter().partition(|touch| touch.mm == event.mm);
                self.early = others;
                let mine: Vec<Touch> = mine;
                for touch in mine {
                    self.touch(&touch, spaces);
                }
                self.forget_gone(spaces);
            }
            VmOp::Exit { group_dead: true, .. } => self.forget_gone(spaces),
            _ => self.follow_call(event, spaces),
        }
    }

    /// Address spaces that no longer exist.
    fn forget_gone(&mut self, spaces: &AddressSpaces) {
        let unplaced = &mut self.unplaced;
        self.spaces.retain(|&id, space| {
            let kept = spaces.has_space(id);
            if !kept {
                *unplaced += space.total.faults + space.outside + space.refused;
            }
            kept
        });
    }

    fn follow_call(&mut self, event: &VmEvent, spaces: &AddressSpaces) {
        let Some(id) = spaces.space_of_mm(event.mm) else { return };
        let result = crate::model::Addr(event.ret as u64);
        let populates = match event.op {
            VmOp::Mmap { len, flags, .. } => {
                let range = AddrRange::from_len(result, page_up(len));
                if flags & (MAP_POPULATE | MAP_LOCKED) == 0 {
                    self.discard(id, range);
                    return;
                }
                range
            }
            VmOp::Madvise { addr, len, advice: MADV_POPULATE_READ | MADV_POPULATE_WRITE } => {
                AddrRange::from_len(addr, page_up(len))
            }
            VmOp::Munmap { addr, len }
            | VmOp::Madvise { addr, len, advice: MADV_DONTNEED | MADV_REMOVE | MADV_DONTNEED_LOCKED } => {
                self.discard(id, AddrRange::from_len(addr, page_up(len)));
                return;
            }
            VmOp::Mremap { old, old_len, .. } if old != result => {
                if let Some(space) = self.spaces.get_mut(&id) {
                    space.pages.moved(AddrRange::from_len(old, page_up(old_len)), result);
                }
                return;
            }
            _ => return,
        };
        let holder = spaces.ledger_of_mm(event.mm).and_then(|ledger| ledger.holder(populates.start));
        let Some(holder) = holder else { return };
        let row = self.intern(TouchKey { reserved: holder.by, touched: event.stack.ok() });
        let space = self.spaces.entry(id).or_default();
        space.counts.entry(row).or_default();
        space.pages.note_populated(populates, row);
    }

    fn discard(&mut self, id: SpaceId, range: AddrRange) {
        if let Some(space) = self.spaces.get_mut(&id) {
            space.pages.discard(range);
        }
    }

    /// The child has the parent's pages, and has touched none of them itself.
    fn fork(&mut self, parent: MmKey, child: MmKey, spaces: &AddressSpaces) {
        let (Some(parent), Some(child)) = (spaces.space_of_mm(parent), spaces.space_of_mm(child)) else {
            return;
        };
        let kept: usize = self.spaces.values().map(|space| space.pages.len()).sum();
        let Some(from) = self.spaces.get(&parent) else { return };
        if kept + from.pages.len() > MAX_PAGES_IN_ALL {
            return;
        }
        let counts = from.counts.keys().map(|&id| (id, Count::default())).collect();
        let pages = from.pages.clone();
        self.spaces.insert(child, SpaceTouches { counts, pages, ..SpaceTouches::default() });
    }
}
