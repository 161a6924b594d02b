//! What has to be remembered between a snapshot of a living process and its comparison.
//!
//! A snapshot shows a moment that is past when it is compared: calls that were reported since have
//! taken away what it shows, with a single thread as well as with many.
//!
//! ```text
//!   snapshot  ├── X seen ──┤                 compared: whose is X?
//!   reports                  munmap X  exit
//! ```

use super::table::SpaceId;
use std::collections::VecDeque;

/// How long what an ended process had taken away is kept at most while snapshots go on and on.
const KEEP_NS: u64 = 10_000_000_000;

/// What waits for snapshots to be compared.
#[derive(Default, Debug)]
pub(super) struct PendingSnapshots {
    pending: bool,
    /// Address spaces whose last user has ended meanwhile, and when.
    ended: VecDeque<(SpaceId, u64)>,
}

impl PendingSnapshots {
    pub(super) fn begin(&mut self) {
        self.pending = true;
    }

    pub(super) fn compared(&mut self) {
        *self = PendingSnapshots::default();
    }

    /// Between `begin` and `compared`.
    pub(super) fn pending(&self) -> bool {
        self.pending
    }

    /// The last user of `id` has ended. Returns those that no snapshot needs any more.
    pub(super) fn ended(&mut self, id: SpaceId, now_ns: u64) -> Vec<SpaceId> {
        if !self.pending {
            return vec![id];
        }
        self.ended.push_back((id, now_ns));
        let old = self.ended.iter().take_while(|(_, ended)| ended.saturating_add(KEEP_NS) < now_ns).count();
        self.ended.drain(..old).map(|(id, _)| id).collect()
    }
}
