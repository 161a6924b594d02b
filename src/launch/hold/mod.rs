//! vmaudit's side of holding exits: receives the keeper's messages, answers the kernel, replaces a keeper
//! that was killed.

mod app_socket;
pub(super) mod arrange;
pub(super) mod calls;
mod exit_server;
pub(super) mod filter;
mod guard;
pub(super) mod handover;
pub(super) mod helper;
mod keeper;
mod last_thread;
pub(super) mod protocol;
pub(super) mod seccomp;
mod slots;
mod task_names;
pub(super) mod trial;

use super::arch::NR_EXIT_GROUP;
use super::error::TargetError;
use super::fork::reap;
use crate::model::{Pid, Tid};
use crate::sys::poll;
use guard::Line;
use handover::closed_early;
use keeper::{Ends, Source};
use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use protocol::{HeldNotice, Message, PACKET, Spared};
use seccomp::Listener;
use slots::SharedSlots;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// The call that ends the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitKind {
    /// exit_group: other threads, if there are any, still run.
    ExitGroup,
    /// `exit` by the last living thread.
    LastThread,
}

/// A process that is held at its very end, its address space complete. Hand it back with
/// `Running::release`; it waits until then.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "the process waits until it is released"]
pub struct HeldExit {
    pub pid: Pid,
    /// The thread that made the call. Read the address space through its number (/proc/TID/smaps,
    /// process_vm_readv): where the leader left before, /proc/PID/maps is empty, because a
    /// zombie has no mm (exit_mm, kernel/exit.c).
    pub tid: Tid,
    pub kind: ExitKind,
    /// The status in the call's argument, 0 to 255. For `LastThread` older kernels report the leader's own
    /// instead (newer: synchronize_group_exit, kernel/exit.c).
    pub status: i32,
    id: u64,
}

impl From<HeldNotice> for HeldExit {
    fn from(notice: HeldNotice) -> HeldExit {
        let group = notice.nr == NR_EXIT_GROUP;
        HeldExit {
            pid: notice.pid,
            tid: notice.tid,
            kind: if group { ExitKind::ExitGroup } else { ExitKind::LastThread },
            status: notice.status & 0xff,
            id: notice.id,
        }
    }
}

/// For how long a released process may take to die. Its number cannot come round that soon.
const DYING: Duration = Duration::from_secs(1);

/// A living keeper, as it is after launching or replacing one.
pub struct KeeperSeat {
    pub listener: Listener,
    pub keeper: Pid,
    pub socket: OwnedFd,
    /// While it is open, the guard stays a guard.
    pub line: Line,
    pub slots: SharedSlots,
    /// To vmaudit's own server of notifications, where that receives them and the keeper is the fallback.
    pub server: Option<OwnedFd>,
    /// Which processes the keeper continues by itself.
    pub spared: Option<Spared>,
}

/// What hearing the keeper came to.
pub enum KeeperReport {
    Held(HeldExit),
    /// As `TargetEvent::StrictModeRefused`.
    Strict {
        pid: Pid,
        comm: Vec<u8>,
    },
    /// No more for now.
    Nothing,
    /// No task has the filter any more, and the keeper has ended.
    NoTaskLeft,
    /// The keeper was killed; another has its place, with another socket.
    Replaced,
}

pub struct Hold {
    seat: KeeperSeat,
    /// Reported to the app, not yet released.
    held: Vec<HeldNotice>,
    /// Processes that were released, and when: they are on their way out.
    released: Vec<(Pid, Instant)>,
}

impl Hold {
    pub fn new(seat: KeeperSeat) -> Hold {
        Hold { seat, held: Vec::new(), released: Vec::new() }
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.seat.socket.as_fd()
    }

