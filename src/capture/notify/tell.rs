//! The wire records (bpf/vmaudit.h) that this backend writes, as the BPF programs would.

use super::peek::{self, Thread, Vma};
use super::queue::Queue;
use crate::capture::bpf::skel::types::vmaudit_record as Record;
use crate::model::{Mapping, MappingFile, Sharing, Tid};
use crate::sys::abi::VM_MAYSHARE;
use crate::sys::clock::monotonic_ns;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub const OP_FORK: u16 = 32;
pub const OP_EXEC: u16 = 33;
pub const OP_EXIT: u16 = 34;
pub const OP_RENAME: u16 = 35;
const OP_FILE: u16 = 48;
const OP_NAME: u16 = 49;
const OP_VMA: u16 = 50;

pub const FULL: u16 = 1;
pub const UNREADABLE: u16 = 2;
pub const HAS_FILE: u16 = 4;
pub const HAS_AUX: u16 = 8;
pub const LISTED: u16 = 16;
/// Of the registers only ip and sp are known.
pub const FEW_REGISTERS: u16 = 128;

const SPECIAL_STACK: u64 = 1;
const SPECIAL_VDSO: u64 = 2;
const SPECIAL_HEAP: u64 = 3;

/// Whose record it is.
#[derive(Clone, Copy, Debug)]
pub struct Who {
    pub pid: i32,
    pub tid: Tid,
    pub mm: u64,
}

impl Who {
    pub fn record(self, op: u16) -> Record {
        let (pid, tid) = (self.pid as u32, self.tid as u32);
        Record { pid, tid, mm: self.mm, op, ..Record::default() }
    }
}

/// The server's end of the queue.
pub struct Teller {
    pub queue: Arc<Queue>,
    last_ns: u64,
}

impl Teller {
    pub fn new(queue: Arc<Queue>) -> Teller {
        Teller { queue, last_ns: 0 }
    }

    /// An event, with the bytes that belong to it.
    pub fn event(&mut self, record: Record, payload: &[u8]) {
        self.queue.seen.fetch_add(1, Ordering::Relaxed);
        if record.flags & UNREADABLE != 0 {
            self.queue.without_stack.fetch_add(1, Ordering::Relaxed);
        }
        self.put(record, payload);
    }

    pub fn lost(&self) {
        self.queue.seen.fetch_add(1, Ordering::Relaxed);
        self.queue.lost.fetch_add(1, Ordering::Relaxed);
    }

    fn put(&mut self, mut record: Record, payload: &[u8]) {
        // The order of the records is that of their times.
        self.last_ns = self.last_ns.max(monotonic_ns());
        record.time_ns = self.last_ns;
        record.payload = payload.len() as u32;
        let mut bytes = Vec::with_capacity(size_of::<Record>() + payload.len());
        // SAFETY: a record is plain integers without padding (asserted in capture::wire).
        let head =
            unsafe { std::slice::from_raw_parts((&raw const record).cast::<u8>(), size_of::<Record>()) };
        bytes.extend_from_slice(head);
        bytes.extend_from_slice(payload);
        self.queue.push(bytes);
    }

    /// The file of the next event of the same thread.
    pub fn file(&mut self, who: Who, file: MappingFile, name: &[u8]) {
        let mut record = who.record(OP_FILE);
        set_file(&mut record, file, name);
        let path = name.strip_suffix(b" (deleted)").unwrap_or(name);
        let path = path.strip_prefix(b"/").unwrap_or(path);
        let mut text = Vec::with_capacity(path.len() + 1);
        for component in path.split(|&b| b == b'/').rev() {
            text.extend_from_slice(component);
            text.push(0);
        }
        self.put(record, &text);
    }

    /// The string of the next event of the same thread.
    pub fn name(&mut self, who: Who, name: &[u8]) {
        let mut text = name.to_vec();
        text.push(0);
        self.put(who.record(OP_NAME), &text);
    }

    /// Every mapping, before an exec or fork that says LISTED.
    pub fn mappings(&mut self, who: Who, mappings: &[Mapping]) {
        for mapping in mappings {
            let mut record = who.record(OP_VMA);
            if let Some(file) = mapping.file {
                self.file(who, file, &mapping.name);
                set_file(&mut record, file, &mapping.name);
            }
            let shared = if mapping.sharing == Sharing::Shared { VM_MAYSHARE } else { 0 };
            let special = match &mapping.name[..] {
                b"[stack]" => SPECIAL_STACK,
                b"[vdso]" => SPECIAL_VDSO,
                b"[heap]" => SPECIAL_HEAP,
                _ => 0,
            };
            let access = super::shadow::Area::of(mapping).access;
            let page = crate::model::PAGE;
            let (start, end) = (mapping.range.start.0, mapping.range.end.0);
            record.args = [start, end, access | shared, mapping.offset / page, special, 0];
            self.put(record, &[]);
        }
    }

    pub fn mapped_file(&mut self, who: Who, record: &mut Record, vma: &Vma) {
        if let Some(file) = vma.file {
            self.file(who, file, &vma.name);
            set_file(record, file, &vma.name);
        }
    }
}

pub fn set_file(record: &mut Record, file: MappingFile, name: &[u8]) {
    record.dev = file.major << 20 | file.minor & 0xf_ffff;
    record.ino = file.inode;
    record.nlink = u32::from(!name.ends_with(b" (deleted)"));
    record.flags |= HAS_FILE;
}

pub fn set_comm(record: &mut Record, comm: &[u8]) {
    for (to, &from) in record.comm.iter_mut().take(15).zip(comm) {
        *to = from as _;
    }
}

/// Where the stack's bytes worth copying end, as far as that is known.
#[derive(Clone, Copy, Debug)]
pub struct StackEnd {
    /// The end of the mapping; 0 if there is none.
    pub mapping: u64,
    /// Where the arguments of the program lie, and the thread's control block (0: not known).
    pub arguments: u64,
    pub control_block: u64,
}

/// How often to ask again where a thread is that has not quite come to rest.
const ASK_AGAIN: usize = 200;

/// The thread's stack pointer in the call that it waits in.
pub fn stack_pointer(thread: &Thread) -> Option<u64> {
    for _ in 0..ASK_AGAIN {
        match thread.place() {
            peek::Place::Blocked { sp, .. } => return Some(sp).filter(|&sp| sp != 0),
            peek::Place::Running => std::thread::yield_now(),
            peek::Place::Gone => return None,
        }
    }
    None
}

/// Copies the stack; sets the flags of `record` that go with it.
pub fn copy_stack(record: &mut Record, end: StackEnd, most: u64) -> Vec<u8> {
    let sp = record.sp;
    let mut to = end.mapping;
    for nearer in [end.arguments, end.control_block] {
        if nearer > sp && nearer < to {
            to = nearer;
        }
    }
    let wanted = if to > sp { to - sp } else { crate::model::PAGE - sp % crate::model::PAGE };
    if to > sp && wanted <= most {
        record.flags |= FULL;
    }
    let mut bytes = vec![0; wanted.min(most) as usize];
    let read = peek::read_memory(record.tid as Tid, sp, &mut bytes);
    if read < bytes.len() {
        record.flags &= !FULL;
        bytes.truncate(read);
    }
    if bytes.is_empty() {
        record.flags |= UNREADABLE;
    }
    bytes
}
