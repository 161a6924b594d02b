//! What vmaudit's two helper processes, the keeper and the guard, have in common: they are detached from
//! vmaudit, the terminal and whatever else might end them or wait for them.

use crate::sys::stat::{self, Stat};
use crate::sys::task::close_range;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, signal, sigprocmask};
use nix::sys::uio::{RemoteIoVec, process_vm_writev};
use std::ffi::CStr;
use std::io::IoSlice;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;

/// Their names (`comm`). Not "vmaudit…", nor do they keep its command line: `pkill -9 vmaudit` and
/// `pkill -9 -f vmaudit` must leave them alive, or notified calls would fail.
pub const KEEPER: &CStr = c"exit-keeper";
pub const GUARD: &CStr = c"exit-guard";

/// The first descriptor that a helper has for itself.
const FIRST_FD: i32 = 3;

/// Out of the terminal's and the shell's reach, and of the way of unmounts.
pub fn detach_from_session(name: &CStr) {
    let _ = nix::unistd::setsid();
    let _ = nix::unistd::chdir("/");
    show_as(name);
    for each in [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGPIPE,
        Signal::SIGTSTP,
        Signal::SIGTTIN,
        Signal::SIGTTOU,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
        Signal::SIGALRM,
    ] {
        // SAFETY: ignoring a signal installs no handler.
        let _ = unsafe { signal(each, SigHandler::SigIgn) };
    }
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None);
    // A signal handler without SA_RESTART that runs before a held exit_group was received makes
    // it fail with EINTR: let that be short. Root only, as the next one.
    // SAFETY: the call takes numbers only.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
    // The target depends on this process: when memory is short, let it not be the first to go.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
}

/// The name, and an argument vector of the name alone.
pub fn show_as(name: &CStr) {
    let _ = nix::sys::prctl::set_name(name);
    let Some((start, end)) = stat::of("self", arguments_of) else { return };
    let Some(space) = end.checked_sub(start).and_then(|space| usize::try_from(space).ok()) else { return };
    let mut words = vec![0; space];
    let name = name.to_bytes();
    // A last byte other than NUL would have the kernel read on (get_mm_cmdline, fs/proc/base.c).
    if name.len() < space {
        words[..name.len()].copy_from_slice(name);
    }
    // By way of the kernel: whatever became of the place, a write cannot crash. Only for ps and pkill.
    let to = RemoteIoVec { base: start as usize, len: words.len() };
    if process_vm_writev(nix::unistd::getpid(), &[IoSlice::new(&words)], &[to]) == Ok(words.len()) {
        return;
    }
    // Seccomp profiles of older engines forbid the call, not the file.
    let memory = std::fs::OpenOptions::new().write(true).open("/proc/self/mem");
    let _ = memory.and_then(|memory| memory.write_all_at(&words, start));
}

/// Where a process's arguments lie; None where that may not be read.
fn arguments_of(stat: Stat<'_>) -> Option<(u64, u64)> {
    Some((stat.field(stat::ARG_START)?, stat.field(stat::ARG_END)?)).filter(|&(start, _)| start != 0)
}

/// Closes all descriptors but these, and gives the standard ones to /dev/null, so that a pipeline's
/// reader sees the end when vmaudit and the target have closed theirs.
pub fn keep_only<const N: usize>(fds: [OwnedFd; N]) -> Result<[OwnedFd; N], Errno> {
    let null = open("/dev/null", OFlag::O_RDWR, nix::sys::stat::Mode::empty());
    let above = FIRST_FD + N as i32;
    // First out of the way of the numbers that they are to have.
    let mut high = [-1; N];
    for (slot, fd) in high.iter_mut().zip(&fds) {
        *slot = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(above))?;
    }
    if let Ok(null) = null {
        for standard in 0..FIRST_FD {
            // SAFETY: dup2 only takes descriptor numbers; this process owns all of its own.
            let _ = unsafe { libc::dup2(null.as_raw_fd(), standard) };
        }
        // Its number may be one that is given away now; close_range takes it otherwise.
        let _ = null.into_raw_fd();
    }
    // Their numbers too are given away or closed below.
    let _ = fds.map(IntoRawFd::into_raw_fd);
    for (from, to) in high.into_iter().zip(FIRST_FD..) {
        // SAFETY: as above.
        Errno::result(unsafe { libc::dup2(from, to) })?;
    }
    // SAFETY: no Rust value owns a descriptor from `above` on that is used from here on: this
    // process never returns to the code that has them.
    if unsafe { close_range(above, RawFd::MAX) }.is_err() {
        // close_range is of 5.9.
        for fd in above..4096 {
            // SAFETY: as above.
            let _ = unsafe { libc::close(fd) };
        }
    }
    let mut next = FIRST_FD..;
    // SAFETY: dup2 has just made these, and nothing else in this process owns them.
    Ok([(); N].map(|()| unsafe { OwnedFd::from_raw_fd(next.next().unwrap_or(above)) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_where_the_kernel_says() {
        let (start, end) = stat::of("self", arguments_of).expect("fields");
        let mut words = vec![0; (end - start) as usize];
        let memory = std::fs::File::open("/proc/self/mem").expect("memory");
        memory.read_exact_at(&mut words, start).expect("they are mapped");
        assert_eq!(words, std::fs::read("/proc/self/cmdline").expect("cmdline"));
        assert_eq!(arguments_of(Stat::parse(b"1 (a) R 1 2 3").expect("sound")), None);
    }
}
