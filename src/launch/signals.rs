//! The signals vmaudit takes while the target runs, through a signalfd.

use super::error::TargetError;
use crate::sys::file::restore_descriptor_limit;
use crate::sys::poll::poll;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, pthread_sigmask, signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Those that stop vmaudit.
const REQUESTS: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// SIGXFSZ would end vmaudit by default, and is ignored: programs that it starts get the default back.
static FILE_LIMIT_ENDS: AtomicBool = AtomicBool::new(false);

/// From here on a write beyond the limit on file sizes (ulimit -f) fails with EFBIG, as one to a full disk
/// fails, and does not end vmaudit. To be called first.
///
/// # Errors
/// None in practice.
pub fn survive_file_limit() -> Result<(), Errno> {
    // SAFETY: ignoring a signal installs no handler.
    let before = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }?;
    FILE_LIMIT_ENDS.store(matches!(before, SigHandler::SigDfl), Ordering::Relaxed);
    Ok(())
}

/// What the mask and SIGCHLD's disposition were, for the child and for afterwards.
#[derive(Clone, Copy)]
pub struct Before {
    mask: SigSet,
    child_handler: SigHandler,
}

/// Blocks the signals that vmaudit reads from a descriptor. A request that was ignored when
/// vmaudit started (nohup, a shell's background job) stays ignored, here and in the target.
pub fn block() -> Result<(SigSet, Before), Errno> {
    let mut taken = SigSet::empty();
    for request in REQUESTS {
        if !is_ignored(request) {
            taken.add(request);
        }
    }
    taken.add(Signal::SIGCHLD);
    taken.add(Signal::SIGCONT);
    let mut mask = SigSet::empty();
    pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&taken), Some(&mut mask))?;
    // With SIGCHLD ignored the kernel would reap the child, and its status would be lost.
    // SAFETY: no handler is installed.
    let child_handler = unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
    Ok((taken, Before { mask, child_handler }))
}

impl Before {
    /// For the child: what vmaudit was started with, but SIGPIPE, which Rust's runtime ignores; the limit on open
    /// files, too.
    pub fn restore_in_child(&self) -> Result<(), Errno> {
        restore_descriptor_limit()?;
        if FILE_LIMIT_ENDS.load(Ordering::Relaxed) {
            // SAFETY: no handler is installed.
            unsafe { signal(Signal::SIGXFSZ, SigHandler::SigDfl) }?;
        }
        // SAFETY: no handler is installed.
        unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) }?;
        self.restore()
    }

    pub fn restore(&self) -> Result<(), Errno> {
        // SAFETY: puts back what was there.
        unsafe { signal(Signal::SIGCHLD, self.child_handler) }?;
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&self.mask), None)
    }
}

fn is_ignored(which: Signal) -> bool {
    // SAFETY: all-zero bytes are a valid sigaction, which the call overwrites; with a null
    // second argument nothing is changed.
    let (result, action) = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        (libc::sigaction(which as libc::c_int, std::ptr::null(), &mut action), action)
    };
    result == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// A signal that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrived {
    /// Some child changed its state.
    Child,
    /// vmaudit was stopped and goes on.
    Continued,
    Request {
        signal: Signal,
        from_terminal: bool,
    },
}

/// Takes a request that has come by now, if it would have ended what vmaudit starts.
pub fn take_pending(taken: &SigSet, before: &Before) -> Option<Signal> {
    // SAFETY: all-zero bytes are a valid sigset_t, which the call overwrites.
    let (result, waiting) = unsafe {
        let mut waiting: libc::sigset_t = std::mem::zeroed();
        (libc::sigpending(&raw mut waiting), waiting)
    };
    // SAFETY: the set was made by sigpending.
    let is_waiting = |which: Signal| unsafe { libc::sigismember(&raw const waiting, which as i32) == 1 };
    let ends = |which: Signal| taken.contains(which) && !before.mask.contains(which);
    let signal = REQUESTS.into_iter().find(|&which| result == 0 && ends(which) && is_waiting(which))?;
    // It is there: nothing is waited for.
    let mut only = SigSet::empty();
    only.add(signal);
    only.wait().ok()
}

/// The blocked signals as they arrive. Dropped, they are what they were, unless others took the requests.
pub struct Signals {
    fd: SignalFd,
    taken: SigSet,
    before: Before,
    /// Their new owner unblocks them.
    requests_taken: Cell<bool>,
}

impl Signals {
    pub(super) fn open(taken: SigSet, before: Before) -> Result<Signals, TargetError> {
        let fd = SignalFd::with_flags(&taken, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .map_err(TargetError::at("signalfd"))?;
        Ok(Signals { fd, taken, before, requests_taken: Cell::new(false) })
    }

    /// Requests to stop, when there is nothing left to stop but vmaudit itself: they stay blocked as long as
    /// what is returned lives.
    pub(super) fn take_requests(&self) -> Result<Signals, TargetError> {
        let requests = Signals::open(self.taken, self.before)?;
        self.requests_taken.set(true);
        Ok(requests)
    }

    pub(super) fn before(&self) -> Before {
        self.before
    }

    /// The next signal; None when there is none now.
    pub(super) fn next(&self) -> Result<Option<Arrived>, TargetError> {
        let Some(info) = self.fd.read_signal().map_err(TargetError::at("signalfd"))? else { return Ok(None) };
        let signal = Signal::try_from(info.ssi_signo as i32).map_err(TargetError::at("signalfd"))?;
        Ok(Some(match signal {
            Signal::SIGCHLD => Arrived::Child,
            Signal::SIGCONT => Arrived::Continued,
            signal => Arrived::Request {
                signal, // The terminal's driver sent it, to the whole foreground process group.
                from_terminal: info.ssi_code == libc::SI_KERNEL,
            },
        }))
    }

    /// Until a signal can be read, or the time is over (None: never).
    ///
    /// # Errors
    /// When the kernel refuses what it never refuses.
    pub fn wait_for(&self, timeout: Option<Duration>) -> Result<(), TargetError> {
        let mut fds = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, timeout).map(drop).map_err(TargetError::at("ppoll"))
    }

    /// Waits for the next request to stop.
    ///
    /// # Errors
    /// The same.
    pub fn wait(&self) -> Result<Signal, TargetError> {
        loop {
            match self.next()? {
                Some(Arrived::Request { signal, .. }) => return Ok(signal),
                Some(Arrived::Child | Arrived::Continued) => continue,
                None => {}
            }
            self.wait_for(None)?;
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        if !self.requests_taken.get() {
            let _ = self.before.restore();
        }
    }
}
