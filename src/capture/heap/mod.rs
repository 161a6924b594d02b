//! Probes on the functions of allocators (bpf/heap.bpf.c), next to the tracer of mappings: both write into
//! its rings, so that records of both come in one order, and both follow the same threads.

pub(super) mod attach;
pub mod counted;
mod function;
pub mod skel;
mod test_call;
pub mod wire;

pub use attach::{Prober, ProbesPlaced, Request};
pub use counted::{Counted, SiteCounts, SiteKey};
pub use function::{Action, ProbeFunction, Where};

use super::bpf::counts::{self, Counts};
use super::bpf::hooks::{CallHook, Moment, attach_functions, attach_trace, call_hooks};
use super::bpf::{Attached, BpfTracer, Shared, needs_spares};
use super::members::{Members, Reach};
use super::newcomers::{Newcomer, Watch};
use super::uprobe_link::{PerfUprobe, Way};
use super::viewer::set_viewer;
use super::{CaptureError, object, refusal};
use crate::sys::kernel;
use libbpf_rs::skel::OpenSkel;
use libbpf_rs::{Link, MapHandle, ProgramMut};
use skel::types::vmaudit_heap_counter as Which;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// Of records, that wake the reader of [`HeapConfig::combined`]'s.
const WAKE_BYTES: u64 = 4096;

/// How allocations are reported.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeapConfig {
    /// Most bytes of user stack to copy.
    pub stack_bytes: u64,
    /// Report an allocation of n bytes with probability 1 - exp(-n / this); None: all.
    pub sample: Option<u64>,
    /// Where breakpoints are.
    pub reach: Reach,
    /// How many processes there are to begin with; 0: not known.
    pub processes: usize,
    /// New processes and programs are reported ([`HeapTracer::watch_newcomers`]).
    pub newcomers: bool,
    /// Count in the kernel, by stack ([`Counted`]).
    pub combined: bool,
    /// Which ways to try: for tests, and for kernels whose best one does not work.
    pub way: AttachMethod,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AttachMethod {
    #[default]
    Best,
    Multi,
    Single,
}

/// What was counted, over all CPUs since tracing began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapCounters {
    /// Events of traced tasks: outermost calls only.
    pub seen: u64,
    /// Of these: known, but without stack, because the ring was full.
    pub without_stack: u64,
    /// Of these: not known at all.
    pub lost_allocations: u64,
    pub lost_frees: u64,
    pub lost_others: u64,
    /// Calls of threads whose state the kernel had no memory for.
    pub untracked: u64,
    /// Allocations that the sample left out.
    pub skipped: u64,
    /// Of the events seen: allocations counted in the kernel ([`HeapConfig::combined`]), not sent.
    pub counted: u64,
}

/// The loaded programs.
pub struct HeapTracer {
    skel: skel::HeapSkel<'static>,
    prober: Arc<Prober>,
    /// The programs that report new address spaces to the heap's BPF programs, and newcomers to vmaudit.
    _tasks: Vec<Link>,
    /// The programs that do.
    spaces: Attached,
    counts: Counts,
    /// For `-v`: "uprobe session", "uprobe multi", "single uprobes".
    pub attached: &'static str,
}

impl HeapTracer {
    /// Loads; nothing is probed until [`Prober::place`].
    ///
    /// # Errors
    /// When the kernel refuses the programs (privileges, lockdown, no BTF, older than 5.15).
    pub fn start(tracer: &BpfTracer, config: &HeapConfig) -> Result<HeapTracer, CaptureError> {
        let mut refused = Vec::new();
        let ways = match config.way {
            AttachMethod::Best if config.processes > FEW && config.reach == Reach::Members => {
                &[Kind::Multi, Kind::Single]
            }
            AttachMethod::Best => &Kind::ALL[..],
            AttachMethod::Multi => &[Kind::Multi],
            AttachMethod::Single => &[Kind::Single],
        };
        for &kind in ways.iter().filter(|kind| kind.knows_processes() || config.reach != Reach::Members) {
            match load(tracer, config, kind) {
                Ok(started) => return Ok(started),
                Err(error) => refused.push((kind.name(), error)),
            }
        }
        Err(CaptureError::NoWay(refused))
    }

    /// What places the probes; usable from any thread.
    pub fn prober(&self) -> Arc<Prober> {
        Arc::clone(&self.prober)
    }

    /// Calls `tell`, in a thread of its own, for each process that a counted one forks and each program that one executes;
    /// and lets go of the probes of processes that have ended.
    ///
    /// # Errors
    /// When there can be no thread or ring for it.
    pub fn watch_newcomers(
        &self,
        tell: impl FnMut(Newcomer) + Send + 'static,
    ) -> Result<Watch, CaptureError> {
        let map = MapHandle::try_from(&self.skel.maps.newcomers).map_err(CaptureError::Ring)?;
        Watch::start(map, Arc::clone(&self.prober.members), tell)
    }

    /// The kernel's counts; of use with [`HeapConfig::combined`].
    ///
    /// # Errors
    /// When the process has no file descriptors left.
    pub fn counted(&self) -> Result<Counted, CaptureError> {
        Counted::of(&self.skel.maps)
    }

