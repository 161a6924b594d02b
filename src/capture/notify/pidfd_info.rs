//! PIDFD_GET_INFO (6.13; the exit code since 6.15): include/uapi/linux/pidfd.h.

use std::os::fd::{AsRawFd, OwnedFd};

#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    pids: [u32; 3],
    ids: [u32; 8],
    exit_code: i32,
}

const _: () = assert!(size_of::<PidfdInfo>() == 64);
const PIDFD_INFO_EXIT: u64 = 1 << 3;

nix::ioctl_readwrite!(get_info, 0xff, 11, PidfdInfo);

/// The wait status, once the process has ended and was waited for.
pub fn exit_code(pidfd: &OwnedFd) -> Option<i32> {
    let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, ..PidfdInfo::default() };
    // SAFETY: the kernel fills the structure, whose size the request number carries.
    unsafe { get_info(pidfd.as_raw_fd(), &mut info) }.ok()?;
    (info.mask & PIDFD_INFO_EXIT != 0).then_some(info.exit_code)
}
