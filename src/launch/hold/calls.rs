//! vmaudit's own server of the listener, where calls are watched: receives each notified call and
//! hands it out, one after the other; final exits go to [`crate::launch::Running`] as if the keeper had
//! sent them.
//!
//! What was received is in shared memory until it is answered: if vmaudit dies, the keeper lets
//! it go on.

use super::app_socket::{AppSocket, Received};
use super::exit_server::{ExitServer, Leaving, Served};
use super::protocol::Message;
use super::seccomp::Listener;
use super::slots::{Inbox, SharedSlots};
use crate::launch::arch::{self, AUDIT_ARCH};
use crate::model::{Arrival, Ended, HeldCall, HeldCalls, Tid};
use crate::sys::poll::poll;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

pub struct CallServer {
    exits: ExitServer,
    leaving: Leaving,
    inbox: Inbox,
    /// To `Running`.
    app: AppSocket,
    /// Received by another process, or too early.
    first: Option<HeldCall>,
}

impl CallServer {
    pub(in crate::launch) fn new(
        listener: Listener,
        app: OwnedFd,
        slots: SharedSlots,
    ) -> Result<CallServer, Errno> {
        Ok(CallServer {
            exits: ExitServer::new(listener),
            leaving: Leaving::default(),
            inbox: Inbox::new(slots),
            app: AppSocket::new(app),
            first: None,
        })
    }

    pub(in crate::launch) fn listener(&self) -> BorrowedFd<'_> {
        self.exits.listener().as_fd()
    }

    pub(in crate::launch) fn give_back(&mut self, call: HeldCall) {
        self.first = Some(call);
    }

    /// Receives a call that waits. None: its task was killed meanwhile, or there is no space.
    pub(in crate::launch) fn receive(&mut self) -> Result<Option<HeldCall>, Errno> {
        let received = self.inbox.receive(self.exits.listener())?;
        if let Some(message) = received.as_ref().and_then(|call| self.exits.strict(call)) {
            self.app.push(message);
            self.send_waiting();
        }
        Ok(received.map(|notification| {
            let (tid, data) = (notification.pid as Tid, notification.data);
            let entry = data.nr.into();
            let (nr, args) = arch::native(&data).unwrap_or((entry, data.args));
            let is_32_bit = data.arch != AUDIT_ARCH;
            HeldCall { id: notification.id, tid, nr, entry, is_32_bit, args, ip: data.instruction_pointer }
        }))
    }

    fn wait(&mut self, other: BorrowedFd<'_>, timeout: Duration) -> Result<Arrival, Errno> {
        if let Some(call) = self.first.take() {
            return Ok(Arrival::Call(call));
        }
        self.send_waiting();
        if !self.inbox.has_space() {
            self.inbox.forget_gone(self.exits.listener());
        }
        let input = if self.inbox.has_space() { PollFlags::POLLIN } else { PollFlags::empty() };
        let two = [PollFd::new(self.listener(), input), PollFd::new(other, PollFlags::POLLIN)];
        let app = self.app.fd().map(|app| PollFd::new(app, PollFlags::POLLIN));
        let mut fds: Vec<PollFd<'_>> = two.into_iter().chain(app).collect();
        let is_ready = poll(&mut fds, self.leaving.patience(Some(timeout)))?;
        let got = |index: usize| fds.get(index).and_then(PollFd::revents).unwrap_or(PollFlags::empty());
        let (listener, other, app) = (got(0), got(1), got(2));
        if let Some(id) = self.leaving.take() {
            self.go_on(id);
        }
        if !is_ready {
            return Ok(Arrival::Nothing);
        }
        if !app.is_empty() {
            self.receive_from_app();
        }
        if listener.contains(PollFlags::POLLIN) {
            return Ok(self.receive()?.map_or(Arrival::Nothing, Arrival::Call));
        }
        if !other.is_empty() {
            return Ok(Arrival::Other);
        }
        // POLLERR says only that a signal came while the kernel waited for its own lock
        // (seccomp_notify_poll, kernel/seccomp.c).
        if listener.contains(PollFlags::POLLHUP) {
            return Ok(Arrival::NoTaskLeft);
        }
        Ok(Arrival::Nothing)
    }

    fn send_waiting(&mut self) {
        if !self.app.send_waiting() {
            self.stop_watching();
        }
    }

    /// What `Running` has answered.
    fn receive_from_app(&mut self) {
        loop {
            match self.app.receive() {
                Received::Message(Message::Answered { id }) => {
                    self.exits.answered(id);
                    self.inbox.forget(id);
                }
                Received::Message(_) => {}
                Received::Silence => return,
                Received::Gone => return self.stop_watching(),
            }
        }
    }

    /// `Running` is gone: ends are not held any more.
    fn stop_watching(&mut self) {
        for id in self.exits.ending() {
            self.go_on(id);
            self.exits.answered(id);
        }
    }
}

impl HeldCalls for CallServer {
    fn next(&mut self, other: i32, timeout: Duration) -> io::Result<Arrival> {
        // SAFETY: the caller keeps the descriptor open during the call.
        let other = unsafe { BorrowedFd::borrow_raw(other) };
        Ok(self.wait(other, timeout)?)
    }

    fn go_on(&mut self, id: u64) -> bool {
        let was_there = self.exits.listener().let_continue(id).unwrap_or(false);
        self.inbox.forget(id);
        was_there
    }

    fn is_held(&self, id: u64) -> bool {
        self.exits.listener().is_held(id)
    }

    fn has_begun(&self, id: u64) -> bool {
        self.exits.listener().is_forgotten(id)
    }

    fn end(&mut self, call: &HeldCall) -> Ended {
        let Some(notification) = self.inbox.get(call.id) else { return Ended::Thread };
        match self.exits.judge(&notification) {
            Ok(Served::Final(notice)) => {
                self.app.push(Message::Held(notice));
                self.send_waiting();
                if !self.app.is_open() {
                    self.stop_watching();
                }
                Ended::Process(notice.pid)
            }
            Ok(Served::AlsoEnding(notice)) => Ended::Process(notice.pid),
            Ok(Served::Leaves) => {
                if let Some(before) = self.leaving.replace(call.id) {
                    self.go_on(before);
                }
                Ended::Thread
            }
            Ok(Served::Done | Served::Strict(_)) | Err(_) => {
                self.inbox.forget(call.id);
                Ended::Thread
            }
        }
    }
}

impl Drop for CallServer {
    /// No thread waits for an answer that does not come; later calls are the keeper's, which the end of this
    /// socket wakes.
    fn drop(&mut self) {
        for id in self.inbox.ids() {
            let _ = self.exits.listener().let_continue(id);
        }
    }
}
