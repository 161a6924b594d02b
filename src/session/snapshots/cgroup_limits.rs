//! What the cgroups of a process leave it, added to a snapshot of it.

use crate::containers::limits_of;
use crate::model::Observations;

/// The snapshot with the limits of the process' cgroups.
pub fn with_cgroup_limits(mut seen: Observations) -> Observations {
    let limits = limits_of(seen.pid);
    seen.limits.cgroup = limits.memory;
    seen.limits.cpu_quota = limits.cpu_quota;
    seen
}
