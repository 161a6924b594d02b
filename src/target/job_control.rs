//! Ctrl-Z. The terminal stops the whole foreground group, vmaudit with the command; but many
//! interactive programs read the key themselves and then stop only their own process. The
//! shell waits for vmaudit, so vmaudit has to stop, too, or nobody gets the terminal back.

use super::launch::pidfd_send_signal;
use nix::errno::Errno;
use nix::sys::signal::{Signal, raise};
use nix::unistd::{getpgrp, tcgetpgrp};
use std::os::fd::{AsRawFd, BorrowedFd};

/// After SIGCHLD or SIGCONT: stops with the command, goes on with it. `continued` says that
/// vmaudit was continued since this was last called.
pub fn follow(pidfd: BorrowedFd<'_>, continued: bool) -> Result<(), Errno> {
    let stopped = stopped_by(pidfd)?;
    if continued {
        // The shell continues the whole group; whoever sends SIGCONT to vmaudit alone means
        // the command.
        if stopped.is_some() {
            return ignore_gone(pidfd_send_signal(pidfd, Signal::SIGCONT));
        }
    } else if matches!(stopped, Some(libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)) && is_foreground() {
        // Not for SIGSTOP: no terminal sends it, and who does will continue the command alone.
        raise(Signal::SIGSTOP)?;
    }
    Ok(())
}

/// The signal that has stopped the command, if that was not reported before.
fn stopped_by(pidfd: BorrowedFd<'_>) -> Result<Option<i32>, Errno> {
    // SAFETY: all-zero bytes are a valid siginfo_t, which the kernel fills in.
    let (result, info) = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let id = pidfd.as_raw_fd() as libc::id_t;
        (libc::waitid(libc::P_PIDFD, id, &mut info, libc::WSTOPPED | libc::WNOHANG), info)
    };
    match Errno::result(result) {
        // SAFETY: waitid has filled in the fields of a SIGCHLD, or left zeroes.
        Ok(_) => Ok(unsafe { (info.si_pid() != 0).then(|| info.si_status()) }),
        // It was waited for already.
        Err(Errno::ECHILD) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// True when the terminal, if there is one, belongs to vmaudit's process group.
fn is_foreground() -> bool {
    let Ok(terminal) = std::fs::File::open("/dev/tty") else { return false };
    tcgetpgrp(&terminal) == Ok(getpgrp())
}

fn ignore_gone(sent: Result<(), Errno>) -> Result<(), Errno> {
    if sent == Err(Errno::ESRCH) { Ok(()) } else { sent }
}
