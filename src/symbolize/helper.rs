//! The process in which DWARF is read: a fork of vmaudit's that answers through a pipe.
//!
//! The debugging information is the target's, and what it costs to read it is the target's choice, too: eight megabytes
//! can be said to expand to gigabytes, a line table has rows that no bytes of the file stand for, and a mapped file may
//! shrink. Whatever that does to the reader, a SIGBUS or the end of its memory, ends this process alone.

use crate::model::Pid;
use crate::rights;
use crate::sys::{file, poll};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::prctl::{set_dumpable, set_pdeathsig};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork, getpid, getppid, pipe2};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// A message of at most this many bytes is taken; CHUNK addresses have some hundred kilobytes.
const LARGEST_MESSAGE: usize = 32 << 20;
/// What is read from the pipe at a time, bytes.
const STEP: usize = 1 << 16;
/// The kernel's first choice where memory ends (/proc/PID/oom_score_adj).
const FIRST_TO_GO: &[u8] = b"1000";

/// A helper process, until it is dropped: then it is killed.
pub(super) struct Helper {
    pid: Pid,
    answers: File,
    received: Vec<u8>,
}

/// What came of a helper.
pub(super) enum Received {
    Message(Vec<u8>),
    /// It has ended, without another message.
    Ended(WaitStatus),
    TimeOver,
    /// It said more than is taken.
    TooMuch,
}

/// The helper's end of the pipe.
pub(super) struct Outbox(File);

impl Helper {
    /// Forks it. Of the caller's descriptors it has only `kept`, files open for reading. It ends with the caller, without
    /// a core file, and takes at most `time` of a processor.
    ///
    /// # Errors
    /// Those of pipe(2) and fork(2).
    pub fn start(kept: &[RawFd], time: Duration, body: impl FnOnce(&mut Outbox)) -> Result<Helper, Errno> {
        let (answers, outbox) = pipe2(OFlag::O_CLOEXEC)?;
        let parent = getpid();
        let mut open: Vec<_> = kept.iter().copied().chain([outbox.as_raw_fd()]).collect();
        // SAFETY: the child runs `body` alone and leaves with _exit; glibc and musl make malloc usable after a fork.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => {
                Ok(Helper { pid: child.as_raw(), answers: File::from(answers), received: Vec::new() })
            }
            ForkResult::Child => {
                let confined = confine(kept, time, parent).is_ok();
                // Before Linux 5.9 all stay open, which matters where something is lent.
                let closed = rights::give_up_all_but(&mut open).is_ok() || rights::viewer().is_none();
                if confined && closed {
                    let mut outbox = Outbox(File::from(outbox));
                    // A panic must not unwind into a second copy of the caller.
                    let _ = catch_unwind(AssertUnwindSafe(|| body(&mut outbox)));
                }
                // SAFETY: _exit takes a number and does not return.
                unsafe { libc::_exit(0) }
            }
        }
    }

    /// The next message, until a deadline.
    pub fn receive(&mut self, deadline: Instant) -> Received {
        let mut buffer = [0; STEP];
        loop {
            let size = self.received.first_chunk().map(|size| u32::from_le_bytes(*size) as usize);
            match size {
                Some(size) if size > LARGEST_MESSAGE => return Received::TooMuch,
                Some(size) if self.received.len() >= size + 4 => {
                    let rest = self.received.split_off(size + 4);
                    let message = std::mem::replace(&mut self.received, rest);
                    return Received::Message(message.get(4..).unwrap_or_default().to_vec());
                }
                _ => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !poll::wait_readable(&self.answers, Some(left)) {
                return Received::TimeOver;
            }
            match self.answers.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(count) if count > 0 => {
                    self.received.extend_from_slice(buffer.get(..count).unwrap_or_default());
                }
                _ => return Received::Ended(self.end()),
            }
        }
    }

    /// Its number is its own until here: nobody else waits for it.
    fn end(&mut self) -> WaitStatus {
        let pid = nix::unistd::Pid::from_raw(std::mem::take(&mut self.pid));
        if pid.as_raw() == 0 {
            return WaitStatus::StillAlive;
        }
        // It closed its pipe: it has ended, or is about to.
        loop {
            match waitpid(pid, None) {
                Err(Errno::EINTR) => {}
                ended => return ended.unwrap_or(WaitStatus::StillAlive),
            }
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        if self.pid != 0 {
            let _ = kill(nix::unistd::Pid::from_raw(self.pid), Signal::SIGKILL);
            self.end();
        }
    }
}

impl Outbox {
    /// # Errors
    /// When nobody reads any more.
    pub fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let size = u32::try_from(message.len()).map_err(io::Error::other)?;
        self.0.write_all(&size.to_le_bytes())?;
        self.0.write_all(message)
    }
}

