//! The socket to `Running`, for the receiver of the notifications: the keeper, or vmaudit's own server.

use super::protocol::{Message, PACKET};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

pub struct AppSocket {
    /// None once the other side is gone.
    fd: Option<OwnedFd>,
    /// Waits for space in the socket: vmaudit may be stopped, the others must go on.
    unsent: VecDeque<Message>,
}

/// What came of listening.
pub enum Received {
    Message(Message),
    /// Nothing more for now.
    Silence,
    /// The other side has just gone.
    Gone,
}

impl AppSocket {
    pub fn new(fd: OwnedFd) -> AppSocket {
        AppSocket { fd: Some(fd), unsent: VecDeque::new() }
    }

    /// There is no other side.
    pub fn closed() -> AppSocket {
        AppSocket { fd: None, unsent: VecDeque::new() }
    }

    /// None once the other side is gone.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    pub fn is_open(&self) -> bool {
        self.fd.is_some()
    }

    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// To be sent by [`AppSocket::send_waiting`].
    pub fn push(&mut self, message: Message) {
        self.unsent.push_back(message);
    }

    /// Sends a message without an answer. An error if the other side is gone.
    pub fn say(&self, message: Message) {
        if let Some(fd) = &self.fd {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            let _ = send(fd.as_raw_fd(), &message.encode(), flags);
        }
    }

    /// Sends as many messages as there is space for. False when the other side has just gone.
    #[must_use]
    pub fn send_waiting(&mut self) -> bool {
        while let (Some(fd), Some(message)) = (&self.fd, self.unsent.front()) {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            match send(fd.as_raw_fd(), &message.encode(), flags) {
                Ok(_) => drop(self.unsent.pop_front()),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN | Errno::ENOBUFS) => return true,
                Err(_) => {
                    self.close();
                    return false;
                }
            }
        }
        true
    }

    /// The next message that waits here.
    pub fn receive(&mut self) -> Received {
        let mut packet = [0; PACKET];
        while let Some(fd) = &self.fd {
            match recv(fd.as_raw_fd(), &mut packet, MsgFlags::MSG_DONTWAIT) {
                Ok(length @ 1..) => {
                    if let Some(message) = Message::decode(&packet[..length]) {
                        return Received::Message(message);
                    }
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Received::Silence,
                Ok(_) | Err(_) => {
                    self.close();
                    return Received::Gone;
                }
            }
        }
        Received::Silence
    }

    fn close(&mut self) {
        self.fd = None;
        self.unsent.clear();
    }
}
