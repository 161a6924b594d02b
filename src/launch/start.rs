//! Starts the command, suspended before its first instruction until vmaudit is ready.

use super::child::{Child, GO, GO_UNHELD, REPORT, Report, WATCH_CALLS};
use super::command::Command;
use super::error::{LaunchError, LaunchNote, NoHold};
use super::hold::KeeperSeat;
use super::hold::arrange::{self, Arranged, packets};
use super::hold::calls::CallServer;
use super::hold::filter::CallSet;
use super::hold::handover;
use super::hold::protocol::{Message, Spared};
use super::hold::seccomp::Listener;
use super::running::{Running, Seat};
use super::signals::{self, Before};
use super::user::{SUDO_VARIABLES, TargetUser};
use super::{fork, secure};
use crate::model::{HeldCalls, Pid};
use crate::sys::pidfd;
use crate::sys::poll::poll;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::socket::{MsgFlags, send};
use nix::unistd::{Uid, pipe2, read, write};
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

/// What to start, and how.
#[derive(Clone, Debug, Default)]
pub struct LaunchConfig {
    /// The command and its arguments; the command is searched for in PATH as execvp does.
    pub argv: Vec<OsString>,
    /// Changes to the environment: a value, or None to leave the variable out.
    pub env: Vec<(OsString, Option<OsString>)>,
    /// Switch address randomisation off; an error when that is refused.
    pub aslr_off: bool,
    /// RLIMIT_STACK of the command, bytes: the size that glibc gives to threads' stacks.
    pub stack_limit: Option<u64>,
    /// Under sudo: stay root rather than become the invoking user.
    pub as_root: bool,
    /// Hold each process at its exit until `Running::release`.
    pub hold_exits: bool,
    /// The calls to be notified if [`Prepared::watch_calls`] is called.
    pub calls: CallSet,
}

/// The file that a command means, as execvp finds it; None where there is none.
pub fn program_file(argv: &[OsString]) -> Option<PathBuf> {
    Command::new(argv, secure::environment()).ok()?.first_present()
}

/// The way from a configuration to a prepared process.
pub struct Launch;

/// A forked process that waits to become the command. Dropped, it ends without having run.
pub struct Prepared {
    // Never None but while `go` or `drop` take it apart.
    parts: Option<Parts>,
}

struct Parts {
    command: Command,
    user: Option<TargetUser>,
    notes: Vec<LaunchNote>,
    pid: Pid,
    pidfd: OwnedFd,
    go: OwnedFd,
    status: OwnedFd,
    hold: Option<Arranged>,
    /// What lets the child go on.
    word: u8,
    spared: Option<Spared>,
    /// Where calls are watched, what receives them.
    server: Option<CallServer>,
    taken: SigSet,
    before: Before,
}

impl Launch {
    /// Forks the keeper and the child. To be called while vmaudit is single-threaded, because
    /// both go on with the memory of this process. From here on SIGINT, SIGTERM, SIGHUP, SIGQUIT,
    /// SIGCHLD and SIGCONT are blocked in the calling thread and those that it makes.
    pub fn prepare(config: LaunchConfig) -> Result<Prepared, LaunchError> {
        let user = if config.as_root { None } else { TargetUser::behind_sudo()? };
        let environment = environment(secure::environment(), user.as_ref(), &config.env);
        let command = Command::new(&config.argv, environment)?;
        let Some(file) = command.first_present() else {
            return Err(LaunchError::NotFound { command: command.name });
        };
        let mut notes = Vec::new();
        let mut hold_exits = config.hold_exits;
        if hold_exits && !Uid::effective().is_root() && is_setuid(&file) {
            notes.push(LaunchNote::NoHold(NoHold::SetuidCommand));
            hold_exits = false;
        }
        let (taken, before) = signals::block().map_err(LaunchError::system("blocking signals"))?;
        let config = LaunchConfig { hold_exits, ..config };
        let started = start(&command, user.as_ref(), &config, &before);
        let (pid, pidfd, go, status, hold) = match started {
            Ok(started) => started,
            Err(error) => {
                let _ = before.restore();
                return Err(error);
            }
        };
        let (word, server) = (GO, None);
        let spared = None;
        let parts =
            Parts { command, user, notes, pid, pidfd, go, status, hold, word, spared, server, taken, before };
        Ok(Prepared { parts: Some(parts) })
    }
}

