//! The calls that own bytes. A record lives as long as it owns any, mapped or in limbo.

use super::piece::{Owner, Slot};
use super::shared::SharedSlots;
use crate::ledger::region::OriginRecord;
use crate::ledger::vma_names::VmaNames;
use crate::model::event::VmOp;
use crate::model::{AddrRange, Bytes, EventId, FileRef, NoStack, StackId, Task, VmEvent};
use std::collections::HashSet;
use std::sync::Arc;

/// What never changes about a call; shared between the ledgers of forked processes.
#[derive(Debug)]
pub(in crate::ledger) struct Call {
    pub(in crate::ledger) event: EventId,
    pub(in crate::ledger) op: VmOp,
    pub(in crate::ledger) ret: i64,
    pub(in crate::ledger) task: Task,
    pub(in crate::ledger) time_ns: u64,
    pub(in crate::ledger) stack: Result<StackId, NoStack>,
}

impl Call {
    pub(in crate::ledger) fn of(event: &VmEvent) -> Arc<Call> {
        Arc::new(Call {
            event: event.id,
            op: event.op.clone(),
            ret: event.ret,
            task: event.task.clone(),
            time_ns: event.time_ns,
            stack: event.stack,
        })
    }
}

/// Why bytes leave an origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Removal {
    Unmapped,
    Replaced,
    /// mremap: they leave a range, not the origin.
    Moved,
}

/// A call that touches what others have mapped.
#[derive(Clone, Copy)]
pub(super) enum Touch {
    Unmap,
    Mprotect,
    Madvise,
}

/// Rings of io_setup without a place, at most: more than anybody has.
const MAX_UNPLACED: usize = 64;

/// A call with what became of its bytes.
#[derive(Clone, Debug)]
pub(in crate::ledger) struct OriginEntry {
    call: Arc<Call>,
    mapped: u64,
    unmapped: u64,
    replaced: u64,
    unmap_calls: u32,
    mprotect_calls: u32,
    madvise_calls: u32,
    anon_names: VmaNames,
    /// Bytes in the map, in limbo and in history that refer to this entry: the same addresses
    /// may count many times.
    owned: u128,
}

impl OriginEntry {
    fn new(call: Arc<Call>) -> OriginEntry {
        OriginEntry {
            call,
            mapped: 0,
            unmapped: 0,
            replaced: 0,
            unmap_calls: 0,
            mprotect_calls: 0,
            madvise_calls: 0,
            anon_names: VmaNames::default(),
            owned: 0,
        }
    }

    pub(super) fn call(&self) -> &Call {
        &self.call
    }

    /// Bytes that the call mapped.
    pub(super) fn mapped(&self) -> u64 {
        self.mapped
    }

    pub(super) fn record(&self) -> OriginRecord {
        OriginRecord {
            event: self.call.event,
            op: self.call.op.clone(),
            ret: self.call.ret,
            task: self.call.task.clone(),
            time_ns: self.call.time_ns,
            stack: self.call.stack,
            mapped: Bytes(self.mapped),
            unmapped: Bytes(self.unmapped),
            unmap_calls: self.unmap_calls,
            replaced: Bytes(self.replaced),
            mprotect_calls: self.mprotect_calls,
            madvise_calls: self.madvise_calls,
            anon_names: self.anon_names.clone(),
        }
    }
}

/// Slab of origins: freed slots are used again. Copies share what neither changes.
#[derive(Clone, Default, Debug)]
pub(in crate::ledger) struct OriginTable {
    entries: SharedSlots<Option<OriginEntry>>,
    free: Vec<Slot>,
    /// io_setup calls whose ring's address the backend did not see, latest last.
    unplaced_rings: Vec<Arc<Call>>,
}

impl OriginTable {
    /// The origin of `bytes` that a call mapped.
    pub(super) fn mapped(&mut self, call: &VmEvent, slot: Option<Slot>, bytes: u64) -> Slot {
        let slot = slot.unwrap_or_else(|| self.add(OriginEntry::new(Call::of(call))));
        if let Some(entry) = self.get_mut(slot) {
            entry.mapped += bytes;
        }
        self.own(slot, bytes);
        slot
    }

    /// A new origin that owns nothing yet; [`OriginTable::own`] has to follow.
    fn add(&mut self, entry: OriginEntry) -> Slot {
        match self.free.pop() {
            Some(slot) => {
                if let Some(place) = self.entries.get_mut(slot.0 as usize) {
                    *place = Some(entry);
                }
                slot
            }
            None => {
                self.entries.push(Some(entry));
                Slot((self.entries.len() - 1) as u32)
            }
        }
    }

    pub(in crate::ledger) fn get(&self, slot: Slot) -> Option<&OriginEntry> {
        self.entries.get(slot.0 as usize)?.as_ref()
    }

    fn get_mut(&mut self, slot: Slot) -> Option<&mut OriginEntry> {
        self.entries.get_mut(slot.0 as usize)?.as_mut()
    }

