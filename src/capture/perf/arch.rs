//! What depends on the processor: perf's registers (arch/x86/include/uapi/asm/perf_regs.h).

use crate::capture::bpf::skel::types::vmaudit_record as Record;
use crate::sys::abi::{CLONE_SETTLS, CLONE_VM};

const BX: u32 = 1;
const DX: u32 = 3;
const SI: u32 = 4;
const DI: u32 = 5;
const BP: u32 = 6;
const SP: u32 = 7;
const IP: u32 = 8;
const R8: u32 = 16;
const R9: u32 = 17;
const R10: u32 = 18;
const R12: u32 = 20;
const R13: u32 = 21;
const R14: u32 = 22;
const R15: u32 = 23;

/// In the order in which a sample has them.
const SAMPLED: [u32; COUNT] = [BX, DX, SI, DI, BP, SP, IP, R8, R9, R10, R12, R13, R14, R15];
pub const COUNT: usize = 14;

/// `perf_event_attr.sample_regs_user`.
pub const REGISTERS: u64 = {
    let (mut mask, mut i) = (0, 0);
    while i < COUNT {
        mask |= 1 << SAMPLED[i];
        i += 1;
    }
    mask
};

/// User registers at a system call: its arguments are in them until it returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserRegisters(pub [u64; COUNT]);

impl UserRegisters {
    pub fn sp(&self) -> u64 {
        self.0[5]
    }

    /// The six arguments.
    pub fn args(&self) -> [u64; 6] {
        let [_, dx, si, di, _, _, _, r8, r9, r10, ..] = self.0;
        [di, si, dx, r10, r8, r9]
    }

    /// What unwinding needs.
    pub fn put_into(&self, record: &mut Record) {
        let [bx, _, _, _, bp, sp, ip, _, _, _, r12, r13, r14, r15] = self.0;
        (record.ip, record.sp, record.bp, record.bx) = (ip, sp, bp, bx);
        (record.r12, record.r13, record.r14, record.r15) = (r12, r13, r14, r15);
    }
}

/// The arguments of clone(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cloning {
    /// The child shares the address space.
    pub shares: bool,
    /// The child's stack pointer; 0: as the parent's.
    pub sp: u64,
    /// The child's thread control block; 0: as the parent's.
    pub control_block: u64,
}

/// clone's arguments come in another order on other processors (kernel/fork.c).
pub fn cloning([flags, sp, _, _, tls, _]: [u64; 6]) -> Cloning {
    let control_block = if flags & CLONE_SETTLS != 0 { tls } else { 0 };
    Cloning { shares: flags & CLONE_VM != 0, sp, control_block }
}

/// `struct clone_args` (include/uapi/linux/sched.h), the same on all processors.
pub fn cloning3(bytes: &[u8]) -> Option<Cloning> {
    let word = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let (flags, stack, size, tls) = (word(0)?, word(40)?, word(48)?, word(56)?);
    Some(Cloning { sp: stack.wrapping_add(size), ..cloning([flags, stack, 0, 0, tls, 0]) })
}
