//! One snapshot of a running process: [`observe`] opens the files, the parsers next to it read them.

use super::address_space::read_address_space;
use super::details::read_details;
use super::error::ObserveError;
use super::headers::{Target, read_arenas, read_blocks};
use super::limits::read_limits;
use super::marks::read_marks;
use super::process_dir::ProcessDir;
use super::status::{ProcessStatus, parse_limits, parse_status};
use super::task_files::{parse_cmdline, parse_comm, parse_no_randomize, parse_resources};
use super::thread_blocks::read_thread_blocks;
use super::threads::read_threads;
use crate::model::headers::Headers;
use crate::model::observation::{
    Observations, ResidencySource, ResourceUse, SnapshotMoment, StatusFigures, ThreadBlocks,
};
use crate::model::{CodeMarks, Pid, Sign, Tid, VmaDetails};
use crate::sys::clock::process_cpu_ns;
use crate::sys::file;
use crate::sys::recent::Recent;
use std::sync::{Mutex, PoisonError};

/// What to examine, and how.
#[derive(Clone, Copy, Debug)]
pub struct ObserveOptions {
    /// Copied to the result: only the caller knows whether the process is held.
    pub moment: SnapshotMoment,
    /// The first rung of the ladder PagemapScan, Pagemap, SmapsProportion to try; what is
    /// above it is not used. `None`: no residency at all.
    pub residency_from: ResidencySource,
    /// Names and stack pointers of all threads: three file operations each.
    pub threads: bool,
    /// What allocators keep in the target's memory. Empty: none of it is read.
    pub headers: &'static [Headers],
    /// VmFlags and shares of each VMA, from smaps, where that does not take long.
    pub details: bool,
    /// What the mapped files are searched for, to find which allocators and runtimes they hold: each is opened
    /// once. Empty: none is.
    pub code: &'static [Sign],
}

impl ObserveOptions {
    /// Nothing but maps, status and what they cost.
    pub fn mappings_only() -> ObserveOptions {
        ObserveOptions {
            residency_from: ResidencySource::None,
            threads: false,
            details: false,
            code: &[],
            ..ObserveOptions::default()
        }
    }
}

impl Default for ObserveOptions {
    fn default() -> ObserveOptions {
        ObserveOptions {
            moment: SnapshotMoment::Live,
            residency_from: ResidencySource::PagemapScan,
            threads: true,
            headers: &[],
            details: true,
            code: &[],
        }
    }
}

/// Reads what /proc shows of process `pid` through its thread `tid`, which has to be alive:
/// when the first thread has exited, only the directory of another one shows the memory.
///
/// The target is never stopped. `begun_ns` and `ended_ns` of the result enclose the reading of
/// maps and pages, the only part that holds the target's mmap lock.
///
/// # Errors
/// When maps cannot be read. All else that fails becomes a line of `gaps`.
pub fn observe(pid: Pid, tid: Tid, options: ObserveOptions) -> Result<Observations, ObserveError> {
    let dir = ProcessDir::open(pid, tid)?;
    let mut gaps = Vec::new();
    let mut status = noted(&mut gaps, read_status_of(&dir));
    if let Some(status) = &mut status {
        status.figures.resources = noted(&mut gaps, read_resources(&dir));
    }
    let space = read_address_space(&dir, options.residency_from, status.as_ref(), &mut gaps)?;
    let threads = if options.threads { read_threads(&dir, &mut gaps) } else { Vec::new() };
    let held = Target { dir: &dir, tid, mappings: &space.mappings, residency: &space.residency };
    let heap_infos =
        options.headers.iter().flat_map(|headers| read_arenas(held, headers, &mut gaps)).collect();
    let blocks = read_blocks(held, options.headers);
    let resident = status.as_ref().map(|status| status.figures.vm_rss);
    let vmas =
        if options.details { read_details(&dir, &space.mappings, resident, &mut gaps) } else { Vec::new() };
    let details = VmaDetails { vmas, guards: space.guards };
    let thread_blocks = match options.headers {
        [] => ThreadBlocks::default(),
        _ => read_thread_blocks(&dir, tid, &threads, (&space.mappings, &space.residency, &details)),
    };
    let limits = dir
        .read("limits")
        .and_then(|bytes| parse_limits(&bytes).map_err(|error| dir.malformed("limits", error)));
    let limits = noted(&mut gaps, limits);
    let code = match options.code {
        [] => CodeMarks::default(),
        signs => read_marks(&dir, tid, &space.mappings, signs),
    };
    let machine = read_limits(&dir, tid, status.as_ref(), limits);
    Ok(Observations {
        pid,
        moment: options.moment,
        begun_ns: space.begun_ns,
        ended_ns: space.ended_ns,
        mappings: space.mappings,
        residency: space.residency,
        details,
        threads,
        thread_blocks,
        heap_infos,
        status: status.map_or_else(StatusFigures::default, |status| status.figures),
        comm: noted(&mut gaps, read_process_name(pid, &dir)).unwrap_or_default(),
        exe: noted(&mut gaps, dir.exe()).unwrap_or_default(),
        cmdline: noted(&mut gaps, dir.read("cmdline")).map(|bytes| parse_cmdline(&bytes)).unwrap_or_default(),
        stack_limit: limits.and_then(|limits| limits.stack),
        limits: machine,
        blocks,
        code,
        aslr: aslr(&dir, &mut gaps),
        gaps,
    })
}

