//! The seccomp calls: install the filter, receive and answer notifications.
//! Kernel side: kernel/seccomp.c (user notification since 5.0, CONTINUE since 5.5).

use super::filter::Instruction;
use super::handover;
use crate::sys::seccomp;
use nix::errno::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What installing the filter came to.
pub struct Installed {
    pub listener: OwnedFd,
    /// NO_NEW_PRIVS had to be set: setuid programs do not gain privileges.
    pub no_new_privs: bool,
    /// SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (5.19) is on: signals do not restart a held call.
    pub wait_killable: bool,
}

/// Installs `program` on the calling thread, with a listener. With CAP_SYS_ADMIN NO_NEW_PRIVS
/// stays as it is; without, it is set. Errors: EBUSY (there is a listener already), EPERM or
/// ENOSYS (forbidden by an outer filter, or not in this kernel), EINVAL (older than 5.0).
pub fn install(program: &[Instruction]) -> Result<Installed, Errno> {
    let new_listener = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    let killable = new_listener | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let mut no_new_privs = false;
    let mut flags = killable;
    loop {
        match set_mode_filter(program, flags) {
            Ok(listener) => {
                return Ok(Installed { listener, no_new_privs, wait_killable: flags == killable });
            }
            Err(Errno::EACCES) if !no_new_privs => {
                nix::sys::prctl::set_no_new_privs()?;
                no_new_privs = true;
            }
            Err(Errno::EINVAL) if flags == killable => flags = new_listener,
            Err(errno) => return Err(errno),
        }
    }
}

fn set_mode_filter(program: &[Instruction], flags: libc::c_ulong) -> Result<OwnedFd, Errno> {
    let filter = libc::sock_fprog {
        len: program.len() as libc::c_ushort,
        filter: program.as_ptr().cast_mut().cast::<libc::sock_filter>(),
    };
    // SAFETY: `filter` points to `len` instructions with the layout of sock_filter.
    unsafe { seccomp::set_mode_filter(&filter, flags) }
}

/// The listener's end of the filter. Copies (dup, SCM_RIGHTS) are equal: any may answer.
pub struct Listener(OwnedFd);

impl Listener {
    pub fn new(fd: OwnedFd) -> Listener {
        Listener(fd)
    }

    pub fn duplicate(&self) -> Result<Listener, Errno> {
        handover::duplicate(self.0.as_fd()).map(Listener)
    }

    /// Cheaper wake-ups where the kernel has them.
    pub fn request_sync_wake_up(&self) {
        // Kernels before 6.6 answer EINVAL, which changes nothing.
        let _ = seccomp::request_sync_wake_up(&self.0);
    }

    /// Receives one notification into `slot`. ENOENT: its task was killed meanwhile.
    pub fn receive(&self, slot: &mut libc::seccomp_notif) -> Result<(), Errno> {
        seccomp::receive(&self.0, slot)
    }

    /// Continues the call as if it had not been notified. Ok(false): the task is gone, or the call has been
    /// answered already.
    pub fn let_continue(&self, id: u64) -> Result<bool, Errno> {
        match self.answer(id) {
            Ok(()) => Ok(true),
            // EINPROGRESS: answered, and the task has not woken up yet.
            Err(Errno::ENOENT | Errno::EINPROGRESS) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// The kernel gives up with EINTR when a signal comes while it waits for its own lock
    /// (seccomp_notify_send, kernel/seccomp.c). Then nothing was answered: the task would wait for ever.
    fn answer(&self, id: u64) -> Result<(), Errno> {
        let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        loop {
            match seccomp::send(&self.0, libc::seccomp_notif_resp { id, val: 0, error: 0, flags }) {
                Err(Errno::EINTR) => {}
                other => return other,
            }
        }
    }

    /// True when the kernel does not know the notification any more: its task has woken up with the answer,
    /// or was killed. To be called after an answer only.
    pub fn is_forgotten(&self, id: u64) -> bool {
        // EINPROGRESS: answered, and not yet woken up.
        self.answer(id) == Err(Errno::ENOENT)
    }

    /// True while the task is held in the notified call: whatever was read from /proc before
    /// this call, by its number, was its own.
    pub fn is_held(&self, id: u64) -> bool {
        loop {
            match seccomp::id_valid(&self.0, id) {
                Ok(_) => return true,
                // As in `answer`: that says nothing of the task.
                Err(Errno::EINTR) => {}
                Err(_) => return false,
            }
        }
    }
}

impl From<Listener> for OwnedFd {
    fn from(listener: Listener) -> OwnedFd {
        listener.0
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
