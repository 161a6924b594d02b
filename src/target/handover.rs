//! Sends a descriptor over a Unix socket (SCM_RIGHTS, unix(7)).

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

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
