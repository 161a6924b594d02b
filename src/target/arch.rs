//! Numbers that differ between architectures, in one place.

#[cfg(target_arch = "x86_64")]
mod numbers {
    /// AUDIT_ARCH_X86_64 (include/uapi/linux/audit.h): EM_X86_64 | 64-bit | little-endian.
    pub const AUDIT_ARCH: u32 = 0xc000_003e;
    /// arch/x86/entry/syscalls/syscall_64.tbl. x32 calls carry bit 30 and so never equal these.
    pub const NR_EXIT: i32 = 60;
    pub const NR_EXIT_GROUP: i32 = 231;
}

#[cfg(target_arch = "aarch64")]
mod numbers {
    /// AUDIT_ARCH_AARCH64 (include/uapi/linux/audit.h): EM_AARCH64 | 64-bit | little-endian.
    pub const AUDIT_ARCH: u32 = 0xc000_00b7;
    /// include/uapi/asm-generic/unistd.h.
    pub const NR_EXIT: i32 = 93;
    pub const NR_EXIT_GROUP: i32 = 94;
}

pub use numbers::{AUDIT_ARCH, NR_EXIT, NR_EXIT_GROUP};
