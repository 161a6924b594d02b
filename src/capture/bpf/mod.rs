//! The BPF backend: loads the object, attaches it, marks targets, reads the rings.

mod cgroups;
pub(super) mod counts;
mod drain;
pub(super) mod hooks;
mod interpreters;
mod known;
mod mark;
mod misses;
mod queue;
mod reader;
pub(super) mod shared;
pub mod skel;
mod touches;
pub(super) mod tracepoints;

pub use cgroups::Entering;
pub use mark::MarkedThread;
pub use reader::BpfReader;
pub use touches::TouchConfig;

pub(super) use hooks::needs_spares;
pub(super) use misses::Attached;

use crate::sys::abi::PID_NS_INIT_INO;
use crate::sys::{pidfd, poll};
use counts::Counts;
use drain::{Drain, Drainer};
use hooks::CallHook;
use interpreters::InterpreterTable;
use known::KnownTable;

use super::viewer::set_viewer;
use super::{CaptureConfig, CaptureError, Interpreters, KnownStacks, TouchCounters, arch, object, refusal};
use libbpf_rs::libbpf_sys::{ring__consumer_pos, ring__producer_pos, ring_buffer__ring};
use libbpf_rs::skel::OpenSkel;
use libbpf_rs::{AsRawLibbpf, Link, MapCore, MapFlags, RingBuffer};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

/// Of the kernel side's [`Counts`].
pub(super) mod counter {
    use super::skel::types::vmaudit_counter;

    crate::capture::record::values!(vmaudit_counter: usize {
        SEEN = VMAUDIT_SEEN,
        EVENTS_WITHOUT_STACK = VMAUDIT_EVENTS_WITHOUT_STACK,
        LOST_EVENTS = VMAUDIT_LOST_EVENTS,
        LOST_TASKS = VMAUDIT_LOST_TASKS,
        MARKED = VMAUDIT_MARKED,
        UNMARKABLE = VMAUDIT_UNMARKABLE,
        HIDDEN = VMAUDIT_HIDDEN,
        KNOWN_SENT = VMAUDIT_KNOWN_SENT,
        LOST_MANAGED = VMAUDIT_LOST_MANAGED,
    });
}

/// The largest size class of bpf/vmaudit.bpf.c.
pub const MAX_STACK_BYTES: u64 = 262_144;

/// Loaded and attached programs. Targets may be added at any time.
pub struct BpfTracer {
    skel: skel::VmauditSkel<'static>,
    links: Vec<Link>,
    touch: bool,
    wake_bytes: u64,
    stack_limit: u64,
    queue_bytes: u32,
    events: Attached,
    faults: Attached,
    counts: Counts,
    /// What was attached, for `-v`: "15 syscall tracepoints" or "raw sys_exit".
    pub attached: String,
}

/// Maps by descriptor, and what was set before loading.
pub(super) struct Shared<'a> {
    pub threads: BorrowedFd<'a>,
    pub ring: BorrowedFd<'a>,
    pub counters: BorrowedFd<'a>,
    /// Which files have an interpreter, which processes, and whose code was sent already.
    pub interpreters: [BorrowedFd<'a>; 3],
    pub pid_namespace: u32,
    pub wake_bytes: u64,
    pub stack_limit: u64,
}

/// Inode number of the PID namespace that vmaudit is in; 0 for the first one, whose number never
/// changes.
pub(super) fn own_pid_namespace() -> u32 {
    match std::fs::metadata("/proc/self/ns/pid") {
        Ok(meta) if meta.ino() != PID_NS_INIT_INO => meta.ino() as u32,
        _ => 0,
    }
}

/// The reader is woken when this much waits.
fn wake_bytes(config: &CaptureConfig) -> u64 {
    u64::from(ring_size(config) / 8)
}

/// Of the ring of calls.
fn ring_size(config: &CaptureConfig) -> u32 {
    round_ring(config.ring_bytes.saturating_add(config.spill_bytes))
}

fn round_ring(bytes: u32) -> u32 {
    bytes.clamp(4096, 1 << 30).next_power_of_two()
}

/// bpf/vmaudit.bpf.c.
pub(super) const OBJECT: &str = "vmaudit";

