//! What a session watches: a command that it started, or processes that ran already.

use super::engine::End;
use super::error::SessionError;
use super::say::say;
use crate::launch::{Attached, AttachedEvent, HeldExit, Process, Running, Signals, TargetEvent};
use crate::model::{MmKey, Observations, Pid};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// What became known of the targets.
#[derive(Debug)]
pub enum SessionEvent {
    /// A process is held at its end.
    Held(HeldExit),
    /// The session is over.
    Over(End),
    /// Processes that are traced from now on, and what was mapped before: to be applied before any of their
    /// events.
    Joined(Vec<(MmKey, Observations)>),
    /// vmaudit received a signal to stop: immediately, or when the command has handled it.
    StopRequested {
        now: bool,
    },
    Nothing,
}

/// The targets of a session.
pub trait Watched {
    /// True when `next` has something of which `as_fd` says nothing any more.
    fn has_pending(&self) -> bool;

    /// Readable when there may be an event.
    fn as_fd(&self) -> BorrowedFd<'_>;

    /// The next event, without waiting.
    ///
    /// # Errors
    /// When a system call fails that never does.
    fn next(&mut self) -> Result<SessionEvent, SessionError>;

    /// True while that process is held at its end.
    fn is_held(&self, held: &HeldExit) -> bool;

    /// Lets a held process end.
    ///
    /// # Errors
    /// When a system call fails that never does.
    fn release(&mut self, held: HeldExit) -> Result<(), SessionError>;

    /// Requests to stop from now on, when only the report is left to be made.
    ///
    /// # Errors
    /// When a system call fails that never does.
    fn take_requests(&mut self) -> Result<Signals, SessionError>;

    /// True when it is certain that the process has ended: what was read by its number just now
    /// may be another one's.
    fn has_ended(&self, pid: Pid) -> bool;
}

/// A command that vmaudit started.
pub struct Launched {
    running: Running,
    interrupts: u32,
    /// What the user can do for a command that does not work under a seccomp filter.
    without_filter: &'static str,
}

impl Launched {
    pub fn new(running: Running, without_filter: &'static str) -> Launched {
        Launched { running, interrupts: 0, without_filter }
    }
}

impl Watched for Launched {
    fn has_pending(&self) -> bool {
        self.running.has_pending()
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.running.as_fd()
    }

    fn next(&mut self) -> Result<SessionEvent, SessionError> {
        Ok(match self.running.poll(Some(Duration::ZERO))? {
            TargetEvent::HeldExit(held) => SessionEvent::Held(held),
            TargetEvent::ChildExited(status) => SessionEvent::Over(End::Exited(status)),
            TargetEvent::Interrupt { signal, from_terminal, forwarded } => {
                self.interrupts += 1;
                let stop = self.interrupts > 1;
                if !stop {
                    let what = match (from_terminal, forwarded) {
                        (true, _) => "the command got it too",
                        (false, true) => "passed on to the command",
                        (false, false) => "it could not be passed on",
                    };
                    say(format_args!("{signal}: {what}; waiting for it to end (again: report at once)"));
                }
                SessionEvent::StopRequested { now: stop }
            }
            TargetEvent::KeeperReplaced => {
                say(format_args!("the process that holds exits was killed; replaced it"));
                SessionEvent::Nothing
            }
            TargetEvent::StrictModeRefused { pid, comm } => {
                say(format_args!(
                    "process {pid} ({}) requested seccomp's strict mode and was refused (EINVAL), because \
                     vmaudit has a seccomp filter on it: {}",
                    String::from_utf8_lossy(&comm),
                    self.without_filter
                ));
                SessionEvent::Nothing
            }
            TargetEvent::NoTaskLeft | TargetEvent::Timeout => SessionEvent::Nothing,
        })
    }

    fn is_held(&self, held: &HeldExit) -> bool {
        self.running.is_held(held)
    }

    fn release(&mut self, held: HeldExit) -> Result<(), SessionError> {
        Ok(self.running.release(held)?)
    }

    fn take_requests(&mut self) -> Result<Signals, SessionError> {
        Ok(self.running.take_requests()?)
    }

    fn has_ended(&self, _: Pid) -> bool {
        // Its number is its own until it is waited for.
        false
    }
}

/// Nothing of theirs is ever held, and Ctrl-C is for vmaudit alone.
impl Watched for Attached {
    fn has_pending(&self) -> bool {
        Attached::has_pending(self)
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        Attached::as_fd(self)
    }

    fn next(&mut self) -> Result<SessionEvent, SessionError> {
        Ok(match self.poll()? {
            Some(AttachedEvent::NoneLeft) => SessionEvent::Over(End::NoneLeft),
            Some(AttachedEvent::Interrupt(_)) => SessionEvent::StopRequested { now: true },
            Some(AttachedEvent::Ended(_)) | None => SessionEvent::Nothing,
        })
    }

    fn is_held(&self, _: &HeldExit) -> bool {
        false
    }

    fn release(&mut self, _: HeldExit) -> Result<(), SessionError> {
        Ok(())
    }

    fn take_requests(&mut self) -> Result<Signals, SessionError> {
        Ok(Attached::take_requests(self)?)
    }

    fn has_ended(&self, pid: Pid) -> bool {
        self.process(pid).is_some_and(Process::has_ended)
    }
}
