//! Page protection and sharing, as `/proc/PID/maps` prints them.

use std::fmt;

/// Access rights of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, PartialOrd, Ord)]
pub struct Prot {
    pub read: bool,
    pub write: bool,
    pub exec: bool,
}

impl Prot {
    pub const NONE: Prot = Prot { read: false, write: false, exec: false };
    pub const RW: Prot = Prot { read: true, write: true, exec: false };

    /// From the `prot` argument of mmap(2) and mprotect(2): PROT_READ 1, PROT_WRITE 2,
    /// PROT_EXEC 4. Other bits (PROT_SEM, PROT_GROWSDOWN …) do not change access.
    pub fn from_mmap_bits(bits: u64) -> Prot {
        Prot { read: bits & 1 != 0, write: bits & 2 != 0, exec: bits & 4 != 0 }
    }

    /// From `vm_flags`: VM_READ 1, VM_WRITE 2, VM_EXEC 4 (include/linux/mm.h).
    pub fn from_vm_flags(flags: u64) -> Prot {
        Prot::from_mmap_bits(flags)
    }

    pub fn is_none(self) -> bool {
        self == Prot::NONE
    }
}

/// `p` or `s` in the fourth column of maps: MAP_PRIVATE or MAP_SHARED.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub enum Sharing {
    #[default]
    Private,
    Shared,
}

impl fmt::Display for Prot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bit = |on: bool, c: char| if on { c } else { '-' };
        write!(f, "{}{}{}", bit(self.read, 'r'), bit(self.write, 'w'), bit(self.exec, 'x'))
    }
}

impl fmt::Display for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Sharing::Private => "p",
            Sharing::Shared => "s",
        })
    }
}
