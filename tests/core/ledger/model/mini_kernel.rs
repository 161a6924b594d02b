//! A kernel of one page map: the naive reference for the ledger. It executes calls at once, in
//! the order of its own lock, and says what each would report.

use std::collections::BTreeMap;
use vmaudit::model::{Addr, EventId, MmKey, NoStack, PAGE, Prot, Task, VmEvent, VmOp};

pub const MM: MmKey = MmKey(0xff00_1000);
pub const PID: i32 = 100;
/// The pages that may be mapped.
pub const FIRST: u64 = 0x100;
pub const END: u64 = 0x160;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Page {
    pub origin: u64,
    pub prot: Prot,
    pub shared: bool,
}

/// A call, in pages.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    Mmap { len: u64, prot: u64, shared: bool },
    MmapNoReplace { at: u64, len: u64, prot: u64 },
    MmapFixed { at: u64, len: u64, prot: u64 },
    Munmap { at: u64, len: u64 },
    Mprotect { at: u64, len: u64, prot: u64 },
    Mremap { at: u64, len: u64, new_len: u64 },
    MremapInPlace { at: u64, len: u64, new_len: u64 },
    MremapFixed { at: u64, len: u64, new_len: u64, to: u64 },
    MremapKeep { at: u64, len: u64 },
    Duplicate { at: u64, new_len: u64 },
    Brk { to: u64 },
}

pub struct MiniKernel {
    pub pages: BTreeMap<u64, Page>,
    pub brk: u64,
    pub calls: u64,
    /// Ranges freed last: the next mapping goes there if it fits.
    freed: Vec<(u64, u64)>,
}

const EEXIST: i64 = -17;
const ENOMEM: i64 = -12;
const EFAULT: i64 = -14;

impl MiniKernel {
    pub fn new() -> MiniKernel {
        MiniKernel { pages: BTreeMap::new(), brk: FIRST, calls: 0, freed: Vec::new() }
    }

    fn is_free(&self, at: u64, len: u64) -> bool {
        at >= FIRST && at + len <= END && self.pages.range(at..at + len).next().is_none()
    }

    /// As the real one may: where something was just unmapped, else the lowest gap.
    fn place(&self, len: u64) -> Option<u64> {
        let reused = self.freed.iter().rev().map(|&(at, _)| at).find(|&at| self.is_free(at, len));
        reused.or_else(|| (FIRST..END).find(|&at| self.is_free(at, len)))
    }

    fn map(&mut self, at: u64, len: u64, page: Page) {
        for p in at..at + len {
            self.pages.insert(p, page);
        }
    }

    fn unmap(&mut self, at: u64, len: u64) {
        for p in at..at + len {
            self.pages.remove(&p);
        }
        self.freed.push((at, len));
        if self.freed.len() > 8 {
            self.freed.remove(0);
        }
    }

    fn mapped(&self, at: u64, len: u64) -> bool {
        len > 0 && (at..at + len).all(|p| self.pages.contains_key(&p))
    }

    /// Moves `len` pages; what lies behind them up to `new_len` is new and belongs to `origin`.
    fn relocate(&mut self, at: u64, len: u64, to: u64, new_len: u64, origin: u64) {
        let moved: Vec<Page> = (at..at + len).filter_map(|p| self.pages.get(&p).copied()).collect();
        self.unmap(at, len);
        for p in to..to + new_len {
            self.pages.remove(&p);
        }
        for (i, page) in moved.iter().take(new_len as usize).enumerate() {
            self.pages.insert(to + i as u64, *page);
        }
        if let Some(last) = moved.last() {
            for p in to + len..to + new_len.max(len) {
                self.pages.insert(p, Page { origin, ..*last });
            }
        }
    }

