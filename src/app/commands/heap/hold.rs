//! Holding a command's calls that bring in new code until that code is probed: no allocation is missed,
//! not even the first one of a library that is loaded later.
//!
//! A thread of its own answers: mapping a library waits for the probes of that library, and for nothing
//! else.

use super::probes::Probes;
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

/// Mappings of files that can be executed, and programs.
pub const HELD_CALLS: CallSet = CallSet {
    numbers: &[libc::SYS_execve as i32, libc::SYS_execveat as i32],
    prctl_options: &[],
    executable_files: true,
};

/// How long one wait for a call lasts.
const PATIENCE: Duration = Duration::from_secs(60);
/// PATH_MAX.
const LONGEST_PATH: usize = 4096;

/// Answers held calls until no task is left that makes any.
///
/// # Errors
/// When no thread can be made.
pub fn serve(mut calls: CallServer, probes: Arc<Probes>) -> io::Result<()> {
    let never = EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?;
    thread::Builder::new().name("probe".to_owned()).spawn(move || {
        loop {
            match calls.next(never.as_raw_fd(), PATIENCE) {
                Ok(Arrival::Call(call)) => answer(&mut calls, &call, &probes),
                Ok(Arrival::NoTaskLeft) | Err(_) => break,
                Ok(Arrival::Other | Arrival::Nothing) => {}
            }
        }
    })?;
    Ok(())
}

fn answer(calls: &mut CallServer, call: &HeldCall, probes: &Probes) {
    match call.nr {
        libc::SYS_exit | libc::SYS_exit_group => {
            // The last exit is answered by the code that waits for it.
            let (Ended::Thread | Ended::Process(_)) = calls.end(call);
            return;
        }
        libc::SYS_mmap => cover_descriptor(call.tid, call.args[4] as i32, probes),
        libc::SYS_execve => cover_program(call, (libc::AT_FDCWD, call.args[0]), probes),
        libc::SYS_execveat => cover_program(call, (call.args[0] as i32, call.args[1]), probes),
        _ => {}
    }
    calls.go_on(call.id);
}

fn cover_descriptor(tid: Tid, fd: i32, probes: &Probes) {
    let link = PathBuf::from(format!("/proc/{tid}/fd/{fd}"));
    let name = std::fs::read_link(&link).map(|target| base_name(&target)).unwrap_or_default();
    probes.cover_path(&link, &name);
}

/// The program of an execve, if it is the file that is executed (a script's interpreter is not; what
/// that maps is held in turn).
fn cover_program(call: &HeldCall, (folder, path): (i32, u64), probes: &Probes) {
    let path = read_string(call.tid, path, LONGEST_PATH).unwrap_or_default();
    let path = Path::new(OsStr::from_bytes(&path));
    let tid = call.tid;
    let from = match (path.is_absolute(), folder) {
        (true, _) => format!("/proc/{tid}/root"),
        (false, libc::AT_FDCWD) => format!("/proc/{tid}/cwd"),
        (false, fd) => format!("/proc/{tid}/fd/{fd}"),
    };
    let relative = path.strip_prefix("/").unwrap_or(path);
    // fexecve: the descriptor itself
    let whole =
        if relative.as_os_str().is_empty() { PathBuf::from(from) } else { Path::new(&from).join(relative) };
    let name = std::fs::canonicalize(&whole).map_or_else(|_| base_name(path), |real| base_name(&real));
    probes.cover_path(&whole, &name);
}

fn base_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
