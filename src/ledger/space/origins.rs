//! The calls that own bytes. A record lives as long as it owns any, mapped or in limbo.

use super::piece::Slot;
use crate::ledger::region::OriginRecord;
use crate::model::event::VmOp;
use crate::model::{Bytes, EventId, FileRef, NoStack, StackId, Task, VmEvent};
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

/// A call with what became of its bytes.
#[derive(Clone, Debug)]
pub(in crate::ledger) struct OriginEntry {
    pub(in crate::ledger) call: Arc<Call>,
    pub(in crate::ledger) mapped: u64,
    pub(in crate::ledger) unmapped: u64,
    pub(in crate::ledger) replaced: u64,
    pub(in crate::ledger) unmap_calls: u32,
    pub(in crate::ledger) mprotect_calls: u32,
    pub(in crate::ledger) madvise_calls: u32,
    pub(in crate::ledger) anon_name: Option<Arc<[u8]>>,
    /// Bytes in the map, in limbo and in history that refer to this entry: the same addresses
    /// may count many times.
    owned: u128,
}

impl OriginEntry {
    pub(in crate::ledger) fn record(&self) -> OriginRecord {
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
pub(in crate::ledger) struct OriginTable {
    entries: Vec<Option<OriginEntry>>,
    free: Vec<Slot>,
}

impl OriginTable {
    /// A new origin that owns nothing yet; [`OriginTable::own`] has to follow.
    pub(in crate::ledger) fn add(&mut self, call: Arc<Call>) -> Slot {
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

    pub(in crate::ledger) fn get(&self, slot: Slot) -> Option<&OriginEntry> {
        self.entries.get(slot.0 as usize)?.as_ref()
    }

    pub(in crate::ledger) fn get_mut(&mut self, slot: Slot) -> Option<&mut OriginEntry> {
        self.entries.get_mut(slot.0 as usize)?.as_mut()
    }

    /// `bytes` more of a call that another ledger knows, and perhaps this one, too.
    pub(in crate::ledger) fn adopt(&mut self, entry: &OriginEntry, bytes: u64) -> Slot {
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
    pub(in crate::ledger) fn own(&mut self, slot: Slot, bytes: u64) {
        if let Some(entry) = self.get_mut(slot) {
            entry.owned += u128::from(bytes);
        }
    }

    /// `slot` owns `bytes` less; the last byte frees it.
    pub(in crate::ledger) fn disown(&mut self, slot: Slot, bytes: u64) {
        let Some(entry) = self.get_mut(slot) else { return };
        entry.owned = entry.owned.saturating_sub(u128::from(bytes));
        if entry.owned == 0 {
            self.entries[slot.0 as usize] = None;
            self.free.push(slot);
        }
    }

    /// Slots in use are below this.
    pub(in crate::ledger) fn slots(&self) -> usize {
        self.entries.len()
    }

    #[cfg(test)]
    pub(in crate::ledger) fn live(&self) -> usize {
        self.entries.iter().filter(|e| e.is_some()).count()
    }
}

/// Each file once, however many mappings refer to it.
#[derive(Default, Debug)]
pub(in crate::ledger) struct FileTable {
    files: HashSet<Arc<FileRef>>,
    prune_at: usize,
}

impl FileTable {
    #[cfg(test)]
    pub(in crate::ledger) fn len(&self) -> usize {
        self.files.len()
    }

    pub(in crate::ledger) fn intern(&mut self, file: &FileRef) -> Arc<FileRef> {
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
