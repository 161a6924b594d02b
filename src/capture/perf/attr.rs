//! perf_event_open(2): what is asked of the kernel (include/uapi/linux/perf_event.h).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `struct perf_event_attr`, PERF_ATTR_SIZE_VER5.
#[repr(C)]
#[derive(Clone, Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_watermark: u32,
    bp_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clockid: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved: u16,
}

const _: () = assert!(size_of::<Attr>() == 112);

const TYPE_SOFTWARE: u32 = 1;
const TYPE_TRACEPOINT: u32 = 2;
const COUNT_SW_DUMMY: u64 = 9;

const SAMPLE_TID: u64 = 1 << 1;
const SAMPLE_TIME: u64 = 1 << 2;
const SAMPLE_RAW: u64 = 1 << 10;
const SAMPLE_REGS_USER: u64 = 1 << 12;
const SAMPLE_STACK_USER: u64 = 1 << 13;

const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HV: u64 = 1 << 6;
const MMAP: u64 = 1 << 8;
const COMM: u64 = 1 << 9;
const TASK: u64 = 1 << 13;
const WATERMARK: u64 = 1 << 14;
const MMAP_DATA: u64 = 1 << 17;
const SAMPLE_ID_ALL: u64 = 1 << 18;
const MMAP2: u64 = 1 << 23;
const COMM_EXEC: u64 = 1 << 24;
const USE_CLOCKID: u64 = 1 << 25;
const INHERIT_THREAD: u64 = 1 << 35;

const FLAG_FD_CLOEXEC: libc::c_ulong = 8;
/// _IO('$', 5)
const IOC_SET_OUTPUT: libc::c_ulong = 0x2405;

/// The most bytes of stack that a sample takes: its size, all in all, has 16 bits.
pub const MAX_STACK_BYTES: u32 = 65_000;

/// What an event tells.
#[derive(Clone, Copy, Debug)]
pub enum Tells {
    /// A tracepoint: task, time, raw fields, user registers, and at most so many bytes of stack
    /// (a multiple of 8; none at all for 0).
    Tracepoint { id: u64, stack_bytes: u32 },
    /// A tracepoint's task, time and raw fields alone.
    RawFields { id: u64 },
    /// How often a tracepoint was met, for read(2).
    Count { id: u64 },
    /// Forks, exits, names, executions and mappings.
    Life,
    /// Nothing: it only owns a ring.
    Nothing,
}

/// Who is traced.
#[derive(Clone, Copy, Debug)]
pub enum Heirs {
    /// The task alone.
    None,
    /// Threads that it starts, and their threads.
    Threads,
    /// Its processes, too.
    All,
}

/// An event of the task `tid` while it runs on `cpu` (-1: any), on by itself.
///
/// # Errors
/// As the system call.
pub fn open(tells: Tells, heirs: Heirs, tid: i32, cpu: i32) -> io::Result<OwnedFd> {
    let mut attr = Attr {
        size: size_of::<Attr>() as u32,
        sample_type: SAMPLE_TID | SAMPLE_TIME,
        clockid: libc::CLOCK_MONOTONIC,
        // An ordinary user may see nothing of the kernel. System-call tracepoints are the user's.
        flags: EXCLUDE_KERNEL | EXCLUDE_HV | SAMPLE_ID_ALL | USE_CLOCKID | WATERMARK,
        wakeup_watermark: WAKE_BYTES,
        ..Attr::default()
    };
    attr.flags |= match heirs {
        Heirs::None => 0,
        Heirs::Threads => INHERIT | INHERIT_THREAD,
        Heirs::All => INHERIT,
    };
    match tells {
        Tells::Tracepoint { id, stack_bytes } => {
            (attr.kind, attr.config, attr.sample_period) = (TYPE_TRACEPOINT, id, 1);
            attr.sample_type |= SAMPLE_RAW | SAMPLE_REGS_USER;
            attr.sample_regs_user = super::arch::REGISTERS;
            if stack_bytes > 0 {
                attr.sample_type |= SAMPLE_STACK_USER;
                attr.sample_stack_user = stack_bytes;
            }
        }
        Tells::RawFields { id } => {
            (attr.kind, attr.config, attr.sample_period) = (TYPE_TRACEPOINT, id, 1);
            attr.sample_type |= SAMPLE_RAW;
        }
        Tells::Count { id } => (attr.kind, attr.config, attr.sample_type) = (TYPE_TRACEPOINT, id, 0),
        Tells::Life => {
            (attr.kind, attr.config) = (TYPE_SOFTWARE, COUNT_SW_DUMMY);
            attr.flags |= MMAP | MMAP_DATA | MMAP2 | COMM | COMM_EXEC | TASK;
        }
        Tells::Nothing => (attr.kind, attr.config) = (TYPE_SOFTWARE, COUNT_SW_DUMMY),
    }
    // SAFETY: `attr` is a valid perf_event_attr of the stated size and outlives the call.
    let fd =
        unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attr, tid, cpu, -1, FLAG_FD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A ring asks to be read when this many bytes wait in it.
const WAKE_BYTES: u32 = 128 << 10;

/// Sends what an event tells to the ring of another one.
///
/// # Errors
/// As the ioctl.
pub fn redirect(event: &OwnedFd, to: &OwnedFd) -> io::Result<()> {
    // SAFETY: an ioctl with two descriptors.
    let result = unsafe { libc::ioctl(event.as_raw_fd(), IOC_SET_OUTPUT, to.as_raw_fd()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
