//! The keeper: a tiny process that receives the notifications and outlives vmaudit.
//!
//! Were vmaudit the only one to hold the listener, its death would make every later exit_group
//! fail with ENOSYS, and libc then crashes the program. The keeper forwards final exits while
//! vmaudit lives; when vmaudit's end of the socket closes, it lets everything go on, until no
//! task has the filter any more. Should both be killed at once, there is the [guard](super::guard).

use super::app_socket::{AppSocket, Received};
use super::exit_server::{ExitServer, Leaving, Served};
use super::guard::{self, Guarded, Line, Post};
use super::handover;
use super::helper::{self, detach_from_session, keep_only};
use super::protocol::{HeldNotice, Message};
use super::seccomp::Listener;
use super::slots::{Inbox, SharedSlots};
use crate::launch::fork;
use crate::model::Pid;
use crate::sys::poll::poll;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Where the keeper's listener comes from.
pub enum Source {
    /// The child sends it over `keeper`, and to the guard, which is forked at once, over `guard`. End of
    /// file: there is none, nothing to keep.
    Child { keeper: OwnedFd, guard: OwnedFd, watched: OwnedFd },
    /// A replacement gets the copy, and what its predecessor left unanswered. It has that one's guard.
    Copy { listener: Listener, held: Vec<HeldNotice>, is_fallback: bool },
}

/// What the keeper shares with vmaudit.
pub struct Ends {
    /// Its end of the socket to vmaudit.
    pub app: OwnedFd,
    pub line: Line,
    pub slots: SharedSlots,
}

/// Forks the keeper.
pub fn spawn(ends: Ends, source: Source) -> Result<Pid, Errno> {
    fork::fork_into(move || {
        detach_from_session(helper::KEEPER);
        let Ends { app, line, slots } = ends;
        let mut keeper = match source {
            Source::Child { keeper, guard, watched } => {
                let [app, line, socket, guards_end, watched] =
                    keep_only([app, line.into(), keeper, guard, watched])?;
                // Where the kernel refuses one, there will be other attempts.
                let guard = guard::spawn(Post::Child(guards_end), watched, slots.clone()).ok();
                let app = AppSocket::new(app);
                app.say(Message::Ready);
                let Some(listener) = handover::receive_fd(socket.as_fd())? else {
                    Guarded::new(line.into(), guard).dismiss();
                    return Ok(());
                };
                let guarded = Guarded::new(line.into(), guard);
                Keeper::new(Listener::new(listener), app, guarded, slots)
            }
            Source::Copy { listener, held, is_fallback } => {
                let [app, line, listener] = keep_only([app, line.into(), listener.into()])?;
                let (app, guarded) = (AppSocket::new(app), Guarded::new(line.into(), None));
                let mut keeper = Keeper::new(Listener::new(listener), app, guarded, slots);
                keeper.is_fallback = is_fallback;
                keeper.server.inherit(held);
                keeper
            }
        };
        // That it is only the fallback was set before there was a listener. Then vmaudit receives, and what
        // is in a slot by now is not left behind: it is being examined.
        keeper.receive_from_app();
        if !keeper.is_fallback {
            keeper.inherit();
        }
        keeper.run()
    })
}

pub struct Keeper {
    server: ExitServer,
    leaving: Leaving,
    inbox: Inbox,
    slots: SharedSlots,
    app: AppSocket,
    guarded: Guarded,
    /// vmaudit receives the notifications itself.
    is_fallback: bool,
}

impl Keeper {
    fn new(listener: Listener, app: AppSocket, guarded: Guarded, slots: SharedSlots) -> Keeper {
        let inbox = Inbox::new(slots.clone());
        let (server, leaving) = (ExitServer::new(listener), Leaving::default());
        Keeper { server, leaving, inbox, slots, app, guarded, is_fallback: false }
    }

    /// The keeper after vmaudit and its keeper: all that they had received goes on, as soon as there is
    /// another guard.
    pub fn successor(listener: Listener, slots: SharedSlots) -> Result<Keeper, Errno> {
        let (line, watched) = Line::new()?;
        let guard = guard::spawn(Post::Copy(listener.duplicate()?), watched, slots.clone()).ok();
        let guarded = Guarded::new(line, guard);
        let mut keeper = Keeper::new(listener, AppSocket::closed(), guarded, slots);
        keeper.let_all_go();
        Ok(keeper)
    }

    /// Until no task has the filter any more.
    pub fn run(mut self) -> Result<(), Errno> {
        while self.step()? {}
        self.guarded.dismiss();
        Ok(())
    }

    /// Waits for whatever comes next. False when no task has the filter any more.
    fn step(&mut self) -> Result<bool, Errno> {
        self.guarded.see_to_it(self.server.listener(), &self.slots);
        let [from_listener, from_line, from_app] = self.wait()?;
        if let Some(id) = self.leaving.take() {
            self.let_go(id);
        }
        if from_line.contains(PollFlags::POLLERR) {
            self.guarded.is_gone();
        }
        if from_app.intersects(PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR) {
            self.receive_from_app();
        }
        if from_app.contains(PollFlags::POLLOUT) {
            self.send_waiting();
        }
        if from_listener.contains(PollFlags::POLLIN) && !self.is_fallback {
            self.receive();
        }
        Ok(from_listener.contains(PollFlags::POLLIN) || !from_listener.contains(PollFlags::POLLHUP))
    }

