//! Stacks that the backend need not send again: frequent ones are published to it.

use crate::capture::{KnownStack, KnownStacks};
use crate::model::hash::IntMap;
use crate::model::{MmKey, Pid, StackId};
use crate::unwind::{Repeated, pointers, returns};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// As many numbers are given out.
const MOST: u64 = 1 << 17;

/// A stack that comes in whole again and again is not known to the backend any more: others took its place.
const TRIES: u32 = 64;

/// By the stack and its depth.
type Published = HashMap<(StackId, u64), (u64, u32)>;

/// The stack of a number.
pub struct KnownStackOf {
    pub id: StackId,
    /// Where the return addresses are, in bytes from the stack pointer.
    returns: Vec<u64>,
}

impl KnownStackOf {
    /// Of each frame.
    pub fn pointers(&self, sp: u64) -> Vec<u64> {
        pointers(sp, self.returns.iter().copied())
    }
}

/// The numbers that were given out, with their stacks.
#[derive(Default)]
pub struct Known {
    backend: Option<Box<dyn KnownStacks>>,
    last: u64,
    stacks: HashMap<u64, KnownStackOf>,
    /// By address space: each stack's number, and how often it came in whole since it was published.
    spaces: IntMap<MmKey, Published>,
}

impl Known {
    pub fn of(backend: Box<dyn KnownStacks>) -> Known {
        Known { backend: Some(backend), ..Known::default() }
    }

    /// A stack came in whole that was walked before.
    pub fn publish(&mut self, (mm, pid): (MmKey, Pid), again: &Repeated<'_>) {
        let Some(backend) = &mut self.backend else { return };
        let published = self.spaces.entry(mm).or_default();
        let number = match published.entry((again.stack, again.depth)) {
            Entry::Occupied(mut entry) => {
                let (number, times) = entry.get_mut();
                *times += 1;
                if *times % TRIES != 0 {
                    return;
                }
                *number
            }
            Entry::Vacant(entry) => {
                if self.last == MOST {
                    return;
                }
                self.last += 1;
                let returns = returns(again.words).collect();
                self.stacks.insert(self.last, KnownStackOf { id: again.stack, returns });
                entry.insert((self.last, 0)).0
            }
        };
        let Repeated { ip, depth, frame_pointer, words, .. } = *again;
        backend.publish(number, &KnownStack { mm, pid, ip, depth, frame_pointer, words });
    }

    /// An equal stack may be another one from now on: other code was mapped, or it is another address space.
    /// A record that was sent before and not read yet cannot be distinguished from a later one: it has no
    /// stack.
    pub fn forget(&mut self, mm: MmKey) {
        let Some(published) = self.spaces.remove(&mm) else { return };
        for (number, _) in published.values() {
            self.stacks.remove(number);
        }
        if let Some(backend) = &mut self.backend {
            backend.forget(mm);
        }
    }

    pub fn stack(&self, number: u64) -> Option<&KnownStackOf> {
        self.stacks.get(&number)
    }
}
