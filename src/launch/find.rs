//! Finding a process that runs already, by the number that the user gives. From then on it is
//! held by descriptor: a number may have a new owner at any time.

use crate::model::{Pid, Tid};
use crate::sys::pidfd;
use crate::sys::stat::{self, Stat};
use nix::errno::Errno;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Why there is no tracing the process with this number.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    #[error("{pid}: no such process")]
    NoSuchProcess { pid: Pid },
    #[error("{pid} is vmaudit itself")]
    Itself { pid: Pid },
    #[error("{pid} ({name}) is a kernel thread: it has no address space of its own")]
    KernelThread { pid: Pid, name: String },
    #[error("{pid} ({name}) has ended already and waits for its parent (a zombie): it has no address space")]
    Zombie { pid: Pid, name: String },
    #[error("{pid} exists, but /proc does not show it (hidepid): try sudo vmaudit attach -p {pid}")]
    Hidden { pid: Pid },
    #[error("{pid}: {step}: {}", errno.desc())]
    System { pid: Pid, step: &'static str, errno: Errno },
}

/// A living process, held by descriptor.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    pidfd: OwnedFd,
    name: String,
    requested: Tid,
}

impl Process {
    /// The process with this number, or the one that the thread with this number belongs to.
    ///
    /// # Errors
    /// When there is none, or none that could be traced.
    pub fn find(number: Pid) -> Result<Process, FindError> {
        let status = Status::read(number);
        let pid = match &status {
            Ok(status) => status.tgid,
            Err(_) => number,
        };
        if pid == std::process::id() as Pid {
            return Err(FindError::Itself { pid: number });
        }
        let gone = || FindError::NoSuchProcess { pid: number };
        let pidfd = pidfd::open(pid).map_err(|errno| match errno {
            // Linux 6.15 and later say ENOENT, those before EINVAL, where only a thread is left.
            Errno::ESRCH | Errno::ENOENT | Errno::EINVAL => gone(),
            errno => FindError::System { pid, step: "pidfd_open (Linux 5.3)", errno },
        })?;
        let mut process = Process { pid, pidfd, name: String::new(), requested: number };
        // Read again: only now it is certain that the number is the held process's.
        let status = match Status::read(pid) {
            Ok(status) => status,
            Err(_) if process.has_ended() => return Err(gone()),
            Err(_) => return Err(FindError::Hidden { pid }),
        };
        process.name.clone_from(&status.name);
        if process.has_ended() {
            return Err(FindError::Zombie { pid, name: status.name });
        }
        if status.kernel_thread {
            return Err(FindError::KernelThread { pid, name: status.name });
        }
        if number != pid && !fs::exists(format!("/proc/{pid}/task/{number}")).unwrap_or(false) {
            return Err(gone());
        }
        Ok(process)
    }

    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Name of its first thread when it was found; lossy.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The requested number, where it is that of another thread than the first.
    pub fn found_by_thread(&self) -> Option<Tid> {
        Some(self.requested).filter(|&tid| tid != self.pid)
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// False as long as one thread lives. To be called after something was read by the process's number:
    /// false means that the number was the process's all the time.
    pub fn has_ended(&self) -> bool {
        pidfd::has_ended(self.pidfd.as_fd())
    }
}

/// What is needed of `/proc/ID/status` and `stat`.
struct Status {
    name: String,
    tgid: Pid,
    kernel_thread: bool,
}

impl Status {
    fn read(id: Pid) -> io::Result<Status> {
        let status = fs::read(format!("/proc/{id}/status"))?;
        let stat = fs::read(format!("/proc/{id}/stat"))?;
        Status::parse(&status, &stat).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn parse(status: &[u8], stat: &[u8]) -> Option<Status> {
        let text = String::from_utf8_lossy(status);
        let field = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        let flags: u64 = Stat::parse(stat)?.field(stat::FLAGS)?;
        Some(Status {
            name: field("Name:")?.to_owned(),
            tgid: field("Tgid:")?.parse().ok()?,
            kernel_thread: flags & stat::PF_KTHREAD != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child(command: &str) -> std::process::Child {
        let mut sh = std::process::Command::new("sh");
        sh.args(["-c", command]).stdin(std::process::Stdio::piped()).spawn().expect("sh")
    }

    #[test]
    fn a_living_process_is_found_and_its_end_seen() {
        let mut child = child("read line");
        let process = Process::find(child.id() as Pid).expect("it lives");
        assert_eq!((process.pid(), process.found_by_thread()), (child.id() as Pid, None));
        assert!(!process.has_ended());
        drop(child.stdin.take());
        // Not waited for: a zombie has ended.
        // SAFETY: all-zero bytes are a valid siginfo_t; waits for our own child without reaping it.
        unsafe {
            let mut end: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(libc::P_PID, child.id(), &raw mut end, libc::WEXITED | libc::WNOWAIT);
        }
        assert!(process.has_ended());
        let error = Process::find(child.id() as Pid).expect_err("a zombie");
        assert!(matches!(error, FindError::Zombie { .. }), "{error}");
        child.wait().expect("waited for");
        let error = Process::find(child.id() as Pid).expect_err("gone");
        assert!(matches!(error, FindError::NoSuchProcess { .. }), "{error}");
    }

    #[test]
    fn vmaudit_itself_is_refused_by_process_and_by_thread() {
        let own = std::process::id() as Pid;
        assert!(matches!(Process::find(own), Err(FindError::Itself { .. })));
        // Tests run in threads of their own.
        let tid = nix::unistd::gettid().as_raw();
        assert!(matches!(Process::find(tid), Err(FindError::Itself { pid }) if pid == tid));
    }

    #[test]
    fn kernel_threads_are_recognised_by_their_flag_and_odd_names_do_no_harm() {
        let status = b"Name:\tk) 1 (x\nState:\tS (sleeping)\nTgid:\t2\n";
        let parsed = Status::parse(status, b"2 (k) 1 (x) S 0 0 0 0 -1 2129984 0 0").expect("sound");
        assert!(parsed.kernel_thread);
        assert_eq!((parsed.name.as_str(), parsed.tgid), ("k) 1 (x", 2));
        let parsed = Status::parse(status, b"2 (k) S 0 0 0 0 -1 4194560 0 0").expect("sound");
        assert!(!parsed.kernel_thread);
        assert!(Status::parse(b"", b"").is_none());
        assert!(Status::parse(status, b"2 (k) S").is_none());
    }
}
