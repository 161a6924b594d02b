//! The guard: a second tiny process, which only waits, for the case that vmaudit and the keeper are
//! killed together.
//!
//! With the last listener closed, the kernel fails every notified call with ENOSYS: threads would spin in
//! `exit` for ever, and exit_group would end in a crash. The guard has a copy of the listener, and the
//! reading end of a pipe whose writing end vmaudit and the keeper have. When that hangs up, both are gone:
//! the guard lets go on what they had received, and is the keeper from then on, with a guard of its own. When
//! the guard is killed, the pipe has no reader any more, and the keeper forks another one.

use super::handover;
use super::helper::{self, detach_from_session, keep_only};
use super::keeper::Keeper;
use super::seccomp::Listener;
use super::slots::SharedSlots;
use crate::launch::fork;
use crate::model::Pid;
use crate::sys::poll::poll;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::pipe2;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// A guard that dies sooner than that was killed by something that would kill the next one, too.
const TOO_SOON: Duration = Duration::from_millis(100);
/// The first pause before another attempt then, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(1));

/// The end of the pipe that vmaudit and the keeper have.
pub struct Line(OwnedFd);

impl Line {
    /// And the guard's end.
    pub fn new() -> Result<(Line, OwnedFd), Errno> {
        let (watched, line) = pipe2(OFlag::O_CLOEXEC)?;
        Ok((Line(line), watched))
    }

    pub fn duplicate(&self) -> Result<Line, Errno> {
        handover::duplicate(self.0.as_fd()).map(Line)
    }

    pub fn fd(&self) -> &OwnedFd {
        &self.0
    }

    /// Another guard's end, of the same pipe: vmaudit goes on with its own.
    fn watched(&self) -> Result<OwnedFd, Errno> {
        let path = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        open(path.as_str(), OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC, Mode::empty())
    }
}

impl From<OwnedFd> for Line {
    fn from(fd: OwnedFd) -> Line {
        Line(fd)
    }
}

impl From<Line> for OwnedFd {
    fn from(line: Line) -> OwnedFd {
        line.0
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Where the guard's listener comes from.
pub enum Post {
    /// The child sends it over this socket. End of file: there is none, nothing to guard.
    Child(OwnedFd),
    Copy(Listener),
}

/// Forks a guard. `watched` is its end of the line.
pub fn spawn(post: Post, watched: OwnedFd, slots: SharedSlots) -> Result<Pid, Errno> {
    fork::fork_into(move || {
        detach_from_session(helper::GUARD);
        let (source, is_listener) = match post {
            Post::Child(socket) => (socket, false),
            Post::Copy(listener) => (listener.into(), true),
        };
        let [source, watched] = keep_only([source, watched])?;
        let listener = if is_listener {
            source
        } else {
            // Even if vmaudit and the keeper are killed now, the child may be on its way.
            let Some(listener) = handover::receive_fd(source.as_fd())? else { return Ok(()) };
            drop(source);
            listener
        };
        let listener = Listener::new(listener);
        if !outlives_both(&listener, watched.as_fd())? {
            return Ok(());
        }
        drop(watched);
        helper::show_as(helper::KEEPER);
        Keeper::successor(listener, slots)?.run()
    })
}

/// Waits. False: no task has the filter any more.
fn outlives_both(listener: &Listener, watched: BorrowedFd<'_>) -> Result<bool, Errno> {
    loop {
        // POLLHUP is always reported.
        let mut fds = [listener.as_fd(), watched].map(|fd| PollFd::new(fd, PollFlags::empty()));
        poll(&mut fds, None)?;
        let [unused, left] = fds.map(|fd| fd.revents().is_some_and(|got| got.contains(PollFlags::POLLHUP)));
        if unused || left {
            return Ok(!unused);
        }
    }
}

/// The keeper's side: sees to it that there is a guard.
pub struct Guarded {
    line: Line,
    /// The guard, where this keeper has forked it.
    guard: Option<Pid>,
    /// When to fork the next one, while there is none.
    due: Option<Instant>,
    forked: Instant,
    pause: Duration,
}

impl Guarded {
    /// `guard`: the one that this process has forked for that line already.
    pub fn new(line: Line, guard: Option<Pid>) -> Guarded {
        Guarded { line, guard, due: None, forked: Instant::now(), pause: Duration::ZERO }
    }

    /// To be polled for errors, while there is a guard to be missed.
    pub fn line(&self) -> Option<BorrowedFd<'_>> {
        self.due.is_none().then(|| self.line.as_fd())
    }

    /// When to call [`Guarded::see_to_it`] at the latest.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The pipe has no reader any more.
    pub fn is_gone(&mut self) {
        if let Some(guard) = self.guard.take() {
            fork::reap(guard);
        }
        let (first, longest) = PAUSES;
        let soon = self.forked.elapsed() < TOO_SOON;
        self.pause = if soon { (self.pause * 2).clamp(first, longest) } else { Duration::ZERO };
        self.due = Some(Instant::now() + self.pause);
    }

    /// Forks a guard if there is none and it is time.
    pub fn see_to_it(&mut self, listener: &Listener, slots: &SharedSlots) {
        if self.due.is_none_or(|due| Instant::now() < due) {
            return;
        }
        self.forked = Instant::now();
        let forked = self
            .line
            .watched()
            .and_then(|watched| spawn(Post::Copy(listener.duplicate()?), watched, slots.clone()));
        match forked {
            Ok(guard) => (self.guard, self.due) = (Some(guard), None),
            // No memory, or too many processes: that may change.
            Err(_) => self.due = Some(Instant::now() + PAUSES.1),
        }
    }

    /// There is nothing to guard any more. The guard sees that by itself, unless it was stopped.
    pub fn dismiss(self) {
        if let Some(guard) = self.guard {
            // Its number is its own until it is waited for.
            let _ = kill(nix::unistd::Pid::from_raw(guard), Signal::SIGKILL);
            fork::reap(guard);
        }
    }
}
