//! Whose rights vmaudit acts with.
//!
//! A program file with capabilities (setcap(8)) lends them to the user who starts it. vmaudit uses them for
//! what they are meant for, and for nothing else: they stay in the permitted set, and are effective only
//! within [`with_lent`], where BPF programs are loaded and attached. Files of /proc, executables,
//! descriptions, reports and recordings are opened outside of it: whether the user may have them is the
//! kernel's to say, as if there were no capabilities. What the BPF programs see is kept to the same by
//! [`viewer`] (bpf/may_see.h).
//!
//! Root, and a user whose capabilities are his own (ambient ones, capabilities(7)), lend nothing from
//! anybody: for them nothing here changes anything.

mod caps;
mod memory;

pub use memory::{read_memory, read_pointer, read_string};

use crate::model::{Capabilities, Capability};
use crate::sys::task;
use caps::{ambient, are_roots_own};
use nix::errno::Errno;
use nix::unistd::{getresgid, getresuid};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

/// Why vmaudit does not start.
#[derive(Debug, thiserror::Error)]
pub enum RightsError {
    #[error(
        "this file is setuid or setgid (it runs as {effective} for {real}), and vmaudit would read and write \
         files with rights that are not the user's: sudo chmod ug-s {exe}, then sudo setcap cap_bpf,cap_perfmon+ep \
         {exe}, or sudo vmaudit …"
    )]
    Setuid { real: String, effective: String, exe: String },
    #[error("finding out what rights this process has ({step}): {errno}")]
    Unknown { step: &'static str, errno: Errno },
    #[error("putting the file's capabilities aside (capset): {0}")]
    Capset(Errno),
    #[error("making /proc/self readable (prctl PR_SET_DUMPABLE): {0}")]
    Dumpable(Errno),
}

/// The first descriptor that is not standard input, output or error.
const AFTER_STDIO: RawFd = 3;

/// For which user events are reported, where vmaudit can see more than the user who started it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Viewer {
    pub uid: u32,
    pub gid: u32,
    /// Inode number of the user namespace.
    pub user_namespace: u32,
}

/// What lent capabilities are used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Loading BPF programs and attaching them: also tracefs is read, where tracepoints have numbers.
    Tracing,
    /// Placing probes, also by perf events.
    Placing,
}

