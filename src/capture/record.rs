//! The wire record and its values, as bpf/vmaudit.h, heap.h and probe.h define them: all of it comes from the
//! types that libbpf-cargo generates. How records are read, and how backends without BPF programs write them.

pub use super::bpf::skel::types::vmaudit_record as Record;

use super::bpf::skel::types::{vmaudit_code, vmaudit_flag, vmaudit_managed_end, vmaudit_op, vmaudit_special};
use super::heap::skel::types::{vmaudit_heap_flag, vmaudit_heap_op};
use super::plain::{bytes_of, value_of};
use super::uprobe::skel::types::vmaudit_probe_op;
use crate::model::{Mapping, MappingFile, PAGE, Sharing};
use crate::sys::abi::VM_MAYSHARE;
use std::mem::{offset_of, size_of};

// Offsets that user space relies on.
const _: () = assert!(offset_of!(Record, ret) == 32);
const _: () = assert!(offset_of!(Record, args) == 40);
const _: () = assert!(offset_of!(Record, ip) == 88);
const _: () = assert!(offset_of!(Record, comm) == 192);

/// Names for values of an enum of the C side.
macro_rules! values {
    ($of:ident: $type:ty { $($name:ident = $value:ident),* $(,)? }) => {
        $(pub const $name: $type = $of::$value.0 as $type;)*
    };
}
pub(super) use values;

/// What a record is about.
pub mod op {
    use super::{vmaudit_heap_op, vmaudit_op, vmaudit_probe_op};

    super::values!(vmaudit_op: u16 {
        MMAP = VMAUDIT_OP_MMAP,
        MUNMAP = VMAUDIT_OP_MUNMAP,
        MREMAP = VMAUDIT_OP_MREMAP,
        BRK = VMAUDIT_OP_BRK,
        MPROTECT = VMAUDIT_OP_MPROTECT,
        PKEY_MPROTECT = VMAUDIT_OP_PKEY_MPROTECT,
        MADVISE = VMAUDIT_OP_MADVISE,
        PROCESS_MADVISE = VMAUDIT_OP_PROCESS_MADVISE,
        SHMAT = VMAUDIT_OP_SHMAT,
        SHMDT = VMAUDIT_OP_SHMDT,
        REMAP_FILE_PAGES = VMAUDIT_OP_REMAP_FILE_PAGES,
        IO_SETUP = VMAUDIT_OP_IO_SETUP,
        MAP_SHADOW_STACK = VMAUDIT_OP_MAP_SHADOW_STACK,
        PRCTL = VMAUDIT_OP_PRCTL,
        SECCOMP = VMAUDIT_OP_SECCOMP,
        IO_DESTROY = VMAUDIT_OP_IO_DESTROY,
        FORK = VMAUDIT_OP_FORK,
        EXEC = VMAUDIT_OP_EXEC,
        EXIT = VMAUDIT_OP_EXIT,
        RENAME = VMAUDIT_OP_RENAME,
        FILE = VMAUDIT_OP_FILE,
        NAME = VMAUDIT_OP_NAME,
        VMA = VMAUDIT_OP_VMA,
        MANAGED = VMAUDIT_OP_MANAGED,
        CODE = VMAUDIT_OP_CODE,
        LEFT_STACK = VMAUDIT_OP_LEFT_STACK,
        TOUCH = VMAUDIT_OP_TOUCH,
    });
    super::values!(vmaudit_heap_op: u16 {
        ALLOCATED = VMAUDIT_OP_ALLOCATED,
        FREED = VMAUDIT_OP_FREED,
        RESIZE_BEGUN = VMAUDIT_OP_RESIZE_BEGUN,
        RESIZE_ENDED = VMAUDIT_OP_RESIZE_ENDED,
        REFUSED = VMAUDIT_OP_REFUSED,
        CONTEXT_CREATED = VMAUDIT_OP_CONTEXT_CREATED,
        CONTEXT_RESET = VMAUDIT_OP_CONTEXT_RESET,
        CONTEXT_DELETED = VMAUDIT_OP_CONTEXT_DELETED,
        CONTEXT_MOVED = VMAUDIT_OP_CONTEXT_MOVED,
        SITE = VMAUDIT_OP_SITE,
    });
    super::values!(vmaudit_probe_op: u16 { PROBED = VMAUDIT_OP_PROBED });
}

/// What is true of a record.
pub mod flag {
    use super::{vmaudit_flag, vmaudit_heap_flag};

    super::values!(vmaudit_flag: u16 {
        STACK_FULL = VMAUDIT_STACK_FULL,
        STACK_UNREADABLE = VMAUDIT_STACK_UNREADABLE,
        HAS_FILE = VMAUDIT_HAS_FILE,
        HAS_AUX = VMAUDIT_HAS_AUX,
        LISTED = VMAUDIT_LISTED,
        WITHOUT_STACK = VMAUDIT_WITHOUT_STACK,
        STACK_HOLES = VMAUDIT_STACK_HOLES,
        FEW_REGISTERS = VMAUDIT_FEW_REGISTERS,
        FILE_NUMBERED = VMAUDIT_FILE_NUMBERED,
        STACK_KNOWN = VMAUDIT_STACK_KNOWN,
    });
    super::values!(vmaudit_heap_flag: u16 { HEAP_FAILED = VMAUDIT_HEAP_FAILED });
}