type Started = (Pid, OwnedFd, OwnedFd, OwnedFd, Option<Arranged>);

/// Forks both, the keeper first: it must not hold the child's pipes open.
fn start(
    command: &Command,
    user: Option<&TargetUser>,
    config: &LaunchConfig,
    before: &Before,
) -> Result<Started, LaunchError> {
    let system = LaunchError::system;
    let (hold, listener_to) =
        if config.hold_exits { Some(arrange::helpers()?).unzip() } else { (None, None) };
    let (go_read, go) = pipe2(OFlag::O_CLOEXEC).map_err(system("making a pipe"))?;
    let (status, status_write) = pipe2(OFlag::O_CLOEXEC).map_err(system("making a pipe"))?;
    let LaunchConfig { aslr_off, stack_limit, calls, .. } = *config;
    let status_to = status_write;
    let go_from = go_read;
    let child = Child {
        command,
        user,
        aslr_off,
        stack_limit,
        before,
        go: go_from,
        status: status_to,
        listener_to,
        calls,
    };
    let unneeded = [&go].into_iter().chain(hold.iter().flat_map(|hold| [&hold.socket, hold.line.fd()]));
    let unneeded: Vec<RawFd> = unneeded.map(OwnedFd::as_raw_fd).collect();
    let pid = fork::fork_into(move || {
        // The child's own copies of vmaudit's ends: with them open it would not see vmaudit's
        // death.
        unneeded.into_iter().for_each(close);
        child.run()
    })
    .map_err(system("forking"))?;
    let pidfd = match pidfd::open(pid) {
        Ok(pidfd) => pidfd,
        Err(errno) => {
            drop(go);
            fork::reap(pid);
            return Err(LaunchError::System { step: "pidfd_open (Linux 5.3)", errno });
        }
    };
    Ok((pid, pidfd, go, status, hold))
}

impl Prepared {
    /// The process that will be the command; it is already there, and stays the same.
    pub fn pid(&self) -> Pid {
        self.parts.as_ref().map_or(0, |parts| parts.pid)
    }

    /// The file that will be executed, if it is there.
    pub fn file(&self) -> Option<PathBuf> {
        self.parts.as_ref()?.command.first_present()
    }

    /// Has the calls of [`LaunchConfig::calls`] notified, too: [`Running::take_calls`] hands over
    /// what receives them.
    ///
    /// # Errors
    /// Where no listener can be: exits are not to be held, or the command is setuid.
    pub fn watch_calls(&mut self) -> Result<(), LaunchError> {
        let Some(parts) = &mut self.parts else { return Err(LaunchError::ChildDied) };
        let Some(hold) = &parts.hold else {
            let setuid = parts.notes.contains(&LaunchNote::NoHold(NoHold::SetuidCommand));
            return Err(LaunchError::NoListener { setuid });
        };
        // It reads that before the first notification: the child sends it the listener later.
        let message = Message::StandBy.encode();
        send(hold.socket.as_raw_fd(), &message, MsgFlags::MSG_NOSIGNAL)
            .map_err(LaunchError::system("speaking to the keeper"))?;
        parts.word = WATCH_CALLS;
        Ok(())
    }

    /// Does not have those held that end within a second of their start, smaller than `below` bytes: all but
    /// the command itself. Where exits are held at all, and not yet as notified calls.
    ///
    /// # Errors
    /// When the message to the keeper fails.
    pub fn spare_small(&mut self, below: u64) -> Result<(), LaunchError> {
        let Some(parts) = &mut self.parts else { return Err(LaunchError::ChildDied) };
        let Some(hold) = &parts.hold else { return Ok(()) };
        let spared = Spared { below, parent: nix::unistd::getpid().as_raw() };
        // It reads that before the first notification: the child sends it the listener later.
        send(hold.socket.as_raw_fd(), &Message::Spare(spared).encode(), MsgFlags::MSG_NOSIGNAL)
            .map_err(LaunchError::system("speaking to the keeper"))?;
        parts.spared = Some(spared);
        Ok(())
    }