/// Reads and parses `/proc/TID/status`.
///
/// # Errors
/// When the task is gone or the file makes no sense.
pub fn read_status(pid: Pid, tid: Tid) -> Result<ProcessStatus, ObserveError> {
    read_status_of(&ProcessDir::open(pid, tid)?)
}

fn read_status_of(dir: &ProcessDir) -> Result<ProcessStatus, ObserveError> {
    parse_status(&dir.read("status")?).map_err(|error| dir.malformed("status", error))
}

/// `/proc/TID/stat` shows the whole process, also through a thread that is not its first.
fn read_resources(dir: &ProcessDir) -> Result<ResourceUse, ObserveError> {
    // SAFETY: a plain query.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let ticks_per_second = u64::try_from(ticks).unwrap_or(100);
    let mut used = parse_resources(&dir.read("stat")?, ticks_per_second)
        .ok_or_else(|| dir.malformed("stat", "fields 10 to 15 are no numbers"))?;
    // exact, where stat knows ticks only
    if let Some(used_ns) = process_cpu_ns(dir.pid()) {
        used.cpu_ns = used_ns;
    }
    Ok(used)
}

/// Keeps a value, or turns its error into a gap.
pub(super) fn noted<T>(gaps: &mut Vec<String>, result: Result<T, ObserveError>) -> Option<T> {
    result.map_err(|error| gaps.push(error.to_string())).ok()
}

/// The process's name is that of its first thread, even when that is a zombie.
fn read_process_name(pid: Pid, dir: &ProcessDir) -> Result<Vec<u8>, ObserveError> {
    let leader = ProcessDir::open(pid, pid).and_then(|leader| leader.read("comm"));
    leader.or_else(|_| dir.read("comm")).map(|bytes| parse_comm(&bytes))
}

/// kernel.randomize_va_space and the process's personality.
fn aslr(dir: &ProcessDir, gaps: &mut Vec<String>) -> bool {
    const SYSCTL: &str = "/proc/sys/kernel/randomize_va_space";
    static NEWEST: Mutex<Recent<(), Result<bool, String>>> = Mutex::new(Recent::new());
    let read = || match file::read(SYSCTL) {
        Ok(value) => Ok(value.first() != Some(&b'0')),
        Err(error) => Err(format!("{SYSCTL}: {error}; taken as on")),
    };
    let system_wide = NEWEST.lock().unwrap_or_else(PoisonError::into_inner).of((), read);
    let system_wide = system_wide.map_err(|gap| gaps.push(gap)).unwrap_or(true);
    let personality = dir.read("personality").and_then(|bytes| {
        parse_no_randomize(&bytes).ok_or_else(|| dir.malformed("personality", "no hexadecimal number"))
    });
    system_wide && !noted(gaps, personality).unwrap_or(false)
}
