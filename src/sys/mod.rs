//! The kernel's interfaces, each once: system calls that the standard library lacks, ioctls, clocks, perf
//! events, tracefs, `/proc/PID/stat`, and the numbers of the kernel's headers. What a crate has is the
//! crate's (rustix, nix, libc, linux-raw-sys, libbpf-sys); what an answer means is for the callers to know.
//!
//! Nothing here knows vmaudit's vocabulary, and no other module makes a system call by number or declares an
//! ioctl (`tests/architecture.rs`).

pub mod abi;
pub mod clock;
pub mod file;
pub mod kernel;
pub mod lockdown;
pub mod memory;
pub mod pagemap_scan;
pub mod perf;
pub mod pidfd;
pub mod poll;
pub mod procmap_query;
pub mod recent;
pub mod seccomp;
pub mod stat;
pub mod task;
pub mod tracefs;
pub mod untrusted_open;

/// The same error as the crate that most of vmaudit uses has it.
pub fn errno(error: rustix::io::Errno) -> nix::errno::Errno {
    nix::errno::Errno::from_raw(error.raw_os_error())
}
