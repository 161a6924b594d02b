//! Counting the calls of any functions of a file (bpf/probe.bpf.c). The counts are kept by the kernel's
//! side, so none is ever lost; stacks go through the ring of the mapping tracer, whose events say what
//! is mapped where.

mod place;
pub mod skel;
pub mod wire;

pub use place::{CountersPlaced, PlaceError, Refused};

use super::bpf::counts::{self, Counts};
use super::bpf::hooks;
use super::bpf::{Attached, BpfTracer, MAX_STACK_BYTES, counter, needs_spares, own_pid_namespace};
use super::heap::MULTI_BY_PROCESS;
use super::members::{Members, Reach};
use super::newcomers::{Newcomer, Watch};
use super::uprobe_link::{self, PerfUprobe};
use super::viewer::set_viewer;
use super::{CaptureError, object, refusal};
use crate::sys::kernel;
use libbpf_rs::skel::OpenSkel;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How many functions are probed at most where each needs a probe, and a descriptor, of its own.
pub const MAX_SINGLE: usize = 1000;
/// MAX_UPROBE_MULTI_CNT (kernel/trace/bpf_trace.c).
pub const MAX_MULTI: usize = 1 << 20;

/// How probes are placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Linux 6.6: any number at once.
    Multi,
    /// One by one.
    Single,
}

impl Way {
    /// The best first.
    pub const ALL: [Way; 2] = [Way::Multi, Way::Single];

    /// As people call it.
    pub fn name(self) -> &'static str {
        match self {
            Way::Multi => "uprobe multi",
            Way::Single => "single uprobes",
        }
    }
}

/// What is counted.
#[derive(Clone, Copy)]
pub struct CounterConfig<'a> {
    /// How many functions there are.
    pub functions: usize,
    /// Only calls of processes that were marked, else of all.
    pub only_marked: bool,
    /// Children of marked processes are marked.
    pub follow_forks: bool,
    /// Where breakpoints are.
    pub reach: Reach,
    /// Where stacks go; they are not sent without.
    pub stacks: Option<(&'a BpfTracer, u64)>,
    /// None: the best that the kernel knows.
    pub way: Option<Way>,
}

/// The loaded program, its probes and its counts.
pub struct CallCounter {
    skel: skel::ProbeSkel<'static>,
    /// Of the tracepoints.
    _links: Vec<Link>,
    /// What is attached to those.
    tasks: Attached,
    /// None where the tracer of mappings follows processes.
    own: Option<Counts>,
    members: Arc<Members>,
    way: Way,
    functions: usize,
}

impl CallCounter {
    /// Loads; nothing is probed until [`CallCounter::place`].
    ///
    /// # Errors
    /// When the kernel refuses the program (privileges, lockdown, no BTF, older than 5.15).
    pub fn start(config: &CounterConfig<'_>) -> Result<CallCounter, CaptureError> {
        let ways = match config.way {
            Some(way) => vec![way],
            None => Way::ALL.to_vec(),
        };
        // One way is left in any case: its error says what is missing.
        let knows_processes = |way: &Way| *way == Way::Single || kernel::version() >= MULTI_BY_PROCESS;
        let is_fit = |way: &Way| config.reach == Reach::AllProcesses || knows_processes(way);
        let mut refused = Vec::new();
        for way in ways.into_iter().filter(is_fit) {
            match load(config, way) {
                Ok(counter) => return Ok(counter),
                Err(error) => refused.push((way.name(), error)),
            }
        }
        Err(CaptureError::NoWay(refused))
    }

    pub fn way(&self) -> Way {
        self.way
    }

