//! fork(2) for a child that never comes back into its parent's code.

use crate::model::Pid;
use crate::rights;
use nix::errno::Errno;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Exit status of a forked process that failed or panicked: vmaudit's own failure.
const FAILED: i32 = 125;

/// Runs `body` in a forked child, with the user's own rights, which then ends without running any of the parent's exit
/// handlers or destructors. To be called while single-threaded: `body` may allocate.
pub fn fork_into(body: impl FnOnce() -> Result<(), Errno>) -> Result<Pid, Errno> {
    // SAFETY: the child runs `body` alone, and glibc and musl make malloc usable after a fork.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(child.as_raw()),
        ForkResult::Child => {
            rights::give_up();
            // A panic must not unwind into a second copy of the caller.
            let ended = catch_unwind(AssertUnwindSafe(body));
            let code = if matches!(ended, Ok(Ok(()))) { 0 } else { FAILED };
            // SAFETY: _exit takes a number and does not return.
            unsafe { libc::_exit(code) }
        }
    }
}

/// Waits for the end of a child of ours; its number is its own until then.
pub fn reap(pid: Pid) {
    while waitpid(nix::unistd::Pid::from_raw(pid), None) == Err(Errno::EINTR) {}
}
