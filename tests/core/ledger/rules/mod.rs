//! The ledger's rules, one story a test.

mod effects;
mod fork_race;
mod life;
mod loss;
mod reconcile;
mod snapshots;

use vmaudit::ledger::{AddressSpaces, Origin, Reconciled, Region};
use vmaudit::model::{
    Addr, AddrRange, EventId, FileRef, Mapping, MappingFile, MmKey, NoStack, Observations, Pid, Prot,
    Sharing, Task, Tid, VmEvent, VmOp,
};

pub const PID: Pid = 10;
pub const MM: MmKey = MmKey(0xa000);
pub const BASE: u64 = 0x7f00_0000_0000;
pub const ANON: u64 = 0x22;
pub const FIXED: u64 = 0x10;

/// A page's address.
pub fn at(page: u64) -> u64 {
    BASE + page * 0x1000
}

pub fn pages(from: u64, to: u64) -> AddrRange {
    AddrRange::new(at(from), at(to))
}

/// Feeds events and numbers them from 1; each takes a microsecond.
pub struct Story {
    pub spaces: AddressSpaces,
    pub count: u64,
    pub mm: MmKey,
    pub pid: Pid,
    pub tid: Tid,
}

impl Story {
    /// A process right after execve, with these mappings.
    pub fn new(mappings: Vec<Mapping>) -> Story {
        let mut story = Story::unseen();
        story.exec(MM, Some(mappings));
        story
    }

    /// Nothing seen yet.
    pub fn unseen() -> Story {
        Story { spaces: AddressSpaces::new(), count: 0, mm: MM, pid: PID, tid: PID }
    }

    pub fn event(&mut self, op: VmOp, ret: i64) -> VmEvent {
        self.count += 1;
        VmEvent {
            id: EventId(self.count),
            time_ns: self.count * 1000,
            task: Task { pid: self.pid, tid: self.tid, comm: format!("t{}", self.tid).into_bytes() },
            mm: self.mm,
            op,
            ret,
            stack: Err(NoStack::NotTaken),
            total_vm: None,
        }
    }

    /// Reports a call; its event's number.
    pub fn report(&mut self, op: VmOp, ret: i64) -> u64 {
        let event = self.event(op, ret);
        self.spaces.apply(&event);
        self.count
    }

    pub fn exec(&mut self, mm: MmKey, mappings: Option<Vec<Mapping>>) -> u64 {
        self.mm = mm;
        let exe = Some(file(b"/bin/prog", 7));
        let (start_brk, brk) = (Addr(0x5000_0000), Addr(0x5000_0000));
        let start_stack = Addr(0x7fff_0000_0000);
        self.report(VmOp::Exec { exe, start_brk, brk, start_stack, compat: false, mappings }, 0)
    }

    pub fn mmap(&mut self, range: AddrRange, prot: u64, flags: u64) -> u64 {
        let op =
            VmOp::Mmap { addr: range.start, len: range.len(), prot, flags, fd: -1, offset: 0, file: None };
        self.report(op, range.start.0 as i64)
    }

    pub fn map_file(&mut self, range: AddrRange, prot: u64, flags: u64, offset: u64, file: FileRef) -> u64 {
        let (addr, len) = (range.start, range.len());
        let op = VmOp::Mmap { addr, len, prot, flags, fd: 3, offset, file: Some(file) };
        self.report(op, range.start.0 as i64)
    }

    pub fn munmap(&mut self, range: AddrRange) -> u64 {
        self.report(VmOp::Munmap { addr: range.start, len: range.len() }, 0)
    }

    pub fn mprotect(&mut self, range: AddrRange, prot: u64, ret: i64) -> u64 {
        self.report(VmOp::Mprotect { addr: range.start, len: range.len(), prot, pkey: None }, ret)
    }

    pub fn madvise(&mut self, range: AddrRange, advice: i32, ret: i64) -> u64 {
        self.report(VmOp::Madvise { addr: range.start, len: range.len(), advice }, ret)
    }

    pub fn thread(&mut self, tid: Tid) {
        let op = VmOp::Fork {
            child_pid: self.pid,
            child_tid: tid,
            child_mm: self.mm,
            child_sp: Addr(at(500)),
            child_brk: None,
            is_thread: true,
            mappings: None,
        };
        self.report(op, i64::from(tid));
    }

    pub fn exit(&mut self, code: i32, group_dead: bool) {
        self.report(VmOp::Exit { code, group_dead }, 0);
    }

    /// The ledger of the current process as (range, event) without protections.
    pub fn owners(&self) -> Vec<(AddrRange, Option<u64>)> {
        let ledger = self.spaces.ledger_of_pid(self.pid).expect("seen");
        let mut owners: Vec<(AddrRange, Option<u64>)> = Vec::new();
        for piece in ledger.pieces() {
            let owner = piece.event.map(|e| e.0);
            match owners.last_mut() {
                Some((range, last)) if *last == owner && range.end == piece.range.start => {
                    range.end = piece.range.end;
                }
                _ => owners.push((piece.range, owner)),
            }
        }
        owners
    }

    pub fn reconcile(&self, mappings: Vec<Mapping>) -> Reconciled {
        self.reconcile_at(mappings, u64::MAX)
    }

    /// As if maps had been read from `begun_ns` on.
    pub fn reconcile_at(&self, mappings: Vec<Mapping>, begun_ns: u64) -> Reconciled {
        self.spaces.reconcile(self.pid, &observed(self.pid, mappings, begun_ns))
    }
}

pub fn observed(pid: Pid, mappings: Vec<Mapping>, begun_ns: u64) -> Observations {
    Observations { pid, begun_ns, ended_ns: begun_ns, mappings, aslr: true, ..Observations::default() }
}

pub fn file(path: &[u8], inode: u64) -> FileRef {
    FileRef { major: 8, minor: 1, inode, path: path.to_vec(), deleted: false }
}

/// A line of maps: `perms` as in "rw-p".
pub fn mapping(range: AddrRange, perms: &str, name: &str) -> Mapping {
    let p = perms.as_bytes();
    let inode = name.bytes().fold(7, |sum, b| sum * 31 % 1009 + u64::from(b));
    Mapping {
        range,
        prot: Prot { read: p[0] == b'r', write: p[1] == b'w', exec: p[2] == b'x' },
        sharing: if p[3] == b's' { Sharing::Shared } else { Sharing::Private },
        offset: 0,
        file: name.starts_with('/').then_some(MappingFile { major: 8, minor: 1, inode }),
        name: name.as_bytes().to_vec(),
    }
}

/// The event that made a region.
pub fn event_of(result: &Reconciled, region: &Region) -> Option<u64> {
    match region.origin {
        Origin::Event(id) => Some(result.origins[id.0 as usize].event.0),
        _ => None,
    }
}
