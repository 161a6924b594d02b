//! One traced call or life-cycle step of a task, as every backend delivers it.

pub mod journal;
pub mod reach;
pub mod time_zero;
pub mod touch;

use crate::model::addr::{Addr, AddrRange};
use crate::model::mapping::Mapping;
use crate::model::stack::StackId;

/// Process id (thread-group id) as vmaudit's PID namespace shows it.
pub type Pid = i32;
/// Thread id as vmaudit's PID namespace shows it.
pub type Tid = i32;

/// Number of an event in order of arrival, from 1. 0 is never used.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EventId(pub u64);

/// The kernel's name for an address space (the address of its `mm_struct`, or any number that a backend keeps
/// unique among living ones). It may be used again after the last user is gone: `ledger::AddressSpaces`
/// distinguishes generations by fork, exec and exit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MmKey(pub u64);

/// The calling task.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Task {
    pub pid: Pid,
    pub tid: Tid,
    /// Thread name at the time of the event: at most 15 bytes, any bytes.
    pub comm: Vec<u8>,
}

/// The file behind a mapping, by identity. `path` is what the backend knew at the time, as
/// the kernel's dentries spell it (any bytes; without " (deleted)").
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct FileRef {
    pub major: u32,
    pub minor: u32,
    pub inode: u64,
    pub path: Vec<u8>,
    /// True when the file had no link left (`i_nlink == 0`) when it was mapped.
    pub deleted: bool,
}

/// A call that changes an address space, or a step in the life of a task. Lengths and
/// addresses are the raw arguments, not yet rounded to pages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VmOp {
    /// `ret` is the address. `file` is set for file-backed mappings.
    Mmap {
        addr: Addr,
        len: u64,
        prot: u64,
        flags: u64,
        fd: i32,
        offset: u64,
        file: Option<FileRef>,
    },
    Munmap {
        addr: Addr,
        len: u64,
    },
    /// `ret` is the new address.
    Mremap {
        old: Addr,
        old_len: u64,
        new_len: u64,
        flags: u64,
        new_addr: Addr,
    },
    /// `ret` is the new break, page-unaligned; `requested` 0 only queries it. `current` is mm->brk read at
    /// the report, if the backend can: it wins over `ret` where threads race.
    Brk {
        requested: Addr,
        current: Option<Addr>,
    },
    Mprotect {
        addr: Addr,
        len: u64,
        prot: u64,
        pkey: Option<i32>,
    },
    Madvise {
        addr: Addr,
        len: u64,
        advice: i32,
    },
    /// Acts on the process behind `pidfd`, through an iovec that is not decoded.
    ProcessMadvise {
        pidfd: i32,
        iovecs: u64,
        advice: i32,
    },
    /// `ret` is the address; `mapped` the VMA found there at syscall exit, if known.
    Shmat {
        shmid: i32,
        addr: Addr,
        flags: u64,
        mapped: Option<AddrRange>,
    },
    Shmdt {
        addr: Addr,
    },
    RemapFilePages {
        addr: Addr,
        len: u64,
        pgoff: u64,
        flags: u64,
    },
    /// `mapped` is the ring's VMA found at syscall exit, if known.
    IoSetup {
        nr_events: u64,
        mapped: Option<AddrRange>,
    },
    /// Unmaps the ring at `ctx` (fs/aio.c, kill_ioctx).
    IoDestroy {
        ctx: Addr,
    },
    /// `ret` is the address.
    MapShadowStack {
        addr: Addr,
        len: u64,
        flags: u64,
    },
    /// prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME); `name` None removes the name.
    SetVmaName {
        addr: Addr,
        len: u64,
        name: Option<Vec<u8>>,
    },
    /// prctl(PR_SET_MM, option, …): moves the kernel's idea of brk, stack …, maps nothing.
    SetMm {
        option: i32,
        value: u64,
    },
    /// seccomp(2) that failed with EBUSY because vmaudit holds the listener.
    SeccompListenerBusy,
    /// A new task. `child_mm` equal to the parent's mm means a thread or a vfork child; `is_thread` says
    /// which. `child_sp` is the child's user stack pointer. `mappings` is the child's address space at that
    /// moment, and `child_brk` its mm->brk (copied without a lock, mappings or not), when the backend can
    /// read it.
    Fork {
        child_pid: Pid,
        child_tid: Tid,
        child_mm: MmKey,
        child_sp: Addr,
        child_brk: Option<Addr>,
        is_thread: bool,
        mappings: Option<Vec<Mapping>>,
    },
    /// A successful execve: the event's `mm` is the new one. `mappings` is what the kernel had mapped at that
    /// moment (image, interpreter, stack, vdso …), when the backend can read it.
    Exec {
        exe: Option<FileRef>,
        start_brk: Addr,
        brk: Addr,
        start_stack: Addr,
        compat: bool,
        mappings: Option<Vec<Mapping>>,
    },
    /// A task is gone. `group_dead`: it was the last of its process. `code` is the wait status, below 0
    /// where it is not known.
    Exit {
        code: i32,
        group_dead: bool,
    },
    /// The thread has a new name (already in `Task::comm`).
    Rename,
}

/// Why an event has no stack, when it has none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NoStack {
    /// The kind of event never has one (exec, exit, rename).
    NotTaken,
    /// The ring was full: the call itself is known, its stack is lost.
    Lost,
    /// The backend could not read it.
    Unreadable,
}

/// One event, in the order in which it was reported (not the order in which it took effect).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VmEvent {
    pub id: EventId,
    /// CLOCK_MONOTONIC, nanoseconds.
    pub time_ns: u64,
    pub task: Task,
    pub mm: MmKey,
    pub op: VmOp,
    /// The syscall's result: an address or 0, or -errno.
    pub ret: i64,
    pub stack: Result<StackId, NoStack>,
    /// mm->total_vm at the report in bytes (VIRT), when the backend can read it.
    pub total_vm: Option<u64>,
}

impl VmEvent {
    /// True when the call was refused (-4095 ..= -1).
    pub fn failed(&self) -> bool {
        (-4095..0).contains(&self.ret)
    }
}

impl VmOp {
    /// The syscall's or step's name, as strace and the report's `origin.op` spell it.
    pub fn name(&self) -> &'static str {
        match self {
            VmOp::Mmap { .. } => "mmap",
            VmOp::Munmap { .. } => "munmap",
            VmOp::Mremap { .. } => "mremap",
            VmOp::Brk { .. } => "brk",
            VmOp::Mprotect { pkey: None, .. } => "mprotect",
            VmOp::Mprotect { .. } => "pkey_mprotect",
            VmOp::Madvise { .. } => "madvise",
            VmOp::ProcessMadvise { .. } => "process_madvise",
            VmOp::Shmat { .. } => "shmat",
            VmOp::Shmdt { .. } => "shmdt",
            VmOp::RemapFilePages { .. } => "remap_file_pages",
            VmOp::IoSetup { .. } => "io_setup",
            VmOp::IoDestroy { .. } => "io_destroy",
            VmOp::MapShadowStack { .. } => "map_shadow_stack",
            VmOp::SetVmaName { .. } | VmOp::SetMm { .. } => "prctl",
            VmOp::SeccompListenerBusy => "seccomp",
            VmOp::Fork { .. } => "clone",
            VmOp::Exec { .. } => "execve",
            VmOp::Exit { .. } => "exit",
            VmOp::Rename => "rename",
        }
    }
}