    /// Has no exit held, though [`LaunchConfig::hold_exits`] made it possible: nothing is notified.
    pub fn hold_nothing(&mut self) {
        if let Some(parts) = &mut self.parts {
            parts.word = GO_UNHELD;
            parts.notes.retain(|note| !matches!(note, LaunchNote::NoHold(_)));
        }
    }

    /// Lets the child become the command, and returns when it has (or could not). A request to stop that
    /// came before is the command's end before its first instruction.
    pub fn go(mut self) -> Result<Running, LaunchError> {
        let Some(mut parts) = self.parts.take() else { return Err(LaunchError::ChildDied) };
        if let Some(signal) = signals::take_pending(&parts.taken, &parts.before) {
            // As from the terminal: the child has it blocked, too, and ends where it unblocks it, just
            // before it would become the command.
            let _ = pidfd::send_signal(parts.pidfd.as_fd(), signal);
            parts.notes.push(LaunchNote::NotStarted(signal));
        }
        let outcome = if parts.word == WATCH_CALLS {
            parts.start_watched()
        } else {
            parts.start_command().and_then(|()| parts.listener())
        };
        match outcome {
            Ok(hold) => {
                let Parts { pid, pidfd, notes, taken, before, server: calls, .. } = parts;
                Running::new(Seat { pid, pidfd, notes, taken, before, hold, calls })
                    .map_err(|error| LaunchError::System { step: error.step, errno: error.errno })
            }
            Err(error) => {
                parts.abandon();
                Err(error)
            }
        }
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if let Some(parts) = self.parts.take() {
            parts.abandon();
        }
    }
}

impl Parts {
    /// Lets the child execute the command, and reads its reports.
    fn start_command(&mut self) -> Result<(), LaunchError> {
        // EPIPE: it died meanwhile. Rust's runtime ignores SIGPIPE.
        write(&self.go, &[self.word]).map_err(|_| LaunchError::ChildDied)?;
        while !self.receive_child()? {}
        Ok(())
    }

    /// Waits for one report and notes it. True when there will be no more: the command runs.
    fn receive_child(&mut self) -> Result<bool, LaunchError> {
        let mut report = [0; REPORT];
        loop {
            match read(&self.status, &mut report) {
                Ok(0) => return Ok(true),
                Ok(length) => {
                    let said = Report::decode(&report[..length]).ok_or(LaunchError::ChildDied)?;
                    self.notes.push(said.interpret(&self.command, self.user.as_ref())?);
                    return Ok(false);
                }
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(LaunchError::System { step: "hearing the child", errno }),
            }
        }
    }

    /// Gives the word, and lets the child's own calls go on until it is the command: the first one
    /// of that is the server's first.
    fn start_watched(&mut self) -> Result<Option<KeeperSeat>, LaunchError> {
        write(&self.go, &[self.word]).map_err(|_| LaunchError::ChildDied)?;
        let Some(mut seat) = self.listener()? else {
            // It has said why.
            while !self.receive_child()? {}
            let refused = self.notes.iter().find_map(|note| match note {
                LaunchNote::NoHold(NoHold::Refused(errno)) => Some(*errno),
                _ => None,
            });
            return Err(
                refused.map_or(LaunchError::ChildDied, |errno| LaunchError::ListenerRefused { errno })
            );
        };
        let failed = LaunchError::system("serving the listener");
        let (socket, server_socket) = packets()?;
        let copy = seat.listener.duplicate().map_err(LaunchError::system("copying the listener"))?;
        let mut server = CallServer::new(copy, server_socket, seat.slots.clone()).map_err(&failed)?;
        loop {
            let (said, called) = wait_for(self.status.as_fd(), server.listener()).map_err(&failed)?;
            if said && self.receive_child()? {
                break;
            }
            if called && !said && !self.let_child_call(&mut server)? {
                break;
            }
        }
        seat.server = Some(socket);
        self.server = Some(server);
        Ok(Some(seat))
    }

