//! Which memory a call is about.

use crate::model::addr::{Addr, AddrRange};
use crate::model::event::{VmEvent, VmOp};
use crate::sys::abi::{MAP_FIXED, MAP_FIXED_NOREPLACE};

impl VmEvent {
    /// The whole pages that the call is about, by its arguments and its result: up to two ranges (mremap's
    /// old and new place), empty ones where there is none. A refused call is about what it requested, if it
    /// named an address. The arguments of brk, shmdt and io_destroy give only one end.
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
            VmOp::Shmdt { addr } | VmOp::IoDestroy { ctx: addr } => [pages(*addr, 1), none],
            _ => [none, none],
        }
    }
}

/// The pages that hold `len` bytes from `at` on; none for 0 bytes.
fn pages(at: Addr, len: u64) -> AddrRange {
    let start = at.page_down();
    if len == 0 { AddrRange::default() } else { AddrRange::new(start.0, at.saturating_add(len).page_up().0) }
}
