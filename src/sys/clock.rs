//! Clocks, in nanoseconds.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// CLOCK_MONOTONIC: what perf and BPF stamp events with.
pub fn monotonic_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// CLOCK_BOOTTIME: the clock of a process's start time.
pub fn boottime_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Boottime))
}

/// CLOCK_REALTIME: since 1970.
pub fn realtime_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Realtime))
}

/// What all threads of a process have used of processors, exactly; None where the process is gone.
pub fn process_cpu_ns(pid: i32) -> Option<u64> {
    let clock = nix::time::ClockId::pid_cpu_clock_id(nix::unistd::Pid::from_raw(pid)).ok()?;
    let time = nix::time::clock_gettime(clock).ok()?;
    Some(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

fn nanoseconds(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_read_the_requested_clock() {
        let (before, unix) = (monotonic_ns(), realtime_ns());
        let system = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        assert!(before > 0 && monotonic_ns() >= before);
        assert!(unix.abs_diff(system.as_nanos() as u64) < 60_000_000_000);
        assert!(process_cpu_ns(std::process::id() as i32).is_some_and(|used| used > 0));
        // Above PID_MAX_LIMIT, include/linux/threads.h.
        assert_eq!(process_cpu_ns(1 << 23), None);
    }
}
