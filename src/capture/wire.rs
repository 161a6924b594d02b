//! Decoding of the ring buffer's records (bpf/vmaudit.h). Pure: bytes in, events out; nothing
//! here touches libbpf.

use super::record::{Record, device, flag, op, op_of, read, special};
use super::{Captured, CapturedTouch, CopiedStack, arch, managed};
use crate::model::hash::IntMap;
use crate::model::mapping::prot::Sharing;
use crate::model::mapping::{Mapping, MappingFile};
use crate::model::stack::{ManagedCode, ManagedFrames};
use crate::model::{
    Addr, AddrRange, EventId, FileRef, MmKey, NoStack, PAGE, Prot, Task, Tid, Touch, VmEvent, VmOp,
};
use crate::sys::abi::{MAP_ANONYMOUS, PR_SET_VMA, PR_SET_VMA_ANON_NAME, VM_MAYSHARE, VM_PFNMAP};
use std::collections::HashMap;

/// What precedes a thread's next event in the ring.
#[derive(Default)]
struct Attachments {
    file: Option<FileRef>,
    name: Option<Vec<u8>>,
    vmas: Vec<Mapping>,
    /// Of the stack that begins there.
    managed: Option<(u64, ManagedFrames)>,
    /// The same, of what it was left for.
    left: Option<(u64, CopiedStack)>,
    /// Paths seen since, by identity, for `vmas`.
    paths: HashMap<(u32, u64), Vec<u8>>,
}

/// Puts records together to events: attachments to the event that they belong to, thread names
/// to threads (they are sent only when they change).
#[derive(Default)]
pub struct Decoder {
    pending: IntMap<u32, Attachments>,
    comms: IntMap<u32, Vec<u8>>,
    /// By their numbers.
    paths: IntMap<u64, Vec<u8>>,
    /// What managed frames run, by its number.
    pub codes: IntMap<u64, ManagedCode>,
    next: u64,
    /// Records that were too short or of an unknown kind.
    pub undecodable: u64,
}

/// Time stamp of a record (CLOCK_MONOTONIC, ns), without decoding the rest.
pub fn time_of(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(..8)?.try_into().ok()?))
}

/// True for a record of the ring of page faults: [`touch`] decodes it.
pub fn is_touch(bytes: &[u8]) -> bool {
    op_of(bytes) == Some(op::TOUCH)
}

/// A page fault; `None` for what is too short.
pub fn touch(bytes: &[u8]) -> Option<CapturedTouch<'_>> {
    let (record, stack) = read(bytes)?;
    let [address, weight, write, in_kernel, present, _] = record.args;
    let touch = Touch {
        time_ns: record.time_ns,
        pid: record.pid as i32,
        tid: record.tid as i32,
        mm: MmKey(record.mm),
        address: Addr(address),
        weight: (weight as u32).max(1),
        write: write != 0,
        in_kernel: in_kernel != 0,
        present: present != 0,
        stack: Err(NoStack::Unreadable),
    };
    Some(CapturedTouch { touch, stack: arch::sample(&record, stack) })
}

impl Decoder {
    /// The name that a thread has before its first renaming is known.
    pub fn set_comm(&mut self, tid: i32, comm: &[u8]) {
        self.comms.insert(tid as u32, comm.to_vec());
    }

