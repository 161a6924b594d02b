//! Processes by descriptor rather than by number: a number may have a new owner.

use super::{errno, poll, stat};
use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::signal::Signal;
use rustix::process::{
    PidfdFlags, PidfdGetfdFlags, WaitId, pidfd_getfd, pidfd_open, pidfd_send_signal, waitid,
};
pub use rustix::process::{WaitIdOptions, WaitIdStatus};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// The process that has this number now (Linux 5.3); for a child that was not waited for yet the
/// number is its own.
///
/// # Errors
/// ESRCH when there is none.
pub fn open(pid: i32) -> Result<OwnedFd, Errno> {
    if pid <= 0 {
        return Err(Errno::EINVAL);
    }
    let pid = rustix::process::Pid::from_raw(pid).ok_or(Errno::EINVAL)?;
    pidfd_open(pid, PidfdFlags::empty()).map_err(errno)
}

/// # Errors
/// ESRCH when it has ended.
pub fn send_signal(pidfd: BorrowedFd<'_>, signal: Signal) -> Result<(), Errno> {
    let signal = rustix::process::Signal::from_named_raw(signal as i32).ok_or(Errno::EINVAL)?;
    pidfd_send_signal(pidfd, signal).map_err(errno)
}

/// A descriptor of another process, for one's own use as well (pidfd_getfd(2), Linux 5.6).
///
/// # Errors
/// EPERM: it may not be inspected. EBADF: it has no such descriptor.
pub fn take(pidfd: BorrowedFd<'_>, descriptor: RawFd) -> Result<OwnedFd, Errno> {
    pidfd_getfd(pidfd, descriptor, PidfdGetfdFlags::empty()).map_err(errno)
}

/// True once all threads of the process are gone, be it waited for or not: then its descriptor
/// is readable (kernel/fork.c, pidfd_poll).
pub fn has_ended(pidfd: impl AsFd) -> bool {
    poll::events(pidfd) != PollFlags::empty()
}

/// waitid(2) for the changes of a child in `which` (EXITED, STOPPED), without waiting (Linux 5.4). None:
/// nothing has changed.
///
/// # Errors
/// ECHILD: its end was waited for before.
pub fn changed(pidfd: BorrowedFd<'_>, which: WaitIdOptions) -> Result<Option<WaitIdStatus>, Errno> {
    waitid(WaitId::PidFd(pidfd), which | WaitIdOptions::NOHANG).map_err(errno)
}

/// The wait status of a process all of whose threads have ended: from its descriptor once it has been waited
/// for (Linux 6.15), until then from /proc. It may be waited for between the two, hence the second attempt.
pub fn exit_status(pid: i32, pidfd: Option<BorrowedFd<'_>>) -> Option<i32> {
    let reaped = || reaped(pidfd?);
    reaped().or_else(|| zombie(pid)).or_else(reaped)
}

nix::ioctl_readwrite!(get_info, 0xff, 11, libc::pidfd_info);

/// PIDFD_GET_INFO (6.13; the exit code since 6.15, as long as there is a descriptor).
fn reaped(pidfd: BorrowedFd<'_>) -> Option<i32> {
    let exit = u64::from(libc::PIDFD_INFO_EXIT);
    // SAFETY: a structure of integers, for which zeroes are sound.
    let mut info: libc::pidfd_info = unsafe { std::mem::zeroed() };
    info.mask = exit;
    // SAFETY: the kernel fills the structure, whose size the request number carries.
    unsafe { get_info(pidfd.as_raw_fd(), &mut info) }.ok()?;
    (info.mask & exit != 0).then_some(info.exit_code)
}

/// Of a process that has not been waited for.
fn zombie(pid: i32) -> Option<i32> {
    stat::of(pid, |stat| if stat.has_ended() { stat.field(stat::EXIT_CODE) } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn an_end_is_seen_before_and_after_it_is_waited_for() {
        let mut child =
            Command::new("sh").args(["-c", "read x; exit 3"]).stdin(Stdio::piped()).spawn().expect("sh");
        let pid = child.id() as i32;
        let pidfd = open(pid).expect("it lives");
        let fd = pidfd.as_fd();
        assert!(!has_ended(fd));
        assert_eq!(exit_status(pid, Some(fd)), None);
        assert!(changed(fd, WaitIdOptions::EXITED).expect("a child").is_none());
        drop(child.stdin.take());
        assert!(poll::wait_readable(fd, None));
        assert!(has_ended(fd));
        assert_eq!(exit_status(pid, Some(fd)), Some(3 << 8));
        let end = changed(fd, WaitIdOptions::EXITED).expect("a child").expect("an end");
        assert_eq!(end.exit_status(), Some(3));
        assert!(matches!(changed(fd, WaitIdOptions::EXITED), Err(Errno::ECHILD)));
        assert_eq!(child.wait().expect_err("done above").raw_os_error(), Some(libc::ECHILD));
        assert_eq!(send_signal(fd, Signal::SIGTERM), Err(Errno::ESRCH));
        // Before 6.15 it is not available any more.
        assert!(matches!(exit_status(pid, Some(fd)), Some(768) | None));
        assert_eq!(exit_status(pid, None), None);
    }

    #[test]
    fn numbers_that_nobody_has() {
        assert!(matches!(open(i32::MAX), Err(Errno::ESRCH | Errno::EINVAL)));
        assert!(matches!(open(0), Err(Errno::EINVAL)));
        assert!(matches!(open(-1), Err(Errno::EINVAL)));
    }
}
