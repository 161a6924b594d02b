//! The perf backend: system-call tracepoints of one's own child and its descendants, which perf_event_open
//! grants every user (docs/backends.md). It delivers the same records as the BPF backend (bpf/vmaudit.h),
//! made from perf's records.
//!
//! For each CPU there is one event a tracepoint, and one for forks, names, executions and mappings.
//! Tasks inherit them (kernel/events/core.c, inherit_event), and all of a CPU write to its two rings.

mod arch;
mod attr;
mod canary;
mod deep;
mod image;
mod life;
mod losses;
mod merge;
mod out;
mod plan;
mod probe;
mod reader;
mod remembered;
mod ring;
mod rings;
mod sample;

pub use reader::PerfReader;

use super::{CaptureConfig, CaptureError};
use crate::sys::file::raise_descriptor_limit;
use crate::sys::perf;
use attr::{EventKind, Inherit};
use canary::Canary;
use deep::DeepStacks;
use losses::Losses;
use plan::{Meaning, Plan, Planned, Stack};
use ring::Ring;
use rings::{CpuRings, Rings};
use std::cell::{OnceCell, RefCell};
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::{fs, io};

/// Bytes of stack copied to find clone3's arguments in.
const CLONE_STACK: u32 = 2048;
/// A mapping's record, with a path of PATH_MAX.
const LARGEST_WITHOUT_STACK: u64 = 4096 + 256;
/// A ring holds at least so many stacks.
const STACKS_A_RING: usize = 128;
/// … and of deep ones, so many.
const DEEP_STACKS_A_RING: usize = 32;
/// The smallest rings that are tried.
const MIN_RING: usize = 64 << 10;

/// The open events. Made in two steps, as one process is traced: [`PerfTracer::start`],
/// [`PerfTracer::add_target`].
pub struct PerfTracer {
    config: CaptureConfig,
    cpus: Vec<i32>,
    /// Until it was carried out.
    plan: RefCell<Option<Plan>>,
    target: OnceCell<Target>,
}

struct Target {
    pid: i32,
    attached: String,
    stack_bytes: u32,
    /// Kept open, because they report. Of each CPU, those that write to the ring of calls in addition to its
    /// owner.
    calls: Vec<Vec<OwnedFd>>,
    /// Those that write to the rings of stacks.
    stacks: Vec<OwnedFd>,
    /// Of each CPU, those that own the rings: they signal when to read.
    owners: Vec<[OwnedFd; 2]>,
    /// The most of a stack that has to be copied in a larger sample.
    deep_stack_bytes: u32,
    rings: Arc<Mutex<Rings>>,
    meanings: HashMap<u16, Planned>,
    canary: Canary,
}

/// What was opened on one CPU.
struct OnCpu {
    calls: Vec<OwnedFd>,
    stacks: Vec<OwnedFd>,
    owners: [OwnedFd; 2],
    rings: CpuRings,
}

#[derive(Clone, Copy)]
struct Sizes {
    calls: usize,
    stacks: usize,
    stack_bytes: u32,
}

impl PerfTracer {
    /// Finds out whether the kernel grants it; nothing is traced until [`PerfTracer::add_target`].
    ///
    /// # Errors
    /// When the kernel refuses: perf_event_paranoid above 2, or a seccomp profile.
    pub fn start(config: CaptureConfig) -> Result<PerfTracer, CaptureError> {
        let cpus = online_cpus().map_err(failed("reading the online CPUs"))?;
        let plan = Plan::make(cpus.len())?;
        Ok(PerfTracer { config, cpus, plan: RefCell::new(Some(plan)), target: OnceCell::new() })
    }

    /// What was opened, for `-v`.
    pub fn attached(&self) -> &str {
        self.target.get().map_or("nothing yet", |target| &target.attached)
    }