    /// Decodes one record: `None` for attachments (kept for the next event of the thread) and
    /// for what does not decode (counted).
    pub fn decode<'a>(&mut self, bytes: &'a [u8]) -> Option<Captured<'a>> {
        let Some((record, payload)) = read(bytes) else {
            self.undecodable += 1;
            return None;
        };
        match record.op {
            op::FILE | op::NAME | op::VMA | op::MANAGED | op::LEFT_STACK => {
                self.attach(&record, payload);
                None
            }
            op::CODE => {
                match managed::code(&record, payload) {
                    Some((number, code)) => drop(self.codes.insert(number, code)),
                    None => self.undecodable += 1,
                }
                None
            }
            _ => self.event(&record, payload),
        }
    }

    /// The managed frames that were sent before a record of that thread, of the stack that begins there.
    pub fn managed_before(&mut self, tid: Tid, sp: u64) -> Option<ManagedFrames> {
        let attachments = self.pending.remove(&(tid as u32))?;
        attachments.managed.filter(|(of, _)| *of == sp).map(|(_, frames)| frames)
    }

    fn attach(&mut self, record: &Record, payload: &[u8]) {
        if record.op == op::FILE && record.flags & flag::FILE_NUMBERED != 0 {
            self.paths.insert(record.aux[0], path_from_components(payload));
            return;
        }
        let numbered = self.numbered_path(record);
        let attachments = self.pending.entry(record.tid).or_default();
        match record.op {
            op::FILE => {
                let path = path_from_components(payload);
                attachments.paths.insert((record.dev, record.ino), path.clone());
                attachments.file = Some(file_ref(record, path));
            }
            op::NAME => {
                let end = payload.iter().position(|&b| b == 0).unwrap_or(payload.len());
                attachments.name = Some(payload[..end].to_vec());
            }
            op::MANAGED => {
                attachments.managed = managed::frames(record, payload).map(|frames| (record.args[2], frames));
            }
            op::LEFT_STACK => {
                let stack = managed::left_stack(record, payload);
                attachments.left = stack.map(|stack| (record.args[0], stack));
            }
            _ => {
                let attached = || attachments.paths.get(&(record.dev, record.ino)).cloned();
                let path = numbered.or_else(attached).unwrap_or_default();
                attachments.vmas.push(vma(record, path));
            }
        }
    }

    /// The path that a record names by its number.
    fn numbered_path(&self, record: &Record) -> Option<Vec<u8>> {
        if record.flags & flag::FILE_NUMBERED == 0 {
            return None;
        }
        self.paths.get(&record.aux[0]).cloned()
    }

    fn event<'a>(&mut self, record: &Record, payload: &'a [u8]) -> Option<Captured<'a>> {
        let attachments = if self.pending.is_empty() { None } else { self.pending.remove(&record.tid) };
        let mut attachments = attachments.unwrap_or_default();
        let managed = attachments.managed.take().filter(|(sp, _)| *sp == record.sp).map(|(_, frames)| frames);
        let left = attachments.left.take().filter(|(sp, _)| *sp == record.sp).map(|(_, stack)| stack);
        if let Some(path) = self.numbered_path(record) {
            attachments.file = Some(file_ref(record, path));
        }
        let Some(op) = operation(record, attachments) else {
            self.undecodable += 1;
            return None;
        };
        let comm = self.comm(record, &op);
        self.next += 1;
        let syscall = record.op < op::FORK;
        let without = record.flags & flag::WITHOUT_STACK != 0;
        let known = (record.flags & flag::STACK_KNOWN != 0).then_some(record.stack);
        let has_stack = syscall && !without && known.is_none() && record.flags & flag::STACK_UNREADABLE == 0;
        let event = VmEvent {
            id: EventId(self.next),
            time_ns: record.time_ns,
            task: Task { pid: record.pid as i32, tid: record.tid as i32, comm },
            mm: MmKey(record.mm),
            op,
            ret: record.ret,
            stack: Err(match (syscall, without) {
                (true, true) => NoStack::Lost,
                (true, false) => NoStack::Unreadable,
                _ => NoStack::NotTaken,
            }),
            total_vm: (record.total_vm != 0).then(|| record.total_vm.saturating_mul(PAGE)),
        };
        let stack = has_stack.then(|| arch::sample(record, payload));
        Some(Captured { event, stack, known, sp: record.sp, managed, left })
    }

    /// The thread's name now, following fork (inherited), exec and renaming.
    fn comm(&mut self, record: &Record, op: &VmOp) -> Vec<u8> {
        let sent = || {
            let bytes: Vec<u8> = record.comm.iter().map(|&c| c as u8).collect();
            let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
            bytes[..end].to_vec()
        };
        match op {
            VmOp::Fork { child_tid, .. } => {
                self.comms.insert(*child_tid as u32, sent());
            }
            VmOp::Exec { .. } | VmOp::Rename => {
                self.comms.insert(record.tid, sent());
            }
            VmOp::Exit { .. } => return self.comms.remove(&record.tid).unwrap_or_default(),
            _ => {}
        }
        self.comms.get(&record.tid).cloned().unwrap_or_default()
    }
}

/// Dentry names, leaf first and each ended by NUL, to an absolute path.
fn path_from_components(text: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(text.len() + 1);
    let text = text.strip_suffix(b"\0").unwrap_or(text);
    for component in text.split(|&b| b == 0).rev() {
        path.push(b'/');
        path.extend_from_slice(component);
    }
    path
}

fn file_ref(record: &Record, path: Vec<u8>) -> FileRef {
    let (major, minor) = device(record.dev);
    FileRef { major, minor, inode: record.ino, path, deleted: record.nlink == 0 }
}