    /// Takes one call. False when it is one of the command already, whose start closed the pipe.
    fn let_child_call(&mut self, server: &mut CallServer) -> Result<bool, LaunchError> {
        let failed = LaunchError::system("serving the listener");
        let Some(call) = server.receive().map_err(&failed)? else { return Ok(true) };
        while can_be_read(self.status.as_fd()).map_err(&failed)? {
            if self.receive_child()? {
                server.give_back(call);
                return Ok(false);
            }
        }
        server.go_on(call.id);
        Ok(true)
    }

    /// vmaudit's copy of the listener, which the child has sent, or None.
    fn listener(&mut self) -> Result<Option<KeeperSeat>, LaunchError> {
        let Some(hold) = self.hold.take() else { return Ok(None) };
        let received = handover::receive_fd(hold.listener_from.as_fd());
        match received.map_err(LaunchError::system("receiving the listener"))? {
            Some(fd) => Ok(Some(KeeperSeat {
                listener: Listener::new(fd),
                keeper: hold.keeper,
                socket: hold.socket,
                line: hold.line,
                slots: hold.slots,
                server: None,
                spared: self.spared,
            })),
            None => {
                // The filter was refused. The keeper knows, and ends.
                fork::reap(hold.keeper);
                Ok(None)
            }
        }
    }

    /// The child ends at the end of file on its pipe, or has killed itself; then the keeper,
    /// whose socket to the child closes, or whose filter has no task any more.
    fn abandon(self) {
        drop(self.go);
        // It may have got further than its parent knows.
        let _ = pidfd::send_signal(self.pidfd.as_fd(), Signal::SIGKILL);
        fork::reap(self.pid);
        if let Some(hold) = self.hold {
            drop((hold.socket, hold.listener_from, hold.line));
            fork::reap(hold.keeper);
        }
        let _ = self.before.restore();
    }
}

/// The environment of the command: that of vmaudit, with the user's own HOME and so on in place of what sudo
/// set, then the requested changes.
fn environment(
    mut current: Vec<(OsString, OsString)>,
    user: Option<&TargetUser>,
    changes: &[(OsString, Option<OsString>)],
) -> Vec<(OsString, OsString)> {
    let mut set = |key: &OsString, value: Option<&OsString>| {
        current.retain(|(each, _)| each != key);
        current.extend(value.map(|value| (key.clone(), value.clone())));
    };
    if let Some(user) = user {
        SUDO_VARIABLES.iter().for_each(|name| set(&OsString::from(name), None));
        user.environment.iter().for_each(|(key, value)| set(key, Some(value)));
    }
    changes.iter().for_each(|(key, value)| set(key, value.as_ref()));
    current
}

fn is_setuid(file: &std::path::Path) -> bool {
    std::fs::metadata(file).is_ok_and(|meta| meta.permissions().mode() & 0o6000 != 0)
}

/// Waits until either can be read (or its other end is closed), and returns which.
fn wait_for(status: BorrowedFd<'_>, listener: BorrowedFd<'_>) -> Result<(bool, bool), Errno> {
    let mut fds = [PollFd::new(status, PollFlags::POLLIN), PollFd::new(listener, PollFlags::POLLIN)];
    poll(&mut fds, None)?;
    let ready = |fd: &PollFd<'_>| fd.revents().unwrap_or(PollFlags::empty());
    Ok((!ready(&fds[0]).is_empty(), ready(&fds[1]).contains(PollFlags::POLLIN)))
}

/// Whether it can be read now.
fn can_be_read(status: BorrowedFd<'_>) -> Result<bool, Errno> {
    poll(&mut [PollFd::new(status, PollFlags::POLLIN)], Some(Duration::ZERO))
}

fn close(fd: RawFd) {
    // SAFETY: only in the forked child, where the owner of this copy is never used again.
    let _ = unsafe { libc::close(fd) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_to_the_environment_replace_and_remove() {
        let pair = |key: &str, value: &str| (OsString::from(key), OsString::from(value));
        let current = vec![pair("A", "1"), pair("B", "2"), pair("SUDO_UID", "7")];
        let changes = [(OsString::from("A"), Some(OsString::from("3"))), (OsString::from("B"), None)];
        let new = environment(current, None, &changes);
        assert_eq!(new, [pair("SUDO_UID", "7"), pair("A", "3")]);
    }
}
