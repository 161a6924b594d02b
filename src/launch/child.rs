//! The child's way from fork to exec, and what it reports to its parent on that way.

use super::command::Command;
use super::error::{LaunchError, LaunchNote, NoHold};
use super::hold::filter::{self, CallSet};
use super::hold::handover::ListenerTo;
use super::hold::{handover, seccomp};
use super::signals::Before;
use super::user::{STEPS, TargetUser};
use nix::errno::Errno;
use nix::sys::personality::{self, Persona};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{getpid, read, write};
use std::os::fd::{AsFd, OwnedFd};

/// Bytes of one report on the status pipe: far below PIPE_BUF, so it is never torn.
pub const REPORT: usize = 12;

/// What the child says. End of file without a fatal report: the command runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Report {
    NoNewPrivileges,
    SignalsRestartHeldExits,
    ListenerRefused(Errno),
    // The rest is fatal.
    HandOver(Errno),
    Personality(Errno),
    ChangeUser(usize, Errno),
    Signals(Errno),
    Execute(usize, Errno),
    StackLimit(Errno),
}

impl Report {
    fn encode(self) -> [u8; REPORT] {
        let (kind, index, errno) = match self {
            Report::NoNewPrivileges => (1, 0, 0),
            Report::SignalsRestartHeldExits => (2, 0, 0),
            Report::ListenerRefused(errno) => (3, 0, errno as i32),
            Report::HandOver(errno) => (4, 0, errno as i32),
            Report::Personality(errno) => (5, 0, errno as i32),
            Report::ChangeUser(step, errno) => (6, step as u32, errno as i32),
            Report::Signals(errno) => (7, 0, errno as i32),
            Report::Execute(candidate, errno) => (8, candidate as u32, errno as i32),
            Report::StackLimit(errno) => (9, 0, errno as i32),
        };
        let mut bytes = [0; REPORT];
        bytes[..4].copy_from_slice(&u32::to_ne_bytes(kind));
        bytes[4..8].copy_from_slice(&index.to_ne_bytes());
        bytes[8..].copy_from_slice(&errno.to_ne_bytes());
        bytes
    }

    /// None for anything that `encode` does not make.
    pub fn decode(bytes: &[u8]) -> Option<Report> {
        let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let (kind, index) = (word(0)?, word(4)? as usize);
        let errno = Errno::from_raw(word(8)? as i32);
        Some(match kind {
            1 => Report::NoNewPrivileges,
            2 => Report::SignalsRestartHeldExits,
            3 => Report::ListenerRefused(errno),
            4 => Report::HandOver(errno),
            5 => Report::Personality(errno),
            6 => Report::ChangeUser(index, errno),
            7 => Report::Signals(errno),
            8 => Report::Execute(index, errno),
            9 => Report::StackLimit(errno),
            _ => return None,
        })
    }

    /// A note for the user, or the reason why the command does not run.
    pub fn interpret(self, command: &Command, user: Option<&TargetUser>) -> Result<LaunchNote, LaunchError> {
        Err(match self {
            Report::NoNewPrivileges => return Ok(LaunchNote::NoNewPrivileges),
            Report::SignalsRestartHeldExits => return Ok(LaunchNote::SignalsRestartHeldExits),
            Report::ListenerRefused(errno) => return Ok(LaunchNote::NoHold(NoHold::Refused(errno))),
            Report::HandOver(errno) => LaunchError::System { step: "handing over the listener", errno },
            Report::Personality(errno) => LaunchError::Personality { errno },
            Report::ChangeUser(step, errno) => LaunchError::ChangeUser {
                user: user.map_or_else(String::new, |user| user.name.clone()),
                step: STEPS.get(step).copied().unwrap_or("setresuid"),
                errno,
            },
            Report::Signals(errno) => LaunchError::System { step: "restoring the signals", errno },
            Report::Execute(candidate, errno) => command.explain(candidate, errno),
            Report::StackLimit(errno) => {
                LaunchError::System { step: "setting the stack limit (at most `ulimit -H -s`)", errno }
            }
        })
    }
}

/// What the child needs of vmaudit.
pub struct Child<'a> {
    pub command: &'a Command,
    pub user: Option<&'a TargetUser>,
    pub aslr_off: bool,
    /// RLIMIT_STACK to set, bytes.
    pub stack_limit: Option<u64>,
    pub before: &'a Before,
    /// Readable when it is time; end of file when vmaudit is gone.
    pub go: OwnedFd,
    pub status: OwnedFd,
    /// Where the listener goes; None when exits are not held.
    pub listener_to: Option<ListenerTo>,
    /// What the filter notifies in addition to exits, if the word is [`WATCH_CALLS`].
    pub calls: CallSet,
}

