//! The running command: its events, its signals, its end.

use super::error::{LaunchNote, TargetError};
use super::exit_code::ExitStatus;
use super::hold::calls::CallServer;
use super::hold::{HeldExit, Hold, KeeperReport, KeeperSeat};
use super::job_control;
use super::signals::{Arrived, Before, Signals};
use super::user::{SUDO_VARIABLES, SudoError, TargetUser};
use super::watch;
use crate::model::Pid;
use crate::sys::pidfd::{self, WaitIdOptions};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollTimeout};
use nix::sys::signal::{SigSet, Signal};
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

/// What happens to the target while it runs.
#[derive(PartialEq, Eq, Debug)]
pub enum TargetEvent {
    /// A process of the target is held at its end, until `release`. Not every process is: those
    /// killed by a signal are not.
    HeldExit(HeldExit),
    /// The command itself ended. Processes that it started may live on.
    ChildExited(ExitStatus),
    /// A signal to stop arrived. From the terminal (Ctrl-C, Ctrl-\, hang-up) the target got it, too: go on
    /// waiting, and stop at the second one. Otherwise it was passed on to the command; `forwarded` is false
    /// when that was refused or the command is gone.
    Interrupt {
        signal: Signal,
        from_terminal: bool,
        forwarded: bool,
    },
    /// A process requested seccomp's strict mode. The kernel refuses it (EINVAL) because exits are held, or
    /// calls watched, by a filter. Only where it would not be refused anyway.
    StrictModeRefused {
        pid: Pid,
        comm: Vec<u8>,
    },
    /// The keeper was killed, and another has taken its place: nothing is lost.
    KeeperReplaced,
    /// All processes of the target have ended. Comes after `ChildExited`, and only where exits
    /// are held.
    NoTaskLeft,
    Timeout,
}

/// What `Prepared::go` hands over.
pub(super) struct Seat {
    pub pid: Pid,
    pub pidfd: OwnedFd,
    pub notes: Vec<LaunchNote>,
    pub taken: SigSet,
    pub before: Before,
    pub hold: Option<KeeperSeat>,
    pub calls: Option<CallServer>,
}

/// The command, running. Dropped, it goes on: whatever is held then or later, the keeper lets
/// end.
pub struct Running {
    pid: Pid,
    pidfd: OwnedFd,
    notes: Vec<LaunchNote>,
    hold: Option<Hold>,
    calls: Option<CallServer>,
    signals: Signals,
    epoll: Epoll,
    /// The command has ended, and that was said.
    ended: bool,
    /// No task has the filter any more.
    none_left: bool,
    queue: VecDeque<TargetEvent>,
}

const FROM_KEEPER: u64 = 1;
const FROM_SIGNALS: u64 = 2;
const FROM_CHILD: u64 = 3;

impl Running {
    pub(super) fn new(seat: Seat) -> Result<Running, TargetError> {
        let signals = Signals::open(seat.taken, seat.before)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(TargetError::at("epoll_create1"))?;
        let hold = seat.hold.map(Hold::new);
        let running = Running {
            pid: seat.pid,
            pidfd: seat.pidfd,
            notes: seat.notes,
            hold,
            calls: seat.calls,
            signals,
            epoll,
            ended: false,
            none_left: false,
            queue: VecDeque::new(),
        };
        watch(&running.epoll, running.signals.as_fd(), FROM_SIGNALS)?;
        watch(&running.epoll, running.pidfd.as_fd(), FROM_CHILD)?;
        if let Some(hold) = &running.hold {
            watch(&running.epoll, hold.socket(), FROM_KEEPER)?;
            if let Some(server) = hold.server() {
                watch(&running.epoll, server, FROM_KEEPER)?;
            }
        }
        Ok(running)
    }

    /// The command's process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// What the user should know about how it was started.
    pub fn notes(&self) -> &[LaunchNote] {
        &self.notes
    }

    /// Where calls are watched: what receives them. To be served at once, by a thread of its own: the
    /// target waits in each of them.
    pub fn take_calls(&mut self) -> Option<CallServer> {
        self.calls.take()
    }

    /// Requests to stop from now on: they stay blocked when this is dropped.
    pub fn take_requests(&self) -> Result<Signals, TargetError> {
        self.signals.take_requests()
    }

