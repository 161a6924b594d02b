//! All processes of a container: those that are there when tracing begins, and those that come later.
//!
//! Later ones are children of traced ones (followed by the kernel's side), or are put there from
//! outside and then execute a program (`docker exec`; marked at that execve by the kernel's side,
//! bpf/cgroup.h). What is left are processes that are moved into the cgroup as they run: the members
//! are read five times a second, and strangers among them are treated as those of the beginning.

use super::first_snapshot;
use crate::capture::bpf::MarkedThread;
use crate::containers::{Container, ContainerError};
use crate::launch::{Attached, FindError, HeldExit, Process, Signals};
use crate::model::{MmKey, Observations, Pid};
use crate::procfs::read_status;
use crate::rights::viewer;
use crate::session::engine::End;
use crate::session::error::SessionError;
use crate::session::pipeline::Pipeline;
use crate::session::say::say;
use crate::session::tracer::Tracer;
use crate::session::watched::{SessionEvent, Watched};
use std::collections::HashSet;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How often the members are read.
const SCAN: Duration = Duration::from_millis(200);
/// While a container starts processes, each pass finds new ones. Two are the rule.
const MAX_PASSES: u32 = 100;

/// The processes that are in the container now, its first one first.
///
/// # Errors
/// When there is none that could be traced.
pub fn members(container: &Container) -> Result<Vec<Process>, SessionError> {
    let mut found: Vec<Process> = Vec::new();
    for pid in container.processes()? {
        found.extend(open(pid));
    }
    // Numbers go round: the first process need not have the smallest.
    let inside = |process: &Process| {
        let status = read_status(process.pid(), process.pid()).ok();
        status.and_then(|status| status.own_pid()).unwrap_or(process.pid())
    };
    found.sort_by_cached_key(inside);
    if found.is_empty() {
        return Err(ContainerError::Deserted { path: PathBuf::from(container.cgroup()) }.into());
    }
    Ok(found)
}

/// The roots of the container's processes, one of each, for the files of those that come and go.
pub fn add_roots(container: &Container, pipeline: &mut Pipeline) {
    const MOST: usize = 16;
    let mut seen = HashSet::new();
    for pid in container.processes().unwrap_or_default() {
        let root = std::fs::metadata(format!("/proc/{pid}/root")).map(|found| (found.dev(), found.ino()));
        if root.is_ok_and(|root| seen.len() < MOST && seen.insert(root)) {
            pipeline.search_root_of(pid);
        }
    }
}

/// None for what is no target, or not any more.
fn open(pid: Pid) -> Option<Process> {
    match Process::find(pid) {
        Ok(process) => Some(process),
        Err(FindError::NoSuchProcess { .. } | FindError::Zombie { .. } | FindError::KernelThread { .. }) => {
            None
        }
        Err(error @ FindError::Itself { .. }) => {
            say(format_args!("{error}: left out"));
            None
        }
        Err(error) => {
            say(format_args!("{error}"));
            None
        }
    }
}

/// Marks all threads of the targets, and of all that enter the container meanwhile.
///
/// # Errors
/// When the kernel refuses, or processes come faster than they can be marked.
pub fn mark(
    container: &Container,
    attached: &mut Attached,
    tracer: &Tracer,
) -> Result<Vec<MarkedThread>, SessionError> {
    for _ in 0..MAX_PASSES {
        // In this order: a child of a marked process that is listed is marked, too.
        let listed = container.processes()?;
        let threads = super::mark(attached, tracer)?;
        let newcomers: Vec<Process> = strangers(&listed, &threads).into_iter().filter_map(open).collect();
        if newcomers.is_empty() {
            return Ok(threads);
        }
        for process in newcomers {
            attached.add(process)?;
        }
    }
    Err(SessionError::ContainerNeverSettles { name: container.name.clone(), passes: MAX_PASSES })
}