/// From here on this process may have so many bytes more of writable memory than it has now (RLIMIT_DATA): an allocation
/// beyond ends it. Mapped files do not count.
///
/// # Errors
/// When /proc/self/statm cannot be read, or the limit cannot be set.
pub(super) fn limit_memory(more: u64) -> io::Result<()> {
    /// Pages of data and stack (proc_pid_statm(5)).
    const DATA: usize = 5;
    let statm = file::read("/proc/self/statm")?;
    let words = String::from_utf8_lossy(&statm).into_owned();
    let pages = words.split_ascii_whitespace().nth(DATA).and_then(|pages| pages.parse::<u64>().ok());
    let now = pages.ok_or(io::ErrorKind::InvalidData)?.saturating_mul(crate::model::PAGE);
    let (_, hard) = getrlimit(Resource::RLIMIT_DATA)?;
    setrlimit(Resource::RLIMIT_DATA, now.saturating_add(more).min(hard), hard)?;
    Ok(())
}

/// So that whatever happens stays here, and is over when vmaudit is.
fn confine(kept: &[RawFd], time: Duration, parent: nix::unistd::Pid) -> Result<(), Errno> {
    // A handler of vmaudit's must not run twice. Faults are not held back by this.
    SigSet::all().thread_set_mask()?;
    set_pdeathsig(Signal::SIGKILL)?;
    if getppid() != parent {
        return Err(Errno::ESRCH);
    }
    // If that is refused, the kernel chooses as it does.
    let _ = std::fs::write("/proc/self/oom_score_adj", FIRST_TO_GO);
    set_dumpable(false)?;
    let seconds = time.as_secs() + 1;
    setrlimit(Resource::RLIMIT_CPU, seconds, seconds)?;
    // Last words, of an allocator for example: written to what is open for reading, they go nowhere.
    if let Some(&nowhere) = kept.first() {
        // SAFETY: dup2 takes numbers; nothing here owns standard error.
        Errno::result(unsafe { libc::dup2(nowhere, libc::STDERR_FILENO) })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENOUGH: Duration = Duration::from_secs(60);

    fn helper(body: impl FnOnce(&mut Outbox)) -> Helper {
        let file = File::open("/dev/null").expect("opened");
        Helper::start(&[file.as_raw_fd()], ENOUGH, body).expect("a child")
    }

    #[test]
    fn messages_arrive_in_order_and_then_the_end() {
        let mut helper = helper(|outbox| {
            outbox.send(b"").expect("sent");
            outbox.send(&[7; 200_000]).expect("sent");
        });
        let deadline = Instant::now() + ENOUGH;
        assert!(matches!(helper.receive(deadline), Received::Message(empty) if empty.is_empty()));
        assert!(matches!(helper.receive(deadline), Received::Message(long) if long == [7; 200_000]));
        assert!(matches!(helper.receive(deadline), Received::Ended(WaitStatus::Exited(_, 0))));
    }

    #[test]
    fn an_allocation_beyond_the_limit_ends_the_helper_alone() {
        let mut helper = helper(|outbox| {
            limit_memory(8 << 20).expect("limited");
            outbox.send(b"before").expect("sent");
            let much = vec![1u8; 64 << 20];
            outbox.send(&much[..1]).expect("sent");
        });
        let deadline = Instant::now() + ENOUGH;
        assert!(matches!(helper.receive(deadline), Received::Message(_)));
        let ended = helper.receive(deadline);
        assert!(matches!(ended, Received::Ended(WaitStatus::Signaled(_, Signal::SIGABRT, false))));
    }

    #[test]
    fn a_file_that_shrinks_ends_the_helper_alone() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(1).expect("a byte");
        // SAFETY: nobody reads it in this process once it has shrunk; the helper's fault is what is tested.
        let mapped = unsafe { memmap2::Mmap::map(&file) }.expect("mapped");
        assert_eq!(mapped[0], 0);
        file.set_len(0).expect("shrunk");
        let mut helper = helper(|outbox| outbox.send(&[mapped[0]]).expect("sent"));
        let deadline = Instant::now() + ENOUGH;
        let ended = helper.receive(deadline);
        assert!(matches!(ended, Received::Ended(WaitStatus::Signaled(_, Signal::SIGBUS, false))));
    }

    #[test]
    fn what_says_too_much_is_not_listened_to() {
        let mut helper = helper(|outbox| outbox.0.write_all(&u32::MAX.to_le_bytes()).expect("sent"));
        assert!(matches!(helper.receive(Instant::now() + ENOUGH), Received::TooMuch));
    }

    #[test]
    fn an_endless_one_is_killed_and_has_no_descriptor_of_the_callers() {
        let (reader, writer) = nix::unistd::pipe().expect("a pipe");
        let helper = helper(|_| {
            loop {
                std::hint::spin_loop();
            }
        });
        drop(writer);
        // The helper's copy is closed: this is the end of the file, and no wait.
        assert_eq!(File::from(reader).read(&mut [0]).expect("read"), 0);
        let pid = helper.pid;
        drop(helper);
        assert_eq!(kill(nix::unistd::Pid::from_raw(pid), None), Err(Errno::ESRCH));
    }
}
