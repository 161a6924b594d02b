//! The ids of tracepoints, and perf events on them.
//!
//! The ids are only in tracefs. Where it is not mounted, a short-lived child mounts it in a mount
//! namespace of its own and reads them: nothing on the host changes.

use crate::sys::lockdown::tracefs_may_be_mounted;
use crate::sys::{perf, tracefs};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork, pipe};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{OwnedFd, RawFd};

/// Tracepoints by name, below a common prefix of their paths in `events`.
#[derive(Clone, Copy)]
struct TracepointSet<'a> {
    prefix: &'static str,
    names: &'a [&'static str],
}

/// `(name, id)` of those `syscalls/sys_exit_<name>` that exist; empty when tracefs cannot be had.
pub fn syscall_exit_ids(names: &[&'static str]) -> Vec<(&'static str, u64)> {
    ids(TracepointSet { prefix: "syscalls/sys_exit_", names })
}

/// The same of `syscalls/sys_enter_<name>`.
pub fn syscall_entry_ids(names: &[&'static str]) -> Vec<(&'static str, u64)> {
    ids(TracepointSet { prefix: "syscalls/sys_enter_", names })
}

/// `(name, id)` of the page fault tracepoints; empty where the kernel has none, or no tracefs.
pub fn page_fault_ids() -> Vec<(&'static str, u64)> {
    ids(TracepointSet { prefix: "exceptions/", names: &["page_fault_user", "page_fault_kernel"] })
}

fn ids(set: TracepointSet<'_>) -> Vec<(&'static str, u64)> {
    for root in tracefs::ROOTS {
        let found = read_ids(root, set);
        if !found.is_empty() {
            return found;
        }
    }
    ids_from_private_mount(set).unwrap_or_default()
}

fn read_ids(root: &str, set: TracepointSet<'_>) -> Vec<(&'static str, u64)> {
    let id = |name: &&'static str| {
        let id = tracefs::id(root, &format!("{}{name}", set.prefix)).ok()?;
        Some((*name, id))
    };
    set.names.iter().filter_map(id).collect()
}

fn ids_from_private_mount(set: TracepointSet<'_>) -> io::Result<Vec<(&'static str, u64)>> {
    if !tracefs_may_be_mounted() {
        return Ok(Vec::new());
    }
    let (reader, writer) = pipe()?;
    // SAFETY: the child only mounts, reads files, writes to a pipe and leaves with _exit; vmaudit
    // has one thread while backends are being set up.
    match unsafe { fork() }? {
        ForkResult::Child => {
            drop(reader);
            let _ = send_ids(writer, set);
            // SAFETY: _exit has no preconditions.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => {
            drop(writer);
            let mut text = String::new();
            File::from(reader).read_to_string(&mut text)?;
            waitpid(child, None)?;
            let pair = |line: &str| {
                let (name, id) = line.split_once(' ')?;
                Some((*set.names.iter().find(|known| **known == name)?, id.parse().ok()?))
            };
            Ok(text.lines().filter_map(pair).collect())
        }
    }
}

fn send_ids(writer: OwnedFd, set: TracepointSet<'_>) -> io::Result<()> {
    tracefs::mount_privately()?;
    let mut out = File::from(writer);
    for (name, id) in read_ids(tracefs::ROOTS[0], set) {
        writeln!(out, "{name} {id}")?;
    }
    Ok(())
}

/// A perf event on a tracepoint: a handle for a BPF program, which then runs on all CPUs.
pub fn open_event(id: u64) -> io::Result<OwnedFd> {
    Ok(perf::open(&perf::tracepoint(id), -1, 0)?)
}

/// Stops the event itself, which libbpf has switched on: the program stays attached to the tracepoint
/// (perf_call_bpf_exit in kernel/trace/trace_syscalls.c runs it for any event that exists), and where
/// no event is on, the kernel prepares no sample once the program has left it to others.
pub fn leave_program_only(event: RawFd) {
    // A refusal costs time and nothing else.
    let _ = perf::disable(event);
}
