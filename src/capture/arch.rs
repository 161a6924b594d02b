//! What depends on the processor: which system calls are traced under which number.

use super::record::{Record, flag, op};
use crate::model::StackSample;
use crate::sys::abi::SYS_MAP_SHADOW_STACK;

/// A traced system call: the tracepoint `syscalls/sys_exit_<name>`, its number here, and the
/// wire record's `op` (bpf/vmaudit.h, `enum vmaudit_op`).
#[derive(Clone, Copy, Debug)]
pub struct TracedSyscall {
    pub name: &'static str,
    pub number: i64,
    pub op: u16,
}

/// What the kernel calls its function for a system call begins with (CONFIG_ARCH_HAS_SYSCALL_WRAPPER).
pub const SYSCALL_PREFIX: &str = "__x64_sys_";

/// The first of these are built into every kernel: mmap, munmap, mremap, brk, mprotect.
pub const IN_EVERY_KERNEL: usize = 5;

pub const TRACED: &[TracedSyscall] = &[
    TracedSyscall { name: "mmap", number: libc::SYS_mmap, op: op::MMAP },
    TracedSyscall { name: "munmap", number: libc::SYS_munmap, op: op::MUNMAP },
    TracedSyscall { name: "mremap", number: libc::SYS_mremap, op: op::MREMAP },
    TracedSyscall { name: "brk", number: libc::SYS_brk, op: op::BRK },
    TracedSyscall { name: "mprotect", number: libc::SYS_mprotect, op: op::MPROTECT },
    TracedSyscall { name: "pkey_mprotect", number: libc::SYS_pkey_mprotect, op: op::PKEY_MPROTECT },
    TracedSyscall { name: "madvise", number: libc::SYS_madvise, op: op::MADVISE },
    TracedSyscall { name: "process_madvise", number: libc::SYS_process_madvise, op: op::PROCESS_MADVISE },
    TracedSyscall { name: "shmat", number: libc::SYS_shmat, op: op::SHMAT },
    TracedSyscall { name: "shmdt", number: libc::SYS_shmdt, op: op::SHMDT },
    TracedSyscall { name: "remap_file_pages", number: libc::SYS_remap_file_pages, op: op::REMAP_FILE_PAGES },
    TracedSyscall { name: "io_setup", number: libc::SYS_io_setup, op: op::IO_SETUP },
    TracedSyscall { name: "io_destroy", number: libc::SYS_io_destroy, op: op::IO_DESTROY },
    TracedSyscall { name: "map_shadow_stack", number: SYS_MAP_SHADOW_STACK, op: op::MAP_SHADOW_STACK },
    TracedSyscall { name: "prctl", number: libc::SYS_prctl, op: op::PRCTL },
    TracedSyscall { name: "seccomp", number: libc::SYS_seccomp, op: op::SECCOMP },
];

/// What the unwinder needs, out of a record and what follows it.
pub fn sample<'a>(record: &Record, bytes: &'a [u8]) -> StackSample<'a> {
    StackSample {
        ip: record.ip,
        sp: record.sp,
        bp: record.bp,
        bx: record.bx,
        r12: record.r12,
        r13: record.r13,
        r14: record.r14,
        r15: record.r15,
        few: record.flags & flag::FEW_REGISTERS != 0,
        bytes,
        full: record.flags & flag::STACK_FULL != 0,
        holes: record.flags & flag::STACK_HOLES != 0,
        returned: false,
        left: None,
    }
}