    /// Opens the events on a child that waits to become the command.
    ///
    /// # Errors
    /// When the kernel refuses an event, or memory for the rings.
    pub fn add_target(&self, pid: i32) -> Result<(), CaptureError> {
        let Some(plan) = self.plan.take() else {
            let source = io::ErrorKind::AlreadyExists.into();
            return Err(CaptureError::Perf { what: "a second process".to_owned(), source });
        };
        // Some dozens of descriptors per CPU.
        raise_descriptor_limit();
        let canary = canary(&plan).map_err(failed("counting vmaudit's own calls"))?;
        if let Some(call) = canary.silenced() {
            return Err(CaptureError::Silenced { call });
        }
        let (opened, sizes) = self.open_all(&plan, pid)?;
        let attached = format!(
            "{} tracepoints on {} CPUs ({}), {} KiB of rings a CPU, stacks up to {} bytes",
            plan.tracepoints.len(),
            self.cpus.len(),
            plan.source,
            (sizes.calls + sizes.stacks) >> 10,
            sizes.stack_bytes
        );
        let (mut calls, mut stacks) = (Vec::new(), Vec::new());
        let (mut owners, mut rings) = (Vec::new(), Vec::new());
        for cpu in opened {
            calls.push(cpu.calls);
            stacks.extend(cpu.stacks);
            owners.push(cpu.owners);
            rings.push(cpu.rings);
        }
        let meanings = plan.tracepoints.iter().map(|planned| (planned.id, *planned)).collect();
        let rings = Arc::new(Mutex::new(Rings::new(rings)));
        // There was none, because there was a plan.
        let _ = self.target.set(Target {
            pid,
            attached,
            stack_bytes: sizes.stack_bytes,
            calls,
            stacks,
            owners,
            deep_stack_bytes: (sizes.stacks / DEEP_STACKS_A_RING)
                .min(attr::MAX_STACK_BYTES as usize)
                .min(self.config.stack_bytes as usize) as u32
                & !7,
            rings,
            meanings,
            canary,
        });
        Ok(())
    }

    /// With the largest rings that the user may lock.
    fn open_all(&self, plan: &Plan, pid: i32) -> Result<(Vec<OnCpu>, Sizes), CaptureError> {
        let share = |bytes: u32| (bytes as usize / self.cpus.len().max(1)).max(MIN_RING).next_power_of_two();
        let mut stacks = share(self.config.ring_bytes);
        let most_calls = share(self.config.spill_bytes);
        loop {
            let stack_bytes = (stacks / STACKS_A_RING).min(attr::MAX_STACK_BYTES as usize) as u64;
            let stack_bytes = stack_bytes.min(self.config.stack_bytes) as u32 & !7;
            let sizes =
                |calls: usize| Sizes { calls: most_calls.min(calls).max(MIN_RING), stacks, stack_bytes };
            // Calls must not be lost, and stacks may: where both fit, calls have as much space.
            let sizes = if self.fit(pid, sizes(stacks)) { sizes(stacks) } else { sizes(stacks / 2) };
            let opened: Result<Vec<OnCpu>, CaptureError> =
                self.cpus.iter().map(|&cpu| self.open_on(plan, pid, cpu, sizes)).collect();
            match opened {
                Err(CaptureError::Perf { source, .. })
                    if matches!(source.raw_os_error(), Some(libc::EPERM | libc::ENOMEM))
                        && stacks > MIN_RING =>
                {
                    stacks /= 2;
                }
                opened => return opened.map(|opened| (opened, sizes)),
            }
        }
    }

    /// Whether the user may have rings of these sizes.
    fn fit(&self, pid: i32, sizes: Sizes) -> bool {
        let ring = |cpu: i32, ring_bytes: usize| {
            let owner = attr::open(EventKind::Nothing { ring_bytes }, Inherit::None, pid, cpu)?;
            Ok::<_, io::Error>((Ring::map(&owner, ring_bytes)?, owner))
        };
        let rings: io::Result<Vec<_>> =
            self.cpus.iter().flat_map(|&cpu| [ring(cpu, sizes.calls), ring(cpu, sizes.stacks)]).collect();
        rings.is_ok()
    }