    /// `bytes` more of a call that another ledger knows, and perhaps this one, too.
    pub(in crate::ledger) fn adopt(&mut self, entry: &OriginEntry, bytes: u64) -> Slot {
        let same = |e: &Option<OriginEntry>| e.as_ref().is_some_and(|e| Arc::ptr_eq(&e.call, &entry.call));
        let known = self.entries.iter().position(same);
        let slot = match known {
            Some(index) => Slot(index as u32),
            None => self.add(OriginEntry { owned: 0, ..entry.clone() }),
        };
        self.own(slot, bytes);
        slot
    }

    /// `bytes` of `slot` are gone for good.
    pub(super) fn remove(&mut self, slot: Slot, bytes: u64, removal: Removal) {
        if let Some(entry) = self.get_mut(slot) {
            match removal {
                Removal::Unmapped => entry.unmapped += bytes,
                Removal::Replaced => entry.replaced += bytes,
                Removal::Moved => {}
            }
        }
        self.disown(slot, bytes);
    }

    /// The opposite of [`OriginTable::remove`].
    pub(super) fn restore(&mut self, slot: Slot, bytes: u64, removal: Removal) {
        self.own(slot, bytes);
        if let Some(entry) = self.get_mut(slot) {
            match removal {
                Removal::Unmapped => entry.unmapped = entry.unmapped.saturating_sub(bytes),
                Removal::Replaced => entry.replaced = entry.replaced.saturating_sub(bytes),
                Removal::Moved => {}
            }
        }
    }

    /// Counts a call for the owner of a piece that it touched, once for pieces of one owner that follow each
    /// other: `last` is the owner of the piece before.
    pub(super) fn count(&mut self, touch: Touch, owner: Owner, last: &mut Option<Slot>) {
        let Owner::Event(slot) = owner else { return };
        if last.replace(slot) != Some(slot)
            && let Some(entry) = self.get_mut(slot)
        {
            match touch {
                Touch::Unmap => entry.unmap_calls += 1,
                Touch::Mprotect => entry.mprotect_calls += 1,
                Touch::Madvise => entry.madvise_calls += 1,
            }
        }
    }

    /// PR_SET_VMA_ANON_NAME.
    pub(super) fn name(&mut self, slot: Slot, range: AddrRange, name: Option<&Arc<[u8]>>) {
        if let Some(entry) = self.get_mut(slot) {
            entry.anon_names.set(range, name);
        }
    }

    pub(super) fn add_unplaced_ring(&mut self, call: &VmEvent) {
        self.unplaced_rings.push(Call::of(call));
        // The oldest were destroyed without a word.
        if self.unplaced_rings.len() > MAX_UNPLACED {
            self.unplaced_rings.remove(0);
        }
    }

    pub(super) fn forget_unplaced_ring(&mut self) {
        self.unplaced_rings.pop();
    }

    /// The record of the unplaced ring at `index`, the oldest first.
    pub(super) fn unplaced_ring(&self, index: usize) -> Option<OriginRecord> {
        self.unplaced_rings.get(index).map(|call| OriginEntry::new(Arc::clone(call)).record())
    }

    /// `slot` owns `bytes` more.
    pub(in crate::ledger) fn own(&mut self, slot: Slot, bytes: u64) {
        if let Some(entry) = self.get_mut(slot) {
            entry.owned += u128::from(bytes);
        }
    }

    /// `slot` owns `bytes` less; the last byte frees it.
    pub(in crate::ledger) fn disown(&mut self, slot: Slot, bytes: u64) {
        let Some(place) = self.entries.get_mut(slot.0 as usize) else { return };
        let Some(entry) = place else { return };
        entry.owned = entry.owned.saturating_sub(u128::from(bytes));
        if entry.owned == 0 {
            *place = None;
            self.free.push(slot);
        }
    }

    /// Slots in use are below this.
    pub(in crate::ledger) fn slots(&self) -> usize {
        self.entries.len()
    }

    /// Chunks, and those that another table has, too.
    #[cfg(test)]
    pub(super) fn shared_with(&self, other: &OriginTable) -> (usize, usize) {
        self.entries.shared_with(&other.entries)
    }

    #[cfg(test)]
    pub(in crate::ledger) fn live(&self) -> usize {
        self.entries.iter().filter(|e| e.is_some()).count()
    }
}

/// Each file once, however many mappings refer to it.
#[derive(Default, Debug)]
pub(in crate::ledger) struct FileTable {
    known: HashSet<Arc<FileRef>>,
    prune_at: usize,
}

impl FileTable {
    #[cfg(test)]
    pub(in crate::ledger) fn len(&self) -> usize {
        self.known.len()
    }

    pub(in crate::ledger) fn intern(&mut self, file: &FileRef) -> Arc<FileRef> {
        if let Some(known) = self.known.get(file) {
            return Arc::clone(known);
        }
        // A program may map millions of short-lived files: forget those no piece refers to.
        if self.known.len() >= self.prune_at.max(1024) {
            self.known.retain(|f| Arc::strong_count(f) > 1);
            self.prune_at = self.known.len() * 2;
        }
        let new = Arc::new(file.clone());
        self.known.insert(Arc::clone(&new));
        new
    }
}
