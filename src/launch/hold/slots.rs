//! Notifications that were received and have no answer yet, in memory that vmaudit, the keeper and the
//! guard share: the kernel writes each into a slot of its own, so that its id is known to the others
//! even if the receiver is killed before its next instruction.

use super::seccomp::Listener;
use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::Arc;

/// Notifications without an answer that there is space for: 80 bytes each. The others wait in the kernel.
const SLOTS: usize = 1024;

const SLOTS_BYTES: NonZeroUsize = match NonZeroUsize::new(SLOTS * size_of::<libc::seccomp_notif>()) {
    Some(size) => size,
    None => NonZeroUsize::MIN,
};

/// Shared with every process that is forked. A copy has the same memory.
#[derive(Clone)]
pub struct SharedSlots(Arc<Slots>);

struct Slots(NonNull<c_void>);

// SAFETY: the pointer is to a mapping of its own, which no thread is tied to.
unsafe impl Send for Slots {}
// SAFETY: shared references give out nothing; `SharedSlots::slot` says which process may use it.
unsafe impl Sync for Slots {}

impl SharedSlots {
    pub fn new() -> Result<SharedSlots, Errno> {
        let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new anonymous mapping; the kernel chooses a free address.
        let slots = unsafe { mmap_anonymous(None, SLOTS_BYTES, prot, MapFlags::MAP_SHARED) }?;
        Ok(SharedSlots(Arc::new(Slots(slots))))
    }

    /// Slot `index`, or the last. Only the receiver calls this: the server in vmaudit, or the keeper where
    /// there is none, and a successor only after the predecessor's end.
    fn slot(&mut self, index: usize) -> &mut libc::seccomp_notif {
        let first = self.0.0.cast::<libc::seccomp_notif>();
        // SAFETY: the mapping is page-aligned, holds SLOTS of them, zeroed at first (a valid value), lives as
        // long as self, and no other process writes meanwhile.
        unsafe { first.add(index.min(SLOTS - 1)).as_mut() }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `SharedSlots::new`, and no reference outlives self.
        let _ = unsafe { munmap(self.0, SLOTS_BYTES.get()) };
    }
}

/// The receiver's view of the slots: which are free, and which tasks are in the others.
pub struct Inbox {
    slots: SharedSlots,
    free: Vec<usize>,
    /// (the notification's id, its slot).
    taken: Vec<(u64, usize)>,
}

impl Inbox {
    /// What is in the slots is not examined: it is another receiver's.
    pub fn new(slots: SharedSlots) -> Inbox {
        Inbox { slots, free: (0..SLOTS).rev().collect(), taken: Vec::new() }
    }

    pub fn has_space(&self) -> bool {
        !self.free.is_empty()
    }

    /// Receives one that waits. None: its task was killed meanwhile, or there is no space.
    pub fn receive(&mut self, listener: &Listener) -> Result<Option<libc::seccomp_notif>, Errno> {
        let Some(index) = self.free.pop() else { return Ok(None) };
        let slot = self.slots.slot(index);
        match listener.receive(slot) {
            Ok(()) => {
                self.taken.push((slot.id, index));
                Ok(Some(*slot))
            }
            Err(errno) => {
                slot.id = 0;
                self.free.push(index);
                match errno {
                    Errno::ENOENT | Errno::EINTR => Ok(None),
                    other => Err(other),
                }
            }
        }
    }

    /// One that has no answer yet.
    pub fn get(&mut self, id: u64) -> Option<libc::seccomp_notif> {
        let &(_, slot) = self.taken.iter().find(|&&(taken, _)| taken == id)?;
        Some(*self.slots.slot(slot))
    }

    /// It has its answer.
    pub fn forget(&mut self, id: u64) {
        if let Some(at) = self.taken.iter().position(|&(taken, _)| taken == id) {
            let (_, slot) = self.taken.swap_remove(at);
            self.slots.slot(slot).id = 0;
            self.free.push(slot);
        }
    }

    /// Frees slots: tasks that were killed in a call never get an answer.
    pub fn forget_gone(&mut self, listener: &Listener) {
        let gone: Vec<u64> = self.ids().filter(|&id| !listener.is_held(id)).collect();
        gone.into_iter().for_each(|id| self.forget(id));
    }

    pub fn ids(&self) -> impl Iterator<Item = u64> {
        self.taken.iter().map(|&(id, _)| id)
    }

    /// Takes over what a receiver left that is gone, in the order of arrival: the kernel counts the ids up.
    pub fn inherit(&mut self) -> Vec<libc::seccomp_notif> {
        (self.free, self.taken) = (Vec::new(), Vec::new());
        let mut left = Vec::new();
        for index in (0..SLOTS).rev() {
            let slot = *self.slots.slot(index);
            if slot.id == 0 {
                self.free.push(index);
            } else {
                self.taken.push((slot.id, index));
                left.push(slot);
            }
        }
        left.sort_by_key(|notification| notification.id);
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_finds_what_was_left_in_the_order_of_arrival() {
        let mut slots = SharedSlots::new().expect("memory");
        for (index, id) in [(3, 12), (SLOTS - 1, 10), (0, 11)] {
            slots.slot(index).id = id;
        }
        let mut inbox = Inbox::new(slots.clone());
        assert_eq!(inbox.get(10).map(|n| n.id), None, "not its own before it takes over");
        let left: Vec<u64> = inbox.inherit().iter().map(|n| n.id).collect();
        assert_eq!(left, [10, 11, 12]);
        assert_eq!(inbox.free.len(), SLOTS - 3);
        assert_eq!(inbox.get(12).map(|n| n.id), Some(12));
        inbox.forget(12);
        assert_eq!(slots.slot(3).id, 0);
        let left: Vec<u64> = Inbox::new(slots).inherit().iter().map(|n| n.id).collect();
        assert_eq!(left, [10, 11]);
    }
}