    /// As [`Hold::socket`], of vmaudit's own server.
    pub fn server(&self) -> Option<BorrowedFd<'_>> {
        self.seat.server.as_ref().map(AsFd::as_fd)
    }

    pub fn receive(&mut self) -> Result<KeeperReport, TargetError> {
        if let Some(report) = self.receive_from_server() {
            return Ok(report);
        }
        let mut packet = [0; PACKET];
        loop {
            match recv(self.seat.socket.as_raw_fd(), &mut packet, MsgFlags::MSG_DONTWAIT) {
                Ok(0) | Err(Errno::ECONNRESET) => return self.keeper_is_gone(),
                Ok(length) => {
                    if let Some(report) = self.understand(&packet[..length]) {
                        return Ok(report);
                    }
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(KeeperReport::Nothing),
                Err(errno) => return Err(TargetError { step: "receiving from the keeper", errno }),
            }
        }
    }

    fn understand(&mut self, packet: &[u8]) -> Option<KeeperReport> {
        match Message::decode(packet)? {
            Message::Held(notice) if !self.is_afterthought(notice) => {
                self.held.push(notice);
                Some(KeeperReport::Held(notice.into()))
            }
            Message::Strict { pid, comm } => {
                let comm = comm.split(|&b| b == 0).next().unwrap_or_default().to_vec();
                Some(KeeperReport::Strict { pid, comm })
            }
            _ => None,
        }
    }

    fn receive_from_server(&mut self) -> Option<KeeperReport> {
        let mut packet = [0; PACKET];
        while let Some(server) = &self.seat.server {
            match recv(server.as_raw_fd(), &mut packet, MsgFlags::MSG_DONTWAIT) {
                Ok(length @ 1..) => {
                    if let Some(report) = self.understand(&packet[..length]) {
                        return Some(report);
                    }
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return None,
                // It receives no more: the keeper does, and has to handle what is left.
                Ok(_) | Err(_) => {
                    self.seat.server = None;
                    self.send_to_keeper(Message::Serve);
                }
            }
        }
        None
    }

    fn send_to_keeper(&self, message: Message) {
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        // If it is gone, the end of its socket says so soon enough.
        let _ = send(self.seat.socket.as_raw_fd(), &message.encode(), flags);
    }

    /// True while the process waits: what was read of it before is its final state.
    pub fn is_held(&self, held: &HeldExit) -> bool {
        self.seat.listener.is_held(held.id)
    }

    /// Lets the process end. That it is gone already is no error.
    pub fn release(&mut self, held: HeldExit) -> Result<(), TargetError> {
        self.held.retain(|each| each.id != held.id);
        let was_held = self.answer(held.id).map_err(TargetError::at("releasing a held exit"))?;
        if was_held {
            self.released.push((held.pid, Instant::now()));
        }
        Ok(())
    }

    /// Ok(false): the task is gone.
    fn answer(&mut self, id: u64) -> Result<bool, Errno> {
        // Not by way of the keeper: it might have been killed or stopped.
        let answered = self.seat.listener.let_continue(id);
        // If the keeper is stopped, and the socket full, it finds out by itself that the notification
        // is no longer held.
        self.send_to_keeper(Message::Answered { id });
        if let Some(server) = &self.seat.server {
            let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
            let _ = send(server.as_raw_fd(), &Message::Answered { id }.encode(), flags);
        }
        answered
    }

    /// True for exit_group by a second thread of a process whose first one was continued just now, and does
    /// not yet know that it is dead: the process was seen already.
    fn is_afterthought(&mut self, notice: HeldNotice) -> bool {
        self.released.retain(|(_, when)| when.elapsed() < DYING);
        let afterthought = self.released.iter().any(|&(pid, _)| pid == notice.pid);
        if afterthought {
            let _ = self.answer(notice.id);
        }
        afterthought
    }

    /// When no task has the filter any more the keeper ends by itself: waits for that, so that it is not left
    /// as a zombie where no process reaps (many containers' first process).
    pub fn reap_keeper_if_done(&mut self) {
        if !self.has_task() {
            reap(self.seat.keeper);
        }
    }

    fn keeper_is_gone(&mut self) -> Result<KeeperReport, TargetError> {
        reap(self.seat.keeper);
        if !self.has_task() {
            return Ok(KeeperReport::NoTaskLeft);
        }
        // What it had sent was read before the end of file; what it had received and not sent
        // is in a shared slot.
        let failed = TargetError::at("replacing the keeper");
        let (socket, keepers_end) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
                .map_err(&failed)?;
        let listener = self.seat.listener.duplicate().map_err(&failed)?;
        let is_fallback = self.seat.server.is_some();
        let source = Source::Copy { listener, held: self.held.clone(), is_fallback };
        let line = self.seat.line.duplicate().map_err(&failed)?;
        let ends = Ends { app: keepers_end, line, slots: self.seat.slots.clone() };
        self.seat.keeper = keeper::spawn(ends, source).map_err(&failed)?;
        self.seat.socket = closed_early(socket);
        if let Some(spared) = self.seat.spared {
            self.send_to_keeper(Message::Spare(spared));
        }
        Ok(KeeperReport::Replaced)
    }

    /// False when no task has the filter any more: the listener hangs up.
    fn has_task(&self) -> bool {
        !poll::events(&self.seat.listener).contains(PollFlags::POLLHUP)
    }
}
