//! The backend's records as bpf/vmaudit.h has them.

use super::sample::{Mapped, When};
use crate::capture::bpf::skel::types::vmaudit_record as Record;
use crate::model::PAGE;
use crate::sys::abi::{MAP_SHARED, VM_MAYSHARE};

pub const OP_FORK: u16 = 32;
pub const OP_EXEC: u16 = 33;
pub const OP_EXIT: u16 = 34;
pub const OP_RENAME: u16 = 35;
const OP_FILE: u16 = 48;
pub const OP_NAME: u16 = 49;
const OP_VMA: u16 = 50;

pub const FULL: u16 = 1;
pub const HAS_FILE: u16 = 4;
pub const HAS_AUX: u16 = 8;
pub const LISTED: u16 = 16;
pub const SPILLED: u16 = 32;

/// The wait status of a process of whose end nothing is known but that it was.
pub const UNKNOWN_STATUS: i32 = -1;

const SPECIAL_STACK: u64 = 1;
const SPECIAL_VDSO: u64 = 2;

/// Where records go.
pub type Emit<'a> = dyn FnMut(&[u8]) + 'a;

/// A record of a task in an address space.
pub fn record(when: When, mm: u64, op: u16) -> Record {
    // SAFETY: all fields are integers; zero is a valid value of each.
    let mut record: Record = unsafe { std::mem::zeroed() };
    (record.time_ns, record.mm) = (when.time_ns, mm);
    (record.pid, record.tid) = (when.pid as u32, when.tid as u32);
    record.op = op;
    record
}

/// Hands out a record with what follows it.
pub fn send(mut record: Record, payload: &[u8], emit: &mut Emit<'_>) {
    record.payload = payload.len() as u32;
    // SAFETY: Record is plain data without padding (asserted in capture::wire).
    let head = unsafe { std::slice::from_raw_parts((&raw const record).cast::<u8>(), size_of::<Record>()) };
    emit(&[head, payload].concat());
}

/// The file of a mapping, if it has one.
pub fn file_of(mapped: &Mapped) -> Option<(&[u8], bool)> {
    if mapped.inode == 0 {
        return None;
    }
    Some(match mapped.name.strip_suffix(b" (deleted)") {
        Some(path) => (path, true),
        None => (&mapped.name, false),
    })
}

pub fn set_file(record: &mut Record, mapped: &Mapped) {
    if let Some((_, deleted)) = file_of(mapped) {
        record.flags |= HAS_FILE;
        record.ino = mapped.inode;
        record.dev = mapped.major << 20 | (mapped.minor & 0xf_ffff);
        record.nlink = u32::from(!deleted);
    }
}

/// The path of a mapping's file: names, leaf first, each ended by NUL.
pub fn send_path(when: When, mapped: &Mapped, emit: &mut Emit<'_>) {
    let Some((path, _)) = file_of(mapped) else { return };
    let mut out = record(when, 0, OP_FILE);
    set_file(&mut out, mapped);
    let mut text = Vec::with_capacity(path.len() + 1);
    for component in path.strip_prefix(b"/").unwrap_or(path).split(|&b| b == b'/').rev() {
        text.extend_from_slice(component);
        text.push(0);
    }
    send(out, &text, emit);
}

/// One mapping of a new program.
pub fn send_mapping(when: When, mapped: &Mapped, emit: &mut Emit<'_>) {
    send_path(when, mapped, emit);
    let mut out = record(when, 0, OP_VMA);
    set_file(&mut out, mapped);
    let shared = if u64::from(mapped.flags) & MAP_SHARED != 0 { VM_MAYSHARE } else { 0 };
    let special = match &mapped.name[..] {
        b"[stack]" => SPECIAL_STACK,
        b"[vdso]" => SPECIAL_VDSO,
        _ => 0,
    };
    let [start, end] = [mapped.start, mapped.start.saturating_add(mapped.len)];
    // PROT_READ, PROT_WRITE, PROT_EXEC are VM_READ, VM_WRITE, VM_EXEC.
    let protection = u64::from(mapped.prot & 7);
    out.args = [start, end, protection | shared, mapped.offset / PAGE, special, 0];
    send(out, &[], emit);
}

/// A thread's name, at most 15 bytes.
pub fn set_comm(record: &mut Record, name: &[u8]) {
    for (to, from) in record.comm.iter_mut().take(15).zip(name) {
        *to = *from as _;
    }
}