fn vma(record: &Record, path: Vec<u8>) -> Mapping {
    let [start, end, flags, pgoff, special, _] = record.args;
    let has_file = record.flags & flag::HAS_FILE != 0;
    let (major, minor) = device(record.dev);
    let mut name = match special {
        special::STACK => b"[stack]".to_vec(),
        special::VDSO => b"[vdso]".to_vec(),
        special::HEAP => b"[heap]".to_vec(),
        // Pages that are no files' and no program's: without a file, only vvar (lib/vdso/datastore.c).
        _ if !has_file && flags & VM_PFNMAP != 0 => b"[vvar]".to_vec(),
        _ => path,
    };
    if has_file && record.nlink == 0 && !name.is_empty() {
        name.extend_from_slice(b" (deleted)");
    }
    Mapping {
        range: AddrRange::new(start, end),
        prot: Prot::from_vm_flags(flags),
        sharing: if flags & VM_MAYSHARE != 0 { Sharing::Shared } else { Sharing::Private },
        offset: if has_file { pgoff.saturating_mul(PAGE) } else { 0 },
        file: has_file.then_some(MappingFile { major, minor, inode: record.ino }),
        name,
    }
}

fn aux_range(record: &Record) -> Option<AddrRange> {
    (record.flags & flag::HAS_AUX != 0).then(|| AddrRange::new(record.aux[0], record.aux[1]))
}

/// The call out of a record; `None` for an unknown `op`.
fn operation(record: &Record, attachments: Attachments) -> Option<VmOp> {
    let [a, b, c, d, e, f] = record.args;
    let listed = record.flags & flag::LISTED != 0;
    Some(match record.op {
        1 => VmOp::Mmap {
            addr: Addr(a),
            len: b,
            prot: c,
            flags: d,
            fd: e as i32,
            offset: f,
            file: mapped_file(record, d, attachments.file),
        },
        2 => VmOp::Munmap { addr: Addr(a), len: b },
        3 => VmOp::Mremap { old: Addr(a), old_len: b, new_len: c, flags: d, new_addr: Addr(e) },
        4 => VmOp::Brk {
            requested: Addr(a),
            current: (record.flags & flag::HAS_AUX != 0).then_some(Addr(record.aux[0])),
        },
        5 => VmOp::Mprotect { addr: Addr(a), len: b, prot: c, pkey: None },
        6 => VmOp::Mprotect { addr: Addr(a), len: b, prot: c, pkey: Some(d as i32) },
        7 => VmOp::Madvise { addr: Addr(a), len: b, advice: c as i32 },
        8 => VmOp::ProcessMadvise { pidfd: a as i32, iovecs: c, advice: d as i32 },
        9 => VmOp::Shmat { shmid: a as i32, addr: Addr(b), flags: c, mapped: aux_range(record) },
        10 => VmOp::Shmdt { addr: Addr(a) },
        11 => VmOp::RemapFilePages { addr: Addr(a), len: b, pgoff: d, flags: e },
        12 => VmOp::IoSetup { nr_events: a, mapped: aux_range(record) },
        13 => VmOp::MapShadowStack { addr: Addr(a), len: b, flags: c },
        14 if a == PR_SET_VMA && b == PR_SET_VMA_ANON_NAME => {
            VmOp::SetVmaName { addr: Addr(c), len: d, name: attachments.name }
        }
        14 => VmOp::SetMm { option: b as i32, value: c },
        15 => VmOp::SeccompListenerBusy,
        16 => VmOp::IoDestroy { ctx: Addr(a) },
        op::FORK => VmOp::Fork {
            child_pid: a as i32,
            child_tid: b as i32,
            child_mm: MmKey(c),
            child_sp: Addr(d),
            child_brk: (f != 0).then_some(Addr(f)),
            is_thread: e != 0,
            mappings: listed.then_some(attachments.vmas),
        },
        op::EXEC => VmOp::Exec {
            exe: (record.flags & flag::HAS_FILE != 0).then(|| {
                let attached = || attachments.paths.get(&(record.dev, record.ino)).cloned();
                let numbered = || attachments.file.filter(|file| file.inode == record.ino);
                match attached() {
                    Some(path) => file_ref(record, path),
                    None => numbered().unwrap_or_else(|| file_ref(record, Vec::new())),
                }
            }),
            start_brk: Addr(a),
            brk: Addr(b),
            start_stack: Addr(c),
            compat: d != 0,
            mappings: listed.then_some(attachments.vmas),
        },
        op::EXIT => VmOp::Exit { code: a as i32, group_dead: b != 0 },
        op::RENAME => VmOp::Rename,
        _ => return None,
    })
}

/// The file of an mmap: its path if the attachment is of the same file, else without path.
fn mapped_file(record: &Record, flags: u64, attached: Option<FileRef>) -> Option<FileRef> {
    if flags & MAP_ANONYMOUS != 0 || record.flags & flag::HAS_FILE == 0 {
        return attached.filter(|_| flags & MAP_ANONYMOUS == 0);
    }
    let path = attached.filter(|file| file.inode == record.ino).map(|file| file.path).unwrap_or_default();
    Some(file_ref(record, path))
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
