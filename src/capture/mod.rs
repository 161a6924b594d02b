//! Where events come from. A backend delivers [`Captured`] events in the order of their reports;
//! decoding is pure (`wire`), talking to the kernel is not (`bpf`).

pub mod arch;
pub mod bpf;
mod config;
pub mod heap;
pub mod kernel_types;
mod managed;
pub mod members;
pub mod newcomers;
pub mod nothing;
pub mod notify;
mod object;
pub mod perf;
mod plain;
pub mod preload;
pub mod record;
pub mod refusal;
pub mod trial;
pub mod uprobe;
mod uprobe_link;
mod viewer;
pub mod wire;

pub use config::CaptureConfig;

use crate::model::stack::{FoundRuntime, ManagedFrames};
use crate::model::{Addr, LeftStack, MmKey, Pid, Refusal, StackSample, StackWord, Touch, VmEvent};
use std::os::fd::BorrowedFd;

/// An event with what its stack can be made from.
#[derive(Debug)]
pub struct Captured<'a> {
    pub event: VmEvent,
    pub stack: Option<StackSample<'a>>,
    /// Instead: the number of a stack that was published.
    pub known: Option<u64>,
    /// The stack pointer, where the stack has managed frames.
    pub sp: u64,
    pub managed: Option<ManagedFrames>,
    pub left: Option<CopiedStack>,
}

/// A stack that the thread had left, kept until the call itself comes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopiedStack {
    pub ip: u64,
    pub sp: u64,
    pub bp: u64,
    pub bytes: Vec<u8>,
    pub full: bool,
}

impl CopiedStack {
    pub fn as_left(&self) -> LeftStack<'_> {
        LeftStack { ip: self.ip, sp: self.sp, bp: self.bp, bytes: &self.bytes, full: self.full }
    }
}

/// A file with an interpreter in it, or a Go program, and where its code begins.
#[derive(Clone, Copy, Debug)]
pub struct InterpreterFile {
    pub major: u32,
    pub minor: u32,
    pub inode: u64,
    /// Of the first part of it that is mapped to be executed: virtual address and file offset.
    pub code: (u64, u64),
    pub found: FoundRuntime,
}

impl InterpreterFile {
    /// From which offset on its code is mapped.
    pub fn code_offset(&self) -> u64 {
        Addr(self.code.1).page_down().0
    }
}

/// Publishes interpreters to a backend that is to send their frames.
pub trait Interpreters {
    /// Processes that map or execute this file from now on have the interpreter. None where there is no space
    /// for more.
    fn publish(&mut self, file: &InterpreterFile) -> Option<u64>;

    /// An address space that has it mapped already: its runtime's address there, and the number that `publish` gave.
    fn is_mapped(&mut self, mm: MmKey, runtime: u64, file: u64);

    /// Lists of frames that were not sent, in all.
    fn lost(&self) -> u64;
}

/// A stack that is distinguished from all others by what is here.
#[derive(Clone, Copy, Debug)]
pub struct KnownStack<'a> {
    pub mm: MmKey,
    /// Another process may have the same key later, before vmaudit knows.
    pub pid: Pid,
    /// After the syscall instruction.
    pub ip: u64,
    /// Bytes from the stack pointer to the stack's end.
    pub depth: u64,
    /// rbp's distance from the stack pointer, where a frame is found by it.
    pub frame_pointer: Option<u64>,
    pub words: &'a [StackWord],
}

/// Publishes to a backend which stacks it may send as numbers.
pub trait KnownStacks {
    /// From now on this stack may be sent as `number`, which is not 0. Where there is no space, it is not.
    fn publish(&mut self, number: u64, stack: &KnownStack<'_>);

    /// From now on no stack of this address space is sent so; calls that were made before may be.
    fn forget(&mut self, mm: MmKey);
}

/// A page fault with what its stack can be made from.
#[derive(Debug)]
pub struct CapturedTouch<'a> {
    pub touch: Touch,
    pub stack: StackSample<'a>,
}

/// What was counted of page faults (`--touch`), over all CPUs and processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TouchCounters {
    /// All that traced tasks took on addresses of their own.
    pub faults: u64,
    /// Records sent of them; each says how many it represents.
    pub sampled: u64,
    /// Faults of records for which there was no space.
    pub lost: u64,
}

/// What a backend counted, over all CPUs since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Events of traced tasks.
    pub seen: u64,
    /// Of these: with the number of a stack that was known already.
    pub known_stacks: u64,
    /// Of these: known, but without stack, because the ring was full.
    pub without_stack: u64,
    /// Of these: not known at all.
    pub lost: u64,
    /// New tasks that could not be followed.
    pub lost_tasks: u64,
}

