//! seccomp(2) with user notification: the filter and the listener's ioctls (kernel/seccomp.c). Structures and
//! numbers are libc's.

use nix::errno::Errno;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

mod ioctl {
    nix::ioctl_readwrite_bad!(recv, libc::SECCOMP_IOCTL_NOTIF_RECV, libc::seccomp_notif);
    nix::ioctl_readwrite_bad!(send, libc::SECCOMP_IOCTL_NOTIF_SEND, libc::seccomp_notif_resp);
    nix::ioctl_write_ptr_bad!(id_valid, libc::SECCOMP_IOCTL_NOTIF_ID_VALID, u64);
    // `SECCOMP_IOW(4, __u64)`: its number says 8 bytes, though the flags go by value.
    nix::ioctl_write_int_bad!(set_flags, nix::request_code_write!(b'!', 4, size_of::<u64>()));
}

/// SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP (6.6): wake the other side on this CPU; it is about to be
/// the only one with work.
const FD_SYNC_WAKE_UP: i32 = 1;

/// Installs a filter on the calling thread, with a listener (SECCOMP_FILTER_FLAG_NEW_LISTENER has to be
/// among the flags).
///
/// # Errors
/// As the system call.
///
/// # Safety
/// The program has to be there, with the length that it says.
pub unsafe fn set_mode_filter(program: &libc::sock_fprog, flags: libc::c_ulong) -> Result<OwnedFd, Errno> {
    // SAFETY: the caller vouches for the program, which the kernel only reads and copies.
    let fd = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, program) };
    let fd = Errno::result(fd)?;
    // SAFETY: with NEW_LISTENER the call returns a new descriptor owned by nothing else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Cheaper wake-ups of waiting tasks.
///
/// # Errors
/// EINVAL before Linux 6.6.
pub fn request_sync_wake_up(listener: impl AsFd) -> Result<(), Errno> {
    // SAFETY: the ioctl takes its flags by value.
    unsafe { ioctl::set_flags(listener.as_fd().as_raw_fd(), FD_SYNC_WAKE_UP as _) }.map(drop)
}

/// Receives one notification into `slot`.
///
/// # Errors
/// ENOENT: its task was killed meanwhile.
pub fn receive(listener: impl AsFd, slot: &mut libc::seccomp_notif) -> Result<(), Errno> {
    // The kernel insists on a zeroed buffer (check_zeroed_user in seccomp_notify_recv).
    // SAFETY: all-zero bytes are a valid seccomp_notif, a plain C struct of integers.
    *slot = unsafe { std::mem::zeroed() };
    // SAFETY: `slot` is a writable struct of the size that the request number carries.
    unsafe { ioctl::recv(listener.as_fd().as_raw_fd(), slot) }.map(drop)
}

/// # Errors
/// ENOENT: the task is gone, EINPROGRESS: answered already, EINTR: nothing was done.
pub fn send(listener: impl AsFd, mut answer: libc::seccomp_notif_resp) -> Result<(), Errno> {
    // SAFETY: `answer` is a struct of the size that the request number carries.
    unsafe { ioctl::send(listener.as_fd().as_raw_fd(), &mut answer) }.map(drop)
}

/// # Errors
/// ENOENT: the task is not held in that call any more.
pub fn id_valid(listener: impl AsFd, id: u64) -> Result<(), Errno> {
    // SAFETY: the ioctl reads the u64 behind the pointer.
    unsafe { ioctl::id_valid(listener.as_fd().as_raw_fd(), &id) }.map(drop)
}
