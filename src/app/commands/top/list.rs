//! The figures of all selected processes, as cheaply as possible: two small files each.

use super::users::Names;
use crate::app::error::AppError;
use crate::containers::Container;
use crate::model::Pid;
use crate::procfs::{Brief, process_numbers, read_brief, read_shares, read_status};
use crate::session::SessionError;
use crate::top::{Cgroup, Figures, Group, ProcessId, ProcessSample, Sample, Swap};
use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

/// A process' status, the dearest of its small files, is read again after so many frames.
const STATUS_EVERY: u64 = 8;
/// Reading shares walks page tables: it may take one part in this many of the time.
const SHARES_PART: u32 = 50;
const SHARES_EVERY: Duration = Duration::from_secs(10);

/// Of which processes.
pub enum Scope {
    All,
    These(Vec<ProcessId>),
    Group(Container),
}

/// What is kept of a process from frame to frame.
struct Kept {
    start_ticks: u64,
    program: u64,
    comm: Vec<u8>,
    owner: u32,
    uid: u32,
    swap: u64,
    huge: u64,
    container: Option<String>,
}

pub struct ProcessList {
    scope: Scope,
    kept: HashMap<Pid, Kept>,
    names: Names,
    began: Instant,
    frame: u64,
    /// Sum of shares, when it was read, and when it may be read again.
    shares: Option<(u64, u64)>,
    shares_after: Option<Instant>,
}

impl ProcessList {
    pub fn new(scope: Scope) -> ProcessList {
        ProcessList {
            scope,
            kept: HashMap::new(),
            names: Names::default(),
            began: Instant::now(),
            frame: 0,
            shares: None,
            shares_after: None,
        }
    }

    /// Since vmaudit began.
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// True when none of the processes that the user named, or of the container, can come back.
    pub fn is_over(&self, sample: &Sample) -> bool {
        !matches!(self.scope, Scope::All) && sample.processes.is_empty()
    }

    /// Reads a frame.
    ///
    /// # Errors
    /// When the processes cannot be listed.
    pub fn read(&mut self) -> Result<Sample, AppError> {
        let begun = Instant::now();
        let time_ns = self.now_ns();
        let pids = match &self.scope {
            Scope::All => process_numbers()
                .map_err(|source| SessionError::System { operation: "listing /proc", source })?,
            Scope::These(ids) => ids.iter().map(|id| id.pid).collect(),
            Scope::Group(container) => container.processes()?,
        };
        let swap = if swap_in_use() { Swap::Read } else { Swap::None };
        let mut processes = Vec::with_capacity(pids.len());
        let mut kept = HashMap::with_capacity(pids.len());
        for pid in pids {
            let Ok(brief) = read_brief(pid) else { continue };
            // Zombies have no memory, threads of the kernel none of their own; a number may be another's.
            if brief.virt == 0 || brief.kernel_thread || !self.is_meant(&brief) {
                continue;
            }
            let known = self.keep(&brief, swap);
            processes.push(ProcessSample {
                id: ProcessId { pid, start_ticks: brief.start_ticks },
                program: brief.start_stack,
                name: String::from_utf8_lossy(&brief.comm).into_owned(),
                user: self.names.user(known.uid),
                threads: brief.threads,
                figures: Figures { virt: brief.virt, rss: brief.rss, swap: known.swap, huge: known.huge },
                container: known.container.clone(),
            });
            kept.insert(pid, known);
        }
        self.kept = kept;
        self.frame += 1;
        let group = self.group(&processes);
        let took_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Ok(Sample { time_ns, took_ns, processes, group, swap })
    }

    fn is_meant(&self, brief: &Brief) -> bool {
        let id = ProcessId { pid: brief.pid, start_ticks: brief.start_ticks };
        match &self.scope {
            Scope::These(ids) => ids.contains(&id),
            Scope::All | Scope::Group(_) => true,
        }
    }

    /// What changes seldom is read seldom: each process in a frame of its own.
    fn keep(&mut self, brief: &Brief, swap: Swap) -> Kept {
        let pid = brief.pid;
        let before = self.kept.remove(&pid).filter(|kept| kept.start_ticks == brief.start_ticks);
        let turn = (self.frame + u64::from(pid.unsigned_abs())).is_multiple_of(STATUS_EVERY);
        let same = |kept: &&Kept| {
            kept.program == brief.start_stack && kept.comm == brief.comm && kept.owner == brief.owner
        };
        let fresh = before.as_ref().filter(same).is_none() || turn || swap == Swap::Read;
        let status = if fresh { read_status(pid, pid).ok() } else { None };
        let container = match &before {
            Some(kept) if !turn => kept.container.clone(),
            _ if matches!(self.scope, Scope::Group(_)) => None,
            _ => self.names.container(pid, self.frame),
        };
        Kept {
            start_ticks: brief.start_ticks,
            program: brief.start_stack,
            comm: brief.comm.clone(),
            owner: brief.owner,
            uid: status
                .as_ref()
                .map(|status| status.real_uid())
                .or(before.as_ref().map(|kept| kept.uid))
                .unwrap_or(brief.owner),
            swap: match swap {
                Swap::None => 0,
                Swap::Read => status.as_ref().map_or(0, |status| status.figures.vm_swap),
            },
            huge: match &status {
                Some(status) => status.hugetlb,
                None => before.as_ref().map_or(0, |kept| kept.huge),
            },
            container,
        }
    }

    fn group(&mut self, processes: &[ProcessSample]) -> Option<Group> {
        let Scope::Group(container) = &self.scope else { return None };
        let begun = Instant::now();
        if self.shares_after.is_none_or(|after| begun >= after) {
            // A process that ends meanwhile has no share; one that may not be read makes the sum unknown.
            let shares: Option<Vec<u64>> =
                processes.iter().map(|process| Some(read_shares(process.id.pid).ok()?.pss)).collect();
            self.shares = shares.map(|shares| (shares.iter().sum(), self.now_ns()));
            self.shares_after = Some(begun + SHARES_EVERY.max(begun.elapsed() * SHARES_PART));
        }
        let plain = container.name.starts_with('/');
        let engine = container.engine.clone().into_iter();
        let id = container.id.as_deref().map(|id| crate::containers::short(id).to_owned());
        let memory = container.memory();
        Some(Group {
            title: format!("{} {}", if plain { "cgroup" } else { "container" }, container.name),
            subtitle: engine.chain(id).collect::<Vec<_>>().join(" · "),
            pss: self.shares,
            cgroup: memory.and_then(|memory| {
                Some(Cgroup {
                    current: memory.current?,
                    max: memory.max,
                    peak: memory.peak,
                    anon: memory.anon,
                    file: memory.file,
                    kernel: memory.kernel,
                })
            }),
        })
    }
}

/// Whether anything on this machine may be swapped out.
fn swap_in_use() -> bool {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let row =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).map(str::to_owned);
    match (row("SwapTotal:"), row("SwapFree:")) {
        (Some(total), Some(free)) => total != free,
        _ => true,
    }
}