    /// Executes a call and gives its report.
    pub fn call(&mut self, tid: i32, call: Call) -> VmEvent {
        self.calls += 1;
        let id = self.calls;
        let page = |prot: u64, shared: bool| Page { origin: id, prot: Prot::from_mmap_bits(prot), shared };
        let (op, ret) = match call {
            Call::Mmap { len, prot, shared } => {
                let at = self.place(len);
                if let Some(at) = at {
                    self.map(at, len, page(prot, shared));
                }
                (mmap(0, len, prot, if shared { 0x21 } else { 0x22 }), address(at))
            }
            Call::MmapNoReplace { at, len, prot } => {
                let free = self.is_free(at, len);
                if free {
                    self.map(at, len, page(prot, false));
                }
                (mmap(at, len, prot, 0x10_0022), if free { bytes(at) as i64 } else { EEXIST })
            }
            Call::MmapFixed { at, len, prot } => {
                self.map(at, len, page(prot, false));
                (mmap(at, len, prot, 0x32), bytes(at) as i64)
            }
            Call::Munmap { at, len } => {
                self.unmap(at, len);
                (VmOp::Munmap { addr: Addr(bytes(at)), len: bytes(len) - 1 }, 0)
            }
            Call::Mprotect { at, len, prot } => {
                let mut ret = 0;
                for p in at..at + len {
                    match self.pages.get_mut(&p) {
                        Some(page) => page.prot = Prot::from_mmap_bits(prot),
                        None => {
                            ret = ENOMEM;
                            break;
                        }
                    }
                }
                let op = VmOp::Mprotect { addr: Addr(bytes(at)), len: bytes(len), prot, pkey: None };
                (op, ret)
            }
            Call::Mremap { at, len, new_len } => {
                let ret = self.remap(at, len, new_len, id);
                (mremap(at, len, new_len, 1, 0), ret)
            }
            Call::MremapInPlace { at, len, new_len } => {
                let ret = self.resize(at, len, new_len, id);
                (mremap(at, len, new_len, 0, 0), ret)
            }
            Call::MremapFixed { at, len, new_len, to } => {
                let apart = to + new_len <= at || at + len <= to;
                let fits = to >= FIRST && to + new_len <= END && new_len > 0;
                let ok = apart && fits && self.mapped(at, len);
                if ok {
                    if new_len < len {
                        self.unmap(at + new_len, len - new_len);
                    }
                    self.relocate(at, len.min(new_len), to, new_len, id);
                }
                (mremap(at, len, new_len, 3, to), if ok { bytes(to) as i64 } else { EFAULT })
            }
            Call::MremapKeep { at, len } => {
                let to = if self.mapped(at, len) { self.place(len) } else { None };
                if let Some(to) = to {
                    for i in 0..len {
                        if let Some(page) = self.pages.get(&(at + i)).copied() {
                            self.pages.insert(to + i, Page { origin: id, ..page });
                        }
                    }
                }
                (mremap(at, len, len, 5, 0), address(to))
            }
            Call::Duplicate { at, new_len } => {
                let like = self.pages.get(&at).copied().filter(|p| p.shared);
                let to = like.and_then(|_| self.place(new_len));
                if let (Some(like), Some(to)) = (like, to) {
                    self.map(to, new_len, Page { origin: id, ..like });
                }
                (mremap(at, 0, new_len, 1, 0), address(to))
            }
            Call::Brk { to } => {
                let ok = to >= FIRST && (to <= self.brk || self.is_free(self.brk, to - self.brk));
                if ok && to > self.brk {
                    self.map(self.brk, to - self.brk, page(3, false));
                } else if ok && to < self.brk {
                    self.unmap(to, self.brk - to);
                }
                if ok {
                    self.brk = to;
                }
                (VmOp::Brk { requested: Addr(bytes(to)), current: None }, bytes(self.brk) as i64)
            }
        };
        report(id, tid, op, ret)
    }

    fn resize(&mut self, at: u64, len: u64, new_len: u64, id: u64) -> i64 {
        if !self.mapped(at, len) || new_len == 0 {
            return EFAULT;
        }
        if new_len <= len {
            if new_len < len {
                self.unmap(at + new_len, len - new_len);
            }
            return bytes(at) as i64;
        }
        if !self.is_free(at + len, new_len - len) {
            return ENOMEM;
        }
        if let Some(last) = self.pages.get(&(at + len - 1)).copied() {
            self.map(at + len, new_len - len, Page { origin: id, ..last });
        }
        bytes(at) as i64
    }

    fn remap(&mut self, at: u64, len: u64, new_len: u64, id: u64) -> i64 {
        let ret = self.resize(at, len, new_len, id);
        if ret != ENOMEM {
            return ret;
        }
        match self.place(new_len) {
            Some(to) => {
                self.relocate(at, len, to, new_len, id);
                bytes(to) as i64
            }
            None => ENOMEM,
        }
    }
}

fn bytes(pages: u64) -> u64 {
    pages * PAGE
}

fn address(at: Option<u64>) -> i64 {
    at.map_or(ENOMEM, |at| bytes(at) as i64)
}

fn mmap(at: u64, len: u64, prot: u64, flags: u64) -> VmOp {
    // Not a whole number of pages: rounding is the ledger's business.
    let len = bytes(len) - 100;
    VmOp::Mmap { addr: Addr(bytes(at)), len, prot, flags, fd: -1, offset: 0, file: None }
}

fn mremap(at: u64, len: u64, new_len: u64, flags: u64, to: u64) -> VmOp {
    VmOp::Mremap {
        old: Addr(bytes(at)),
        old_len: bytes(len),
        new_len: bytes(new_len),
        flags,
        new_addr: Addr(bytes(to)),
    }
}

pub fn report(id: u64, tid: i32, op: VmOp, ret: i64) -> VmEvent {
    VmEvent {
        id: EventId(id),
        time_ns: id * 1000,
        task: Task { pid: PID, tid, comm: b"worker".to_vec() },
        mm: MM,
        op,
        ret,
        stack: Err(NoStack::NotTaken),
        total_vm: None,
    }
}

/// execve, with nothing mapped but the break's place: the beginning of every story here.
pub fn exec() -> VmEvent {
    let op = VmOp::Exec {
        exe: None,
        start_brk: Addr(bytes(FIRST)),
        brk: Addr(bytes(FIRST)),
        start_stack: Addr(0x7fff_0000_0000),
        compat: false,
        mappings: Some(Vec::new()),
    };
    report(1_000_000, PID, op, 0)
}
