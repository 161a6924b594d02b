//! Rules found so far: per address of an address space, and per address of a file.

use super::rule::Rule;
use crate::model::ModuleId;
use crate::model::hash::IntMap;
use std::cell::RefCell;
use std::hash::Hash;

/// Slots of the first level: 48 bytes each.
const SLOTS: usize = 4096;
/// Entries kept of one kind, some 40 bytes each: programs unwind through few addresses.
const MAX_ANSWERS: usize = 1 << 17;

/// What is known about a code address.
#[derive(Clone, Copy, Debug)]
pub(super) struct CachedRule {
    pub rule: Rule,
    pub module: Option<ModuleId>,
    /// File offset = address + delta.
    pub delta: u64,
}

#[derive(Clone, Copy)]
struct Slot {
    /// 0, which no space has, where the slot is empty.
    space: u64,
    key: u64,
    known: CachedRule,
}

/// Two levels, shared by all address spaces. The first is found by the absolute address, without
/// a search among modules, and is void when the modules change. The second survives that.
pub(super) struct RuleCache {
    slots: Box<[Slot]>,
    rules: Answers<(u64, u64), Rule>,
}

impl Default for RuleCache {
    fn default() -> RuleCache {
        let known = CachedRule { rule: Rule::NoModule, module: None, delta: 0 };
        let slots = vec![Slot { space: 0, key: 0, known }; SLOTS].into_boxed_slice();
        RuleCache { slots, rules: Answers::default() }
    }
}

/// Answers that were given, until there are too many.
pub(super) struct Answers<Q, A>(RefCell<IntMap<Q, A>>);

impl<Q, A> Default for Answers<Q, A> {
    fn default() -> Answers<Q, A> {
        Answers(RefCell::default())
    }
}

impl<Q: Eq + Hash + Copy, A: Copy> Answers<Q, A> {
    pub fn get(&self, key: Q) -> Option<A> {
        self.0.borrow().get(&key).copied()
    }

    /// Found by `find` if not known.
    pub fn get_or_put(&self, key: Q, find: impl FnOnce() -> A) -> A {
        self.get(key).unwrap_or_else(|| {
            let value = find();
            self.put(key, value);
            value
        })
    }

    pub fn put(&self, key: Q, value: A) {
        let mut known = self.0.borrow_mut();
        if known.len() >= MAX_ANSWERS {
            known.clear();
        }
        known.insert(key, value);
    }
}

fn slot_of(space: u64, key: u64) -> usize {
    // Fibonacci hashing: the upper bits of the product are well mixed.
    let mixed = (key ^ space.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (64 - SLOTS.trailing_zeros())) as usize
}

impl RuleCache {
    #[inline]
    pub fn get(&self, space: u64, key: u64) -> Option<&CachedRule> {
        let slot = self.slots.get(slot_of(space, key))?;
        (slot.key == key && slot.space == space).then_some(&slot.known)
    }

    pub fn put(&mut self, space: u64, key: u64, known: CachedRule) {
        if let Some(slot) = self.slots.get_mut(slot_of(space, key)) {
            *slot = Slot { space, key, known };
        }
    }

    /// The rule at a file's address (`file` is unique to it), found by `find` if not known.
    pub fn rule(&mut self, file: u64, svma: u64, find: impl FnOnce() -> Rule) -> Rule {
        self.rules.get_or_put((file, svma), find)
    }
}
