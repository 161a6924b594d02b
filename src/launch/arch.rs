//! Numbers that differ between architectures, in one place.

#[cfg(target_arch = "x86_64")]
mod numbers {
    use super::Compat;

    pub const AUDIT_ARCH: u32 = crate::sys::abi::AUDIT_ARCH_X86_64;

    pub const COMPAT: Option<Compat> = Some(Compat {
        audit_arch: crate::sys::abi::AUDIT_ARCH_I386,
        // arch/x86/entry/syscalls/syscall_32.tbl
        calls: &[
            (1, libc::SYS_exit),
            (252, libc::SYS_exit_group),
            (172, libc::SYS_prctl),
            (354, libc::SYS_seccomp),
            (2, libc::SYS_fork),
            (190, libc::SYS_vfork),
            (120, libc::SYS_clone),
            (435, libc::SYS_clone3),
            (11, libc::SYS_execve),
            (358, libc::SYS_execveat),
        ],
    });
}

#[cfg(target_arch = "aarch64")]
mod numbers {
    use super::Compat;

    pub const AUDIT_ARCH: u32 = crate::sys::abi::AUDIT_ARCH_AARCH64;

    pub const COMPAT: Option<Compat> = None;
}

pub use numbers::{AUDIT_ARCH, COMPAT};

/// x32 calls carry bit 30 and so never equal these.
pub const NR_EXIT: i32 = libc::SYS_exit as i32;
pub const NR_EXIT_GROUP: i32 = libc::SYS_exit_group as i32;

/// The system calls of 32-bit programs, as far as any of them is notified.
pub struct Compat {
    pub audit_arch: u32,
    /// (their number, the same call's number on this architecture).
    pub calls: &'static [(i32, i64)],
}

impl Compat {
    /// The number that a call has for 32-bit programs.
    pub fn number_of(&self, native: i64) -> Option<i32> {
        self.calls.iter().find(|&&(_, nr)| nr == native).map(|&(own, _)| own)
    }
}

/// A notified call under the number that it has on this architecture; None for any that is not known.
pub fn native(data: &libc::seccomp_data) -> Option<(i64, [u64; 6])> {
    if data.arch == AUDIT_ARCH {
        return Some((data.nr.into(), data.args));
    }
    let compat = COMPAT.filter(|compat| compat.audit_arch == data.arch)?;
    let &(_, nr) = compat.calls.iter().find(|&&(own, _)| own == data.nr)?;
    Some((nr, data.args))
}

/// The numbers of exit and exit_group among calls of that kind.
pub fn exits(audit_arch: u32) -> [i32; 2] {
    let native = [NR_EXIT, NR_EXIT_GROUP];
    match COMPAT.filter(|compat| compat.audit_arch == audit_arch) {
        Some(compat) => native.map(|nr| compat.number_of(nr.into()).unwrap_or(-1)),
        None => native,
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    fn data(arch: u32, nr: i32, args: [u64; 6]) -> libc::seccomp_data {
        libc::seccomp_data { nr, arch, instruction_pointer: 0, args }
    }

    #[test]
    fn calls_of_32_bit_programs_are_known_by_their_own_numbers() {
        let args = [0x8_0011, 2, 3, 4, 5, 6];
        assert_eq!(native(&data(AUDIT_ARCH, 1, args)), Some((libc::SYS_write, args)));
        assert_eq!(native(&data(0x4000_0003, 1, args)), Some((libc::SYS_exit, args)));
        assert_eq!(native(&data(0x4000_0003, 120, args)), Some((libc::SYS_clone, args)));
        assert_eq!(native(&data(0x4000_0003, 4, args)), None);
        assert_eq!(native(&data(7, 60, args)), None);
        assert_eq!(exits(AUDIT_ARCH), [60, 231]);
        assert_eq!(exits(0x4000_0003), [1, 252]);
    }
}