/// Members that are not traced. Those that this user may not inspect, because vmaudit's capabilities are not
/// his own, never are; they were reported at the beginning.
fn strangers(listed: &[Pid], threads: &[MarkedThread]) -> Vec<Pid> {
    let marked: HashSet<Pid> = threads.iter().map(|thread| thread.pid).collect();
    let may_be_read = |pid: &Pid| viewer().is_none() || File::open(format!("/proc/{pid}/maps")).is_ok();
    listed.iter().copied().filter(|pid| !marked.contains(pid)).filter(may_be_read).collect()
}

/// The processes of a container, as a session watches them.
pub struct Contained<'a> {
    attached: Attached,
    container: &'a Container,
    tracer: &'a Tracer,
    next_scan: Instant,
    /// Strangers at the last pass. An engine's helper is in the cgroup for a moment before it executes its
    /// program: only a process that stays is examined.
    strangers_before: HashSet<Pid>,
}

impl<'a> Contained<'a> {
    pub fn new(attached: Attached, container: &'a Container, tracer: &'a Tracer) -> Contained<'a> {
        Contained {
            attached,
            container,
            tracer,
            next_scan: Instant::now() + SCAN,
            strangers_before: HashSet::new(),
        }
    }

    /// Processes that came in without a fork or an execve that was seen; None when all have ended.
    fn scan(&mut self) -> Result<Option<Vec<(MmKey, Observations)>>, SessionError> {
        let listed = self.container.processes()?;
        if listed.is_empty() {
            return Ok(None);
        }
        let threads = self.tracer.mark_running(&[])?;
        let strange: HashSet<Pid> = strangers(&listed, &threads).into_iter().collect();
        let before = std::mem::replace(&mut self.strangers_before, strange);
        let staying: Vec<Process> =
            self.strangers_before.intersection(&before).copied().filter_map(open).collect();
        if staying.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let targets: Vec<_> = staying.iter().map(|process| (process.pid(), process.as_fd())).collect();
        let threads = self.tracer.mark_running(&targets)?;
        let mut snapshots = Vec::new();
        for process in staying {
            let own: Vec<&MarkedThread> = threads.iter().filter(|t| t.pid == process.pid()).collect();
            match first_snapshot(&process, &own) {
                Ok(snapshot) => {
                    say(format_args!(
                        "tracing {} (pid {}), which came in later",
                        process.name(),
                        process.pid()
                    ));
                    snapshots.push(snapshot);
                    self.attached.add(process)?;
                }
                // It ended meanwhile, or may not be read.
                Err(error) => say(format_args!("{error}")),
            }
        }
        Ok(Some(snapshots))
    }
}

impl Watched for Contained<'_> {
    fn has_pending(&self) -> bool {
        Attached::has_pending(&self.attached)
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        Attached::as_fd(&self.attached)
    }

    fn next(&mut self) -> Result<SessionEvent, SessionError> {
        // Those of the beginning may all have ended while others go on: the cgroup decides.
        match self.attached.next()? {
            SessionEvent::Over(_) => self.next_scan = Instant::now(),
            SessionEvent::Nothing => {}
            other => return Ok(other),
        }
        if Instant::now() < self.next_scan {
            return Ok(SessionEvent::Nothing);
        }
        self.next_scan = Instant::now() + SCAN;
        Ok(match self.scan()? {
            None => SessionEvent::Over(End::NoneLeft),
            Some(snapshots) if snapshots.is_empty() => SessionEvent::Nothing,
            Some(snapshots) => SessionEvent::Joined(snapshots),
        })
    }

    fn is_held(&self, held: &HeldExit) -> bool {
        self.attached.is_held(held)
    }

    fn release(&mut self, held: HeldExit) -> Result<(), SessionError> {
        self.attached.release(held)
    }

    fn take_requests(&mut self) -> Result<Signals, SessionError> {
        Watched::take_requests(&mut self.attached)
    }

    fn has_ended(&self, pid: Pid) -> bool {
        Watched::has_ended(&self.attached, pid)
    }
}
