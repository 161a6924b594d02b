//! Which memory a call is about.

use super::addr::{Addr, AddrRange};
use super::event::{VmEvent, VmOp};
use crate::sys::abi::{MAP_FIXED, MAP_FIXED_NOREPLACE};

impl VmEvent {
    /// The whole pages that the call is about, by its arguments and its result: up to two ranges
    /// (mremap's old and new place), empty ones where there is none. A refused call is about what
    /// it asked for, if it named a place. Of brk and shmdt the arguments tell only one end.
    pub fn ranges(&self) -> [AddrRange; 2] {
        let none = AddrRange::default();
        let result = Addr(self.ret as u64);
        match &self.op {
            VmOp::Mmap { addr, len, flags, .. } => {
                let placed = flags & (MAP_FIXED | MAP_FIXED_NOREPLACE) != 0;
                match (self.failed(), placed) {
                    (false, _) => [pages(result, *len), none],
                    (true, true) => [pages(*addr, *len), none],
                    (true, false) => [none, none],
                }
            }
            VmOp::Munmap { addr, len }
            | VmOp::Mprotect { addr, len, .. }
            | VmOp::Madvise { addr, len, .. }
            | VmOp::RemapFilePages { addr, len, .. }
            | VmOp::SetVmaName { addr, len, .. } => [pages(*addr, *len), none],
            VmOp::Mremap { old, old_len, new_len, .. } => {
                let new = if self.failed() { none } else { pages(result, *new_len) };
                [pages(*old, *old_len), new]
            }
            VmOp::Shmat { mapped, .. } | VmOp::IoSetup { mapped, .. } if !self.failed() => {
                [mapped.unwrap_or_default(), none]
            }
            VmOp::MapShadowStack { len, .. } if !self.failed() => [pages(result, *len), none],
            VmOp::Shmdt { addr } => [pages(*addr, 1), none],
            _ => [none, none],
        }
    }
}

/// The pages that hold `len` bytes from `at` on; none for 0 bytes.
fn pages(at: Addr, len: u64) -> AddrRange {
    let start = at.page_down();
    if len == 0 { AddrRange::default() } else { AddrRange::new(start.0, at.saturating_add(len).page_up().0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{EventId, MmKey, NoStack, Task};

    fn ranges(op: VmOp, ret: i64) -> [AddrRange; 2] {
        let event = VmEvent {
            id: EventId(1),
            time_ns: 0,
            task: Task { pid: 1, tid: 1, comm: Vec::new() },
            mm: MmKey(1),
            op,
            ret,
            stack: Err(NoStack::NotTaken),
            total_vm: None,
        };
        event.ranges()
    }

    #[test]
    fn whole_pages_where_the_call_was_obeyed() {
        let map = |flags| VmOp::Mmap {
            addr: Addr(0x5000),
            len: 4097,
            prot: 0,
            flags,
            fd: -1,
            offset: 0,
            file: None,
        };
        assert_eq!(ranges(map(0x22), 0x10000), [AddrRange::new(0x10000, 0x12000), AddrRange::default()]);
        assert_eq!(ranges(map(0x22), -12)[0], AddrRange::default(), "no place was named");
        assert_eq!(ranges(map(0x32), -12)[0], AddrRange::new(0x5000, 0x7000));
        let moved =
            VmOp::Mremap { old: Addr(0x1000), old_len: 0x1000, new_len: 0x3000, flags: 1, new_addr: Addr(0) };
        assert_eq!(ranges(moved, 0x9000), [AddrRange::new(0x1000, 0x2000), AddrRange::new(0x9000, 0xc000)]);
        let nothing = VmOp::Madvise { addr: Addr(0x1000), len: 0, advice: 4 };
        assert_eq!(ranges(nothing, 0), [AddrRange::default(); 2]);
    }
}
