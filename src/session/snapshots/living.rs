//! A running process, held by descriptor while it is examined: its number alone may have a new
//! owner by the time the last file is read.

use super::cgroup_limits::with_cgroup_limits;
use crate::attribution::rules::{heap_headers, signs};
use crate::model::{Observations, Pid, Tid};
use crate::procfs::{ObserveError, ObserveOptions, ProcessStatus, observe, read_status};
use crate::session::say::say;
use crate::session::tracer::remedy::may_not_be_read;
use crate::sys::pidfd;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// How often a process that executes another program meanwhile is examined again.
const ATTEMPTS: u32 = 3;

/// Why a process cannot be examined.
#[derive(thiserror::Error, Debug)]
pub enum LivingError {
    #[error("there is no process {0}")]
    Gone(Pid),
    #[error("process {0} has ended, and its parent has not waited for it yet (a zombie): nothing is mapped")]
    Zombie(Pid),
    #[error("{0} ({1}) is a thread of the kernel: it has no address space of its own")]
    KernelThread(Pid, String),
    #[error("process {0} ended while it was read: what was read may be incomplete, and is not shown")]
    Ended(Pid),
    #[error("process {0} executed another program again and again while it was read")]
    KeepsExecuting(Pid),
    #[error("cannot hold process {pid} by a descriptor (pidfd_open): {source}")]
    NoHandle { pid: Pid, source: io::Error },
    #[error("process {pid} may not be read: {source}\n{remedy}")]
    Forbidden { pid: Pid, source: ObserveError, remedy: String },
    #[error("{0}")]
    Observe(#[from] ObserveError),
}

/// A process and a living thread of it.
pub struct Living {
    pub pid: Pid,
    /// The number that the user gave, where it was a thread's.
    requested_tid: Option<Tid>,
    tid: Tid,
    handle: OwnedFd,
    owner: u32,
}

impl Living {
    /// Finds the process that number `number` (of a process or a thread) belongs to.
    ///
    /// # Errors
    /// When there is none, or none with an address space.
    pub fn open(number: Pid) -> Result<Living, LivingError> {
        let requested = status_of(number, number)?;
        let pid = requested.pid;
        let handle = pidfd::open(pid).map_err(|errno| match errno {
            Errno::ESRCH => LivingError::Gone(pid),
            errno => LivingError::NoHandle { pid, source: errno.into() },
        })?;
        // From here on the number is this process' own, until the handle says that it has ended.
        let status = status_of(pid, pid)?;
        let tid = if status.has_memory { pid } else { Living::other_thread(pid, &status)? };
        let requested_tid = (requested.pid != number).then_some(number);
        Ok(Living { pid, requested_tid, tid, handle, owner: status.real_uid() })
    }

    /// Sends a signal to the process itself, not to another one that has its number by now.
    ///
    /// # Errors
    /// As pidfd_send_signal(2).
    pub fn signal(&self, signal: Signal) -> Result<(), Errno> {
        pidfd::send_signal(self.handle.as_fd(), signal)
    }

    /// It has ended, and its number may be another's.
    pub fn has_ended(&self) -> bool {
        pidfd::has_ended(&self.handle)
    }

    /// A thread that shows the memory.
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Each process that these numbers belong to, once and in their order, or why it cannot be read.
    pub fn open_each(numbers: &[Pid]) -> impl Iterator<Item = Result<Living, LivingError>> {
        let mut opened: HashSet<Pid> = HashSet::new();
        numbers.iter().filter_map(move |&number| match Living::open(number) {
            Ok(living) => {
                living.say_of_thread();
                opened.insert(living.pid).then_some(Ok(living))
            }
            Err(error) => Some(Err(error)),
        })
    }

    /// Says so where the number that the user gave is a thread's.
    pub fn say_of_thread(&self) {
        if let Some(tid) = self.requested_tid {
            say(format_args!("{tid} is a thread of process {}: reading that process", self.pid));
        }
    }

    /// When the first thread has exited, the others go on, and only they show the memory.
    fn other_thread(pid: Pid, status: &ProcessStatus) -> Result<Tid, LivingError> {
        if status.state != b'Z' && status.state != b'X' {
            let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
            return Err(LivingError::KernelThread(pid, String::from_utf8_lossy(&name).trim_end().to_owned()));
        }
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).map_err(|_| LivingError::Gone(pid))?;
        let tids = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse::<Tid>().ok());
        let lives = |tid: &Tid| read_status(pid, *tid).is_ok_and(|status| status.has_memory);
        tids.into_iter().find(lives).ok_or(LivingError::Zombie(pid))
    }

    /// Reads the process; all of what is returned is of one program in one process.
    ///
    /// # Errors
    /// When it may not be read, or did not last.
    pub fn observe(&self) -> Result<Observations, LivingError> {
        self.observe_with(for_rules())
    }

    /// As [`Living::observe`], of what `options` request.
    ///
    /// # Errors
    /// The same.
    pub fn observe_with(&self, options: ObserveOptions) -> Result<Observations, LivingError> {
        for _ in 0..ATTEMPTS {
            let program = self.program();
            let seen = observe(self.pid, self.tid, options);
            let same = self.program() == program;
            if self.has_ended() {
                return Err(LivingError::Ended(self.pid));
            }
            match seen {
                Ok(seen) if same => return Ok(with_cgroup_limits(seen)),
                Ok(_) => {}
                Err(source @ ObserveError::PermissionDenied { .. }) => {
                    return Err(LivingError::Forbidden { pid: self.pid, source, remedy: self.remedy() });
                }
                Err(error) if same => return Err(error.into()),
                Err(_) => {}
            }
        }
        Err(LivingError::KeepsExecuting(self.pid))
    }

    /// The auxiliary vector changes with every execve: it holds addresses, and the place of sixteen
    /// random bytes. Empty where it may not be read.
    fn program(&self) -> Vec<u8> {
        fs::read(format!("/proc/{}/auxv", self.tid)).unwrap_or_default()
    }

    /// What to do where this user may not read the process.
    fn remedy(&self) -> String {
        let (pid, owner) = (self.pid, owner(self.owner));
        let copy =
            format!("a copy of /proc/{pid}/smaps made by a user who may read it works with --smaps FILE");
        format!("it belongs to {owner}: {}; {copy}", may_not_be_read())
    }
}

/// Everything that the rules use of a process.
pub fn for_rules() -> ObserveOptions {
    ObserveOptions { code: signs(), headers: heap_headers(), ..ObserveOptions::default() }
}

fn status_of(pid: Pid, tid: Tid) -> Result<ProcessStatus, LivingError> {
    read_status(pid, tid).map_err(|error| match error {
        ObserveError::Gone { pid, .. } => LivingError::Gone(pid),
        other => other.into(),
    })
}

/// `root`, `uid 1000`.
fn owner(uid: u32) -> String {
    match nix::unistd::User::from_uid(uid.into()) {
        Ok(Some(user)) => user.name,
        _ => format!("uid {uid}"),
    }
}
