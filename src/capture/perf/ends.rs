//! How a process ended. perf does not tell; what does depends on whether its parent has waited for it.

use super::out::UNKNOWN_STATUS;
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `struct pidfd_info` (include/uapi/linux/pidfd.h), first published size.
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

const _: () = assert!(size_of::<PidfdInfo>() == 64);

const PIDFD_INFO_EXIT: u64 = 1 << 3;
/// _IOWR(0xFF, 11, struct pidfd_info)
const PIDFD_GET_INFO: libc::c_ulong = 0xc040_ff0b;

/// A handle of a process, to ask for its end later; None when it is gone already.
pub fn handle(pid: i32) -> Option<OwnedFd> {
    // SAFETY: pidfd_open takes two integers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    // SAFETY: a new descriptor that nobody else owns.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// The wait status of a process whose last task has just ended, [`UNKNOWN_STATUS`] where nothing tells.
pub fn status(pid: i32, handle: Option<&OwnedFd>) -> i32 {
    if let Some(handle) = handle {
        // Its task reports before it can be waited for.
        let mut end = libc::pollfd { fd: handle.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd.
        unsafe { libc::poll(&raw mut end, 1, END_MS) };
    }
    let told = || waiting(pid).or_else(|| reaped(handle?));
    // Between the two questions its parent may wait for it.
    told().or_else(told).unwrap_or(UNKNOWN_STATUS)
}

/// The rest of a task's end takes microseconds, unless others want the processor.
const END_MS: i32 = 1000;

/// Of one that its parent has not waited for: the last field of /proc/PID/stat (proc(5), 52).
fn waiting(pid: i32) -> Option<i32> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let after_name = stat.iter().rposition(|&b| b == b')')?;
    let mut fields = std::str::from_utf8(stat.get(after_name + 1..)?).ok()?.split_ascii_whitespace();
    if !matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.next_back()?.parse().ok()
}

/// Of one that it has waited for: Linux 6.15 keeps the status as long as there is a handle.
fn reaped(handle: &OwnedFd) -> Option<i32> {
    let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, ..PidfdInfo::default() };
    // SAFETY: fills the structure, whose size is part of the number.
    let result = unsafe { libc::ioctl(handle.as_raw_fd(), PIDFD_GET_INFO, &raw mut info) };
    (result == 0 && info.mask & PIDFD_INFO_EXIT != 0).then_some(info.exit_code)
}
