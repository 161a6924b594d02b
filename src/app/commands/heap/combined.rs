//! `--combined`: what the kernel's counts belong to, and the rules that it walks stacks by.

use crate::capture::heap::{Counted, SiteCounts, SiteKey};
use crate::heap::Heaps;
use crate::heap::ledger::Flow;
use crate::heap::ledger::{CountedSite, Site};
use crate::heap::sampling::BLOCK;
use crate::model::{MmKey, NoStack, Pid, StackId};
use crate::unwind::PlainStep;
use std::collections::{HashMap, HashSet};

/// An address space that is counted.
#[derive(Clone, Copy, Debug)]
struct Owner {
    mm: MmKey,
    pid: Pid,
    gone: bool,
}

/// The tables, and their state in user space.
pub struct Combined {
    counted: Counted,
    names: HashMap<SiteKey, StackId>,
    /// By the kernel's number.
    spaces: HashMap<u64, Owner>,
    /// Rules, by code, address and whether innermost.
    unwind_rules: HashSet<(u64, u64, bool)>,
    /// Which states of the code each address space was in.
    codes: HashMap<MmKey, Vec<u64>>,
    /// What was counted for each at the newest snapshot, so that one that is not there any more is none.
    published: HashSet<(MmKey, Site)>,
    /// Blocks in the kernel's table without a process.
    stale: u64,
    /// The kernel did not hand out its counts, or had no space for rules.
    pub troubles: u64,
}

/// So many outstanding blocks of exited processes start a search of the kernel's table: a quarter of its
/// capacity.
const STALE: u64 = 1 << 20;

impl Combined {
    pub fn new(counted: Counted) -> Combined {
        Combined {
            counted,
            names: HashMap::new(),
            spaces: HashMap::new(),
            unwind_rules: HashSet::new(),
            codes: HashMap::new(),
            published: HashSet::new(),
            stale: 0,
            troubles: 0,
        }
    }

    /// The stack of a site, in the order of events.
    pub fn name(&mut self, key: SiteKey, stack: StackId, (space, mm, pid): (u64, MmKey, Pid)) {
        self.names.insert(key, stack);
        self.spaces.entry(space).or_insert(Owner { mm, pid, gone: false });
    }

    /// The rules along a stack that the kernel could not walk.
    pub fn publish(&mut self, mm: MmKey, code: u64, steps: &[PlainStep]) {
        let codes = self.codes.entry(mm).or_default();
        if !codes.contains(&code) {
            // What was unmapped is void: the kernel uses the new number.
            let former: HashSet<u64> = codes.drain(..).collect();
            codes.push(code);
            self.drop_rules(|known| former.contains(&known));
        }
        for step in steps {
            let Some(rule) = step.rule else { return };
            if !self.unwind_rules.insert((code, step.address, step.innermost)) {
                continue;
            }
            if self.counted.publish(code, (step.address, step.innermost), rule).is_err() {
                self.unwind_rules.remove(&(code, step.address, step.innermost));
                self.troubles += 1;
                return;
            }
        }
    }

    fn drop_rules(&mut self, dropped: impl Fn(u64) -> bool) {
        let gone: Vec<_> = self.unwind_rules.iter().copied().filter(|&(code, _, _)| dropped(code)).collect();
        for rule in &gone {
            self.unwind_rules.remove(rule);
        }
        self.counted.withdraw(gone);
    }

    /// Adds to the ledgers what the kernel has counted by now.
    pub fn snapshot(&mut self, heaps: &mut Heaps) {
        let Ok(counts) = self.counted.read() else {
            self.troubles += 1;
            return;
        };
        let mut sums: HashMap<(MmKey, Site), (Pid, CountedSite)> = HashMap::new();
        for (key, counts) in counts {
            let fresh = Owner { mm: counts.mm, pid: counts.pid, gone: false };
            let owner = *self.spaces.entry(counts.space).or_insert(fresh);
            if owner.gone {
                continue;
            }
            let stack = self.names.get(&key).copied().ok_or(NoStack::Lost);
            let site = Site { stack, function: key.function };
            let (_, sum) = sums.entry((owner.mm, site)).or_insert((owner.pid, CountedSite::default()));
            add(sum, &counts);
        }
        // Sites whose counts belong to a stack that was resolved since are reset.
        let published = std::mem::take(&mut self.published);
        for &(mm, site) in published.iter().filter(|each| !sums.contains_key(each)) {
            if let Some(pid) = heaps.ledger(mm).map(|ledger| ledger.pid) {
                heaps.count(mm, pid, (site, CountedSite::default()));
            }
        }
        for ((mm, site), (pid, sum)) in sums {
            self.published.insert((mm, site));
            heaps.count(mm, pid, (site, sum));
        }
    }

    /// A process has ended, or runs another program: nothing of it is counted from now on.
    pub fn forget(&mut self, pid: Pid) {
        let mut gone = HashSet::new();
        for owner in self.spaces.values_mut().filter(|owner| owner.pid == pid && !owner.gone) {
            owner.gone = true;
            gone.insert(owner.mm);
        }
        if gone.is_empty() {
            return;
        }
        self.published.retain(|(mm, _)| !gone.contains(mm));
        let codes: HashSet<u64> = gone.iter().filter_map(|mm| self.codes.remove(mm)).flatten().collect();
        self.drop_rules(|code| codes.contains(&code));
        let Ok(counts) = self.counted.read() else {
            self.troubles += 1;
            return;
        };
        let is_gone = |space: u64| self.spaces.get(&space).is_some_and(|owner| owner.gone);
        let void = counts.iter().filter(|(_, counts)| is_gone(counts.space));
        let mut keys = Vec::new();
        for (key, counts) in void {
            keys.push(*key);
            self.stale += counts.allocations.saturating_sub(counts.frees);
        }
        self.counted.forget(&keys);
        if self.stale > STALE {
            self.stale = 0;
            self.troubles += u64::from(self.counted.forget_blocks(is_gone).is_err());
        }
        for key in &keys {
            self.names.remove(key);
        }
    }
}

fn add(sum: &mut CountedSite, counts: &SiteCounts) {
    let add = |flow: &mut Flow, bytes: u64, blocks: u64| {
        flow.bytes = flow.bytes.saturating_add(bytes);
        flow.blocks = flow.blocks.saturating_add(blocks.saturating_mul(BLOCK));
    };
    let SiteCounts { allocations, bytes, frees, freed_bytes, .. } = *counts;
    add(&mut sum.totals.allocated, bytes, allocations);
    add(&mut sum.totals.freed, freed_bytes, frees);
    // Read while it is counted, a free may be seen before its allocation.
    let outstanding = (bytes.saturating_sub(freed_bytes), allocations.saturating_sub(frees));
    add(&mut sum.totals.outstanding, outstanding.0, outstanding.1);
    sum.lost_frees += counts.unseen_frees;
}