    pub fn counters(&self) -> HeapCounters {
        let read = |which: Which| self.counts.sum(which.0 as usize);
        HeapCounters {
            seen: read(Which::VMAUDIT_HEAP_SEEN),
            without_stack: read(Which::VMAUDIT_HEAP_WITHOUT_STACK),
            lost_allocations: read(Which::VMAUDIT_HEAP_LOST_ALLOCATIONS),
            lost_frees: read(Which::VMAUDIT_HEAP_LOST_FREES),
            lost_others: read(Which::VMAUDIT_HEAP_LOST_OTHERS) + self.spaces.missed(),
            untracked: read(Which::VMAUDIT_HEAP_UNTRACKED),
            skipped: read(Which::VMAUDIT_HEAP_SKIPPED),
            counted: read(Which::VMAUDIT_HEAP_COUNTED),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Session,
    Multi,
    Single,
}

impl Kind {
    /// The best first.
    pub(super) const ALL: [Kind; 3] = [Kind::Session, Kind::Multi, Kind::Single];

    /// Whether its links for one process see the calls of all its threads. Those of uprobe_multi saw the calls of the first
    /// one alone until Linux 6.10 (46ba0e49b642, "fix multi-uprobe PID filtering logic").
    pub(super) fn knows_processes(self) -> bool {
        self != Kind::Multi || kernel::version() >= MULTI_BY_PROCESS
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Session => "uprobe session",
            Kind::Multi => "uprobe multi",
            Kind::Single => "single uprobes",
        }
    }
}

/// The first Linux whose uprobe_multi links know processes.
pub(super) const MULTI_BY_PROCESS: (u32, u32) = (6, 10);
/// With more processes, links of sessions would cost more: at each call, each one that is not the caller's would have the
/// return probed, too (kernel/events/uprobes.c, handler_chain).
const FEW: usize = 4;

/// bpf/heap.bpf.c.
pub(super) const OBJECT: &str = "heap";
/// The rings that are not read.
const NO_RING: u32 = 4096;

/// Opens the object and configures it, without `shared` to see what the kernel accepts.
pub(super) fn prepare(
    shared: Option<&Shared<'_>>,
    config: &HeapConfig,
    kind: Kind,
) -> Result<skel::OpenHeapSkel<'static>, CaptureError> {
    let mut open = object::open(skel::HeapSkelBuilder::default())?;
    if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
        rodata.stack_bytes = config.stack_bytes.clamp(0, super::bpf::MAX_STACK_BYTES);
        rodata.pid_namespace =
            shared.map_or_else(super::bpf::own_pid_namespace, |shared| shared.pid_namespace);
        // The unwind rules that the kernel waits for are to be read soon.
        let wake_bytes = shared.map_or(WAKE_BYTES, |shared| shared.wake_bytes);
        rodata.wake_bytes = if config.combined { WAKE_BYTES } else { wake_bytes };
        rodata.stack_limit = shared.map_or(0, |shared| shared.stack_limit);
        rodata.combined = config.combined;
        rodata.task_type = super::kernel_types::task_struct();
        set_viewer!(rodata);
        rodata.sample_bytes = config.sample.unwrap_or(0);
        let unit = 2f64.powi(32);
        for (step, value) in rodata.sample_whole.iter_mut().enumerate() {
            *value = ((-(step as f64)).exp() * unit).round() as u64;
        }
        for (step, value) in rodata.sample_fraction.iter_mut().enumerate() {
            *value = ((-(step as f64) / 256.0).exp() * unit).round() as u64;
        }
    }
    if config.sample.is_none() {
        open.maps.sampled.set_max_entries(1).map_err(CaptureError::Load)?;
    }
    if !config.newcomers {
        open.maps.newcomers.set_max_entries(NO_RING).map_err(CaptureError::Load)?;
    }
    if !config.combined {
        open.maps.blocks.set_max_entries(1).map_err(CaptureError::Load)?;
    }
    open.maps.heap_counters.set_max_entries(counts::entries()?).map_err(CaptureError::Load)?;
    let (spares, functions) = (needs_spares(), on_functions());
    for mut program in open.open_object_mut().progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        if name.starts_with("combined_") {
            let here = match name.as_str() {
                "combined_unmapping" | "combined_unmapped" => functions,
                name => spares || !name.contains("_spare"),
            };
            program.set_autoload(config.combined && here);
        }
        if name.starts_with("newcomer_") {
            program.set_autoload(config.newcomers && (spares || !name.contains("_spare")));
        }
    }
    match shared {
        Some(shared) => {
            open.maps.threads.reuse_fd(shared.threads).map_err(CaptureError::Load)?;
            open.maps.ring.reuse_fd(shared.ring).map_err(CaptureError::Load)?;
            open.maps.counters.reuse_fd(shared.counters).map_err(CaptureError::Load)?;
            let maps = &mut open.maps;
            for (map, fd) in [&mut maps.interpreter_files, &mut maps.interpreters, &mut maps.sent_codes]
                .into_iter()
                .zip(shared.interpreters)
            {
                map.reuse_fd(fd).map_err(CaptureError::Load)?;
            }
        }
        None => {
            open.maps.ring.set_max_entries(NO_RING).map_err(CaptureError::Load)?;
        }
    }
    open.progs.heap_session.set_autoload(kind == Kind::Session);
    open.progs.heap_entries.set_autoload(kind == Kind::Multi);
    open.progs.heap_returns.set_autoload(kind == Kind::Multi);
    open.progs.heap_entry.set_autoload(kind == Kind::Single);
    open.progs.heap_return.set_autoload(kind == Kind::Single);
    Ok(open)
}

