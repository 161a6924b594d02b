//! The ledgers of all address spaces, and the sites that they share.

use super::{CountedSite, HeapLedger, LedgerOptions, SiteId};
use crate::model::hash::IntMap;
use crate::model::{HeapEvent, HeapOp, MmKey, NoStack, Pid, StackId};
use std::collections::HashMap;

/// An allocating stack, and the allocator's function that it calls.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Site {
    pub stack: Result<StackId, NoStack>,
    /// Index into the list of probed functions.
    pub function: u32,
}

/// Each distinct site once.
#[derive(Default, Debug)]
pub struct Sites {
    sites: Vec<Site>,
    /// By stack (or the reason why there is none) and function.
    numbers: HashMap<(u64, u32), SiteId, crate::model::hash::BuildIntHasher>,
}

impl Sites {
    pub fn intern(&mut self, site: Site) -> SiteId {
        let stack = match site.stack {
            Ok(id) => u64::from(id.0),
            Err(NoStack::NotTaken) => 1 << 32,
            Err(NoStack::Lost) => 2 << 32,
            Err(NoStack::Unreadable) => 3 << 32,
        };
        *self.numbers.entry((stack, site.function)).or_insert_with(|| {
            self.sites.push(site);
            SiteId((self.sites.len() - 1) as u32)
        })
    }

    pub fn len(&self) -> usize {
        self.sites.len()
    }

    pub fn is_empty(&self) -> bool {
        self.sites.is_empty()
    }

    pub fn get(&self, id: SiteId) -> Option<Site> {
        self.sites.get(id.0 as usize).copied()
    }
}

/// One [`HeapLedger`] an address space.
#[derive(Debug, Default)]
pub struct Heaps {
    options: LedgerOptions,
    sites: Sites,
    ledgers: IntMap<MmKey, HeapLedger>,
    /// Before any ledger was begun: those that follow are as doubtful.
    lost_events: u64,
}

impl Heaps {
    pub fn new(options: LedgerOptions) -> Heaps {
        Heaps { options, ..Heaps::default() }
    }

    /// Applies an event; an address space that is not known becomes so.
    pub fn apply(&mut self, event: &HeapEvent) {
        // frees often have no stack, and a site of their own would be useless
        let site = match event.op {
            HeapOp::Allocated { .. } | HeapOp::ResizeEnded { new: Some(_), .. } => {
                self.sites.intern(Site { stack: event.stack, function: event.function })
            }
            _ => SiteId(0),
        };
        self.space(event.mm, event.pid).apply(event, site);
    }

    fn space(&mut self, mm: MmKey, pid: Pid) -> &mut HeapLedger {
        let (options, lost) = (self.options, self.lost_events);
        self.ledgers.entry(mm).or_insert_with(|| {
            let mut fresh = HeapLedger::new(mm, pid, options);
            fresh.lose(lost);
            fresh
        })
    }

    /// A process that is watched from now on, also while it does nothing.
    pub fn begin(&mut self, mm: MmKey, pid: Pid) {
        self.space(mm, pid);
    }

    /// A process with an address space of its own starts as a copy of its parent's. (Threads and vfork's
    /// children share it: nothing to do.)
    pub fn fork(&mut self, parent: MmKey, child: MmKey, child_pid: Pid) {
        if parent == child {
            return;
        }
        self.ledgers.remove(&child);
        match self.ledgers.get(&parent).map(|ledger| ledger.fork(child, child_pid)) {
            Some(copy) => {
                self.ledgers.insert(child, copy);
            }
            None => {
                self.space(child, child_pid);
            }
        }
    }

    /// A process runs another program, in a new address space: what was in the old one, if that was its
    /// own, is gone.
    pub fn exec(&mut self, pid: Pid, new: MmKey) -> Option<HeapLedger> {
        let own = self.ledgers.values().find(|ledger| ledger.pid == pid).map(|ledger| ledger.mm);
        let old = own.and_then(|mm| self.ledgers.remove(&mm));
        self.ledgers.remove(&new);
        self.space(new, pid);
        old
    }

    /// A process has ended; what was outstanding then. `None` where nothing was seen of it, and of a
    /// process in another one's address space (vfork).
    pub fn exit(&mut self, pid: Pid, mm: MmKey) -> Option<HeapLedger> {
        if self.ledgers.get(&mm)?.pid != pid {
            return None;
        }
        self.ledgers.remove(&mm)
    }

    /// So many events never arrived, of whichever process.
    pub fn lost(&mut self, events: u64) {
        self.ledgers.values_mut().for_each(|ledger| ledger.lose(events));
        self.lost_events = self.lost_events.saturating_add(events);
    }

    /// An interval ends: growth is measured from here on, and a point is added to each timeline.
    pub fn mark(&mut self, time_ns: u64) {
        self.ledgers.values_mut().for_each(|ledger| ledger.mark(time_ns));
    }

    /// What the kernel counted for a site: in place of what it had before, in addition to what events added.
    pub fn count(&mut self, mm: MmKey, pid: Pid, (site, counted): (Site, CountedSite)) {
        let site = self.sites.intern(site);
        self.space(mm, pid).count(site, counted);
    }

    pub fn ledger(&self, mm: MmKey) -> Option<&HeapLedger> {
        self.ledgers.get(&mm)
    }

    pub fn ledger_mut(&mut self, mm: MmKey) -> Option<&mut HeapLedger> {
        self.ledgers.get_mut(&mm)
    }

    /// Those that live, by pid.
    pub fn ledgers(&self) -> Vec<&HeapLedger> {
        let mut all: Vec<&HeapLedger> = self.ledgers.values().collect();
        all.sort_by_key(|ledger| (ledger.pid, ledger.mm));
        all
    }

    pub fn sites(&self) -> &Sites {
        &self.sites
    }
}