/// Opens the object and configures it; of the programs for the exits of calls, all that this kernel may need
/// are there.
pub(super) fn prepare(config: &CaptureConfig) -> Result<skel::OpenVmauditSkel<'static>, CaptureError> {
    let mut open = object::open(skel::VmauditSkelBuilder::default())?;
    if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
        rodata.stack_bytes = config.stack_bytes.clamp(0, MAX_STACK_BYTES);
        rodata.follow_forks = config.follow_forks;
        rodata.list_vmas = true;
        rodata.list_forks = config.running_targets;
        rodata.pid_namespace = own_pid_namespace();
        rodata.wake_bytes = wake_bytes(config);
        rodata.stack_limit = u64::from(config.ring_bytes);
        rodata.task_type = super::kernel_types::task_struct();
        set_viewer!(rodata);
        for call in arch::TRACED {
            if let Some(slot) = rodata.op_of_syscall.get_mut(call.number as usize) {
                *slot = call.op as u8;
            }
        }
        if let Some(entering) = config.entering {
            rodata.entered_hierarchy = cgroups::number(entering.cgroup.hierarchy);
            rodata.entered_from_outside = entering.from_outside;
        }
    }
    open.maps.ring.set_max_entries(ring_size(config)).map_err(CaptureError::Load)?;
    open.maps.counters.set_max_entries(counts::entries()?).map_err(CaptureError::Load)?;
    touches::prepare(&mut open, config.touch)?;
    open.progs.mark_threads.set_autoload(config.running_targets);
    open.progs.syscall_returned.set_autoload(hooks::call_hooks().contains(&CallHook::Returns));
    let spares = needs_spares();
    for mut program in open.open_object_mut().progs_mut() {
        if program.name().to_string_lossy().contains("_spare") {
            program.set_autoload(spares);
        }
    }
    Ok(open)
}

