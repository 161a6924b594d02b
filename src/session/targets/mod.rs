//! Running processes as targets: found, marked, examined.

pub mod contained;
pub mod container_view;
pub mod entering;

use super::error::SessionError;
use super::pipeline::Pipeline;
use super::say::say;
use super::tracer::Tracer;
use super::tracer::remedy::may_not_be_read;
use crate::capture::bpf::{Entering, MarkedThread};
use crate::containers::{self, Container, short};
use crate::launch::{Attached, Process};
use crate::model::clean;
use crate::model::observation::ThreadObservation;
use crate::model::{Addr, AddrRange, Mapping, MmKey, Observations, Pid, Prot, Sharing};
use crate::procfs::{ObserveError, ObserveOptions, observe};
use crate::sys;
use std::os::fd::OwnedFd;
use std::path::Path;

/// The processes with these numbers, each once, that may be read.
///
/// # Errors
/// When none is left; for others that cannot be traced a warning is printed.
pub fn targets(numbers: &[i32]) -> Result<Vec<Process>, SessionError> {
    // Before anything is loaded: what may not be read is no target.
    keep(find(numbers)?, readable)
}

/// Programs that are executed in a container are targets.
pub fn entering(container: &Container, from_outside: bool) -> Result<Entering, SessionError> {
    Ok(Entering { cgroup: container.key()?, from_outside })
}

/// The processes that the user named, each once. Of several some may be gone.
fn find(numbers: &[i32]) -> Result<Vec<Process>, SessionError> {
    let found = numbers.iter().map(|&number| Process::find(number).map_err(SessionError::from));
    let mut processes: Vec<Process> = Vec::new();
    for process in all_or_some(found.collect())? {
        if let Some(tid) = process.found_by_thread() {
            let (pid, name) = (process.pid(), process.name());
            say(format_args!("{tid} is a thread of {pid} ({name}): tracing that process"));
        }
        if processes.iter().all(|known| known.pid() != process.pid()) {
            processes.push(process);
        }
    }
    Ok(processes)
}

pub fn keep(
    processes: Vec<Process>,
    check: impl Fn(&Process) -> Result<(), SessionError>,
) -> Result<Vec<Process>, SessionError> {
    all_or_some(processes.into_iter().map(|process| check(&process).map(|()| process)).collect())
}

/// One failure of one is an error; of several it is a note, as long as one is left.
fn all_or_some<T>(results: Vec<Result<T, SessionError>>) -> Result<Vec<T>, SessionError> {
    let several = results.len() > 1;
    let mut good = Vec::with_capacity(results.len());
    for result in results {
        match result {
            Ok(value) => good.push(value),
            Err(error) if several => say(format_args!("{error}")),
            Err(error) => return Err(error),
        }
    }
    if good.is_empty() { Err(SessionError::NoTargetLeft) } else { Ok(good) }
}

fn snapshot_error(process: &Process, source: ObserveError) -> SessionError {
    let denied = matches!(source, ObserveError::PermissionDenied { .. });
    let remedy = if denied { format!("\n{}", may_not_be_read()) } else { String::new() };
    SessionError::Snapshot { pid: process.pid(), name: process.name().to_owned(), source, remedy }
}

/// The only question is whether its memory may be examined.
pub fn readable(process: &Process) -> Result<(), SessionError> {
    let pid = process.pid();
    match std::fs::File::open(format!("/proc/{pid}/maps")) {
        Err(source) if source.kind() == std::io::ErrorKind::PermissionDenied => {
            let (operation, path) = ("open", format!("/proc/{pid}/maps").into());
            Err(snapshot_error(process, ObserveError::PermissionDenied { pid, operation, path, source }))
        }
        // Anything else shows at the snapshot.
        _ => Ok(()),
    }
}

/// Marks all threads of the targets: their calls are reported from then on.
pub fn mark(attached: &Attached, tracer: &Tracer) -> Result<Vec<MarkedThread>, SessionError> {
    let targets: Vec<_> =
        attached.processes().iter().map(|process| (process.pid(), process.as_fd())).collect();
    tracer.mark_running(&targets)
}

