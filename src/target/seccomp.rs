//! The seccomp calls: install the filter, receive and answer notifications.
//! Kernel side: kernel/seccomp.c (user notification since 5.0, CONTINUE since 5.5).

use super::filter::Instruction;
use super::handover;
use nix::errno::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

mod ioctl {
    // include/uapi/linux/seccomp.h: SECCOMP_IOC_MAGIC '!'.
    nix::ioctl_readwrite!(recv, b'!', 0, libc::seccomp_notif);
    nix::ioctl_readwrite!(send, b'!', 1, libc::seccomp_notif_resp);
    nix::ioctl_write_ptr!(id_valid, b'!', 2, u64);
    nix::ioctl_write_int!(set_flags, b'!', 4);
}

/// SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP (6.6): wake the other side on this CPU; it is about to be
/// the only one with work.
const FD_SYNC_WAKE_UP: i32 = 1;

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
    // SAFETY: `filter` points to `len` instructions with the layout of sock_filter, which the
    // kernel only reads and copies.
    let fd = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &filter) };
    let fd = Errno::result(fd)?;
    // SAFETY: with NEW_LISTENER the call returns a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
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
    pub fn ask_for_sync_wake_up(&self) {
        // SAFETY: the ioctl takes its flags by value. Kernels before 6.6 answer EINVAL, which
        // changes nothing.
        let _ = unsafe { ioctl::set_flags(self.0.as_raw_fd(), FD_SYNC_WAKE_UP as _) };
    }

    /// Receives one notification into `slot`. ENOENT: its task was killed meanwhile.
    pub fn receive(&self, slot: &mut libc::seccomp_notif) -> Result<(), Errno> {
        // The kernel insists on a zeroed buffer (check_zeroed_user in seccomp_notify_recv).
        // SAFETY: all-zero bytes are a valid seccomp_notif, a plain C struct of integers.
        *slot = unsafe { std::mem::zeroed() };
        // SAFETY: `slot` is a writable struct of the size that the request number carries.
        unsafe { ioctl::recv(self.0.as_raw_fd(), slot) }.map(drop)
    }

    /// Lets the call go on as if nothing had been. Ok(false): the task is gone, or somebody
    /// has answered already.
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
            let mut answer = libc::seccomp_notif_resp { id, val: 0, error: 0, flags };
            // SAFETY: `answer` is a struct of the size that the request number carries.
            match unsafe { ioctl::send(self.0.as_raw_fd(), &mut answer) } {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// True when the kernel knows the notification no more: its task has woken up with the answer, or
    /// was killed. To be asked after an answer only.
    pub fn is_forgotten(&self, id: u64) -> bool {
        // EINPROGRESS: answered, and not yet woken up.
        self.answer(id) == Err(Errno::ENOENT)
    }

    /// True while the task is held in the notified call: whatever was read from /proc before
    /// this call, by its number, was its own.
    pub fn is_held(&self, id: u64) -> bool {
        loop {
            // SAFETY: the ioctl reads the u64 behind the pointer.
            match unsafe { ioctl::id_valid(self.0.as_raw_fd(), &id) } {
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
