//! Ctrl-Z. The terminal stops the whole foreground group, vmaudit with the command; but many interactive
//! programs read the key themselves and then stop only their own process. The shell waits for vmaudit, so
//! vmaudit has to stop, too, or the shell does not get the terminal back.

use crate::sys::pidfd::{self, WaitIdOptions};
use nix::errno::Errno;
use nix::sys::signal::{Signal, raise};
use nix::unistd::{getpgrp, tcgetpgrp};
use std::os::fd::BorrowedFd;

/// After SIGCHLD or SIGCONT: stops with the command, goes on with it. `continued` says that
/// vmaudit was continued since this was last called.
pub fn follow(command: BorrowedFd<'_>, continued: bool) -> Result<(), Errno> {
    let stopped = stopped_by(command)?;
    if continued {
        // The shell continues the whole group; SIGCONT to vmaudit alone is meant for the command.
        if stopped.is_some() {
            return ignore_gone(pidfd::send_signal(command, Signal::SIGCONT));
        }
    } else if matches!(stopped, Some(libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)) && is_foreground() {
        // Not for SIGSTOP: no terminal sends it, and its sender will continue the command alone.
        raise(Signal::SIGSTOP)?;
    }
    Ok(())
}

/// The signal that has stopped the command, if that was not reported before.
fn stopped_by(command: BorrowedFd<'_>) -> Result<Option<i32>, Errno> {
    match pidfd::changed(command, WaitIdOptions::STOPPED) {
        Err(Errno::ECHILD) => Ok(None),
        change => Ok(change?.and_then(|change| change.stopping_signal())),
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