/// The words that let the child go on: only its exits are notified, or the calls, too, or nothing.
pub const GO: u8 = b'g';
pub const WATCH_CALLS: u8 = b'n';
pub const GO_UNHELD: u8 = b'u';

impl Child<'_> {
    /// Waits for the word, then becomes the command, or says why not.
    pub fn run(self) -> Result<(), Errno> {
        let mut word = [0];
        loop {
            match read(&self.go, &mut word) {
                Ok(1) => break,
                Err(Errno::EINTR) => {}
                // vmaudit died or changed its mind: nothing has happened yet.
                _ => return Ok(()),
            }
        }
        let failure = self.become_command(word[0]);
        self.say(failure);
        // Not through exit: that is notified once the filter is in place, and would wait for
        // an answer.
        kill(getpid(), Signal::SIGKILL)
    }

    /// Returns only when it failed. The order matters: the filter comes before the change of
    /// user, because CAP_SYS_ADMIN makes NO_NEW_PRIVS unnecessary; the signals come last, so
    /// that none interrupts the way.
    fn become_command(&self, word: u8) -> Report {
        if self.aslr_off
            && let Err(errno) = switch_aslr_off()
        {
            return Report::Personality(errno);
        }
        if let Some(bytes) = self.stack_limit
            && let Err(errno) = limit_stack(bytes)
        {
            return Report::StackLimit(errno);
        }
        if let Some(sockets) = &self.listener_to
            && word != GO_UNHELD
            && let Err(failure) = self.install_filter(sockets, word == WATCH_CALLS)
        {
            return failure;
        }
        if let Some(user) = self.user
            && let Err((step, errno)) = user.become_it()
        {
            return Report::ChangeUser(step, errno);
        }
        if let Err(errno) = self.before.restore_in_child() {
            return Report::Signals(errno);
        }
        let (errno, candidate) = self.command.execute();
        Report::Execute(candidate, errno)
    }

    fn install_filter(&self, sockets: &ListenerTo, watch_calls: bool) -> Result<(), Report> {
        let program = if watch_calls { filter::call_filter(self.calls) } else { filter::exit_filter() };
        let installed = match seccomp::install(&program) {
            Ok(installed) => installed,
            Err(errno) => {
                self.say(Report::ListenerRefused(errno));
                return Ok(());
            }
        };
        if installed.no_new_privs {
            self.say(Report::NoNewPrivileges);
        }
        if !installed.wait_killable {
            self.say(Report::SignalsRestartHeldExits);
        }
        let send = |to: &OwnedFd| handover::send_fd(to.as_fd(), installed.listener.as_fd());
        // The guard first: from here on a process has the listener, whichever is killed. In place of a guard
        // that was killed before, the keeper forks another one.
        let _ = send(&sockets.guard);
        // Running without anybody to answer would end in ENOSYS at the exit.
        [&sockets.keeper, &sockets.app].into_iter().try_for_each(send).map_err(Report::HandOver)
    }

    fn say(&self, report: Report) {
        // Fails only when vmaudit is gone, and then the report has no reader.
        let _ = write(&self.status, &report.encode());
    }
}

/// Keeps the other bits of the personality. Container profiles refuse with EPERM or ENOSYS.
fn switch_aslr_off() -> Result<(), Errno> {
    let persona = personality::get()?;
    personality::set(persona | Persona::ADDR_NO_RANDOMIZE).map(drop)
}

/// Both limits, as `ulimit -s` of a shell does: what the command starts may raise its soft one (gcc's driver does, to
/// 64 MiB), and inherits that.
fn limit_stack(bytes: u64) -> Result<(), Errno> {
    let (_, hard) = getrlimit(Resource::RLIMIT_STACK)?;
    setrlimit(Resource::RLIMIT_STACK, bytes, bytes.min(hard))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        for report in [
            Report::NoNewPrivileges,
            Report::SignalsRestartHeldExits,
            Report::ListenerRefused(Errno::EBUSY),
            Report::HandOver(Errno::EPIPE),
            Report::Personality(Errno::EPERM),
            Report::ChangeUser(2, Errno::EAGAIN),
            Report::Signals(Errno::EINVAL),
            Report::Execute(7, Errno::ENOENT),
            Report::StackLimit(Errno::EINVAL),
        ] {
            assert_eq!(Report::decode(&report.encode()), Some(report));
        }
        assert_eq!(Report::decode(&[0; REPORT]), None);
        assert_eq!(Report::decode(&[1, 0]), None);
    }
}
