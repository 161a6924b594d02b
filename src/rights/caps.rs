//! The sets of capabilities of a thread (capget(2), capset(2)).

use crate::model::Capabilities;
use crate::sys;
use nix::errno::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sets {
    pub effective: Capabilities,
    pub permitted: Capabilities,
    pub inheritable: Capabilities,
}

/// Those of the calling thread.
pub fn get() -> Result<Sets, Errno> {
    let sets = capabilities(None).map_err(sys::errno)?;
    let whole = |set: CapabilitySet| Capabilities(set.bits());
    Ok(Sets {
        effective: whole(sets.effective),
        permitted: whole(sets.permitted),
        inheritable: whole(sets.inheritable),
    })
}

/// The calling thread's, the others as they are in `sets`.
pub fn set_effective(sets: Sets, effective: Capabilities) -> Result<(), Errno> {
    set(Sets { effective, ..sets })
}

/// Drops all others of the calling thread's for good.
pub fn keep_only(sets: Sets, kept: Capabilities) -> Result<(), Errno> {
    let only = |set: Capabilities| Capabilities(set.0 & kept.0);
    set(Sets { effective: only(sets.effective), permitted: only(sets.permitted), ..sets })
}

fn set(sets: Sets) -> Result<(), Errno> {
    let set = |set: Capabilities| CapabilitySet::from_bits_retain(set.0);
    let sets = CapabilitySets {
        effective: set(sets.effective),
        permitted: set(sets.permitted),
        inheritable: set(sets.inheritable),
    };
    set_capabilities(None, sets).map_err(sys::errno)
}

/// What an ordinary user's programs inherit without any file's capabilities; execve of a file that has
/// some clears it (security/commoncap.c, cap_bprm_creds_from_file()).
pub fn ambient() -> Capabilities {
    let is_set = |number: u64| {
        // SAFETY: PR_CAP_AMBIENT takes integers only.
        unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_IS_SET, number, 0, 0) == 1 }
    };
    Capabilities((0..u64::from(u64::BITS)).filter(|&number| is_set(number)).map(|number| 1 << number).sum())
}

/// Uid 0 has its capabilities by being 0, unless SECBIT_NOROOT says otherwise.
pub fn are_roots_own() -> bool {
    // SAFETY: PR_GET_SECUREBITS takes no argument.
    let bits = unsafe { libc::prctl(libc::PR_GET_SECUREBITS) };
    bits >= 0 && bits & libc::SECBIT_NOROOT == 0
}