    fn open_on(&self, plan: &Plan, pid: i32, cpu: i32, sizes: Sizes) -> Result<OnCpu, CaptureError> {
        let heirs = if self.config.follow_forks { Inherit::All } else { Inherit::Threads };
        let open = |kind| {
            attr::open(kind, heirs, pid, cpu).map_err(failed(format!("{kind:?} of {pid} on CPU {cpu}")))
        };
        let ring = |event: &OwnedFd, size| {
            Ring::map(event, size).map_err(failed(format!("mapping a ring of {size} bytes")))
        };
        let life = open(EventKind::Life { ring_bytes: sizes.calls })?;
        let calls_ring = ring(&life, sizes.calls)?;
        // Nothing but a ring to write to, for the stacks.
        let second = open(EventKind::Nothing { ring_bytes: sizes.stacks })?;
        let stacks_ring = ring(&second, sizes.stacks)?;
        let (mut calls, mut stacks) = (Vec::new(), Vec::new());
        let mut largest = LARGEST_WITHOUT_STACK;
        for tracepoint in &plan.tracepoints {
            let id = u64::from(tracepoint.id);
            let bytes = match (tracepoint.stack, tracepoint.meaning) {
                (Stack::Inline, Meaning::Clone3) => CLONE_STACK,
                (Stack::Inline, _) => sizes.stack_bytes,
                _ => 0,
            };
            let add = |stack_bytes, to: &OwnedFd| {
                let event = open(EventKind::Tracepoint { id, stack_bytes })?;
                perf::set_output(&event, to).map_err(|errno| failed("joining rings")(errno.into()))?;
                Ok::<OwnedFd, CaptureError>(event)
            };
            calls.push(add(bytes, &life)?);
            largest = largest.max(LARGEST_WITHOUT_STACK + u64::from(bytes));
            if tracepoint.stack == Stack::Apart && sizes.stack_bytes > 0 {
                stacks.push(add(sizes.stack_bytes, &second)?);
            }
        }
        // What is being written while a ring is read is not seen: an unnecessary check costs little.
        let margin = if *attr::COUNTS_LOSSES { largest.max(sizes.calls as u64 / 2) } else { largest };
        let rings = CpuRings { calls: calls_ring, stacks: stacks_ring, margin };
        Ok(OnCpu { calls, stacks, owners: [life, second], rings })
    }

    /// A reader that calls `handle` for each record, oldest first.
    ///
    /// # Errors
    /// Without a target, or when no thread can be started.
    pub fn reader<'a, F: FnMut(&[u8])>(&'a self, handle: F) -> Result<PerfReader<'a, F>, CaptureError> {
        let Some(target) = self.target.get() else {
            return Err(failed("no process to trace")(io::ErrorKind::NotFound.into()));
        };
        let apart = target.meanings.values().filter(|planned| planned.stack == Stack::Apart);
        let apart =
            if target.stack_bytes > 0 { apart.map(|planned| planned.id).collect() } else { HashSet::new() };
        let frequent = target.meanings.values().filter(|planned| planned.is_frequent);
        let frequent = frequent.map(|planned| u64::from(planned.id));
        PerfReader::new(
            reader::Source {
                pid: target.pid,
                follow_forks: self.config.follow_forks,
                rings: Arc::clone(&target.rings),
                owners: target.owners.iter().flatten().collect(),
                meanings: target.meanings.clone(),
                apart,
                canary: &target.canary,
                deep: DeepStacks::new(
                    self.cpus.iter().copied().zip(target.owners.iter().map(|[_, second]| second)).collect(),
                    frequent.collect(),
                    (target.stack_bytes, target.deep_stack_bytes),
                ),
                losses: Losses::of(&target.owners, &target.calls, *attr::COUNTS_LOSSES),
            },
            handle,
        )
    }

    /// To be called just before vmaudit exits: letting go of the events takes the kernel a while.
    pub fn detach_in_background(self) {
        if let Some(target) = self.target.into_inner() {
            crate::capture::bpf::leave_to_a_child((target.calls, target.stacks, target.owners));
        }
    }
}

fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> CaptureError {
    let what = what.into();
    move |source| CaptureError::Perf { what, source }
}

fn canary(plan: &Plan) -> io::Result<Canary> {
    let frequent = plan.tracepoints.iter().filter(|tracepoint| tracepoint.stack == Stack::Apart);
    Canary::new(frequent.filter_map(|tracepoint| {
        let call = super::arch::TRACED.iter().find(|call| Meaning::Changed(call.op) == tracepoint.meaning)?;
        Some((call.name, call.number, u64::from(tracepoint.id)))
    }))
}

fn online_cpus() -> io::Result<Vec<i32>> {
    let text = fs::read_to_string("/sys/devices/system/cpu/online")?;
    cpu_list(text.trim()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// `0-3,8,10-11`
fn cpu_list(text: &str) -> Option<Vec<i32>> {
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse::<i32>().ok()?..=last.parse().ok()?);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    #[test]
    fn lists_of_cpus() {
        assert_eq!(super::cpu_list("0-3,8,10-11"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(super::cpu_list("0"), Some(vec![0]));
        assert_eq!(super::cpu_list(""), None);
    }
}
