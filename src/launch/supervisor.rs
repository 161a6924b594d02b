//! Child processes one after the other, each with all that it leaves behind: nothing that one run
//! started may disturb the next one, and nothing else is ever touched.
//!
//! vmaudit becomes a subreaper (prctl(2)), so that whatever a child leaves running becomes a child
//! of vmaudit. A child that was not waited for keeps its number: signals by number are safe.

use super::error::TargetError;
use super::hold::helper;
use super::signals::{self, Arrived, Signals};
use crate::model::Pid;
use crate::sys::stat;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// How often children that got SIGTERM are searched for again, in case no signal arrives.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long helper processes may take to notice that their last target is gone.
const HELPERS: Duration = Duration::from_secs(1);

/// Why waiting for a child ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    Exited(i32),
    Killed(Signal),
    /// vmaudit was interrupted; the child still runs.
    Interrupted(Signal),
}

/// What a child left, when all that could be ended were.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Left {
    /// Names of those that were running.
    pub names: Vec<String>,
    /// Those that SIGKILL did not end in time, by name and number.
    pub remaining: Vec<String>,
}

/// Starts children, waits for them, ends what they leave.
pub struct Supervisor {
    signals: Signals,
    /// A request that came while something else was waited for.
    request: Cell<Option<Signal>>,
    /// Those that SIGKILL did not end: they are not waited for again.
    lost: RefCell<HashSet<Pid>>,
}

impl Supervisor {
    /// From here on SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD and SIGCONT are blocked in this thread.
    ///
    /// # Errors
    /// When signals or the subreaper are refused.
    pub fn new() -> Result<Supervisor, TargetError> {
        let (taken, before) = signals::block().map_err(TargetError::at("blocking signals"))?;
        let signals = Signals::open(taken, before)?;
        nix::sys::prctl::set_child_subreaper(true).map_err(TargetError::at("becoming a subreaper"))?;
        Ok(Supervisor { signals, request: Cell::new(None), lost: RefCell::default() })
    }

    /// Requests to stop from now on: they stay blocked when this is dropped.
    ///
    /// # Errors
    /// When the kernel refuses a descriptor.
    pub fn take_requests(&self) -> Result<Signals, TargetError> {
        self.signals.take_requests()
    }