    /// Calls of the process behind `pidfd` count from now on, or, where it is a child of vmaudit's that
    /// waits, from when it executes the command.
    ///
    /// # Errors
    /// When the process is gone, or the kernel has no memory for the mark.
    pub fn mark(&self, pid: i32, pidfd: BorrowedFd<'_>, at_exec: bool) -> Result<(), CaptureError> {
        const BEFORE_EXEC: u64 = u64::MAX;
        let mut value = [0u8; size_of::<skel::types::traced_thread>()];
        if at_exec {
            value[..8].copy_from_slice(&BEFORE_EXEC.to_ne_bytes());
        }
        let map = &self.skel.maps.threads;
        let marked = map.update(&pidfd.as_raw_fd().to_ne_bytes(), &value, MapFlags::ANY);
        marked.map_err(|source| CaptureError::Target { pid, source })
    }

    /// Calls so far, by function, over all CPUs.
    ///
    /// # Errors
    /// When the kernel does not hand them out.
    pub fn counts(&self) -> Result<Vec<u64>, CaptureError> {
        let value =
            |bytes: &Vec<u8>| bytes.get(..8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes);
        let count = |index: usize| {
            let key = (index as u32).to_ne_bytes();
            let per_cpu = self.skel.maps.calls.lookup_percpu(&key, MapFlags::ANY);
            Ok(per_cpu.map_err(CaptureError::Counters)?.iter().flatten().map(value).sum())
        };
        (0..self.functions).map(count).collect()
    }

    /// New threads and processes that could not be followed; 0 where the tracer of mappings follows.
    pub fn lost_tasks(&self) -> u64 {
        self.own.as_ref().map_or(0, |own| own.sum(counter::LOST_TASKS))
    }

    /// How many more were perhaps not followed ([`Attached::missed`]).
    pub fn missed_tasks(&self) -> u64 {
        self.tasks.missed()
    }

    /// The processes that have the probes.
    pub fn members(&self) -> &Arc<Members> {
        &self.members
    }

    /// As [`super::heap::HeapTracer::watch_newcomers`].
    ///
    /// # Errors
    /// When there can be no thread or ring for it.
    pub fn watch_newcomers(
        &self,
        tell: impl FnMut(Newcomer) + Send + 'static,
    ) -> Result<Watch, CaptureError> {
        let map = MapHandle::try_from(&self.skel.maps.newcomers).map_err(CaptureError::Ring)?;
        Watch::start(map, Arc::clone(&self.members), tell)
    }

    /// Takes the probes away; returns how long that took.
    pub fn detach(&self) -> Duration {
        let begun = Instant::now();
        self.members.clear_now();
        begun.elapsed()
    }
}

/// bpf/probe.bpf.c.
pub(super) const OBJECT: &str = "probe";

/// Opens the object and configures it; `with_stacks` without a reader only to see what the kernel accepts.
pub(super) fn prepare(
    config: &CounterConfig<'_>,
    (way, with_stacks): (Way, bool),
) -> Result<skel::OpenProbeSkel<'static>, CaptureError> {
    let mut open = object::open(skel::ProbeSkelBuilder::default())?;
    if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
        rodata.only_marked = config.only_marked;
        rodata.own_pid = std::process::id() as i32;
        rodata.with_stacks = with_stacks;
        rodata.pid_namespace = own_pid_namespace();
        rodata.task_type = super::kernel_types::task_struct();
        set_viewer!(rodata);
    }
    let calls = config.functions.max(1) as u32;
    open.maps.calls.set_max_entries(calls).map_err(CaptureError::Load)?;
    if let Some((tracer, bytes)) = config.stacks {
        let shared = tracer.shared();
        if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
            rodata.stack_bytes = bytes.min(MAX_STACK_BYTES);
            rodata.wake_bytes = shared.wake_bytes;
            rodata.stack_limit = shared.stack_limit;
        }
        open.maps.threads.reuse_fd(shared.threads).map_err(CaptureError::Load)?;
        open.maps.ring.reuse_fd(shared.ring).map_err(CaptureError::Load)?;
        open.maps.counters.reuse_fd(shared.counters).map_err(CaptureError::Load)?;
    } else {
        open.maps.counters.set_max_entries(counts::entries()?).map_err(CaptureError::Load)?;
        open.maps.ring.set_max_entries(4096).map_err(CaptureError::Load)?;
    }
    let own_marks = keeps_own_marks(config);
    open.progs.probed_many.set_autoload(way == Way::Multi);
    open.progs.probed_one.set_autoload(way == Way::Single);
    let spares = needs_spares();
    for mut program in open.open_object_mut().progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        if name.starts_with("follow_") {
            let needed = own_marks && (config.follow_forks || name.starts_with("follow_exec"));
            program.set_autoload(needed && (spares || !name.contains("_spare")));
        }
        if name.starts_with("newcomer_") {
            program.set_autoload(reports_newcomers(config) && (spares || !name.contains("_spare")));
        }
    }
    Ok(open)
}

