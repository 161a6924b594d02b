//! perf_event_open(2) on a child of one's own.

use super::child::Quiet;
use super::{Failure, Subject, tracefs};
use crate::model::{Trial, TrialArea};
use crate::sys::perf::{self, Attr, abi};
use nix::errno::Errno;
use std::os::fd::OwnedFd;

/// The instruction pointer alone: which registers exist depends on the processor.
#[cfg(target_arch = "x86_64")]
const SOME_REGISTER: u64 = 1 << 8;
#[cfg(target_arch = "aarch64")]
const SOME_REGISTER: u64 = 1 << 32;

pub fn trials() -> Vec<Trial> {
    let subject = |id, what| Subject { area: TrialArea::Perf, id, what, without: "no perf backend" };
    vec![
        subject("perf-tracepoint", "syscall tracepoint of a child").came_out(tracepoint_of_child()),
        Subject {
            area: TrialArea::Perf,
            id: "perf-page-faults",
            what: "page faults of a child",
            without: "",
        }
        .came_out(page_faults_of_child()),
        Subject {
            area: TrialArea::Perf,
            id: "perf-paranoid",
            what: "kernel.perf_event_paranoid",
            without: "",
        }
        .reads(paranoid().map(|level| level.to_string())),
    ]
}

pub(super) fn paranoid() -> Result<i32, Failure> {
    let text = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid")?;
    text.trim().parse().map_err(|_| Failure::Absent("not a number".to_owned()))
}

/// Opens an event on one process (0: vmaudit itself), any CPU.
pub(super) fn open(mut attr: Attr, pid: i32) -> Result<OwnedFd, Errno> {
    attr.set_disabled(1);
    perf::open(&attr, pid, -1)
}

/// What an unwinder needs of each sample, in user mode alone: this needs no privilege.
fn sampled(mut attr: Attr, besides: abi::perf_event_sample_format) -> Attr {
    attr.__bindgen_anon_1.sample_period = 1;
    attr.sample_type = (abi::PERF_SAMPLE_REGS_USER | abi::PERF_SAMPLE_STACK_USER | besides).into();
    attr.set_exclude_kernel(1);
    attr.set_exclude_hv(1);
    attr.sample_regs_user = SOME_REGISTER;
    attr.sample_stack_user = 4096;
    attr
}

/// Syscall tracepoints are open to everybody for own tasks (TRACE_EVENT_FL_CAP_ANY, which
/// perf_trace_event_perm() in kernel/trace/trace_event_perf.c checks for raw samples). Where tracefs cannot
/// be read, ids are tried one after the other.
fn tracepoint_of_child() -> Result<String, Failure> {
    let child = Quiet::start()?;
    let pid = child.pid();
    let attr_of = |number| sampled(perf::tracepoint(number), abi::PERF_SAMPLE_RAW);
    if let Ok((_, number)) = tracefs::id("syscalls/sys_exit_mmap") {
        open(attr_of(number), pid)?;
        return Ok("with registers, stack and arguments".to_owned());
    }
    // A number that no tracepoint has is EINVAL, or the whole call is refused.
    match open(attr_of(u64::from(u32::MAX)), pid) {
        Err(Errno::EINVAL | Errno::ENOENT) | Ok(_) => {}
        Err(errno) => return Err(errno.into()),
    }
    const NUMBERS: std::ops::Range<u64> = 1..6000;
    let mut refused = Errno::EINVAL;
    for number in NUMBERS {
        match open(attr_of(number), pid) {
            Ok(_) => return Ok("with registers, stack and arguments; numbers found by trying".to_owned()),
            Err(Errno::EINVAL | Errno::ENOENT) => {}
            Err(errno) => refused = errno,
        }
    }
    Err(refused.into())
}

fn page_faults_of_child() -> Result<String, Failure> {
    let child = Quiet::start()?;
    open(sampled(perf::software(abi::PERF_COUNT_SW_PAGE_FAULTS), 0), child.pid())?;
    Ok(String::new())
}