/// A source of events of one or more processes and their descendants.
pub trait EventSource {
    /// Handles what waits, oldest first, without waiting for more.
    ///
    /// # Errors
    /// When the backend itself fails; events that do not decode are counted, not returned.
    fn poll(&mut self) -> Result<(), CaptureError> {
        self.poll_while(&mut || true)
    }

    /// As `poll`, of all calls that have returned: also of those whose results are still on their way to
    /// the backend, for which it waits for a moment.
    ///
    /// # Errors
    /// As `poll`.
    fn settle(&mut self) -> Result<(), CaptureError> {
        self.poll()
    }

    /// As `settle`, but calls `more` regularly and stops when that returns false.
    ///
    /// # Errors
    /// As `poll`.
    fn poll_while(&mut self, more: &mut dyn FnMut() -> bool) -> Result<(), CaptureError>;

    /// Becomes readable when enough waits that it should be handled now.
    fn wake_fd(&self) -> BorrowedFd<'_>;

    fn counters(&self) -> Result<Counters, CaptureError>;

    /// What else the user should know about the events that are missing.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Stops tracing; running processes are detached. To be called before the targets are released.
    fn stop(&mut self) {}
}

/// Why a backend cannot work, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    #[error("loading the BPF programs: {0:#}")]
    Load(#[source] libbpf_rs::Error),
    /// An object of BPF programs.
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// Functions of programs can be probed in several ways, and each was refused.
    #[error("functions cannot be probed here: {}", each_way(.0))]
    NoWay(Vec<(&'static str, CaptureError)>),
    #[error("attaching to {what}: {source:#}")]
    Attach { what: String, source: libbpf_rs::Error },
    #[error(
        "no tracepoint of system calls is found: this kernel has none (CONFIG_FTRACE_SYSCALLS), or tracefs cannot be had"
    )]
    NoHook,
    #[error("opening the tracepoint {what}: {source}")]
    Tracepoint { what: String, source: std::io::Error },
    #[error(
        "--touch needs the tracepoint exceptions:page_fault_user, and this kernel has none (or no tracefs \
         could be mounted): run without --touch"
    )]
    NoPageFaults,
    #[error("marking process {pid} as a target: {source:#}")]
    Target { pid: i32, source: libbpf_rs::Error },
    #[error("passing the cgroup to the BPF program: {0:#}")]
    Cgroup(#[source] libbpf_rs::Error),
    #[error("listing the threads of the targets: {0:#}")]
    Threads(#[source] libbpf_rs::Error),
    #[error("the targets start threads faster than they can be marked: {passes} passes were not enough")]
    NeverDone { passes: u32 },
    #[error("{count} threads of the targets could not be marked: the kernel has no memory for it")]
    Unmarkable { count: u64 },
    #[error("reading the ring buffer: {0:#}")]
    Ring(#[source] libbpf_rs::Error),
    #[error("waiting for two ring buffers: {0}")]
    Wake(#[source] std::io::Error),
    #[error("perf sees none of vmaudit's own calls of {call}: a BPF program keeps them from everybody else")]
    Silenced { call: &'static str },
    #[error("perf_event_open: {what}: {source}")]
    Perf { what: String, source: std::io::Error },
    #[error("starting a process (fork): {0}")]
    Process(#[source] std::io::Error),
    #[error("watching calls through seccomp: {0}")]
    Notify(#[source] std::io::Error),
    #[error("this kernel has no uprobes (CONFIG_UPROBE_EVENTS), or no sysfs to find them by")]
    NoUprobes,
    #[error("preparing uprobes: {0}")]
    Uprobes(#[source] std::io::Error),
    #[error("reading the loss counters: {0:#}")]
    Counters(#[source] libbpf_rs::Error),
    #[error("mapping the loss counters: {0}")]
    Mapping(#[source] nix::errno::Errno),
}

fn each_way(refused: &[(&'static str, CaptureError)]) -> String {
    let each: Vec<String> = refused.iter().map(|(way, error)| format!("{way}: {error}")).collect();
    each.join("; ")
}

impl CaptureError {
    /// What the kernel refused, if that is known; of several ways the last, which requires least.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            CaptureError::Refused(refusal) => Some(refusal),
            CaptureError::NoWay(refused) => refused.last().and_then(|(_, error)| error.refusal()),
            _ => None,
        }
    }
}
