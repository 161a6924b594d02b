//! tracefs: where tracepoints have their numbers.

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use std::io;

/// Where it is mounted, if it is.
pub const ROOTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// The id of a tracepoint such as `syscalls/sys_exit_mmap`, in the tracefs at `root`.
///
/// # Errors
/// When it cannot be read; InvalidData where the file holds no number.
pub fn id(root: &str, tracepoint: &str) -> io::Result<u64> {
    let text = std::fs::read_to_string(format!("{root}/events/{tracepoint}/id"))?;
    text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

/// In a child: mounts tracefs at the first of [`ROOTS`] in a mount namespace of its own. Not to be done where
/// [`super::lockdown::tracefs_may_be_mounted`] says no.
///
/// # Errors
/// As unshare(2) and mount(2).
pub fn mount_privately() -> Result<(), Errno> {
    const NONE: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE)?;
    mount(Some("tracefs"), ROOTS[0], Some("tracefs"), MsFlags::empty(), NONE)
}