/// Takes the first snapshot of each process; returns the number of the first that could be examined.
pub fn begin(
    attached: &Attached,
    threads: &[MarkedThread],
    pipeline: &mut Pipeline,
) -> Result<i32, SessionError> {
    let begin_one = |process: &Process, pipeline: &mut Pipeline| {
        let own: Vec<&MarkedThread> = threads.iter().filter(|thread| thread.pid == process.pid()).collect();
        let (mm, seen) = first_snapshot(process, &own)?;
        pipeline.found(mm, &seen);
        let count = own.len();
        let threads = if count == 1 { "1 thread".to_owned() } else { format!("{count} threads") };
        say(format_args!("tracing {} (pid {}, {threads})", process.name(), process.pid()));
        Ok(process.pid())
    };
    let begun = attached.processes().iter().map(|process| begin_one(process, pipeline)).collect();
    let pids = all_or_some(begun)?;
    pids.first().copied().ok_or(SessionError::NoTargetLeft)
}

/// The process as it is now that every call of it is reported: mappings and threads.
pub fn first_snapshot(
    process: &Process,
    threads: &[&MarkedThread],
) -> Result<(MmKey, Observations), SessionError> {
    let pid = process.pid();
    let gone = || {
        snapshot_error(
            process,
            ObserveError::Gone { pid, operation: "read", path: format!("/proc/{pid}/maps").into() },
        )
    };
    // The first thread may have exited while others live on: then only their directories show
    // the memory.
    let living = threads.iter().find_map(|thread| Some((thread.tid, thread.mm?, thread.brk)));
    let Some((tid, mm, brk)) = living else {
        let name = process.name().to_owned();
        return Err(match process.has_ended() || !threads.is_empty() {
            true => gone(),
            false => SessionError::OtherNamespace { pid, name },
        });
    };
    let options = ObserveOptions::mappings_only();
    // It may be this thread that has just ended.
    let seen = observe(pid, tid, options).or_else(|_| observe(pid, pid, options));
    if process.has_ended() {
        return Err(gone());
    }
    let mut seen = seen.map_err(|source| snapshot_error(process, source))?;
    seen.threads = threads
        .iter()
        .map(|thread| ThreadObservation { tid: thread.tid, comm: thread.comm.clone(), stack_pointer: None })
        .collect();
    if let Some(brk) = brk
        && !seen.mappings.iter().any(|mapping| mapping.is_special("[heap]"))
    {
        seen.mappings.push(empty_heap(brk));
        seen.mappings.sort_by_key(|mapping| mapping.range.start);
    }
    Ok((mm, seen))
}

/// An empty heap gives the ledger the initial break, which the first brk will move.
fn empty_heap(brk: Addr) -> Mapping {
    Mapping {
        range: AddrRange::from_len(brk.page_up(), 0),
        prot: Prot::RW,
        sharing: Sharing::Private,
        offset: 0,
        file: None,
        name: b"[heap]".to_vec(),
    }
}

/// The container that the user named, if it is one.
pub fn named_container(
    (name, cgroup_path): (Option<&str>, Option<&Path>),
) -> Result<Option<Container>, SessionError> {
    let by_name = name.map(containers::by_name);
    let by_path = cgroup_path.map(containers::by_cgroup);
    let found = by_name.or(by_path).transpose()?;
    if let Some(found) = &found {
        let engine = found.engine.as_deref().map(|engine| format!("{engine}, ")).unwrap_or_default();
        let id = found.id.as_deref().map(|id| format!("{}, ", short(id))).unwrap_or_default();
        let (name, cgroup) = (clean(&found.name), clean(&found.cgroup()));
        match cgroup_path {
            Some(_) => say(format_args!("cgroup {cgroup}")),
            None => say(format_args!("container {name} ({engine}{id}cgroup {cgroup})")),
        }
    }
    Ok(found)
}

/// A stable handle of a child that has not been waited for.
pub fn pidfd(pid: Pid) -> Result<OwnedFd, SessionError> {
    sys::pidfd::open(pid).map_err(|errno| SessionError::System {
        operation: "pidfd_open of the command",
        source: errno.into(),
    })
}
