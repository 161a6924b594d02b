//! The sets of capabilities of a thread (capget(2), capset(2)).

use crate::model::Capabilities;
use nix::errno::Errno;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sets {
    pub effective: Capabilities,
    pub permitted: Capabilities,
    pub inheritable: Capabilities,
}

/// include/uapi/linux/capability.h
const VERSION_3: u32 = 0x2008_0522;

#[repr(C)]
struct Header {
    version: u32,
    /// 0: the calling thread.
    pid: i32,
}

/// Half of each set, the lower one first.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Half {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Those of the calling thread.
pub fn get() -> Result<Sets, Errno> {
    let mut header = Header { version: VERSION_3, pid: 0 };
    let mut halves = [Half::default(); 2];
    // SAFETY: header and both halves are as the version says, and outlive the call.
    Errno::result(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, halves.as_mut_ptr()) })?;
    let [low, high] = halves;
    let whole = |low: u32, high: u32| Capabilities(u64::from(high) << 32 | u64::from(low));
    Ok(Sets {
        effective: whole(low.effective, high.effective),
        permitted: whole(low.permitted, high.permitted),
        inheritable: whole(low.inheritable, high.inheritable),
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
    let mut header = Header { version: VERSION_3, pid: 0 };
    let half = |shift: u32| Half {
        effective: (sets.effective.0 >> shift) as u32,
        permitted: (sets.permitted.0 >> shift) as u32,
        inheritable: (sets.inheritable.0 >> shift) as u32,
    };
    let halves = [half(0), half(32)];
    // SAFETY: as above; the kernel only reads.
    Errno::result(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, halves.as_ptr()) }).map(drop)
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
    const SECBIT_NOROOT: i32 = 1;
    // SAFETY: PR_GET_SECUREBITS takes no argument.
    let bits = unsafe { libc::prctl(libc::PR_GET_SECUREBITS) };
    bits >= 0 && bits & SECBIT_NOROOT == 0
}
