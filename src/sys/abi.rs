//! Numbers of the kernel's headers, as records and reports have them: arguments of system calls in 64 bits.
//! They are linux-raw-sys's and libc's where those have them. No system calls: the pure core may use this.

use linux_raw_sys::{errno, general, prctl};

/// seccomp's names for architectures; linux-raw-sys has them next to ptrace's numbers.
pub use linux_raw_sys::ptrace::{AUDIT_ARCH_AARCH64, AUDIT_ARCH_I386, AUDIT_ARCH_X86_64};

macro_rules! same {
    ($kind:ty: $from:ident: $($name:ident)*) => { $(pub const $name: $kind = $from::$name as $kind;)* };
}

// mmap(2), mprotect(2)
same! { u64: general:
    MAP_TYPE MAP_FILE MAP_SHARED MAP_PRIVATE MAP_SHARED_VALIDATE MAP_DROPPABLE MAP_FIXED MAP_ANONYMOUS
    MAP_GROWSDOWN MAP_DENYWRITE MAP_EXECUTABLE MAP_LOCKED MAP_NORESERVE MAP_POPULATE MAP_NONBLOCK MAP_STACK
    MAP_HUGETLB MAP_SYNC MAP_FIXED_NOREPLACE MAP_HUGE_SHIFT MAP_HUGE_MASK
    PROT_READ PROT_WRITE PROT_EXEC PROT_SEM PROT_GROWSDOWN PROT_GROWSUP
    MREMAP_MAYMOVE MREMAP_FIXED MREMAP_DONTUNMAP
    CLONE_VM CLONE_VFORK CLONE_PARENT_SETTID CLONE_THREAD CLONE_SETTLS
}
/// x86's.
pub const MAP_32BIT: u64 = 0x40;

// madvise(2)
same! { i32: general:
    MADV_NORMAL MADV_RANDOM MADV_SEQUENTIAL MADV_WILLNEED MADV_DONTNEED MADV_FREE MADV_REMOVE MADV_DONTFORK
    MADV_DOFORK MADV_MERGEABLE MADV_UNMERGEABLE MADV_HUGEPAGE MADV_NOHUGEPAGE MADV_DONTDUMP MADV_DODUMP
    MADV_WIPEONFORK MADV_KEEPONFORK MADV_COLD MADV_PAGEOUT MADV_POPULATE_READ MADV_POPULATE_WRITE
    MADV_DONTNEED_LOCKED MADV_COLLAPSE MADV_HWPOISON MADV_SOFT_OFFLINE MADV_GUARD_INSTALL MADV_GUARD_REMOVE
}

// prctl(2)
same! { u64: prctl: PR_SET_NAME PR_SET_MM PR_SET_VMA PR_SET_VMA_ANON_NAME }
same! { i32: prctl: PR_SET_MM_BRK }

// map_shadow_stack(2), x86's
same! { u64: general: SHADOW_STACK_SET_TOKEN }

// shmat(2)
same! { u64: libc: SHM_RDONLY SHM_RND SHM_REMAP SHM_EXEC }

// errno(3)
same! { i32: errno:
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST ENODEV
    ENOTDIR EISDIR EINVAL ENFILE EMFILE ETXTBSY EFBIG ENOSPC ERANGE EDEADLK ENOSYS ELOOP EIDRM EOVERFLOW EOPNOTSUPP
    EHWPOISON
}

/// Not for user space (include/linux/errno.h), but uprobes say it.
pub const ENOTSUPP: i32 = 524;

/// Inode numbers of the first namespaces, unchanged since 3.8 (include/uapi/linux/nsfs.h, enum
/// init_ns_ino).
pub const PID_NS_INIT_INO: u64 = 0xEFFF_FFFC;
pub const USER_NS_INIT_INO: u64 = 0xEFFF_FFFD;

/// kcmp(2), include/uapi/linux/kcmp.h.
pub const KCMP_VM: i32 = 1;

/// The same number on every architecture (include/uapi/asm-generic/unistd.h).
pub const SYS_MAP_SHADOW_STACK: i64 = general::__NR_map_shadow_stack as i64;

// `vm_flags` of a mapping, include/linux/mm.h.
/// What maps prints as `s`: VM_SHARED is cleared on shared mappings that can never be written.
pub const VM_MAYSHARE: u64 = 0x80;
/// Pages that are no files' and no program's: without a file, only vvar (lib/vdso/datastore.c).
pub const VM_PFNMAP: u64 = 0x400;

/// What a refused call returns.
pub mod refused {
    macro_rules! negative {
        ($($name:ident)*) => { $(pub const $name: i64 = -(super::$name as i64);)* };
    }
    negative! { EFAULT ENOMEM EEXIST EINVAL }
}
