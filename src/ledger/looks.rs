//! What has to be remembered between a look at a living process and its comparison.
//!
//! A look shows a moment that is past when it is compared: calls that were reported since have
//! taken away what it shows, with a single thread as well as with many.
//!
//! ```text
//!   look      ├── X seen ──┤                 compared: whose is X?
//!   reports                  munmap X  exit
//! ```

use super::space::Start;
use super::spaces::{AddressSpaces, SpaceId};
use crate::model::Pid;
use std::collections::VecDeque;

/// How long what an ended process had taken away is kept at most while looks go on and on.
const KEEP_NS: u64 = 10_000_000_000;

/// What waits for looks to be compared.
#[derive(Default, Debug)]
pub(super) struct Looks {
    /// Between `look_begins` and `looks_compared`.
    pub(super) pending: bool,
    /// Address spaces whose last user has ended meanwhile, and when.
    ended: VecDeque<(SpaceId, u64)>,
}

impl AddressSpaces {
    /// Living processes are looked at from now on: what calls take away is remembered until
    /// [`AddressSpaces::looks_compared`].
    pub fn look_begins(&mut self) {
        self.looks.pending = true;
    }

    /// The looks were joined with the ledger, or given up.
    pub fn looks_compared(&mut self) {
        self.looks.pending = false;
        self.looks.ended.clear();
        for space in self.spaces.values_mut() {
            let ledger = &mut space.ledger;
            ledger.look_pending = false;
            // Forks on their way may still ask in the others.
            if space.users.is_empty() || ledger.threads.len() <= 1 && ledger.start != Start::Preexisting {
                ledger.forget_removed();
            }
        }
    }

    /// True when `pid` has executed another program since, or is another process than it was: a
    /// look that began at `since_ns` (CLOCK_MONOTONIC) is not one at what the ledger knows now.
    pub fn replaced_since(&self, pid: Pid, since_ns: u64) -> bool {
        let after = |time: Option<u64>| time.is_some_and(|time| time >= since_ns);
        self.process(pid).is_some_and(|process| after(process.exec_ns) || after(process.created_ns))
    }

    /// The last user of an address space has ended.
    pub(super) fn forget_when_compared(&mut self, id: SpaceId) {
        let Some(space) = self.spaces.get_mut(&id) else { return };
        if !self.looks.pending {
            space.ledger.forget_removed();
            return;
        }
        let now = space.ledger.now_ns;
        self.looks.ended.push_back((id, now));
        while let Some(&(id, ended)) = self.looks.ended.front()
            && ended.saturating_add(KEEP_NS) < now
        {
            self.looks.ended.pop_front();
            if let Some(space) = self.spaces.get_mut(&id) {
                space.ledger.forget_removed();
            }
        }
    }
}