impl BpfTracer {
    /// Loads and attaches; nothing is traced until [`BpfTracer::add_target`].
    ///
    /// # Errors
    /// When the kernel refuses to load or attach (privileges, lockdown, no BTF).
    pub fn start(config: &CaptureConfig) -> Result<BpfTracer, CaptureError> {
        let names: Vec<&'static str> = arch::TRACED.iter().map(|call| call.name).collect();
        let ids = tracepoints::syscall_exit_ids(&names);
        let mut refused = None;
        for &hook in hooks::call_hooks() {
            if hook == CallHook::Tracepoints && ids.is_empty() {
                continue;
            }
            match BpfTracer::start_with(config, hook, &ids) {
                Ok(tracer) => return Ok(tracer),
                // What the best one was refused for is what the user should know.
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        Err(refused.unwrap_or(CaptureError::NoHook))
    }

    fn start_with(
        config: &CaptureConfig,
        hook: CallHook,
        ids: &[(&'static str, u64)],
    ) -> Result<BpfTracer, CaptureError> {
        let mut open = prepare(config)?;
        open.progs.syscall_exit.set_autoload(hook == CallHook::Tracepoints);
        open.progs.syscall_returned.set_autoload(hook == CallHook::Returns);
        open.progs.any_syscall_exit.set_autoload(hook == CallHook::RawExit);
        let skel = open.load().map_err(|error| refusal::refused(OBJECT, &error))?;
        if let Some(entering) = config.entering {
            cgroups::add(&skel, entering.cgroup)?;
        }
        let counts = Counts::of::<skel::types::vmaudit_counts>(&skel.maps.counters)?;
        let (mut events, mut faults) = (Attached::default(), Attached::default());
        let progs = &skel.progs;
        let mut links = Vec::new();
        for programs in [
            [&progs.task_forked, &progs.task_forked_spare, &progs.task_forked_spare2],
            [&progs.task_executed, &progs.task_executed_spare, &progs.task_executed_spare2],
            [&progs.task_exited, &progs.task_exited_spare, &progs.task_exited_spare2],
            [&progs.task_renamed, &progs.task_renamed_spare, &progs.task_renamed_spare2],
        ] {
            links.append(&mut events.attach(&programs, hooks::attach_trace)?);
        }
        let (mut calls, mut attached) = hooks::attach_calls(&skel, hook, ids)?;
        links.append(&mut calls);
        events.add([match hook {
            CallHook::Tracepoints => progs.syscall_exit.as_fd(),
            CallHook::Returns => progs.syscall_returned.as_fd(),
            CallHook::RawExit => progs.any_syscall_exit.as_fd(),
        }]);
        if config.touch.is_some() {
            links.append(&mut touches::attach(&skel)?);
            faults.add([progs.page_fault.as_fd()]);
            attached += ", page faults";
        }
        let touch = config.touch.is_some();
        let (wake_bytes, stack_limit) = (wake_bytes(config), u64::from(config.ring_bytes));
        let queue_bytes = config.queue_bytes;
        Ok(BpfTracer {
            skel,
            links,
            touch,
            wake_bytes,
            stack_limit,
            queue_bytes,
            events,
            faults,
            counts,
            attached,
        })
    }

    /// Marks the process behind `pidfd` (its first thread, whose descendants follow).
    ///
    /// # Errors
    /// When the process is gone, or the kernel has no memory for the mark.
    pub fn add_target(&self, pid: i32, pidfd: BorrowedFd<'_>) -> Result<(), CaptureError> {
        let key = pidfd.as_raw_fd().to_ne_bytes();
        let value = [0u8; size_of::<skel::types::traced_thread>()];
        self.skel
            .maps
            .threads
            .update(&key, &value, MapFlags::ANY)
            .map_err(|source| CaptureError::Target { pid, source })
    }

    /// What was counted of page faults; nothing where they are not recorded.
    ///
    /// # Errors
    /// When the kernel does not hand out the counters.
    pub fn touch_counters(&self) -> Result<Option<TouchCounters>, CaptureError> {
        if !self.touch {
            return Ok(None);
        }
        let mut counters = touches::counters(&self.skel)?;
        let missed = self.faults.missed();
        counters.faults += missed;
        counters.lost += missed;
        Ok(Some(counters))
    }

    /// True where a traced task became one that the user may not inspect. How often is not reported: the user
    /// may not know it.
    fn has_hidden(&self) -> bool {
        self.counts.sum(counter::HIDDEN) > 0
    }

    /// What another object of programs shares with this one.
    pub(super) fn shared(&self) -> Shared<'_> {
        let maps = &self.skel.maps;
        Shared {
            threads: maps.threads.as_fd(),
            ring: maps.ring.as_fd(),
            counters: maps.counters.as_fd(),
            interpreters: [
                maps.interpreter_files.as_fd(),
                maps.interpreters.as_fd(),
                maps.sent_codes.as_fd(),
            ],
            pid_namespace: own_pid_namespace(),
            wake_bytes: self.wake_bytes,
            stack_limit: self.stack_limit,
        }
    }

    /// To be called just before vmaudit exits. The kernel takes tens of milliseconds to let go of each
    /// tracepoint (it waits for RCU grace periods), and the process that holds the last descriptor waits:
    /// that is a child that lives until its parent is gone, so that the user need not wait.
    pub fn detach_in_background(self) {
        leave_to_a_child((self.links, self.skel));
    }

    /// Publishes to the BPF programs which stacks they need not send.
    ///
    /// # Errors
    /// When the kernel does not map the table.
    pub fn known_stacks(&self) -> Result<Box<dyn KnownStacks>, CaptureError> {
        Ok(Box::new(KnownTable::of(&self.skel.maps.known_stacks)?))
    }

    /// Publishes interpreters to the BPF programs.
    ///
    /// # Errors
    /// When the kernel does not map the table.
    pub fn interpreters(&self) -> Result<Box<dyn Interpreters>, CaptureError> {
        let maps = &self.skel.maps;
        Ok(Box::new(InterpreterTable::of(&maps.interpreter_files, &maps.interpreters, &maps.counters)?))
    }

    /// A reader of the rings that calls `handle` for each record, oldest first.
    ///
    /// # Errors
    /// When libbpf cannot map the rings.
    pub fn reader<'a>(&'a self, handle: impl FnMut(&[u8]) + 'a) -> Result<BpfReader<'a>, CaptureError> {
        let maps = &self.skel.maps;
        let touches = self.touch.then_some(&maps.touches);
        let drainer = Drainer::start(Drain::of(&maps.ring, touches, self.queue_bytes as usize)?)?;
        Ok(BpfReader::of(self, drainer, Box::new(handle)))
    }
}

/// Has a child of this process let go of descriptors, after the death of both: without one, the kernel waits for
/// each event at the end of this process (`synchronize_rcu`, a second for all of them).
pub fn leave_to_a_child<T>(holds_descriptors: T) {
    // PR_SET_PDEATHSIG goes by the thread that forks: another one may still have the descriptors when it is gone.
    let Ok(parent) = pidfd::open(std::process::id() as i32) else { return };
    // SAFETY: between fork and _exit the child makes only async-signal-safe calls.
    if unsafe { libc::fork() } == 0 {
        // SAFETY: plain system calls; no reader may wait for the end of an output that this child still
        // holds, and it must not get signals of the terminal.
        unsafe {
            libc::setsid();
            for fd in 0..=2 {
                libc::close(fd);
            }
            // When the last thread is gone, and so has closed what it had (kernel/fork.c, pidfd_poll).
            poll::wait_readable(&parent, None);
            libc::_exit(0);
        }
    }
    std::mem::forget(holds_descriptors);
}

fn attach_error(name: &std::ffi::OsStr, source: libbpf_rs::Error) -> CaptureError {
    CaptureError::Attach { what: name.to_string_lossy().into_owned(), source }
}

/// How far a ring was read, and how far it was written: bytes since it was made.
fn positions(of: &RingBuffer<'_>) -> (u64, u64) {
    // SAFETY: libbpf's ring_buffer lives as long as `of`; index 0 exists in each of ours.
    let first = unsafe { ring_buffer__ring(of.as_libbpf_object().as_ptr(), 0) };
    if first.is_null() {
        return (0, 0);
    }
    // SAFETY: not null, and it lives as long as `of`.
    unsafe { (ring__consumer_pos(first), ring__producer_pos(first)) }
}
