//! Which calls are notified, and what kind each is.

use crate::capture::record::op;
use crate::sys::abi::{
    CLONE_PARENT_SETTID, CLONE_SETTLS, CLONE_THREAD, CLONE_VFORK, CLONE_VM, PR_SET_NAME, PR_SET_VMA,
    SYS_MAP_SHADOW_STACK,
};

/// System calls to be notified, in addition to the exits.
pub const NUMBERS: &[i32] = &{
    let mut all = [0; EVERYWHERE.len() + HERE.len()];
    let (common, own) = all.split_at_mut(EVERYWHERE.len());
    common.copy_from_slice(EVERYWHERE);
    own.copy_from_slice(HERE);
    all
};

const EVERYWHERE: &[i32] = &[
    libc::SYS_mmap as i32,
    libc::SYS_munmap as i32,
    libc::SYS_mremap as i32,
    libc::SYS_brk as i32,
    libc::SYS_mprotect as i32,
    libc::SYS_pkey_mprotect as i32,
    libc::SYS_madvise as i32,
    libc::SYS_shmat as i32,
    libc::SYS_shmdt as i32,
    libc::SYS_remap_file_pages as i32,
    libc::SYS_io_setup as i32,
    libc::SYS_io_destroy as i32,
    SYS_MAP_SHADOW_STACK as i32,
    libc::SYS_seccomp as i32,
    libc::SYS_clone as i32,
    libc::SYS_clone3 as i32,
    libc::SYS_execve as i32,
    libc::SYS_execveat as i32,
];

/// Newer architectures have only clone.
#[cfg(target_arch = "x86_64")]
const HERE: &[i32] = &[libc::SYS_fork as i32, libc::SYS_vfork as i32];
#[cfg(not(target_arch = "x86_64"))]
const HERE: &[i32] = &[];

/// First arguments of prctl to be notified.
pub const PRCTL_OPTIONS: &[u32] = &[PR_SET_VMA as u32, PR_SET_NAME as u32];

/// What to do about a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It may change the address space: the wire record's `op`.
    Memory(u16),
    /// A new task.
    Clone,
    Exec,
    /// The thread names itself.
    Rename,
    /// seccomp(2).
    Seccomp,
    /// exit: of a thread, mostly.
    Exit,
    ExitGroup,
    Other,
}

pub fn kind(nr: i64, args: &[u64; 6]) -> Kind {
    match nr {
        libc::SYS_mmap => Kind::Memory(op::MMAP),
        libc::SYS_munmap => Kind::Memory(op::MUNMAP),
        libc::SYS_mremap => Kind::Memory(op::MREMAP),
        libc::SYS_brk => Kind::Memory(op::BRK),
        libc::SYS_mprotect => Kind::Memory(op::MPROTECT),
        libc::SYS_pkey_mprotect => Kind::Memory(op::PKEY_MPROTECT),
        libc::SYS_madvise => Kind::Memory(op::MADVISE),
        libc::SYS_shmat => Kind::Memory(op::SHMAT),
        libc::SYS_shmdt => Kind::Memory(op::SHMDT),
        libc::SYS_remap_file_pages => Kind::Memory(op::REMAP_FILE_PAGES),
        libc::SYS_io_setup => Kind::Memory(op::IO_SETUP),
        libc::SYS_io_destroy => Kind::Memory(op::IO_DESTROY),
        SYS_MAP_SHADOW_STACK => Kind::Memory(op::MAP_SHADOW_STACK),
        libc::SYS_prctl if args[0] as u32 == PR_SET_VMA as u32 => Kind::Memory(op::PRCTL),
        libc::SYS_prctl if args[0] as u32 == PR_SET_NAME as u32 => Kind::Rename,
        libc::SYS_seccomp => Kind::Seccomp,
        libc::SYS_clone | libc::SYS_clone3 => Kind::Clone,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork | libc::SYS_vfork => Kind::Clone,
        libc::SYS_execve | libc::SYS_execveat => Kind::Exec,
        libc::SYS_exit => Kind::Exit,
        libc::SYS_exit_group => Kind::ExitGroup,
        _ => Kind::Other,
    }
}

/// How a new task begins.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NewTask {
    pub is_thread: bool,
    pub shares_space: bool,
    /// Its stack pointer; 0: as the parent's.
    pub sp: u64,
    /// Its thread control block; 0: as the parent's.
    pub control_block: u64,
    /// Where the kernel writes its number in the parent's memory; 0: nowhere.
    pub number_at: u64,
}

/// From the arguments; `read` reads the structure of clone3 (include/uapi/linux/sched.h, `struct
/// clone_args`) from the target's memory.
pub fn new_task(nr: i64, args: &[u64; 6], read: impl FnOnce(u64, &mut [u8]) -> usize) -> NewTask {
    let of = |flags: u64, sp: u64, tls: u64, number_at: u64| NewTask {
        is_thread: flags & CLONE_THREAD != 0,
        shares_space: flags & CLONE_VM != 0,
        sp,
        control_block: if flags & CLONE_SETTLS != 0 { tls } else { 0 },
        number_at: if flags & CLONE_PARENT_SETTID != 0 { number_at } else { 0 },
    };
    match nr {
        // arch/x86: flags, stack, parent_tid, child_tid, tls (CONFIG_CLONE_BACKWARDS otherwise)
        #[cfg(target_arch = "x86_64")]
        libc::SYS_clone => of(args[0], args[1], args[4], args[2]),
        #[cfg(not(target_arch = "x86_64"))]
        libc::SYS_clone => of(args[0], args[1], args[3], args[2]),
        libc::SYS_clone3 => {
            let mut bytes = [0; 64];
            let len = (args[1] as usize).min(bytes.len());
            let got = read(args[0], &mut bytes[..len]);
            let field = |index: usize| {
                let word = bytes[..got].get(index * 8..index * 8 + 8).and_then(|word| word.try_into().ok());
                word.map_or(0, u64::from_ne_bytes)
            };
            // flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls
            let stack = field(5);
            let sp = if stack == 0 { 0 } else { stack.wrapping_add(field(6)) };
            of(field(0), sp, field(7), field(3))
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_vfork => of(CLONE_VM | CLONE_VFORK, 0, 0, 0),
        _ => NewTask::default(),
    }
}
