//! Whose memory is at an address at this moment: what a page fault is joined with.

use super::Ledger;
use super::piece::{Attributes, Owner};
use crate::model::{Addr, AddrRange, Prot, Sharing, StackId};

/// A stack may grow by this much at once: RLIMIT_STACK's default.
const MAX_GROWTH: u64 = 8 << 20;

/// The origin of the mapping.
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
    /// The mapping at `addr` according to the reports. An address just below a stack belongs to the stack,
    /// which grows by the fault.
    pub fn holder(&self, addr: Addr) -> Option<Holder> {
        if let Some((_, attr)) = self.mapped.pieces().at(addr) {
            return Some(self.holder_of(attr));
        }
        let above = AddrRange::from_len(addr, MAX_GROWTH);
        let (_, attr) = self.mapped.pieces().overlapping(above).next()?;
        attr.grows_down.then(|| self.holder_of(attr))
    }

    fn holder_of(&self, attr: &Attributes) -> Holder {
        let by = match attr.owner {
            Owner::Event(slot) => {
                HeldBy::Call(self.mapped.origins().get(slot).and_then(|e| e.call().stack.ok()))
            }
            Owner::Preexisting => HeldBy::Preexisting,
            Owner::Kernel => HeldBy::Kernel,
            Owner::Unknown => HeldBy::Unknown,
        };
        Holder { by, prot: attr.prot, sharing: attr.sharing }
    }
}