/// Those of marked processes alone, and only where breakpoints are not everywhere.
fn reports_newcomers(config: &CounterConfig<'_>) -> bool {
    config.only_marked && config.follow_forks && config.reach == Reach::Members
}

/// With stacks, the tracer of mappings marks.
fn keeps_own_marks(config: &CounterConfig<'_>) -> bool {
    config.only_marked && config.stacks.is_none()
}

fn load(config: &CounterConfig<'_>, way: Way) -> Result<CallCounter, CaptureError> {
    let open = prepare(config, (way, config.stacks.is_some()))?;
    let skel = open.load().map_err(|error| refusal::refused(OBJECT, &error))?;
    let (mut links, mut tasks) = (Vec::new(), Attached::default());
    if keeps_own_marks(config) {
        let progs = &skel.progs;
        let execs = [&progs.follow_exec, &progs.follow_exec_spare, &progs.follow_exec_spare2];
        let forks = [&progs.follow_fork, &progs.follow_fork_spare, &progs.follow_fork_spare2];
        let followed = if config.follow_forks { &[execs, forks][..] } else { &[execs][..] };
        for programs in followed {
            links.append(&mut tasks.attach(programs, hooks::attach_trace)?);
        }
    }
    if reports_newcomers(config) {
        let progs = &skel.progs;
        for programs in [
            [&progs.newcomer_fork, &progs.newcomer_fork_spare, &progs.newcomer_fork_spare2],
            [&progs.newcomer_exec, &progs.newcomer_exec_spare, &progs.newcomer_exec_spare2],
        ] {
            links.append(&mut tasks.attach(&programs, hooks::attach_trace)?);
        }
    }
    let mut counter = CallCounter::of(skel, config, way)?;
    if keeps_own_marks(config) {
        counter.own = Some(Counts::of::<skel::types::vmaudit_counts>(&counter.skel.maps.counters)?);
    }
    Ok(CallCounter { _links: links, tasks, ..counter })
}

impl CallCounter {
    /// If the kernel knows this way of placing probes.
    pub(super) fn of(
        skel: skel::ProbeSkel<'static>,
        config: &CounterConfig<'_>,
        way: Way,
    ) -> Result<CallCounter, CaptureError> {
        let program = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map_err(CaptureError::Uprobes);
        let link = match way {
            Way::Multi => {
                uprobe_link::Way::Multi { entries: program(skel.progs.probed_many.as_fd())?, returns: None }
            }
            Way::Single => {
                let kind = PerfUprobe::find().ok_or(CaptureError::NoUprobes)?;
                uprobe_link::Way::Single { entry: program(skel.progs.probed_one.as_fd())?, leave: None, kind }
            }
        };
        let members = |link: uprobe_link::Way| -> io::Result<Members> {
            link.try_out()?;
            Members::new(link, config.reach)
        };
        Ok(CallCounter {
            members: Arc::new(members(link).map_err(CaptureError::Uprobes)?),
            skel,
            _links: Vec::new(),
            tasks: Attached::default(),
            own: None,
            way,
            functions: config.functions,
        })
    }
}
