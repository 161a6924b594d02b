//! Processes by descriptor rather than by number: a number may have a new owner.

use crate::model::Pid;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The process that has this number now (Linux 5.3); for a child that was not waited for yet the
/// number is its own.
pub fn open(pid: Pid) -> Result<OwnedFd, Errno> {
    // SAFETY: the call takes two numbers and returns a new descriptor (always O_CLOEXEC).
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: the descriptor is new, and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// ESRCH when it has ended.
pub fn send_signal(pidfd: BorrowedFd<'_>, signal: Signal) -> Result<(), Errno> {
    let no_info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: with a null siginfo the kernel fills in its own.
    let sent = unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal as libc::c_int, no_info, 0)
    };
    Errno::result(sent).map(drop)
}

/// True once all threads of the process are gone, be it waited for or not: then its descriptor
/// is readable (kernel/fork.c, pidfd_poll).
pub fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    let mut end = libc::pollfd { fd: pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd; the call does not wait.
    unsafe { libc::poll(&raw mut end, 1, 0) == 1 }
}

/// A change of a child's state.
pub struct Change {
    /// CLD_EXITED, CLD_KILLED, CLD_DUMPED, CLD_STOPPED.
    pub code: i32,
    /// The exit status, or the signal.
    pub status: i32,
}

/// waitid(2) for the changes in `which` (WEXITED, WSTOPPED), without waiting (Linux 5.4). None:
/// nothing has changed. ECHILD: its end was waited for before.
pub fn changed(pidfd: BorrowedFd<'_>, which: i32) -> Result<Option<Change>, Errno> {
    // SAFETY: all-zero bytes are a valid siginfo_t, which the kernel fills in.
    let (result, info) = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let id = pidfd.as_raw_fd() as libc::id_t;
        (libc::waitid(libc::P_PIDFD, id, &mut info, which | libc::WNOHANG), info)
    };
    Errno::result(result)?;
    // SAFETY: waitid has filled in the fields of a SIGCHLD, or left zeroes.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    Ok((pid != 0).then_some(Change { code: info.si_code, status }))
}
