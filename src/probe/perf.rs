//! perf_event_open(2) on a child of one's own.

use super::child::Quiet;
use super::{Failure, Subject, tracefs};
use crate::model::{Area, Trial};
use nix::errno::Errno;
use std::os::fd::{FromRawFd, OwnedFd};

const TYPE_SOFTWARE: u32 = 1;
const TYPE_TRACEPOINT: u32 = 2;
const COUNT_SW_PAGE_FAULTS: u64 = 2;
const FLAG_FD_CLOEXEC: libc::c_ulong = 8;

const SAMPLE_RAW: u64 = 1 << 10;
const SAMPLE_REGS_USER: u64 = 1 << 12;
const SAMPLE_STACK_USER: u64 = 1 << 13;
const DISABLED: u64 = 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HV: u64 = 1 << 6;
/// The instruction pointer alone: which registers exist depends on the processor.
#[cfg(target_arch = "x86_64")]
const SOME_REGISTER: u64 = 1 << 8;
#[cfg(target_arch = "aarch64")]
const SOME_REGISTER: u64 = 1 << 32;

/// `struct perf_event_attr` up to `sample_max_stack` (PERF_ATTR_SIZE_VER5,
/// include/uapi/linux/perf_event.h).
#[repr(C)]
#[derive(Default, Clone, Copy)]
pub(super) struct Attr {
    pub kind: u32,
    pub size: u32,
    pub config: u64,
    pub sample_period: u64,
    pub sample_type: u64,
    pub read_format: u64,
    pub flags: u64,
    pub wakeup_events: u32,
    pub bp_type: u32,
    pub config1: u64,
    pub config2: u64,
    pub branch_sample_type: u64,
    pub sample_regs_user: u64,
    pub sample_stack_user: u32,
    pub clockid: i32,
    pub sample_regs_intr: u64,
    pub aux_watermark: u32,
    pub sample_max_stack: u16,
    pub reserved: u16,
}

const _: () = assert!(size_of::<Attr>() == 112);

pub fn trials() -> Vec<Trial> {
    let subject = |id, what| Subject { area: Area::Perf, id, what, without: "no perf backend" };
    vec![
        subject("perf-tracepoint", "syscall tracepoint of a child").came_out(tracepoint_of_child()),
        Subject { area: Area::Perf, id: "perf-page-faults", what: "page faults of a child", without: "" }
            .came_out(page_faults_of_child()),
        Subject { area: Area::Perf, id: "perf-paranoid", what: "kernel.perf_event_paranoid", without: "" }
            .reads(paranoid().map(|level| level.to_string())),
    ]
}

pub(super) fn paranoid() -> Result<i32, Failure> {
    let text = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid")?;
    text.trim().parse().map_err(|_| Failure::Absent("not a number".to_owned()))
}

/// Opens an event on one process (0: vmaudit itself), any CPU.
pub(super) fn open(attr: &Attr, pid: i32) -> Result<OwnedFd, Errno> {
    let attr = Attr { size: size_of::<Attr>() as u32, flags: attr.flags | DISABLED, ..*attr };
    // SAFETY: `attr` is a valid perf_event_attr of the stated size and outlives the call.
    let fd = Errno::result(unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attr, pid, -1, -1, FLAG_FD_CLOEXEC)
    })?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// What an unwinder needs of each sample, in user mode alone: then no privilege is asked for.
fn sampled(kind: u32, config: u64) -> Attr {
    Attr {
        kind,
        config,
        sample_period: 1,
        sample_type: SAMPLE_REGS_USER | SAMPLE_STACK_USER,
        flags: EXCLUDE_KERNEL | EXCLUDE_HV,
        sample_regs_user: SOME_REGISTER,
        sample_stack_user: 4096,
        ..Attr::default()
    }
}

/// Syscall tracepoints are open to everybody for own tasks (TRACE_EVENT_FL_CAP_ANY, which
/// perf_trace_event_perm() in kernel/trace/trace_event_perf.c looks at for raw samples). Where
/// tracefs cannot be read, one is looked for among the numbers.
fn tracepoint_of_child() -> Result<String, Failure> {
    let child = Quiet::start()?;
    let pid = child.pid();
    let wanted = |number| {
        let attr = sampled(TYPE_TRACEPOINT, number);
        Attr { sample_type: attr.sample_type | SAMPLE_RAW, ..attr }
    };
    if let Ok((_, number)) = tracefs::id("syscalls/sys_exit_mmap") {
        open(&wanted(number), pid)?;
        return Ok("with registers, stack and arguments".to_owned());
    }
    // A number that no tracepoint has is EINVAL, or the whole call is refused.
    match open(&wanted(u64::from(u32::MAX)), pid) {
        Err(Errno::EINVAL | Errno::ENOENT) | Ok(_) => {}
        Err(errno) => return Err(errno.into()),
    }
    const NUMBERS: std::ops::Range<u64> = 1..6000;
    let mut refused = Errno::EINVAL;
    for number in NUMBERS {
        match open(&wanted(number), pid) {
            Ok(_) => return Ok("with registers, stack and arguments; numbers found by trying".to_owned()),
            Err(Errno::EINVAL | Errno::ENOENT) => {}
            Err(errno) => refused = errno,
        }
    }
    Err(refused.into())
}

fn page_faults_of_child() -> Result<String, Failure> {
    let child = Quiet::start()?;
    open(&sampled(TYPE_SOFTWARE, COUNT_SW_PAGE_FAULTS), child.pid())?;
    Ok(String::new())
}
