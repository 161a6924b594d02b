//! What depends on the processor: which system calls are traced under which number.

use super::bpf::skel::types::vmaudit_record as Record;
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
    TracedSyscall { name: "mmap", number: libc::SYS_mmap, op: 1 },
    TracedSyscall { name: "munmap", number: libc::SYS_munmap, op: 2 },
    TracedSyscall { name: "mremap", number: libc::SYS_mremap, op: 3 },
    TracedSyscall { name: "brk", number: libc::SYS_brk, op: 4 },
    TracedSyscall { name: "mprotect", number: libc::SYS_mprotect, op: 5 },
    TracedSyscall { name: "pkey_mprotect", number: libc::SYS_pkey_mprotect, op: 6 },
    TracedSyscall { name: "madvise", number: libc::SYS_madvise, op: 7 },
    TracedSyscall { name: "process_madvise", number: libc::SYS_process_madvise, op: 8 },
    TracedSyscall { name: "shmat", number: libc::SYS_shmat, op: 9 },
    TracedSyscall { name: "shmdt", number: libc::SYS_shmdt, op: 10 },
    TracedSyscall { name: "remap_file_pages", number: libc::SYS_remap_file_pages, op: 11 },
    TracedSyscall { name: "io_setup", number: libc::SYS_io_setup, op: 12 },
    TracedSyscall { name: "map_shadow_stack", number: SYS_MAP_SHADOW_STACK, op: 13 },
    TracedSyscall { name: "prctl", number: libc::SYS_prctl, op: 14 },
    TracedSyscall { name: "seccomp", number: libc::SYS_seccomp, op: 15 },
];

/// `VMAUDIT_FEW_REGISTERS` (bpf/vmaudit.h).
const FEW_REGISTERS: u16 = 128;

/// The unwinder's registers out of a record.
pub fn registers(record: &Record) -> super::Registers {
    super::Registers {
        ip: record.ip,
        sp: record.sp,
        bp: record.bp,
        bx: record.bx,
        r12: record.r12,
        r13: record.r13,
        r14: record.r14,
        r15: record.r15,
        few: record.flags & FEW_REGISTERS != 0,
    }
}
