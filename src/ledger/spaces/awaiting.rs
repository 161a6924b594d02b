//! Forked children with ranges that their parents may still explain.

use super::table::SpaceId;
use crate::ledger::space::range_set::RangeSet;
use crate::model::hash::IntMap;
use crate::model::{AddrRange, Tid};

/// A child whose mappings hold ranges the parent's ledger did not know at the fork: calls that
/// took effect before the fork and are reported after it.
#[derive(Debug)]
struct Waiting {
    child: SpaceId,
    ranges: RangeSet,
    /// Number of the fork's report in the parent's address space.
    forked: u64,
    /// The parent's threads that have not reported since the fork.
    threads: Vec<Tid>,
}

/// By the parent. Nothing waits without ranges or threads.
#[derive(Default, Debug)]
pub(super) struct Awaiting {
    by_parent: IntMap<SpaceId, Vec<Waiting>>,
}

impl Awaiting {
    /// `child` waits for `threads` of `parent`, whose report number `forked` was the fork's.
    pub(super) fn add(
        &mut self,
        (parent, child): (SpaceId, SpaceId),
        ranges: RangeSet,
        (forked, threads): (u64, Vec<Tid>),
    ) {
        if !ranges.is_empty() && !threads.is_empty() {
            self.by_parent.entry(parent).or_default().push(Waiting { child, ranges, forked, threads });
        }
    }

    /// What `from` waits for when it forks, its child waits for as well, where it has no owner.
    pub(super) fn inherit(
        &mut self,
        from: SpaceId,
        child: SpaceId,
        unowned: impl Fn(AddrRange) -> Vec<AddrRange>,
    ) {
        for waiting in self.by_parent.values_mut() {
            let inherited = waiting.iter().filter(|w| w.child == from).map(|w| {
                let ranges = w.ranges.iter().flat_map(&unowned).collect();
                Waiting { child, ranges, forked: w.forked, threads: w.threads.clone() }
            });
            let mut inherited: Vec<Waiting> = inherited.filter(|w| !w.ranges.is_empty()).collect();
            waiting.append(&mut inherited);
        }
    }

    /// The children that wait for a report of `parent` whose thread had reported number `previous` before it:
    /// only a call that began before the fork was reported can have had its effect before it.
    pub(super) fn of(&self, parent: SpaceId, previous: u64) -> impl Iterator<Item = (SpaceId, &RangeSet)> {
        let waiting = self.by_parent.get(&parent).into_iter().flatten();
        waiting.filter(move |w| previous < w.forked).map(|w| (w.child, &w.ranges))
    }

    /// `tid` of `parent` has reported, which `explained` ranges of children.
    pub(super) fn reported(&mut self, parent: SpaceId, tid: Tid, explained: &[(SpaceId, AddrRange)]) {
        let Some(waiting) = self.by_parent.get_mut(&parent) else { return };
        waiting.retain_mut(|w| {
            for (_, part) in explained.iter().filter(|(child, _)| *child == w.child) {
                w.ranges.remove(*part);
            }
            w.threads.retain(|&t| t != tid);
            !w.ranges.is_empty() && !w.threads.is_empty()
        });
        if waiting.is_empty() {
            self.by_parent.remove(&parent);
        }
    }

    /// No call of `parent` will be reported any more.
    pub(super) fn forget(&mut self, parent: SpaceId) {
        self.by_parent.remove(&parent);
    }
}
