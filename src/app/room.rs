//! What the cgroups of a process leave it, added to a look at it.

use crate::containers::room_of;
use crate::model::Observations;

/// The look with the limits of the process' cgroups.
pub fn with_room(mut seen: Observations) -> Observations {
    let room = room_of(seen.pid);
    seen.surroundings.cgroup = room.memory;
    seen.surroundings.cpu_quota = room.cpu_quota;
    seen
}
