//! Trials in a forked child: whatever they do ends with it.

use super::Failure;
use crate::rights;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork, pipe};
use std::fs::File;
use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a child's answer begins with.
const WORKED: u8 = b'+';
const REFUSED: u8 = b'-';

/// Runs `body` in a child of its own; its answer is what it returns.
pub fn in_child(body: impl FnOnce() -> Result<String, Errno>) -> Result<String, Failure> {
    let (reader, writer) = pipe()?;
    // SAFETY: the child runs `body` alone and leaves with _exit; vmaudit has one thread here.
    match unsafe { fork() }? {
        ForkResult::Child => {
            drop(reader);
            // A panic must not unwind into a second copy of the caller.
            let answer = match catch_unwind(AssertUnwindSafe(body)) {
                Ok(Ok(detail)) => [&[WORKED], detail.as_bytes()].concat(),
                Ok(Err(errno)) => [&[REFUSED][..], &(errno as i32).to_ne_bytes()].concat(),
                Err(_) => Vec::new(),
            };
            let _ = File::from(writer).write_all(&answer);
            // SAFETY: _exit has no preconditions.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => {
            drop(writer);
            let mut answer = Vec::new();
            let read = File::from(reader).read_to_end(&mut answer);
            while waitpid(child, None) == Err(Errno::EINTR) {}
            read?;
            match answer.split_first() {
                Some((&WORKED, detail)) => Ok(String::from_utf8_lossy(detail).into_owned()),
                Some((&REFUSED, errno)) => {
                    let errno = errno.try_into().map_or(libc::EIO, i32::from_ne_bytes);
                    Err(Errno::from_raw(errno).into())
                }
                // Seccomp profiles may also kill.
                _ => Err(Failure::Absent("the process that tried it was killed".to_owned())),
            }
        }
    }
}

/// A child that waits to be examined; it ends when this is dropped.
pub struct Quiet {
    pid: nix::unistd::Pid,
    end: Option<std::os::fd::OwnedFd>,
}

impl Quiet {
    /// Forks it; to be called while vmaudit has one thread.
    ///
    /// # Errors
    /// Those of fork(2) and pipe(2).
    pub fn start() -> Result<Quiet, Errno> {
        let (reader, writer) = pipe()?;
        let (is_ready, ready) = pipe()?;
        // SAFETY: as above; the child only reads from a pipe until its end.
        match unsafe { fork() }? {
            ForkResult::Child => {
                drop((writer, is_ready));
                rights::give_up();
                drop(ready);
                let _ = File::from(reader).read(&mut [0]);
                // SAFETY: _exit has no preconditions.
                unsafe { libc::_exit(0) }
            }
            ForkResult::Parent { child } => {
                drop(ready);
                // Until its end: then the child has the rights that it will have.
                let _ = File::from(is_ready).read(&mut [0]);
                Ok(Quiet { pid: child, end: Some(writer) })
            }
        }
    }

    pub fn pid(&self) -> crate::model::Pid {
        self.pid.as_raw()
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        drop(self.end.take());
        // A child that was forked meanwhile may hold the pipe open, too.
        let _ = kill(self.pid, Signal::SIGKILL);
        while waitpid(self.pid, None) == Err(Errno::EINTR) {}
    }
}
