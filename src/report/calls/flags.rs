//! Names of flags and constants, in strace's spelling and order
//! (include/uapi/asm-generic/mman*.h, include/uapi/linux/{mman,shm,prctl}.h, x86's mman.h).

use crate::sys::abi::{self, MAP_HUGE_MASK, MAP_HUGE_SHIFT, MAP_TYPE};
use std::fmt::LowerHex;

/// One name a bit (or group of bits).
type Bits = &'static [(u64, &'static str)];

/// Numbers with their names.
macro_rules! named {
    ($($name:ident)*) => { [$((abi::$name, stringify!($name))),*] };
}

const PROT: Bits = &named![PROT_READ PROT_WRITE PROT_EXEC PROT_SEM PROT_GROWSDOWN PROT_GROWSUP];

const MAP: Bits = &named![
    MAP_FIXED MAP_ANONYMOUS MAP_32BIT MAP_NORESERVE MAP_POPULATE MAP_NONBLOCK MAP_GROWSDOWN MAP_DENYWRITE
    MAP_EXECUTABLE MAP_LOCKED MAP_STACK MAP_HUGETLB MAP_SYNC MAP_FIXED_NOREPLACE
];

/// Of them, one at a time.
const MAP_TYPES: Bits = &named![MAP_FILE MAP_SHARED MAP_PRIVATE MAP_SHARED_VALIDATE MAP_DROPPABLE];

const MREMAP: Bits = &named![MREMAP_MAYMOVE MREMAP_FIXED MREMAP_DONTUNMAP];

const SHM: Bits = &named![SHM_RDONLY SHM_RND SHM_REMAP SHM_EXEC];

const ADVICE: &[(i32, &str)] = &named![
    MADV_NORMAL MADV_RANDOM MADV_SEQUENTIAL MADV_WILLNEED MADV_DONTNEED MADV_FREE MADV_REMOVE MADV_DONTFORK
    MADV_DOFORK MADV_MERGEABLE MADV_UNMERGEABLE MADV_HUGEPAGE MADV_NOHUGEPAGE MADV_DONTDUMP MADV_DODUMP
    MADV_WIPEONFORK MADV_KEEPONFORK MADV_COLD MADV_PAGEOUT MADV_POPULATE_READ MADV_POPULATE_WRITE
    MADV_DONTNEED_LOCKED MADV_COLLAPSE MADV_HWPOISON MADV_SOFT_OFFLINE MADV_GUARD_INSTALL MADV_GUARD_REMOVE
];

/// The size of huge pages, as a power of two.
const HUGE_MASK: u64 = MAP_HUGE_MASK << MAP_HUGE_SHIFT;

/// Names joined by `|`, unknown bits in hex at the end: `A|B|0x40`.
fn bits(value: u64, names: Bits) -> String {
    let mut rest = value;
    let mut parts: Vec<String> = Vec::new();
    for &(bit, name) in names {
        if rest & bit == bit {
            rest &= !bit;
            parts.push(name.to_string());
        }
    }
    if rest != 0 {
        parts.push(format!("{rest:#x}"));
    }
    parts.join("|")
}

/// The name of a number that has one: `MADV_FREE`, `0x1a /* MADV_??? */`.
fn name_of<T: PartialEq + LowerHex>(value: T, names: &[(T, &str)], family: &str) -> String {
    match names.iter().find(|(number, _)| *number == value) {
        Some((_, name)) => (*name).to_string(),
        None => format!("{value:#x} /* {family}_??? */"),
    }
}

/// As [`bits`]; without a single known bit `0x40 /* PROT_??? */`, without any bit `none`.
fn flags(value: u64, names: Bits, none: &str, family: &str) -> String {
    if value == 0 {
        return none.to_string();
    }
    if names.iter().all(|(bit, _)| value & bit != *bit) {
        return format!("{value:#x} /* {family}_??? */");
    }
    bits(value, names)
}

/// `PROT_READ|PROT_WRITE`, `PROT_NONE`.
pub fn prot(value: u64) -> String {
    flags(value, PROT, "PROT_NONE", "PROT")
}