    /// What happened to the listener, to the line and to the socket.
    fn wait(&mut self) -> Result<[PollFlags; 3], Errno> {
        if !self.inbox.has_space() {
            self.inbox.forget_gone(self.server.listener());
        }
        let receives = !self.is_fallback && self.inbox.has_space();
        let input = if receives { PollFlags::POLLIN } else { PollFlags::empty() };
        let output = if self.app.has_unsent() { PollFlags::POLLOUT } else { PollFlags::empty() };
        let (line, app) = (self.guarded.line(), self.app.fd());
        let mut fds = vec![PollFd::new(self.server.listener().as_fd(), input)];
        fds.extend(line.map(|line| PollFd::new(line, PollFlags::empty())));
        fds.extend(app.map(|app| PollFd::new(app, PollFlags::POLLIN | output)));
        poll(&mut fds, self.leaving.patience(self.guarded.due().map(until)))?;
        let mut got = fds.iter().map(|fd| fd.revents().unwrap_or(PollFlags::empty()));
        let mut of = |there: bool| there.then(|| got.next()).flatten().unwrap_or(PollFlags::empty());
        Ok([of(true), of(line.is_some()), of(app.is_some())])
    }

    fn receive(&mut self) {
        // Errors: nothing that waiting could mend; the next notification may fare better.
        if let Ok(Some(notification)) = self.inbox.receive(self.server.listener()) {
            self.judge(&notification);
        }
    }

    /// What a keeper left that was killed between receiving and acting.
    fn inherit(&mut self) {
        for notification in self.inbox.inherit() {
            if self.server.is_unknown_and_held(notification.id) {
                self.judge(&notification);
            }
        }
        self.inbox.forget_gone(self.server.listener());
    }

    fn judge(&mut self, notification: &libc::seccomp_notif) {
        match self.server.judge(notification) {
            Ok(Served::Final(notice)) if self.app.is_open() => {
                self.app.push(Message::Held(notice));
                self.send_waiting();
            }
            Ok(Served::AlsoEnding(_)) if self.app.is_open() => {}
            Ok(Served::Strict(message)) => {
                self.app.push(message);
                self.send_waiting();
                self.let_go(notification.id);
            }
            Ok(Served::Final(notice) | Served::AlsoEnding(notice)) => self.let_go(notice.id),
            Ok(Served::Leaves) => {
                if let Some(before) = self.leaving.replace(notification.id) {
                    self.let_go(before);
                }
            }
            Ok(Served::Done) | Err(_) => self.inbox.forget(notification.id),
        }
    }

    /// Processes at their exit, too: no one is left to examine them.
    fn let_all_go(&mut self) {
        for notification in self.inbox.inherit() {
            self.let_go(notification.id);
        }
    }

    fn let_go(&mut self, id: u64) {
        let _ = self.server.listener().let_continue(id);
        self.server.answered(id);
        self.inbox.forget(id);
    }

    fn send_waiting(&mut self) {
        if !self.app.send_waiting() {
            self.app_is_gone();
        }
    }

    fn receive_from_app(&mut self) {
        loop {
            match self.app.receive() {
                Received::Message(Message::Answered { id }) => {
                    self.server.answered(id);
                    self.inbox.forget(id);
                }
                Received::Message(Message::StandBy) => self.is_fallback = true,
                Received::Message(Message::Spare(spared)) => self.server.spare(spared),
                Received::Message(Message::Serve) => {
                    self.is_fallback = false;
                    self.let_all_go();
                }
                Received::Message(Message::Held(_) | Message::Ready | Message::Strict { .. }) => {}
                Received::Silence => return,
                Received::Gone => return self.app_is_gone(),
            }
        }
    }

    fn app_is_gone(&mut self) {
        self.is_fallback = false;
        self.let_all_go();
    }
}

/// Rounded up: what is due then is due when it returns.
fn until(due: Instant) -> Duration {
    due.saturating_duration_since(Instant::now()).min(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::super::filter::exit_filter;
    use super::super::seccomp::install;
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread;

    #[test]
    fn a_thread_that_ends_is_continued_after_the_next_poll() {
        let (found, listener) = channel();
        let threads = thread::spawn(move || {
            found.send(install(&exit_filter())).expect("the test waits");
            let each: Vec<_> = (0..8).map(|_| thread::spawn(|| ())).collect();
            each.into_iter().for_each(|thread| thread.join().expect("it does nothing"));
        });
        let Ok(installed) = listener.recv().expect("the thread sends") else {
            let test = "a_thread_that_ends_is_continued_after_the_next_poll";
            return crate::skip::skip(test, "no seccomp listener here");
        };
        let (line, _watched) = Line::new().expect("a pipe");
        let slots = SharedSlots::new().expect("memory");
        let guarded = Guarded::new(line, None);
        let mut keeper = Keeper::new(Listener::new(installed.listener), AppSocket::closed(), guarded, slots);
        let mut received = 0;
        while keeper.step().expect("a listener") {
            let waits: Vec<u64> = keeper.inbox.ids().collect();
            assert!(waits.len() <= 1, "all but the last are continued: {waits:?}");
            received += waits.len();
            assert!(waits.iter().all(|&id| keeper.server.listener().is_held(id)), "it was continued before");
        }
        assert_eq!(received, 9, "each is seen waiting once");
        threads.join().expect("all were continued");
    }
}
