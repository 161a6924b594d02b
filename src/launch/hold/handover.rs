//! Copies of descriptors, for this process, and for others: over a Unix socket (SCM_RIGHTS, unix(7)).

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

pub struct ListenerTo {
    pub guard: OwnedFd,
    pub keeper: OwnedFd,
    pub app: OwnedFd,
}

pub fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let copy = fd.try_clone_to_owned();
    copy.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)))
}

/// Under a number so high that, when this process is killed, it is closed before those that take the
/// kernel long (BPF links: 0.4 s): at the end of a process the highest are closed first, since Linux 4.3
/// (exit_task_work runs what exit_files has queued from the last to the first).
pub fn closed_early(fd: OwnedFd) -> OwnedFd {
    const ENOUGH: u64 = 4096;
    const SPARE: u64 = 32;
    let soft = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
    let lowest = soft.min(ENOUGH).saturating_sub(SPARE) as i32;
    match fcntl(&fd, FcntlArg::F_DUPFD_CLOEXEC(lowest)) {
        // SAFETY: the descriptor is new, and owned by nothing else.
        Ok(high) => unsafe { OwnedFd::from_raw_fd(high) },
        // Only the order is lost.
        Err(_) => fd,
    }
}

pub fn send_fd(socket: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let fds = [fd.as_raw_fd()];
    let control = [ControlMessage::ScmRights(&fds)];
    let flags = MsgFlags::MSG_NOSIGNAL;
    loop {
        // One byte goes along: a message without data carries nothing on some socket types.
        match sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(b"L")], &control, flags, None) {
            Err(Errno::EINTR) => {}
            other => return other.map(drop),
        }
    }
}

/// Waits for a descriptor; None when the other end closes without having sent one.
pub fn receive_fd(socket: BorrowedFd<'_>) -> Result<Option<OwnedFd>, Errno> {
    let mut byte = [0];
    let mut space = nix::cmsg_space!(i32);
    loop {
        let mut data = [IoSliceMut::new(&mut byte)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = match recvmsg::<()>(socket.as_raw_fd(), &mut data, Some(&mut space), flags) {
            Err(Errno::EINTR) => continue,
            other => other?,
        };
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(fds) = control
                && let Some(&fd) = fds.first()
            {
                // SAFETY: the kernel has just made this descriptor for us, and the space is for
                // one only.
                return Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        return Ok(None);
    }
}
