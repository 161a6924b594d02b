//! Whose memory is at an address at this moment: what a page fault is joined with.

use super::space::Ledger;
use super::space::piece::{Attributes, Owner};
use super::spaces::{AddressSpaces, SpaceId};
use crate::model::{Addr, AddrRange, MmKey, Pid, Prot, Sharing, StackId};

/// A stack may grow by this much at once: RLIMIT_STACK's default.
const MAX_GROWTH: u64 = 8 << 20;

/// Who mapped it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HeldBy {
    /// A traced call, by its stack where that is known.
    Call(Option<StackId>),
    /// It was there before tracing began.
    Preexisting,
    /// execve's images, stack, vdso …
    Kernel,
    Unknown,
}

/// The mapping at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    pub by: HeldBy,
    pub prot: Prot,
    pub sharing: Sharing,
}

impl Ledger {
    /// The mapping at `addr` as far as the reports tell. An address just below a stack belongs to
    /// the stack: the fault on it makes it grow.
    pub fn holder(&self, addr: Addr) -> Option<Holder> {
        if let Some((_, attr)) = self.pieces.at(addr) {
            return Some(self.holder_of(attr));
        }
        let above = AddrRange::from_len(addr, MAX_GROWTH);
        let (_, attr) = self.pieces.overlapping(above).next()?;
        attr.grows_down.then(|| self.holder_of(attr))
    }

    fn holder_of(&self, attr: &Attributes) -> Holder {
        let by = match attr.owner {
            Owner::Event(slot) => HeldBy::Call(self.origins.get(slot).and_then(|e| e.call.stack.ok())),
            Owner::Preexisting => HeldBy::Preexisting,
            Owner::Kernel => HeldBy::Kernel,
            Owner::Unknown => HeldBy::Unknown,
        };
        Holder { by, prot: attr.prot, sharing: attr.sharing }
    }
}

impl AddressSpaces {
    /// The living address space under this key.
    pub fn space_of_mm(&self, mm: MmKey) -> Option<SpaceId> {
        self.by_mm.get(&mm).copied()
    }

    /// The address space that `pid` uses, or used last.
    pub fn space_of_pid(&self, pid: Pid) -> Option<SpaceId> {
        self.process(pid)?.space
    }

    /// False once nobody can ask for it any more.
    pub fn has_space(&self, id: SpaceId) -> bool {
        self.spaces.contains_key(&id)
    }
}
