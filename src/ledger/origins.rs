//! The calls that own bytes. A record lives as long as it owns any, mapped or in limbo.

use super::piece::Slot;
use super::region::OriginRecord;
use crate::model::event::VmOp;
use crate::model::{Bytes, EventId, FileRef, NoStack, StackId, Task, VmEvent};
use std::collections::HashSet;
use std::sync::Arc;

/// What never changes about a call; shared between the ledgers of forked processes.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) event: EventId,
    pub(super) op: VmOp,
    pub(super) ret: i64,
    pub(super) task: Task,
    pub(super) time_ns: u64,
    pub(super) stack: Result<StackId, NoStack>,
}

impl Call {
    pub(super) fn of(event: &VmEvent) -> Arc<Call> {
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

/// A call with what became of its bytes.
#[derive(Clone, Debug)]
pub(super) struct OriginEntry {
    pub(super) call: Arc<Call>,
    pub(super) mapped: u64,
    pub(super) unmapped: u64,
    pub(super) replaced: u64,
    pub(super) unmap_calls: u32,
    pub(super) mprotect_calls: u32,
    pub(super) madvise_calls: u32,
    pub(super) anon_name: Option<Arc<[u8]>>,
    /// Bytes in the map, in limbo and in history that refer to this entry: the same addresses
    /// may count many times.
    owned: u128,
}

impl OriginEntry {
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
            anon_name: self.anon_name.clone(),
        }
    }
}

/// Slab of origins: freed slots are used again.
#[derive(Clone, Default, Debug)]
pub(super) struct OriginTable {
    entries: Vec<Option<OriginEntry>>,
    free: Vec<Slot>,
}

impl OriginTable {
    /// A new origin that owns nothing yet; [`OriginTable::own`] has to follow.
    pub(super) fn add(&mut self, call: Arc<Call>) -> Slot {
        let entry = OriginEntry {
            call,
            mapped: 0,
            unmapped: 0,
            replaced: 0,
            unmap_calls: 0,
            mprotect_calls: 0,
            madvise_calls: 0,
            anon_name: None,
            owned: 0,
        };
        match self.free.pop() {
            Some(slot) => {
                self.entries[slot.0 as usize] = Some(entry);
                slot
            }
            None => {
                self.entries.push(Some(entry));
                Slot((self.entries.len() - 1) as u32)
            }
        }
    }

    pub(super) fn get(&self, slot: Slot) -> Option<&OriginEntry> {
        self.entries.get(slot.0 as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> Option<&mut OriginEntry> {
        self.entries.get_mut(slot.0 as usize)?.as_mut()
    }

    /// `bytes` more of a call that another ledger knows, and perhaps this one, too.
    pub(super) fn adopt(&mut self, entry: &OriginEntry, bytes: u64) -> Slot {
        let same = |e: &Option<OriginEntry>| e.as_ref().is_some_and(|e| Arc::ptr_eq(&e.call, &entry.call));
        let slot = match self.entries.iter().position(same) {
            Some(index) => Slot(index as u32),
            None => {
                let slot = self.add(Arc::clone(&entry.call));
                if let Some(new) = self.get_mut(slot) {
                    *new = OriginEntry { owned: 0, ..entry.clone() };
                }
                slot
            }
        };
        self.own(slot, bytes);
        slot
    }

    /// `slot` owns `bytes` more.
    pub(super) fn own(&mut self, slot: Slot, bytes: u64) {
        if let Some(entry) = self.get_mut(slot) {
            entry.owned += u128::from(bytes);
        }
    }

    /// `slot` owns `bytes` less; the last byte frees it.
    pub(super) fn disown(&mut self, slot: Slot, bytes: u64) {
        let Some(entry) = self.get_mut(slot) else { return };
        entry.owned = entry.owned.saturating_sub(u128::from(bytes));
        if entry.owned == 0 {
            self.entries[slot.0 as usize] = None;
            self.free.push(slot);
        }
    }

    /// Slots in use are below this.
    pub(super) fn slots(&self) -> usize {
        self.entries.len()
    }

    #[cfg(test)]
    pub(super) fn live(&self) -> usize {
        self.entries.iter().filter(|e| e.is_some()).count()
    }
}

/// Each file once, however many mappings refer to it.
#[derive(Default, Debug)]
pub(super) struct FileTable {
    files: HashSet<Arc<FileRef>>,
    prune_at: usize,
}

impl FileTable {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    pub(super) fn intern(&mut self, file: &FileRef) -> Arc<FileRef> {
        if let Some(known) = self.files.get(file) {
            return Arc::clone(known);
        }
        // A program may map millions of short-lived files: forget those no piece refers to.
        if self.files.len() >= self.prune_at.max(1024) {
            self.files.retain(|f| Arc::strong_count(f) > 1);
            self.prune_at = self.files.len() * 2;
        }
        let new = Arc::new(file.clone());
        self.files.insert(Arc::clone(&new));
        new
    }
}
