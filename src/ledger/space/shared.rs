//! A sorted map and a table of slots whose copies share what neither has changed: a forked child has its
//! parent's mappings, and most children change only some of them before they end or execute another program.
//!
//! ```text
//!   parent  ─► [chunk] [chunk] [chunk] [chunk]
//!                 ▲       ▲               ▲
//!   child   ─► ───┘       └─ …  [its own] └─ …       a change copies one chunk
//! ```

use std::sync::Arc;

/// Entries of a chunk at most; what a change copies where it is shared.
const CHUNK: usize = 64;

/// Values by key, in chunks of neighbours. No chunk is empty.
#[derive(Clone, Debug)]
pub(super) struct SharedMap<V> {
    /// The first key of each chunk.
    firsts: Vec<u64>,
    chunks: Vec<Arc<Vec<(u64, V)>>>,
}

impl<V> Default for SharedMap<V> {
    fn default() -> SharedMap<V> {
        SharedMap { firsts: Vec::new(), chunks: Vec::new() }
    }
}

/// Where an entry is: chunk and index in it.
type Place = (usize, usize);

impl<V: Clone> SharedMap<V> {
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &V)> {
        self.chunks.iter().flat_map(|chunk| chunk.iter().map(|(key, value)| (*key, value)))
    }

    /// All from `first` on, in order.
    pub(super) fn from(&self, first: u64) -> impl Iterator<Item = (u64, &V)> {
        let (chunk, index) = self.at_or_after(first);
        let rest = self.chunks.get(chunk..).unwrap_or(&[]);
        let entries = rest.iter().flat_map(|chunk| chunk.iter().map(|(key, value)| (*key, value)));
        entries.skip(index)
    }

    /// The first key from `first` on.
    pub(super) fn first_from(&self, first: u64) -> Option<u64> {
        self.from(first).next().map(|(key, _)| key)
    }

    /// The last entry with a key of at most `key`.
    pub(super) fn until(&self, key: u64) -> Option<(u64, &V)> {
        let (chunk, index) = self.place_until(key)?;
        self.chunks.get(chunk)?.get(index).map(|(key, value)| (*key, value))
    }

    pub(super) fn until_mut(&mut self, key: u64) -> Option<(u64, &mut V)> {
        let (chunk, index) = self.place_until(key)?;
        Arc::make_mut(self.chunks.get_mut(chunk)?).get_mut(index).map(|(key, value)| (*key, value))
    }

    pub(super) fn get(&self, key: u64) -> Option<&V> {
        self.until(key).filter(|(found, _)| *found == key).map(|(_, value)| value)
    }

    /// Replaces all entries.
    pub(super) fn insert(&mut self, key: u64, value: V) {
        let at = self.firsts.partition_point(|&first| first <= key).saturating_sub(1);
        let (Some(chunk), Some(first)) = (self.chunks.get_mut(at), self.firsts.get_mut(at)) else {
            self.firsts.push(key);
            self.chunks.push(Arc::new(vec![(key, value)]));
            return;
        };
        let entries = Arc::make_mut(chunk);
        match entries.binary_search_by_key(&key, |(key, _)| *key) {
            Ok(index) => entries[index].1 = value,
            Err(index) => {
                entries.insert(index, (key, value));
                *first = key.min(*first);
            }
        }
        if entries.len() > CHUNK {
            let upper = entries.split_off(CHUNK / 2);
            self.firsts.insert(at + 1, upper[0].0);
            self.chunks.insert(at + 1, Arc::new(upper));
        }
    }

    pub(super) fn remove(&mut self, key: u64) -> Option<V> {
        let (at, index) = self.place_until(key)?;
        let chunk = self.chunks.get_mut(at)?;
        if chunk.get(index)?.0 != key {
            return None;
        }
        let entries = Arc::make_mut(chunk);
        let (_, value) = entries.remove(index);
        match entries.first() {
            Some((first, _)) => self.firsts[at] = *first,
            None => {
                self.firsts.remove(at);
                self.chunks.remove(at);
                return Some(value);
            }
        }
        self.join(at);
        Some(value)
    }

    /// Two small neighbours become one chunk.
    fn join(&mut self, at: usize) {
        let (Some(small), Some(next)) = (self.chunks.get(at), self.chunks.get(at + 1)) else { return };
        if small.len() < CHUNK / 4 && small.len() + next.len() <= CHUNK / 2 {
            let next = self.chunks.remove(at + 1);
            self.firsts.remove(at + 1);
            Arc::make_mut(&mut self.chunks[at]).extend_from_slice(&next);
        }
    }

    fn place_until(&self, key: u64) -> Option<Place> {
        let at = self.firsts.partition_point(|&first| first <= key).checked_sub(1)?;
        let index = self.chunks.get(at)?.partition_point(|(found, _)| *found <= key).checked_sub(1)?;
        Some((at, index))
    }

    fn at_or_after(&self, key: u64) -> Place {
        let at = self.firsts.partition_point(|&first| first <= key).saturating_sub(1);
        (at, self.chunks.get(at).map_or(0, |chunk| chunk.partition_point(|(found, _)| *found < key)))
    }

    /// Chunks, and those of them that `other` has, too.
    #[cfg(test)]
    pub(super) fn shared_with(&self, other: &SharedMap<V>) -> (usize, usize) {
        let is_shared = |chunk: &&Arc<Vec<(u64, V)>>| other.chunks.iter().any(|c| Arc::ptr_eq(c, chunk));
        (self.chunks.len(), self.chunks.iter().filter(is_shared).count())
    }
}

