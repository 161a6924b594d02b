//! Whether seccomp user notification works here: a call of a child is held, examined and continued.

use super::filter;
use super::seccomp::{self, Listener};
use crate::launch::fork::fork_into;
use crate::launch::fork::reap;
use crate::sys::{memory, poll};
use nix::errno::Errno;
use nix::unistd::{pipe, read, write};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Longer than any machine needs: then the trial has failed.
const PATIENCE: Duration = Duration::from_secs(2);

/// A step of the trial that can fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HoldStep {
    /// A pipe, and processes: the trial's own means.
    Process,
    /// seccomp(2), which installs the filter and returns its listener.
    Listener,
    /// A call arrives at the listener, and goes on.
    Call,
}

/// Why no call could be held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{errno}")]
pub struct NotHeld {
    pub step: HoldStep,
    pub errno: Errno,
}

impl NotHeld {
    fn at(step: HoldStep) -> impl Fn(Errno) -> NotHeld {
        move |errno| NotHeld { step, errno }
    }
}

/// What came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotificationTrial {
    /// A call was held, and went on: None, or why not.
    pub held: Option<NotHeld>,
    /// NO_NEW_PRIVS had to be set (no CAP_SYS_ADMIN).
    pub no_new_privs: bool,
    /// SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (5.19).
    pub wait_killable: bool,
    /// /proc/TID/syscall showed where the held call was made: None, or why not.
    pub place: Option<Errno>,
    /// Its stack could be read (process_vm_readv, else /proc/TID/mem): None, or why not.
    pub stack: Option<Errno>,
}

const RECORD: usize = 6 * size_of::<i32>();

impl NotificationTrial {
    /// Tries it in a child, because a filter is for life. To be called while vmaudit has one thread.
    ///
    /// # Errors
    /// When not even a child can be had, or it was killed.
    pub fn run() -> Result<NotificationTrial, NotHeld> {
        let no_process = NotHeld::at(HoldStep::Process);
        let (from, to) = pipe().map_err(&no_process)?;
        let child = fork_into(move || {
            let trial = hold_a_call();
            write(&to, &trial.encode()).map(drop)
        })
        .map_err(&no_process)?;
        let mut record = [0; RECORD];
        let got = read(&from, &mut record);
        reap(child);
        // A profile that kills leaves nothing to read.
        match got.map_err(no_process)? {
            RECORD => Ok(NotificationTrial::decode(&record)),
            _ => Err(NotHeld { step: HoldStep::Listener, errno: Errno::ECHILD }),
        }
    }

    fn failed(why: NotHeld) -> NotificationTrial {
        NotificationTrial {
            held: Some(why),
            no_new_privs: false,
            wait_killable: false,
            place: Some(why.errno),
            stack: Some(why.errno),
        }
    }

    fn encode(&self) -> [u8; RECORD] {
        let number = |errno: Option<Errno>| errno.map_or(0, |errno| errno as i32);
        let fields = [
            number(self.held.map(|why| why.errno)),
            self.held.map_or(0, |why| why.step as i32),
            i32::from(self.no_new_privs),
            i32::from(self.wait_killable),
            number(self.place),
            number(self.stack),
        ];
        let mut out = [0; RECORD];
        for (slot, field) in out.chunks_exact_mut(4).zip(fields) {
            slot.copy_from_slice(&field.to_ne_bytes());
        }
        out
    }

    fn decode(record: &[u8; RECORD]) -> NotificationTrial {
        let mut fields = record.chunks_exact(4).map(|b| b.try_into().map_or(0, i32::from_ne_bytes));
        let mut next = || fields.next().unwrap_or(0);
        let errno = |number: i32| (number != 0).then(|| Errno::from_raw(number));
        let held = errno(next());
        let step = match next() {
            step if step == HoldStep::Process as i32 => HoldStep::Process,
            step if step == HoldStep::Listener as i32 => HoldStep::Listener,
            _ => HoldStep::Call,
        };
        NotificationTrial {
            held: held.map(NotHeld::at(step)),
            no_new_privs: next() != 0,
            wait_killable: next() != 0,
            place: errno(next()),
            stack: errno(next()),
        }
    }
}

/// In the child: holds getppid(2) of a child of its own.
fn hold_a_call() -> NotificationTrial {
    let installed = match seccomp::install(&filter::notify_filter(&[libc::SYS_getppid as i32])) {
        Ok(installed) => installed,
        Err(errno) => return NotificationTrial::failed(NotHeld { step: HoldStep::Listener, errno }),
    };
    let trial = NotificationTrial {
        no_new_privs: installed.no_new_privs,
        wait_killable: installed.wait_killable,
        ..NotificationTrial::failed(NotHeld { step: HoldStep::Call, errno: Errno::ETIMEDOUT })
    };
    let caller = fork_into(|| {
        nix::unistd::getppid();
        Ok(())
    });
    match caller {
        Ok(caller) => {
            let trial = serve_once(installed.listener, trial);
            // The listener is closed by now: a call that is still held ends with ENOSYS.
            reap(caller);
            trial
        }
        Err(errno) => NotificationTrial { held: Some(NotHeld { step: HoldStep::Process, errno }), ..trial },
    }
}

fn serve_once(listener: OwnedFd, trial: NotificationTrial) -> NotificationTrial {
    let listener = Listener::new(listener);
    if !poll::wait_readable(&listener, Some(PATIENCE)) {
        return trial;
    }
    // SAFETY: all-zero bytes are a valid seccomp_notif, a plain C struct of integers.
    let mut slot: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    if let Err(errno) = listener.receive(&mut slot) {
        return NotificationTrial { held: Some(NotHeld { step: HoldStep::Call, errno }), ..trial };
    }
    let (place, stack) = match stack_pointer(slot.pid as i32) {
        Ok(sp) => (None, read_word(slot.pid as i32, sp).err()),
        Err(errno) => (Some(errno), Some(errno)),
    };
    let held = listener.let_continue(slot.id).err().map(NotHeld::at(HoldStep::Call));
    NotificationTrial { held, place, stack, ..trial }
}

/// `NR ARG0 … ARG5 SP PC` (fs/proc/base.c, proc_pid_syscall); `running` for a moment after the call
/// was notified.
fn stack_pointer(tid: i32) -> Result<u64, Errno> {
    const ATTEMPTS: u32 = 1000;
    for _ in 0..ATTEMPTS {
        let text = std::fs::read_to_string(format!("/proc/{tid}/syscall"))
            .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)))?;
        if let Some(sp) = text.split_ascii_whitespace().nth(7) {
            let digits = sp.trim_start_matches("0x");
            return u64::from_str_radix(digits, 16).map_err(|_| Errno::EINVAL);
        }
        std::thread::yield_now();
    }
    Err(Errno::EAGAIN)
}

fn read_word(pid: i32, at: u64) -> Result<(), Errno> {
    let mut word = [0; 8];
    memory::read(pid, at, &mut word).map(drop).or_else(|refused| {
        match memory::read_through_file(pid, at, &mut word) {
            Ok(count) if count == word.len() => Ok(()),
            _ => Err(refused),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let trial = NotificationTrial {
            held: None,
            no_new_privs: true,
            wait_killable: false,
            place: Some(Errno::EACCES),
            stack: Some(Errno::EPERM),
        };
        assert_eq!(NotificationTrial::decode(&trial.encode()), trial);
        for step in [HoldStep::Process, HoldStep::Listener, HoldStep::Call] {
            let trial = NotificationTrial { held: Some(NotHeld { step, errno: Errno::EAGAIN }), ..trial };
            assert_eq!(NotificationTrial::decode(&trial.encode()), trial);
        }
    }
}
