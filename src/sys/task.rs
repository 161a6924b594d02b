//! System calls on threads and processes that no crate has.

use nix::errno::Errno;
use std::os::fd::RawFd;

/// True when thread `tid` belongs to process `pid`. By signal 0, which costs a fraction of reading /proc; a
/// refusal (EPERM) says that the two do belong together (do_send_specific, kernel/signal.c).
pub fn belongs(tid: i32, pid: i32) -> bool {
    // SAFETY: the call takes three numbers; signal 0 is never delivered.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, 0) };
    matches!(Errno::result(sent), Ok(_) | Err(Errno::EPERM))
}

/// kcmp(2): true when the two have one address space now; false, too, where the kernel does not say.
pub fn share_memory(a: i32, b: i32) -> bool {
    // SAFETY: kcmp takes integers.
    unsafe { libc::syscall(libc::SYS_kcmp, a, b, super::abi::KCMP_VM, 0, 0) == 0 }
}

/// Where the head of a thread's robust list is (get_robust_list(2), kernel/futex/syscalls.c): in the C library's block
/// for the thread. None where the thread never set one, or where the kernel does not say.
pub fn robust_list(tid: i32) -> Option<u64> {
    let mut head: *mut libc::c_void = std::ptr::null_mut();
    let mut len: libc::size_t = 0;
    // SAFETY: the two are written to, and outlive the call.
    let result = unsafe { libc::syscall(libc::SYS_get_robust_list, tid, &raw mut head, &raw mut len) };
    (result == 0 && !head.is_null()).then_some(head.addr() as u64)
}

/// close_range(2), both ends included (Linux 5.9). Async-signal-safe.
///
/// # Errors
/// ENOSYS, EINVAL.
///
/// # Safety
/// No descriptor in this range may have an owner that uses it afterwards.
pub unsafe fn close_range(first: RawFd, last: RawFd) -> Result<(), Errno> {
    // SAFETY: the call takes integers; the caller vouches for the descriptors.
    Errno::result(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }).map(drop)
}

/// Requests slices of so many nanoseconds for the calling thread (sched_setattr(2)): one that sleeps much
/// then runs soon after it wakes (Linux 6.12, kernel/sched/syscalls.c). Every user may. If refused, nothing
/// changes.
pub fn request_slices(slice_ns: u64) {
    set_attr(0, slice_ns, 0);
}

fn set_attr(nice: i32, slice_ns: u64, flags: i32) {
    let attr = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: flags as u64,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: slice_ns,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the structure has the size that it says and outlives the call.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
}

/// The calling thread's nice value.
pub fn nice() -> i32 {
    // SAFETY: the call takes integers; 0 is the calling thread.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

/// Gives the calling thread another nice value, which its children do not inherit where it is below 0. Refused,
/// all stays as it was.
pub fn set_nice(nice: i32) {
    set_attr(nice, 0, libc::SCHED_FLAG_RESET_ON_FORK);
}

/// The shortest that the kernel gives (kernel/sched/syscalls.c).
const SHORTEST_SLICE_NS: u64 = 100_000;

/// Has the calling thread run before others: with the lowest real-time priority, with the best nice value where
/// that is refused, or else with short slices.
pub fn run_before_others() {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: 0 is the calling thread; the structure outlives the call.
    let refused = unsafe {
        libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const priority)
    };
    if refused != 0 {
        request_slices(SHORTEST_SLICE_NS);
        request_priority();
    }
}

/// Requests the highest priority of ordinary scheduling for the calling thread, which root may have, and
/// others where RLIMIT_NICE lets them. If refused, nothing changes.
pub fn request_priority() {
    // SAFETY: setpriority takes integers; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
}

/// Makes a system call by its number, to see whether it is reported.
///
/// # Safety
/// It has to be refused with `first` as its first argument, or to do no harm with zeroes for the others.
pub unsafe fn call(number: i64, first: u64) {
    // SAFETY: the caller vouches for it.
    unsafe { libc::syscall(number, first, 0, 0, 0, 0, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_and_their_process() {
        let own = std::process::id() as i32;
        let tid = std::thread::spawn(|| nix::unistd::gettid().as_raw()).join().expect("a number");
        assert!(belongs(own, own) && belongs(nix::unistd::gettid().as_raw(), own));
        assert!(!belongs(own, 1) && tid != own);
    }
}