impl Use {
    /// Of `lent`, as little as does.
    fn takes(self, lent: Capabilities) -> Capabilities {
        let mut requested = vec![Capability::Bpf, Capability::Perfmon];
        // It implies the two on files made for Linux before 5.8, and mounts tracefs.
        if self == Use::Tracing || requested.iter().any(|&each| !lent.has(each)) {
            requested.push(Capability::SysAdmin);
        }
        if self == Use::Tracing {
            requested.push(Capability::DacReadSearch);
        }
        Capabilities(requested.into_iter().filter(|&each| lent.has(each)).map(|each| 1 << each as u32).sum())
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Rights {
    /// Permitted, but not the user's own.
    lent: Capabilities,
    /// None where nothing is lent.
    viewer: Option<Viewer>,
}

static RIGHTS: OnceLock<Rights> = OnceLock::new();

/// To be called first, by the only thread there is: from here on nothing lent is effective, in this
/// thread and in those that it makes.
///
/// # Errors
/// When vmaudit is setuid, or the kernel does not say what it was given.
pub fn begin() -> Result<(), RightsError> {
    if is_secure() {
        // Not dumpable, its files in /proc would be root's, and those of its children until they execute
        // something. This opens nothing to others: a process that lacks one of this process' permitted
        // capabilities may not ptrace it anyway (cap_ptrace_access_check, security/commoncap.c).
        nix::sys::prctl::set_dumpable(true).map_err(RightsError::Dumpable)?;
    }
    let rights = find_out()?;
    if rights.viewer.is_some() {
        let now = caps::get().map_err(|errno| RightsError::Unknown { step: "capget", errno })?;
        let own = Capabilities(now.effective.0 & !rights.lent.0);
        caps::set_effective(now, own).map_err(RightsError::Capset)?;
    }
    // Set once, before the first use.
    let _ = RIGHTS.set(rights);
    Ok(())
}

/// For which user events are reported, where capabilities are lent; None where the user who started vmaudit
/// may see all that vmaudit can.
pub fn viewer() -> Option<Viewer> {
    RIGHTS.get()?.viewer
}

/// The capabilities that the file lends and that are not the user's own.
pub fn lent() -> Capabilities {
    RIGHTS.get().map_or(Capabilities::default(), |rights| rights.lent)
}

/// What this thread may do now, by capget(2): /proc need not be there for that.
pub fn effective() -> Capabilities {
    caps::get().map_or(Capabilities::default(), |sets| sets.effective)
}

/// What can be used of the lent capabilities, by [`with_lent`].
pub fn usable() -> Capabilities {
    Use::Tracing.takes(lent())
}

/// Does `work` with the lent capabilities that it needs, in this thread (and in threads and processes
/// that `work` makes). To be kept free of paths that the user chooses.
pub fn with_lent<T>(what: Use, work: impl FnOnce() -> T) -> T {
    let raised = Raised::new(what.takes(lent()));
    let done = work();
    drop(raised);
    done
}

/// For good, in a child that needs none of it: without lent capabilities the child is a process like any
/// other of the user's, which the user may inspect, and so may vmaudit.
pub fn give_up() {
    if viewer().is_none() {
        return;
    }
    // It only ever gives; and where that failed, the child is merely not to be examined.
    let _ = caps::get().and_then(|sets| caps::keep_only(sets, Capabilities(!lent().0)));
}

/// [`give_up`], for a child that goes on with vmaudit's code: what the parent has open (BPF maps, programs)
/// would be its user's with the child, so all descriptors from 3 on but `kept` are closed first.
///
/// # Errors
/// close_range(2): before Linux 5.9, or forbidden by a filter. Nothing is given up then.
pub fn give_up_with_only<const N: usize>(kept: [BorrowedFd; N]) -> Result<(), Errno> {
    if viewer().is_none() {
        return Ok(());
    }
    give_up_all_but(&mut kept.map(|fd| fd.as_raw_fd()))
}

/// [`give_up`], after all descriptors from 3 on but `kept` were closed, whether anything is lent or not: for a child
/// that may end in any way.
///
/// # Errors
/// close_range(2): before Linux 5.9, or forbidden by a filter. Nothing is given up then.
pub fn give_up_all_but(kept: &mut [RawFd]) -> Result<(), Errno> {
    close_all_but(kept)?;
    give_up();
    Ok(())
}

/// Makes system calls alone: a fork of a process with threads may do no more.
fn close_all_but(kept: &mut [RawFd]) -> Result<(), Errno> {
    kept.sort_unstable();
    let mut from = AFTER_STDIO;
    for number in kept.iter().copied().filter(|&fd| fd >= AFTER_STDIO) {
        close_range(from, number - 1)?;
        from = number + 1;
    }
    close_range(from, RawFd::MAX)
}

/// Both ends included; nothing where there is nothing between them.
fn close_range(first: RawFd, last: RawFd) -> Result<(), Errno> {
    if first > last {
        return Ok(());
    }
    // SAFETY: the owners of the closed descriptors are never dropped in this child.
    unsafe { task::close_range(first, last) }
}

/// Effective until it is dropped.
struct Raised(Option<caps::Sets>);

impl Raised {
    /// A refusal shows where the capability is needed.
    fn new(requested: Capabilities) -> Raised {
        if requested == Capabilities::default() {
            return Raised(None);
        }
        let before = caps::get().ok();
        let raised = before
            .filter(|sets| caps::set_effective(*sets, Capabilities(sets.effective.0 | requested.0)).is_ok());
        Raised(raised)
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        if let Some(before) = self.0
            && caps::set_effective(before, before.effective).is_err()
        {
            // The kernel never refuses to drop them. To go on with capabilities that are not the user's is
            // not acceptable.
            std::process::abort();
        }
    }
}

/// True when this program has more privileges than the user who started it, or a security module says so
/// (AT_SECURE, getauxval(3)).
pub fn is_secure() -> bool {
    // SAFETY: getauxval takes a number; without such an entry it returns 0.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

fn find_out() -> Result<Rights, RightsError> {
    let unknown = |step| move |errno| RightsError::Unknown { step, errno };
    let (users, groups) =
        (getresuid().map_err(unknown("getresuid"))?, getresgid().map_err(unknown("getresgid"))?);
    let (uid, gid) = (users.real.as_raw(), groups.real.as_raw());
    if users.real != users.effective || groups.real != groups.effective {
        let exe =
            std::env::current_exe().map_or_else(|_| "vmaudit".to_owned(), |at| at.display().to_string());
        return Err(RightsError::Setuid {
            real: format!("{uid}:{gid}"),
            effective: format!("{}:{}", users.effective, groups.effective),
            exe,
        });
    }
    let permitted = caps::get().map_err(unknown("capget"))?.permitted;
    let own = if uid == 0 && are_roots_own() { permitted } else { ambient() };
    let lent = Capabilities(permitted.0 & !own.0);
    if lent == Capabilities::default() {
        return Ok(Rights::default());
    }
    let namespace = std::fs::metadata("/proc/self/ns/user").map_err(|error| RightsError::Unknown {
        step: "/proc/self/ns/user",
        errno: Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)),
    })?;
    let viewer = Viewer { uid, gid, user_namespace: namespace.ino() as u32 };
    Ok(Rights { lent, viewer: Some(viewer) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(capabilities: &[Capability]) -> Capabilities {
        Capabilities(capabilities.iter().map(|&each| 1 << each as u32).sum())
    }

    #[test]
    fn only_what_tracing_needs_is_ever_effective() {
        use Capability::{Bpf, CheckpointRestore, DacReadSearch, Perfmon, SysAdmin, SysPtrace};
        let usual = set(&[Bpf, Perfmon]);
        assert_eq!(Use::Placing.takes(usual), usual);
        assert_eq!(Use::Tracing.takes(usual), usual);
        let much = set(&[Bpf, Perfmon, SysPtrace, DacReadSearch, CheckpointRestore, SysAdmin]);
        assert_eq!(Use::Placing.takes(much), usual);
        assert_eq!(Use::Tracing.takes(much), set(&[Bpf, Perfmon, DacReadSearch, SysAdmin]));
        // CAP_SYS_ADMIN implies CAP_BPF and CAP_PERFMON.
        assert_eq!(Use::Placing.takes(set(&[SysAdmin, SysPtrace])), set(&[SysAdmin]));
        assert_eq!(Use::Placing.takes(set(&[SysPtrace])), Capabilities::default());
    }

    #[test]
    fn a_process_with_its_own_rights_has_nothing_lent() {
        let before = caps::get().expect("capget");
        let rights = find_out().expect("ordinary credentials");
        assert_eq!((rights.lent, rights.viewer), (Capabilities::default(), None));
        assert_eq!(with_lent(Use::Tracing, || caps::get().expect("capget")), before);
    }

    #[test]
    fn a_child_keeps_the_descriptors_that_it_names_and_no_others() {
        let files: Vec<std::fs::File> =
            (0..8).map(|_| std::fs::File::open("/dev/null").expect("it is there")).collect();
        let kept = [files[5].as_raw_fd(), files[2].as_raw_fd()];
        // SAFETY: the child makes system calls alone, and leaves with _exit.
        let child = match unsafe { nix::unistd::fork() }.expect("fork") {
            nix::unistd::ForkResult::Parent { child } => child,
            nix::unistd::ForkResult::Child => unsafe {
                let closed = close_all_but(&mut kept.clone());
                let is_open = |fd| libc::fcntl(fd, libc::F_GETFD) >= 0;
                let right = files.iter().all(|file| {
                    let fd = file.as_raw_fd();
                    is_open(fd) == kept.contains(&fd)
                });
                libc::_exit(i32::from(closed.is_err() || !right || !is_open(2)))
            },
        };
        let ended = nix::sys::wait::waitpid(child, None).expect("a child");
        assert_eq!(ended, nix::sys::wait::WaitStatus::Exited(child, 0));
    }

    #[test]
    fn what_is_raised_is_let_go_of() {
        let before = caps::get().expect("capget");
        // In a thread of its own: other tests go on with what they have.
        let thread = std::thread::spawn(move || {
            caps::set_effective(before, Capabilities::default()).expect("letting go");
            let now = || caps::get().expect("capget").effective;
            let inside = {
                let _raised = Raised::new(before.permitted);
                now()
            };
            (inside, now())
        });
        assert_eq!(thread.join().expect("no panic"), (before.permitted, Capabilities::default()));
    }
}
