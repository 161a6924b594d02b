//! Calls as numbers: the columns of `event`, and back.

use super::error::Fault;
use crate::model::VmOp;

/// Names of `event.op` in order of their numbers. Add at the end, change none.
pub(super) const OPS: [&str; 21] = [
    "mmap",
    "munmap",
    "mremap",
    "brk",
    "mprotect",
    "pkey_mprotect",
    "madvise",
    "process_madvise",
    "shmat",
    "shmdt",
    "remap_file_pages",
    "io_setup",
    "map_shadow_stack",
    "prctl(PR_SET_VMA)",
    "prctl(PR_SET_MM)",
    "seccomp",
    "clone",
    "execve",
    "exit",
    "rename",
    "io_destroy",
];

pub(super) const MMAP: i64 = 0;
pub(super) const MUNMAP: i64 = 1;
pub(super) const MREMAP: i64 = 2;
pub(super) const BRK: i64 = 3;
pub(super) const MPROTECT: i64 = 4;
pub(super) const PKEY_MPROTECT: i64 = 5;
pub(super) const MADVISE: i64 = 6;
pub(super) const PROCESS_MADVISE: i64 = 7;
pub(super) const SHMAT: i64 = 8;
pub(super) const SHMDT: i64 = 9;
pub(super) const REMAP_FILE_PAGES: i64 = 10;
pub(super) const IO_SETUP: i64 = 11;
pub(super) const MAP_SHADOW_STACK: i64 = 12;
pub(super) const SET_VMA_NAME: i64 = 13;
pub(super) const SET_MM: i64 = 14;
pub(super) const SECCOMP: i64 = 15;
pub(super) const CLONE: i64 = 16;
pub(super) const EXECVE: i64 = 17;
pub(super) const EXIT: i64 = 18;
pub(super) const RENAME: i64 = 19;
pub(super) const IO_DESTROY: i64 = 20;

/// The arguments of a call in the columns of `event`. Unsigned numbers keep their bits: SQLite
/// knows signed 64-bit integers only.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Arguments {
    pub(super) op: i64,
    pub(super) addr: Option<i64>,
    pub(super) len: Option<i64>,
    pub(super) prot: Option<i64>,
    pub(super) flags: Option<i64>,
    /// `file.id`, or `vma_name.id` for a name.
    pub(super) file: Option<i64>,
    pub(super) fd: Option<i64>,
    pub(super) offset: Option<i64>,
    pub(super) new_addr: Option<i64>,
    pub(super) new_len: Option<i64>,
    pub(super) value: Option<i64>,
}

pub(super) fn bits(value: u64) -> Option<i64> {
    Some(value as i64)
}

impl Arguments {
    /// All but what `file` and the tables `fork` and `exec` hold.
    pub(super) fn of(op: &VmOp) -> Arguments {
        let mut row = Arguments::default();
        match op {
            VmOp::Mmap { addr, len, prot, flags, fd, offset, file: _ } => {
                row.op = MMAP;
                (row.addr, row.len) = (bits(addr.0), bits(*len));
                (row.prot, row.flags) = (bits(*prot), bits(*flags));
                (row.fd, row.offset) = (Some(i64::from(*fd)), bits(*offset));
            }
            VmOp::Munmap { addr, len } => {
                row.op = MUNMAP;
                (row.addr, row.len) = (bits(addr.0), bits(*len));
            }
            VmOp::Mremap { old, old_len, new_len, flags, new_addr } => {
                row.op = MREMAP;
                (row.addr, row.len) = (bits(old.0), bits(*old_len));
                (row.new_addr, row.new_len) = (bits(new_addr.0), bits(*new_len));
                row.flags = bits(*flags);
            }
            VmOp::Brk { requested, current } => {
                row.op = BRK;
                (row.addr, row.new_addr) = (bits(requested.0), current.and_then(|at| bits(at.0)));
            }
            VmOp::Mprotect { addr, len, prot, pkey } => {
                row.op = if pkey.is_some() { PKEY_MPROTECT } else { MPROTECT };
                (row.addr, row.len, row.prot) = (bits(addr.0), bits(*len), bits(*prot));
                row.value = pkey.map(i64::from);
            }
            VmOp::Madvise { addr, len, advice } => {
                row.op = MADVISE;
                (row.addr, row.len, row.value) = (bits(addr.0), bits(*len), Some(i64::from(*advice)));
            }
            VmOp::ProcessMadvise { pidfd, iovecs, advice } => {
                row.op = PROCESS_MADVISE;
                (row.fd, row.len) = (Some(i64::from(*pidfd)), bits(*iovecs));
                row.value = Some(i64::from(*advice));
            }
            VmOp::Shmat { shmid, addr, flags, mapped } => {
                row.op = SHMAT;
                (row.addr, row.flags, row.value) = (bits(addr.0), bits(*flags), Some(i64::from(*shmid)));
                row.new_addr = mapped.and_then(|range| bits(range.start.0));
                row.new_len = mapped.and_then(|range| bits(range.len()));
            }
            VmOp::Shmdt { addr } => {
                (row.op, row.addr) = (SHMDT, bits(addr.0));
            }
            VmOp::RemapFilePages { addr, len, pgoff, flags } => {
                row.op = REMAP_FILE_PAGES;
                (row.addr, row.len) = (bits(addr.0), bits(*len));
                (row.offset, row.flags) = (bits(*pgoff), bits(*flags));
            }
            VmOp::IoSetup { nr_events, mapped } => {
                (row.op, row.value) = (IO_SETUP, bits(*nr_events));
                row.new_addr = mapped.and_then(|range| bits(range.start.0));
                row.new_len = mapped.and_then(|range| bits(range.len()));
            }
            VmOp::IoDestroy { ctx } => {
                (row.op, row.addr) = (IO_DESTROY, bits(ctx.0));
            }
            VmOp::MapShadowStack { addr, len, flags } => {
                row.op = MAP_SHADOW_STACK;
                (row.addr, row.len, row.flags) = (bits(addr.0), bits(*len), bits(*flags));
            }
            VmOp::SetVmaName { addr, len, name: _ } => {
                row.op = SET_VMA_NAME;
                (row.addr, row.len) = (bits(addr.0), bits(*len));
            }
            VmOp::SetMm { option, value } => {
                row.op = SET_MM;
                (row.addr, row.value) = (bits(*value), Some(i64::from(*option)));
            }
            VmOp::SeccompListenerBusy => row.op = SECCOMP,
            VmOp::Fork { .. } => row.op = CLONE,
            VmOp::Exec { .. } => row.op = EXECVE,
            VmOp::Exit { code, group_dead } => {
                row.op = EXIT;
                (row.value, row.flags) = (Some(i64::from(*code)), Some(i64::from(*group_dead)));
            }
            VmOp::Rename => row.op = RENAME,
        }
        row
    }
}

/// A number that has to fit into 32 bits.
pub(super) fn narrow<T: TryFrom<i64>>(value: i64, what: &str) -> Result<T, Fault> {
    T::try_from(value).map_err(|_| Fault::damaged(format!("{what} is {value}")))
}