/// `MAP_PRIVATE|MAP_ANONYMOUS|MAP_HUGETLB|21<<MAP_HUGE_SHIFT`.
pub fn map(value: u64) -> String {
    let mut text = name_of(value & MAP_TYPE, MAP_TYPES, "MAP");
    let named = value & !MAP_TYPE & !HUGE_MASK & 0xffff_ffff;
    let high = value & !0xffff_ffff;
    if named | high != 0 {
        text.push('|');
        text += &bits(named | high, MAP);
    }
    let huge = (value & HUGE_MASK) >> MAP_HUGE_SHIFT;
    if huge != 0 {
        text += &format!("|{huge}<<MAP_HUGE_SHIFT");
    }
    text
}

pub fn mremap(value: u64) -> String {
    flags(value, MREMAP, "0", "MREMAP")
}

pub fn shm(value: u64) -> String {
    flags(value, SHM, "0", "SHM")
}

/// SHADOW_STACK_SET_TOKEN (arch/x86/include/uapi/asm/mman.h).
pub fn shadow_stack(value: u64) -> String {
    flags(value, &named![SHADOW_STACK_SET_TOKEN], "0", "SHADOW_STACK")
}

/// `MADV_DONTNEED`, `0x1a /* MADV_??? */`.
pub fn advice(value: i32) -> String {
    name_of(value, ADVICE, "MADV")
}

/// Options of prctl(PR_SET_MM).
pub fn set_mm(option: i32) -> String {
    const NAMES: [&str; 15] = [
        "START_CODE",
        "END_CODE",
        "START_DATA",
        "END_DATA",
        "START_STACK",
        "START_BRK",
        "BRK",
        "ARG_START",
        "ARG_END",
        "ENV_START",
        "ENV_END",
        "AUXV",
        "EXE_FILE",
        "MAP",
        "MAP_SIZE",
    ];
    match usize::try_from(option).ok().and_then(|o| NAMES.get(o.checked_sub(1)?)) {
        Some(name) => format!("PR_SET_MM_{name}"),
        None => format!("{option:#x} /* PR_SET_MM_??? */"),
    }
}

/// Signals that end processes (x86's numbers, as most architectures have them).
pub fn signal(number: i32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
        "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
        "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    match usize::try_from(number).ok().and_then(|n| NAMES.get(n.checked_sub(1)?)) {
        Some(name) => format!("SIG{name}"),
        None => format!("signal {number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The right-hand sides are what strace 6.1 printed for these values.
    #[test]
    fn flags_read_as_straces() {
        assert_eq!(prot(0), "PROT_NONE");
        assert_eq!(prot(3), "PROT_READ|PROT_WRITE");
        assert_eq!(prot(0x40), "0x40 /* PROT_??? */");
        assert_eq!(
            prot(0x0300_004f),
            "PROT_READ|PROT_WRITE|PROT_EXEC|PROT_SEM|PROT_GROWSDOWN|PROT_GROWSUP|0x40"
        );
        assert_eq!(
            map(2 | 0x20 | 0x4000 | 0x8000 | 0x2_0000 | 0x2000 | 0x100 | 0x1_0000 | 0x800 | 0x1000),
            "MAP_PRIVATE|MAP_ANONYMOUS|MAP_NORESERVE|MAP_POPULATE|MAP_NONBLOCK|MAP_GROWSDOWN|\
             MAP_DENYWRITE|MAP_EXECUTABLE|MAP_LOCKED|MAP_STACK"
        );
        assert_eq!(
            map(3 | 0x20 | 0x8_0000 | 0x4000_0000 | 0x0800_0000),
            "MAP_SHARED_VALIDATE|MAP_ANONYMOUS|MAP_SYNC|18<<MAP_HUGE_SHIFT"
        );
        assert_eq!(map(0x20), "MAP_FILE|MAP_ANONYMOUS");
        assert_eq!(map(2 | 0x80), "MAP_PRIVATE|0x80");
        assert_eq!(mremap(0), "0");
        assert_eq!(mremap(7), "MREMAP_MAYMOVE|MREMAP_FIXED|MREMAP_DONTUNMAP");
        assert_eq!(shm(0o40001), "SHM_REMAP|0x1");
        assert_eq!(advice(-1), "0xffffffff /* MADV_??? */");
        assert_eq!(advice(4), "MADV_DONTNEED");
        assert_eq!(set_mm(6), "PR_SET_MM_START_BRK");
        assert_eq!(set_mm(99), "0x63 /* PR_SET_MM_??? */");
        assert_eq!(signal(9), "SIGKILL");
    }
}
