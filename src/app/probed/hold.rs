//! Holding a command's calls that bring in new code, or begin a process, until that is probed: no allocation is missed,
//! not even the first one of a library that is loaded later, or of a child.
//!
//! A thread of its own answers: mapping a library waits for the probes of that library, and for nothing
//! else.

use super::ProbedProcesses;
use crate::launch::{CallServer, CallSet};
use crate::model::{Arrival, Ended, HeldCall, HeldCalls, Tid};
use crate::rights::read_string;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::ffi::OsStr;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Mappings of files that can be executed, programs, and what a process calls first: a child in libc's fork (glibc's
/// sysdeps/nptl/_Fork.c: set_robust_list, musl's src/process/_Fork.c: set_tid_address), a program before it has loaded
/// a library.
pub const HELD_CALLS: CallSet = CallSet {
    numbers: &[
        libc::SYS_execve as i32,
        libc::SYS_execveat as i32,
        libc::SYS_set_robust_list as i32,
        libc::SYS_set_tid_address as i32,
    ],
    prctl_options: &[],
    executable_files: true,
};

/// How long one wait for a call lasts.
const PATIENCE: Duration = Duration::from_secs(60);
/// PATH_MAX.
const LONGEST_PATH: usize = 4096;

/// Answers held calls until no task is left that makes any. `cover` is given each file that is about to be mapped or
/// executed, with its base name.
///
/// # Errors
/// When no thread can be made.
pub fn serve(
    calls: CallServer,
    processes: Arc<ProbedProcesses>,
    cover: impl Fn(&Path, &str) + Send + 'static,
) -> io::Result<()> {
    let mut server = Server { calls, processes, cover };
    let never = EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?;
    thread::Builder::new().name("probe".to_owned()).spawn(move || {
        loop {
            match server.calls.next(never.as_raw_fd(), PATIENCE) {
                Ok(Arrival::Call(call)) => server.answer(&call),
                Ok(Arrival::NoTaskLeft) | Err(_) => break,
                Ok(Arrival::Other | Arrival::Nothing) => {}
            }
        }
    })?;
    Ok(())
}

struct Server<F> {
    calls: CallServer,
    processes: Arc<ProbedProcesses>,
    cover: F,
}

impl<F: Fn(&Path, &str)> Server<F> {
    fn answer(&mut self, call: &HeldCall) {
        match call.nr {
            libc::SYS_exit | libc::SYS_exit_group => {
                // The last exit is answered by the code that waits for it.
                let (Ended::Thread | Ended::Process(_)) = self.calls.end(call);
                return;
            }
            libc::SYS_mmap => self.map(call.tid, call.args[4] as i32),
            libc::SYS_execve => self.execute(call, (libc::AT_FDCWD, call.args[0])),
            libc::SYS_execveat => self.execute(call, (call.args[0] as i32, call.args[1])),
            libc::SYS_set_robust_list | libc::SYS_set_tid_address => self.processes.begins(call.tid),
            _ => {}
        }
        self.calls.go_on(call.id);
    }

    fn map(&self, tid: Tid, fd: i32) {
        let link = PathBuf::from(format!("/proc/{tid}/fd/{fd}"));
        let name = std::fs::read_link(&link).map(|target| base_name(&target)).unwrap_or_default();
        self.processes.maps(tid, &name);
        (self.cover)(&link, &name);
    }

    /// The program of an execve, if it is the file that is executed (a script's interpreter is not; what
    /// that maps is held in turn).
    fn execute(&self, call: &HeldCall, (folder, path): (i32, u64)) {
        let path = read_string(call.tid, path, LONGEST_PATH).unwrap_or_default();
        let path = Path::new(OsStr::from_bytes(&path));
        let tid = call.tid;
        let root = format!("/proc/{tid}/root");
        let from = match (path.is_absolute(), folder) {
            (true, _) => root.clone(),
            (false, libc::AT_FDCWD) => format!("/proc/{tid}/cwd"),
            (false, fd) => format!("/proc/{tid}/fd/{fd}"),
        };
        let relative = path.strip_prefix("/").unwrap_or(path);
        // fexecve: the descriptor itself
        let whole = if relative.as_os_str().is_empty() {
            PathBuf::from(from)
        } else {
            Path::new(&from).join(relative)
        };
        let name = std::fs::canonicalize(&whole).map_or_else(|_| base_name(path), |real| base_name(&real));
        (self.cover)(&whole, &name);
        self.processes.executes(tid, &whole, Path::new(&root));
    }
}

pub fn base_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
