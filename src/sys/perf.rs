//! perf_event_open(2) and the ioctls of what it returns. Structure and numbers are libbpf's copy of
//! include/uapi/linux/perf_event.h.

pub use libbpf_rs::libbpf_sys as abi;
pub use libbpf_rs::libbpf_sys::perf_event_attr as Attr;
use nix::errno::Errno;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

mod ioctl {
    nix::ioctl_none!(disable, b'$', 1);
    nix::ioctl_write_int_bad!(set_output, nix::request_code_none!(b'$', 5));
}

/// The attributes of a tracepoint event; nothing is sampled yet.
pub fn tracepoint(id: u64) -> Attr {
    Attr { type_: abi::PERF_TYPE_TRACEPOINT, config: id, ..Attr::default() }
}

/// Of one of the kernel's own events, PERF_COUNT_SW_*.
pub fn software(which: abi::perf_sw_ids) -> Attr {
    Attr { type_: abi::PERF_TYPE_SOFTWARE, config: which.into(), ..Attr::default() }
}

/// Of the instruction at `offset` in a file. `pmu` is the number in sysfs of the event source `uprobe`;
/// the path has to outlive the opening.
pub fn uprobe(pmu: u32, path: &CStr, offset: u64) -> Attr {
    let mut attr = Attr { type_: pmu, ..Attr::default() };
    attr.__bindgen_anon_3.uprobe_path = path.as_ptr() as u64;
    attr.__bindgen_anon_4.probe_offset = offset;
    attr
}

/// An event of the task `pid` (0: the caller, -1: all) on `cpu` (-1: any). All of the structure is handed
/// over: kernels that know less of it take what is zero (perf_copy_attr, kernel/events/core.c).
///
/// # Errors
/// As the system call.
pub fn open(attr: &Attr, pid: i32, cpu: i32) -> Result<OwnedFd, Errno> {
    let attr = Attr { size: size_of::<Attr>() as u32, ..*attr };
    let flags = libc::c_ulong::from(abi::PERF_FLAG_FD_CLOEXEC);
    // SAFETY: `attr` is a valid perf_event_attr of the stated size and outlives the call.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attr, pid, cpu, -1, flags) };
    let fd = Errno::result(fd)?;
    // SAFETY: a new descriptor owned by nothing else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// How many records of an event its ring had no space for, those of tasks that inherited it included. It
/// was opened with PERF_FORMAT_LOST and no other `read_format`.
///
/// # Errors
/// As read(2).
pub fn lost(event: impl AsFd) -> io::Result<u64> {
    // What it counted comes first.
    let mut words = [[0; 8]; 2];
    match rustix::io::read(event, words.as_flattened_mut())? {
        16 => Ok(u64::from_ne_bytes(words[1])),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Redirects an event's records to the ring of another one.
///
/// # Errors
/// As the ioctl.
pub fn set_output(event: impl AsFd, to: impl AsFd) -> Result<(), Errno> {
    // SAFETY: an ioctl with two descriptors.
    unsafe { ioctl::set_output(event.as_fd().as_raw_fd(), to.as_fd().as_raw_fd()) }.map(drop)
}

/// Stops the event; a program on it stays.
///
/// # Errors
/// As the ioctl.
pub fn disable(event: RawFd) -> Result<(), Errno> {
    // SAFETY: the ioctl takes no argument.
    unsafe { ioctl::disable(event) }.map(drop)
}