    /// Starts a child with the signal mask that vmaudit was started with.
    ///
    /// # Errors
    /// Those of fork and exec.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Pid> {
        let before = self.signals.before();
        // SAFETY: between fork and exec only signal(2) and sigprocmask(2) are called.
        unsafe { command.pre_exec(move || before.restore_in_child().map_err(io::Error::from)) };
        // The handle is dropped: waiting for it is done here, by number.
        Ok(command.spawn()?.id() as Pid)
    }

    /// Until the child ends or the user interrupts. Other children that end meanwhile are reaped.
    ///
    /// # Errors
    /// When the kernel refuses to wait or to poll.
    pub fn wait(&self, child: Pid) -> Result<Waited, TargetError> {
        loop {
            while let Some(ended) = self.reap()? {
                match ended {
                    WaitStatus::Exited(pid, code) if pid.as_raw() == child => {
                        return Ok(Waited::Exited(code));
                    }
                    WaitStatus::Signaled(pid, signal, _) if pid.as_raw() == child => {
                        return Ok(Waited::Killed(signal));
                    }
                    _ => {}
                }
            }
            if let Some(signal) = self.request.take() {
                return Ok(Waited::Interrupted(signal));
            }
            self.next_signal(None)?;
        }
    }

    /// Ends every child there is, and what becomes a child because its parent ended: SIGTERM, and after
    /// `grace` SIGKILL. One that does not end even so (it waits for a device, or is traced) is left, and the
    /// next step does not wait for it.
    ///
    /// # Errors
    /// When processes cannot be listed or waited for.
    pub fn end_all(&self, grace: Duration) -> Result<Left, TargetError> {
        let begun = Instant::now();
        let mut terminated = HashSet::new();
        let mut names = Vec::new();
        loop {
            while self.reap()?.is_some() {}
            let mut children = children().map_err(TargetError::at("listing child processes"))?;
            children.retain(|child| !self.lost.borrow().contains(&child.pid));
            if children.is_empty() {
                return Ok(Left { names, remaining: Vec::new() });
            }
            if begun.elapsed() > grace + 2 * HELPERS {
                self.lost.borrow_mut().extend(children.iter().map(|child| child.pid));
                let remaining = children.iter().map(|child| format!("{} ({})", child.name, child.pid));
                return Ok(Left { names, remaining: remaining.collect() });
            }
            for Process { pid, name, ended } in children {
                let helpers = [helper::KEEPER, helper::GUARD];
                let helper = helpers.iter().any(|helper| name.as_bytes() == helper.to_bytes());
                let kill_from = if helper { grace + HELPERS } else { grace };
                let raw = nix::unistd::Pid::from_raw(pid);
                // A zombie by now, or root's while vmaudit is not: both show below or at the deadline.
                if begun.elapsed() >= kill_from {
                    let _ = kill(raw, Signal::SIGKILL);
                } else if !helper && terminated.insert(pid) {
                    names.extend(Some(name).filter(|_| !ended && is_other_program(pid)));
                    let _ = kill(raw, Signal::SIGTERM);
                    // one that is stopped cannot handle it
                    let _ = kill(raw, Signal::SIGCONT);
                }
            }
            self.next_signal(Some(POLL_INTERVAL))?;
        }
    }

    /// A child that has ended; its number may be another one's from here on.
    fn reap(&self) -> Result<Option<WaitStatus>, TargetError> {
        let ended = reap_one()?;
        if let Some(pid) = ended.and_then(|status| status.pid()) {
            self.lost.borrow_mut().remove(&pid.as_raw());
        }
        Ok(ended)
    }

    /// Waits for a signal, and keeps it if it is a request to stop.
    fn next_signal(&self, timeout: Option<Duration>) -> Result<(), TargetError> {
        self.signals.wait_for(timeout)?;
        while let Some(arrived) = self.signals.next()? {
            if let Arrived::Request { signal, .. } = arrived {
                self.request.set(Some(signal));
            }
        }
        Ok(())
    }
}

/// A child that has ended; None when none has, or there is none.
fn reap_one() -> Result<Option<WaitStatus>, TargetError> {
    loop {
        return match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => Ok(None),
            Ok(status) => Ok(Some(status)),
            Err(Errno::EINTR) => continue,
            Err(errno) => Err(TargetError { step: "waitpid", errno }),
        };
    }
}

struct Process {
    pid: Pid,
    name: String,
    ended: bool,
}

/// The children of this process and their names. /proc/PID/task/TID/children would be shorter, but
/// not every kernel has it (CONFIG_PROC_CHILDREN).
fn children() -> Result<Vec<Process>, Errno> {
    let me = nix::unistd::getpid().as_raw();
    let entries = std::fs::read_dir("/proc").map_err(errno_of)?;
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<Pid>().ok());
    let child = |pid: Pid| {
        stat::of(pid, |stat| {
            let name = || String::from_utf8_lossy(stat.comm).into_owned();
            // a first thread that has ended, perhaps before the others
            let ended = stat.state()? == b'Z';
            (stat.field(stat::PARENT) == Some(me)).then(|| Process { pid, name: name(), ended })
        })
    };
    Ok(pids.filter_map(child).collect())
}

fn errno_of(error: io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
}

/// A running program that is not vmaudit: its own helpers end with their parent, and are not reported.
fn is_other_program(pid: Pid) -> bool {
    let exe = |whose: &str| std::fs::read_link(format!("/proc/{whose}/exe"));
    match (exe("self"), exe(&pid.to_string())) {
        (Ok(own), Ok(other)) => own != other,
        (Err(_), Ok(_)) => true,
        // it is ending
        (_, Err(_)) => false,
    }
}