/// System calls that take code away, or put other code in its place.
const UNMAP: &[&str] = &["munmap", "mremap", "mmap"];

/// Whether those are seen at the kernel's functions for them, if they can be.
fn on_functions() -> bool {
    call_hooks().first() == Some(&CallHook::Returns)
}

fn attach_to_functions(progs: &skel::HeapProgs<'_>) -> Result<Vec<Link>, CaptureError> {
    let (mut links, _) = attach_functions(&progs.combined_unmapping, Moment::Entry, UNMAP)?;
    let (mut leave, _) = attach_functions(&progs.combined_unmapped, Moment::Return, UNMAP)?;
    links.append(&mut leave);
    Ok(links)
}

fn load(tracer: &BpfTracer, config: &HeapConfig, kind: Kind) -> Result<HeapTracer, CaptureError> {
    let open = prepare(Some(&tracer.shared()), config, kind)?;
    let skel = open.load().map_err(|error| refusal::refused(OBJECT, &error))?;
    let (mut links, mut spaces) = (Vec::new(), Attached::default());
    if config.combined {
        let progs = &skel.progs;
        let functions = on_functions().then(|| attach_to_functions(progs)).and_then(Result::ok);
        let mut events = vec![
            [&progs.combined_exec, &progs.combined_exec_spare, &progs.combined_exec_spare2],
            [&progs.combined_fork, &progs.combined_fork_spare, &progs.combined_fork_spare2],
        ];
        if let Some(mut functions) = functions {
            links.append(&mut functions);
            spaces.add([progs.combined_unmapping.as_fd()]);
            spaces.add([progs.combined_unmapped.as_fd()]);
        } else {
            events.push([&progs.combined_enter, &progs.combined_enter_spare, &progs.combined_enter_spare2]);
            events.push([&progs.combined_leave, &progs.combined_leave_spare, &progs.combined_leave_spare2]);
        }
        for programs in &events {
            let attach = |program: &ProgramMut<'_>| program.attach_trace().map_err(CaptureError::Load);
            links.append(&mut spaces.attach(programs, attach)?);
        }
    }
    if config.newcomers {
        let progs = &skel.progs;
        for programs in [
            [&progs.newcomer_fork, &progs.newcomer_fork_spare, &progs.newcomer_fork_spare2],
            [&progs.newcomer_exec, &progs.newcomer_exec_spare, &progs.newcomer_exec_spare2],
        ] {
            links.append(&mut spaces.attach(&programs, attach_trace)?);
        }
    }
    let prober = Arc::new(prober(&skel, config.reach, kind)?);
    let counts = Counts::of::<skel::types::vmaudit_heap_counts>(&skel.maps.heap_counters)?;
    Ok(HeapTracer { skel, prober, _tasks: links, spaces, counts, attached: kind.name() })
}

/// What places the probes, if the kernel knows this way of placing them.
pub(super) fn prober(skel: &skel::HeapSkel<'_>, reach: Reach, kind: Kind) -> Result<Prober, CaptureError> {
    let progs = &skel.progs;
    let way = match kind {
        Kind::Session => Way::Session(handle(&progs.heap_session)?),
        Kind::Multi => {
            let (entries, returns) = (handle(&progs.heap_entries)?, handle(&progs.heap_returns)?);
            Way::Multi { entries, returns: Some(returns) }
        }
        Kind::Single => {
            let (entry, leave) = (handle(&progs.heap_entry)?, handle(&progs.heap_return)?);
            let kind = PerfUprobe::find().ok_or(CaptureError::NoUprobes)?;
            Way::Single { entry, leave: Some(leave), kind }
        }
    };
    let table = skel.maps.functions.as_fd().try_clone_to_owned().map_err(CaptureError::Uprobes)?;
    way.try_out().map_err(CaptureError::Uprobes)?;
    let members = Members::new(way, reach).map_err(CaptureError::Uprobes)?;
    Ok(Prober { members: Arc::new(members), table, next: Default::default() })
}

fn handle(program: &ProgramMut<'_>) -> Result<OwnedFd, CaptureError> {
    // SAFETY: the descriptor is open as long as the skeleton; fcntl makes a copy of our own.
    let copy = unsafe { libc::fcntl(program.as_fd().as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(CaptureError::Uprobes(std::io::Error::last_os_error()));
    }
    // SAFETY: a new descriptor owned by nothing else.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}