/// A mapping that the kernel gives a name.
pub mod special {
    use super::vmaudit_special;

    super::values!(vmaudit_special: u64 {
        NONE = VMAUDIT_SPECIAL_NONE,
        STACK = VMAUDIT_SPECIAL_STACK,
        VDSO = VMAUDIT_SPECIAL_VDSO,
        HEAP = VMAUDIT_SPECIAL_HEAP,
    });
}

/// How a list of managed frames ends, and where the parts of what they run begin.
pub mod managed {
    use super::{vmaudit_code, vmaudit_managed_end};

    super::values!(vmaudit_code: usize {
        FILE = VMAUDIT_CODE_FILE,
        NAME = VMAUDIT_CODE_NAME,
        LINES = VMAUDIT_CODE_LINES,
    });
    super::values!(vmaudit_managed_end: u64 {
        WHOLE = VMAUDIT_MANAGED_WHOLE,
        CUT = VMAUDIT_MANAGED_CUT,
    });
}

/// The wait status of a process of whose end nothing is known but that it was.
pub const UNKNOWN_STATUS: i32 = -1;

/// What a record is about ([`op`]); `None` for what is too short.
pub fn op_of(bytes: &[u8]) -> Option<u16> {
    let at = offset_of!(Record, op);
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// A record and what follows it; `None` for what is too short.
pub fn read(bytes: &[u8]) -> Option<(Record, &[u8])> {
    let record: Record = value_of(bytes)?;
    let payload = bytes[size_of::<Record>()..].get(..record.payload as usize)?;
    Some((record, payload))
}

/// The bytes of a record and of what follows it.
pub fn to_bytes(mut record: Record, payload: &[u8]) -> Vec<u8> {
    record.payload = payload.len() as u32;
    [bytes_of(&record), payload].concat()
}

/// The kernel's dev_t: 12 bits of major, 20 of minor (include/linux/kdev_t.h).
pub fn device(dev: u32) -> (u32, u32) {
    (dev >> 20, dev & 0xf_ffff)
}

/// `name`: as maps prints it.
pub fn set_file(record: &mut Record, file: MappingFile, name: &[u8]) {
    record.dev = file.major << 20 | file.minor & 0xf_ffff;
    record.ino = file.inode;
    record.nlink = u32::from(!name.ends_with(b" (deleted)"));
    record.flags |= flag::HAS_FILE;
}

/// A thread's name, at most 15 bytes.
pub fn set_comm(record: &mut Record, name: &[u8]) {
    for (to, &from) in record.comm.iter_mut().take(15).zip(name) {
        *to = from as _;
    }
}

/// Writes what the BPF programs would. `of`: a record of the same task; of its fields, those count that say whose
/// it is and when it was.
pub trait RecordWriter {
    /// Sends a record with what follows it.
    fn write(&mut self, record: Record, payload: &[u8]);

    /// The file of the next event of the same task.
    fn file(&mut self, of: &Record, file: MappingFile, name: &[u8]) {
        let mut record = attachment(of, op::FILE);
        set_file(&mut record, file, name);
        let path = name.strip_suffix(b" (deleted)").unwrap_or(name);
        let mut text = Vec::with_capacity(path.len() + 1);
        for component in path.strip_prefix(b"/").unwrap_or(path).split(|&b| b == b'/').rev() {
            text.extend_from_slice(component);
            text.push(0);
        }
        self.write(record, &text);
    }

    /// The string of the next event of the same task.
    fn name(&mut self, of: &Record, name: &[u8]) {
        self.write(attachment(of, op::NAME), &[name, b"\0"].concat());
    }

    /// One of the mappings that the next event of the same task lists.
    fn mapping(&mut self, of: &Record, mapping: &Mapping) {
        let mut record = attachment(of, op::VMA);
        if let Some(file) = mapping.file {
            self.file(of, file, &mapping.name);
            set_file(&mut record, file, &mapping.name);
        }
        let special = match &mapping.name[..] {
            b"[stack]" => special::STACK,
            b"[vdso]" => special::VDSO,
            b"[heap]" => special::HEAP,
            _ => special::NONE,
        };
        // VM_READ, VM_WRITE, VM_EXEC are PROT_READ, PROT_WRITE, PROT_EXEC.
        let bit = |allowed, bit: i32| if allowed { bit as u64 } else { 0 };
        let access = bit(mapping.prot.read, libc::PROT_READ)
            | bit(mapping.prot.write, libc::PROT_WRITE)
            | bit(mapping.prot.exec, libc::PROT_EXEC);
        let shared = if mapping.sharing == Sharing::Shared { VM_MAYSHARE } else { 0 };
        let (start, end) = (mapping.range.start.0, mapping.range.end.0);
        record.args = [start, end, access | shared, mapping.offset / PAGE, special, 0];
        self.write(record, &[]);
    }
}

fn attachment(of: &Record, op: u16) -> Record {
    Record { time_ns: of.time_ns, mm: of.mm, pid: of.pid, tid: of.tid, op, ..Record::default() }
}
