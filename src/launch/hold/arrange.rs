//! Sets up what holds exits, before there is a child: the keeper, its guard, and the ways between them.

use super::guard::Line;
use super::handover::{ListenerTo, closed_early};
use super::keeper::{self, Ends, Source};
use super::protocol::{Message, PACKET};
use super::slots::SharedSlots;
use crate::launch::error::LaunchError;
use crate::launch::fork::reap;
use crate::model::Pid;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, socketpair};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// vmaudit's ends.
pub struct Arranged {
    pub keeper: Pid,
    /// To the keeper.
    pub socket: OwnedFd,
    /// The child sends the listener here.
    pub listener_from: OwnedFd,
    pub line: Line,
    pub slots: SharedSlots,
}

/// Forks the keeper, and through it the guard.
pub fn helpers() -> Result<(Arranged, ListenerTo), LaunchError> {
    let system = LaunchError::system;
    let (socket, keepers_end) = packets()?;
    let (keeper_to, keeper_from) = packets()?;
    let (guard_to, guard_from) = packets()?;
    let (line, watched) = Line::new().map_err(system("making a pipe"))?;
    let (socket, line) = (closed_early(socket), Line::from(closed_early(line.into())));
    let slots = SharedSlots::new().map_err(system("sharing memory with the keeper"))?;
    let keepers_line = line.duplicate().map_err(system("copying a descriptor"))?;
    let ends = Ends { app: keepers_end, line: keepers_line, slots: slots.clone() };
    let source = Source::Child { keeper: keeper_from, guard: guard_from, watched };
    let keeper = keeper::spawn(ends, source).map_err(system("forking the keeper"))?;
    // From here on each of the three may be killed.
    if let Err(errno) = receive_ready(socket.as_fd()) {
        drop((socket, keeper_to, guard_to));
        reap(keeper);
        return Err(LaunchError::System { step: "starting the keeper", errno });
    }
    let (app_to, listener_from) = packets()?;
    let to = ListenerTo { guard: guard_to, keeper: keeper_to, app: app_to };
    Ok((Arranged { keeper, socket, listener_from, line, slots }, to))
}

fn receive_ready(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut packet = [0; PACKET];
    loop {
        match recv(socket.as_raw_fd(), &mut packet, MsgFlags::empty()) {
            Ok(length) if Message::decode(&packet[..length]) == Some(Message::Ready) => return Ok(()),
            Ok(_) => return Err(Errno::EPIPE),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// A pair of connected sockets that keep packets apart.
pub fn packets() -> Result<(OwnedFd, OwnedFd), LaunchError> {
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
        .map_err(LaunchError::system("making a socket pair"))
}
