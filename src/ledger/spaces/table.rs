//! The address spaces by their ids and keys.

use crate::ledger::space::Ledger;
use crate::model::hash::IntMap;
use crate::model::{MmKey, Pid, Tid};
use std::collections::{HashSet, VecDeque};

/// One generation of an mm.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SpaceId(u64);

/// Last states of exited processes that were not queried, kept at most: of those whose end was returned, and
/// in all.
const MAX_TAKEN: usize = 1024;
const MAX_DEAD: usize = 1 << 16;

#[derive(Debug)]
struct Space {
    key: MmKey,
    users: HashSet<Pid>,
    ledger: Ledger,
    /// Its last state is not needed any more.
    is_settled: bool,
}

/// A key names at most one living address space. Ledgers whose modules differ differ in the generation
/// of their modules.
#[derive(Default, Debug)]
pub(super) struct SpaceTable {
    spaces: IntMap<SpaceId, Space>,
    by_mm: IntMap<MmKey, SpaceId>,
    /// Without users, the oldest first.
    dead: VecDeque<SpaceId>,
    last_id: u64,
    last_generation: u64,
}

impl SpaceTable {
    /// A new generation of `key`: an older one lost its end, and must not get this one's events.
    pub(super) fn add(&mut self, key: MmKey, ledger: Ledger) -> SpaceId {
        self.last_id += 1;
        let id = SpaceId(self.last_id);
        self.by_mm.insert(key, id);
        self.spaces.insert(id, Space { key, users: HashSet::new(), ledger, is_settled: false });
        self.change(id, |_| {});
        id
    }

    pub(super) fn get(&self, id: SpaceId) -> Option<&Ledger> {
        self.spaces.get(&id).map(|space| &space.ledger)
    }

    /// Changes a ledger.
    pub(super) fn change<T>(&mut self, id: SpaceId, change: impl FnOnce(&mut Ledger) -> T) -> Option<T> {
        let ledger = &mut self.spaces.get_mut(&id)?.ledger;
        let result = change(ledger);
        ledger.renew_modules(|| {
            self.last_generation += 1;
            self.last_generation
        });
        Some(result)
    }

    /// Changes all ledgers in a way that leaves their modules alone. `change` gets whether each has users.
    pub(super) fn note_in_all(&mut self, mut change: impl FnMut(&mut Ledger, bool)) {
        for space in self.spaces.values_mut() {
            change(&mut space.ledger, !space.users.is_empty());
        }
    }

    /// The living address space under this key.
    pub(super) fn of_mm(&self, mm: MmKey) -> Option<SpaceId> {
        self.by_mm.get(&mm).copied()
    }

    pub(super) fn has_users(&self, id: SpaceId) -> bool {
        self.spaces.get(&id).is_some_and(|space| !space.users.is_empty())
    }

    /// Those with users.
    pub(super) fn used(&self) -> impl Iterator<Item = SpaceId> {
        self.spaces.iter().filter(|(_, space)| !space.users.is_empty()).map(|(&id, _)| id)
    }

    pub(super) fn join(&mut self, id: SpaceId, pid: Pid) {
        if let Some(space) = self.spaces.get_mut(&id) {
            space.users.insert(pid);
        }
    }

    /// `pid` with its threads no longer uses `id`. True when it was the last user: no event is of this
    /// generation any more.
    pub(super) fn leave(&mut self, id: SpaceId, pid: Pid, tids: &[Tid]) -> bool {
        let Some(space) = self.spaces.get_mut(&id) else { return false };
        space.users.remove(&pid);
        tids.iter().for_each(|&tid| space.ledger.thread_left(tid));
        if !space.users.is_empty() {
            return false;
        }
        if self.by_mm.get(&space.key) == Some(&id) {
            self.by_mm.remove(&space.key);
        }
        true
    }

    /// Whether the last state of the only user need not be kept.
    pub(super) fn settle(&mut self, id: SpaceId, is_settled: bool) {
        if let Some(space) = self.spaces.get_mut(&id) {
            space.is_settled = is_settled && space.users.len() <= 1;
        }
    }

    /// Keeps the last state of a process that has ended, where it may be queried.
    pub(super) fn keep_dead(&mut self, id: SpaceId) {
        if self.spaces.get(&id).is_some_and(|space| space.is_settled) {
            self.spaces.remove(&id);
            return;
        }
        self.dead.push_back(id);
        self.trim_dead(MAX_DEAD);
    }

    /// The ends of all but the last `pending` processes that ended were returned.
    pub(super) fn ends_taken(&mut self, pending: usize) {
        self.trim_dead(MAX_TAKEN.saturating_add(pending).min(MAX_DEAD));
    }

    fn trim_dead(&mut self, at_most: usize) {
        while self.dead.len() > at_most
            && let Some(oldest) = self.dead.pop_front()
        {
            self.spaces.remove(&oldest);
        }
    }

    pub(super) fn remove(&mut self, id: SpaceId) {
        self.spaces.remove(&id);
        self.dead.retain(|&dead| dead != id);
    }
}