    /// True when `poll` has an event already, for which `as_fd` is not readable any more: several were
    /// received at once. Do not wait then.
    pub fn has_pending(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Readable when there is a new event: for an event loop that waits for more.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// The next event; waits for it for `timeout` at most, or, without one, as long as it takes.
    pub fn poll(&mut self, timeout: Option<Duration>) -> Result<TargetEvent, TargetError> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Ok(event);
            }
            let mut ready = [EpollEvent::empty(); 3];
            let count = match self.epoll.wait(&mut ready, remaining(until)) {
                Ok(count) => count,
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(TargetError { step: "epoll_wait", errno }),
            };
            if count == 0 && until.is_some_and(|until| Instant::now() >= until) {
                return Ok(TargetEvent::Timeout);
            }
            let has = |which| ready[..count].iter().any(|event| event.data() == which);
            // The keeper first: a process is held before it ends.
            if has(FROM_KEEPER) {
                self.receive_from_keeper()?;
            }
            if has(FROM_SIGNALS) {
                self.receive_signals()?;
            }
            if has(FROM_CHILD) {
                self.child_ended()?;
            }
        }
    }

    /// Lets a held process end. That it is gone already (killed while it was held) is no error.
    pub fn release(&mut self, held: HeldExit) -> Result<(), TargetError> {
        match &mut self.hold {
            Some(hold) => hold.release(held),
            None => Ok(()),
        }
    }

    /// True while the process is held at its end. To be called after a snapshot was taken by process number:
    /// true means that the number was the process's all the time.
    pub fn is_held(&self, held: &HeldExit) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.is_held(held))
    }

    /// Signals the command. False: it is gone.
    pub fn signal(&self, signal: Signal) -> Result<bool, TargetError> {
        match pidfd::send_signal(self.pidfd.as_fd(), signal) {
            Ok(()) => Ok(true),
            Err(Errno::ESRCH) => Ok(false),
            Err(errno) => Err(TargetError { step: "signalling the command", errno }),
        }
    }

    /// `sh -c SCRIPT` as the user that the command runs as, with the signals that vmaudit was started
    /// with, not traced, and with VMAUDIT_PID in its environment: the command's process.
    ///
    /// # Errors
    /// When the environment does not say which user is behind sudo.
    pub fn shell(&self, script: &OsStr, as_root: bool) -> Result<std::process::Command, SudoError> {
        let mut shell = std::process::Command::new("/bin/sh");
        shell.arg("-c").arg(script).env("VMAUDIT_PID", self.pid.to_string());
        let user = if as_root { None } else { TargetUser::behind_sudo()? };
        if let Some(user) = &user {
            for name in SUDO_VARIABLES {
                shell.env_remove(name);
            }
            shell.envs(user.environment.iter().cloned());
        }
        let before = self.signals.before();
        // SAFETY: between fork and exec only system calls are made.
        unsafe {
            shell.pre_exec(move || {
                if let Some(user) = &user {
                    user.become_it().map_err(|(_, errno)| io::Error::from(errno))?;
                }
                before.restore_in_child().map_err(io::Error::from)
            });
        }
        Ok(shell)
    }

    fn receive_from_keeper(&mut self) -> Result<(), TargetError> {
        while let Some(hold) = &mut self.hold {
            // Closing the old socket takes it out of the epoll set.
            match hold.receive()? {
                KeeperReport::Held(held) => self.queue.push_back(TargetEvent::HeldExit(held)),
                KeeperReport::Strict { pid, comm } => {
                    if is_unfiltered() {
                        self.queue.push_back(TargetEvent::StrictModeRefused { pid, comm });
                    }
                }
                KeeperReport::Nothing => return Ok(()),
                KeeperReport::NoTaskLeft => {
                    let _ = self.epoll.delete(hold.socket());
                    self.hold = None;
                    // The filter is gone a moment before the command can be waited for.
                    self.none_left = true;
                    if self.ended {
                        self.queue.push_back(TargetEvent::NoTaskLeft);
                    }
                }
                KeeperReport::Replaced => {
                    watch(&self.epoll, hold.socket(), FROM_KEEPER)?;
                    self.queue.push_back(TargetEvent::KeeperReplaced);
                }
            }
        }
        Ok(())
    }

    fn receive_signals(&mut self) -> Result<(), TargetError> {
        let (mut child_changed, mut continued) = (false, false);
        while let Some(arrived) = self.signals.next()? {
            match arrived {
                Arrived::Child => child_changed = true,
                Arrived::Continued => continued = true,
                Arrived::Request { signal, from_terminal } => {
                    let forwarded = !from_terminal && matches!(self.signal(signal), Ok(true));
                    self.queue.push_back(TargetEvent::Interrupt { signal, from_terminal, forwarded });
                }
            }
        }
        if (child_changed || continued) && !self.ended {
            job_control::follow(self.pidfd.as_fd(), continued)
                .map_err(TargetError::at("following the command's stop"))?;
        }
        Ok(())
    }

    fn child_ended(&mut self) -> Result<(), TargetError> {
        // Its last words were written before it ended.
        self.receive_from_keeper()?;
        let Some(status) = end_of(self.pidfd.as_fd())? else { return Ok(()) };
        self.epoll.delete(self.pidfd.as_fd()).map_err(TargetError::at("epoll_ctl"))?;
        self.ended = true;
        self.queue.push_back(TargetEvent::ChildExited(status));
        if self.none_left {
            self.queue.push_back(TargetEvent::NoTaskLeft);
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A keeper that was killed unnoticed is replaced before the last listener closes.
        let _ = self.receive_from_keeper();
        if let Some(hold) = &mut self.hold {
            hold.reap_keeper_if_done();
        }
    }
}

/// True when vmaudit itself is under no seccomp filter, and the command would be under none.
fn is_unfiltered() -> bool {
    // SAFETY: PR_GET_SECCOMP takes nothing else.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP) == 0 }
}

/// Rounded up: a rest of less than a millisecond must not become a busy loop.
fn remaining(until: Option<Instant>) -> EpollTimeout {
    let Some(until) = until else { return EpollTimeout::NONE };
    let millis = until.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000);
    EpollTimeout::try_from(millis.min(i32::MAX as u128) as i32).unwrap_or(EpollTimeout::ZERO)
}

/// None: it has not ended.
fn end_of(command: BorrowedFd<'_>) -> Result<Option<ExitStatus>, TargetError> {
    let end = pidfd::changed(command, WaitIdOptions::EXITED).map_err(TargetError::at("waitid"))?;
    Ok(end.and_then(|end| match (end.exit_status(), end.terminating_signal()) {
        (Some(code), _) => Some(ExitStatus::Code(code)),
        (None, signal) => Some(ExitStatus::Signal { signal: signal?, core: end.dumped() }),
    }))
}
