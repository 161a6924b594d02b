//! The table of stacks that the kernel's side sends as numbers (bpf/known.h), written in shared memory.

use super::shared::SharedArray;
use super::skel::types::{vmaudit_known, vmaudit_known_stack as Entry};
use crate::capture::{CaptureError, KnownStack, KnownStacks};
use crate::model::hash::IntMap;
use crate::model::{ExpectedWord, MmKey, StackWord};
use nix::sys::mman::ProtFlags;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};

const ENTRIES: usize = vmaudit_known::VMAUDIT_KNOWN_STACKS_.0 as usize;
const WAYS: u64 = vmaudit_known::VMAUDIT_KNOWN_WAYS_.0 as u64;
const SPAN: u64 = vmaudit_known::VMAUDIT_KNOWN_SPAN_.0 as u64;
/// VMAUDIT_KNOWN_HASH
const HASH: u64 = 0x9e37_79b9_7f4a_7c15;
const RELATIVE: u16 = vmaudit_known::VMAUDIT_KNOWN_RELATIVE_.0 as u16;
const WORD: u64 = size_of::<u64>() as u64;

/// Its distance, with VMAUDIT_KNOWN_RELATIVE where the value is one too, and the value. Distances are multiples of a
/// word, and smaller than SPAN.
fn encoded(word: &StackWord) -> (u16, u64) {
    match word.expected {
        ExpectedWord::ReturnAddress(address) => (word.distance as u16, address),
        ExpectedWord::FramePointer(distance) => (word.distance as u16 | RELATIVE, distance),
    }
}

fn pid_of(stack: &KnownStack<'_>) -> u64 {
    u64::from(stack.pid.cast_unsigned())
}

/// Whether rbp counts, and its distance from the stack pointer.
fn frame_pointer_of(stack: &KnownStack<'_>) -> (u64, u64) {
    (u64::from(stack.frame_pointer.is_some()), stack.frame_pointer.unwrap_or(0))
}

pub struct KnownTable {
    entries: SharedArray,
    /// Where the stacks of each address space are.
    used: IntMap<MmKey, Vec<usize>>,
    /// Whose stack is in each place.
    owners: Vec<Option<MmKey>>,
    /// Which of the places for a stack goes next.
    turn: u64,
}

impl KnownTable {
    /// # Errors
    /// When the kernel does not map it.
    pub(super) fn of(map: impl AsFd) -> Result<KnownTable, CaptureError> {
        let entries = SharedArray::of::<Entry>(map, ENTRIES, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE)?;
        Ok(KnownTable { entries, used: IntMap::default(), owners: vec![None; ENTRIES], turn: 0 })
    }

    fn entry(&self, place: usize) -> NonNull<Entry> {
        debug_assert!(place < ENTRIES);
        // SAFETY: the array has ENTRIES of them, for the life of `self`.
        unsafe { self.entries.first::<Entry>().add(place) }
    }

    /// Writes an entry, or empties it; the kernel's side, which may read it meanwhile, takes no notice of it
    /// while its version is odd.
    fn write(&mut self, place: usize, change: impl FnOnce(&mut Entry)) {
        let entry = self.entry(place);
        // SAFETY: an entry of the array; the kernel's side only reads it.
        let version = unsafe { AtomicU64::from_ptr(&raw mut (*entry.as_ptr()).version) };
        version.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // SAFETY: nothing else writes the other fields, and the copy is made and put back whole.
        unsafe {
            let mut copy = entry.read_volatile();
            change(&mut copy);
            copy.version = version.load(Ordering::SeqCst);
            entry.write_volatile(copy);
        }
        fence(Ordering::SeqCst);
        version.fetch_add(1, Ordering::SeqCst);
    }

    fn holds(&self, place: usize, stack: &KnownStack<'_>) -> bool {
        // SAFETY: only this thread writes them.
        let entry = unsafe { self.entry(place).read_volatile() };
        let words = entry.expected.iter().zip(&entry.distances).take(entry.words as usize);
        (entry.mm, entry.pid, entry.ip, entry.depth) == (stack.mm.0, pid_of(stack), stack.ip, stack.depth)
            && (entry.by_frame_pointer, entry.frame_pointer) == frame_pointer_of(stack)
            && words.map(|(&expected, &distance)| (distance, expected)).eq(stack.words.iter().map(encoded))
    }

    /// A free place of those where a stack is searched for, or one whose turn it is.
    fn place_of(&mut self, stack: &KnownStack<'_>) -> usize {
        let hash = (stack.mm.0 ^ stack.ip << 20 ^ stack.depth).wrapping_mul(HASH) >> 40;
        let place = |way: u64| hash.wrapping_add(way) as usize % ENTRIES;
        if let Some(same) = (0..WAYS).map(place).find(|&place| self.holds(place, stack)) {
            return same;
        }
        if let Some(free) = (0..WAYS).map(place).find(|&place| self.owners[place].is_none()) {
            return free;
        }
        self.turn += 1;
        place(self.turn % WAYS)
    }
}

impl KnownStacks for KnownTable {
    fn publish(&mut self, number: u64, stack: &KnownStack<'_>) {
        let span = stack.words.iter().map(|word| word.distance.saturating_add(WORD)).max().unwrap_or(0);
        let is_aligned = stack.words.iter().all(|word| word.distance.is_multiple_of(WORD));
        if stack.words.len() > Entry::default().expected.len() || span > SPAN || !is_aligned {
            return;
        }
        let place = self.place_of(stack);
        let owner = self.owners[place].replace(stack.mm);
        if owner != Some(stack.mm) {
            self.used.entry(stack.mm).or_default().push(place);
        }
        self.write(place, |entry| {
            (entry.number, entry.mm, entry.pid) = (number, stack.mm.0, pid_of(stack));
            (entry.ip, entry.depth) = (stack.ip, stack.depth);
            (entry.by_frame_pointer, entry.frame_pointer) = frame_pointer_of(stack);
            (entry.words, entry.span) = (stack.words.len() as u32, span as u32);
            for (at, word) in stack.words.iter().enumerate() {
                (entry.distances[at], entry.expected[at]) = encoded(word);
            }
        });
    }

    fn forget(&mut self, mm: MmKey) {
        for place in self.used.remove(&mm).unwrap_or_default() {
            if self.owners[place] == Some(mm) {
                self.owners[place] = None;
                self.write(place, |entry| (entry.mm, entry.number) = (0, 0));
            }
        }
    }
}