/// Values by number from 0 on.
#[derive(Clone, Debug)]
pub(super) struct SharedSlots<V> {
    chunks: Vec<Arc<Vec<V>>>,
}

impl<V> Default for SharedSlots<V> {
    fn default() -> SharedSlots<V> {
        SharedSlots { chunks: Vec::new() }
    }
}

impl<V: Clone> SharedSlots<V> {
    pub(super) fn len(&self) -> usize {
        let last = self.chunks.last().map_or(0, |chunk| chunk.len());
        self.chunks.len().saturating_sub(1) * CHUNK + last
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &V> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }

    pub(super) fn get(&self, number: usize) -> Option<&V> {
        self.chunks.get(number / CHUNK)?.get(number % CHUNK)
    }

    pub(super) fn get_mut(&mut self, number: usize) -> Option<&mut V> {
        Arc::make_mut(self.chunks.get_mut(number / CHUNK)?).get_mut(number % CHUNK)
    }

    pub(super) fn push(&mut self, value: V) {
        match self.chunks.last_mut().filter(|chunk| chunk.len() < CHUNK) {
            Some(chunk) => Arc::make_mut(chunk).push(value),
            None => self.chunks.push(Arc::new(vec![value])),
        }
    }

    /// See [`SharedMap::shared_with`].
    #[cfg(test)]
    pub(super) fn shared_with(&self, other: &SharedSlots<V>) -> (usize, usize) {
        let is_shared = |chunk: &&Arc<Vec<V>>| other.chunks.iter().any(|c| Arc::ptr_eq(c, chunk));
        (self.chunks.len(), self.chunks.iter().filter(is_shared).count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64, u32),
        Remove(u64),
        Change(u64, u32),
        /// From here on both copies go on, this one first.
        Fork,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0..400u64, any::<u32>()).prop_map(|(key, value)| Step::Insert(key, value)),
            4 => (0..400u64).prop_map(Step::Remove),
            1 => (0..400u64, any::<u32>()).prop_map(|(key, value)| Step::Change(key, value)),
            1 => Just(Step::Fork),
        ]
    }

    fn same(map: &SharedMap<u32>, model: &BTreeMap<u64, u32>) {
        let expected: Vec<(u64, u32)> = model.iter().map(|(k, v)| (*k, *v)).collect();
        assert_eq!(map.iter().map(|(k, v)| (k, *v)).collect::<Vec<_>>(), expected);
        assert!(map.chunks.iter().all(|chunk| !chunk.is_empty() && chunk.len() <= CHUNK));
        for key in (0..410).step_by(7) {
            let until = model.range(..=key).next_back().map(|(k, v)| (*k, *v));
            assert_eq!(map.until(key).map(|(k, v)| (k, *v)), until);
            assert_eq!(map.get(key), model.get(&key));
            let from: Vec<u64> = model.range(key..).map(|(k, _)| *k).collect();
            assert_eq!(map.from(key).map(|(k, _)| k).collect::<Vec<_>>(), from);
        }
    }

    proptest! {
        /// Copies that share are as copies that do not, whichever of them changes.
        #[test]
        fn shared_maps_are_as_maps(steps in prop::collection::vec((step(), any::<prop::sample::Index>()), 0..600)) {
            let mut all = vec![(SharedMap::default(), BTreeMap::new())];
            for (step, which) in steps {
                let which = which.index(all.len());
                let (map, model) = &mut all[which];
                match step {
                    Step::Insert(key, value) => {
                        map.insert(key, value);
                        model.insert(key, value);
                    }
                    Step::Remove(key) => assert_eq!(map.remove(key), model.remove(&key)),
                    Step::Change(key, value) => {
                        let found = map.until_mut(key).map(|(key, old)| (key, std::mem::replace(old, value)));
                        let other = model.range_mut(..=key).next_back();
                        assert_eq!(found, other.map(|(key, old)| (*key, std::mem::replace(old, value))));
                    }
                    Step::Fork if all.len() < 4 => {
                        let copy = all[which].clone();
                        all.push(copy);
                    }
                    Step::Fork => drop(all.swap_remove(which)),
                }
            }
            for (map, model) in &all {
                same(map, model);
            }
        }

        #[test]
        fn shared_slots_are_as_a_list(changes in prop::collection::vec((0..300usize, any::<u32>()), 0..300)) {
            let (mut slots, mut list) = (SharedSlots::default(), Vec::new());
            let mut copies = Vec::new();
            for (at, value) in changes {
                if let (Some(slot), Some(entry)) = (slots.get_mut(at), list.get_mut(at)) {
                    (*slot, *entry) = (value, value);
                } else {
                    slots.push(value);
                    list.push(value);
                }
                if value % 50 == 0 {
                    copies.push((slots.clone(), list.clone()));
                }
            }
            copies.push((slots, list));
            for (slots, list) in &copies {
                assert_eq!(slots.iter().copied().collect::<Vec<u32>>(), *list);
                assert_eq!(slots.len(), list.len());
                assert_eq!(slots.get(list.len()), None);
            }
        }
    }
}
