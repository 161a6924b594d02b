//! Memory contexts of one address space: a forest, and which blocks are in which.

use super::block::ContextId;
use crate::model::hash::IntMap;
use crate::model::{Addr, ContextKey, Covers};

/// Deeper trees are cut: a parent that is further away is taken for unknown.
const MAX_DEPTH: usize = 1000;
/// Addresses that a context's list may hold beyond twice those that are outstanding.
const SLACK: usize = 64;

#[derive(Clone, Debug, Default)]
struct Context {
    key: u64,
    name: Option<Box<[u8]>>,
    parent: Option<ContextId>,
    first_child: Option<ContextId>,
    next: Option<ContextId>,
    previous: Option<ContextId>,
    /// Where blocks were allocated in it, in order; those freed since are in it, too, until there
    /// are too many.
    addresses: Vec<u64>,
    outstanding: usize,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Contexts {
    by_key: IntMap<u64, ContextId>,
    nodes: Vec<Context>,
    unused: Vec<ContextId>,
}

impl Contexts {
    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(super) fn find(&self, key: ContextKey) -> Option<ContextId> {
        self.by_key.get(&key.0).copied()
    }

    /// The context with this key; one that was made before vmaudit attached, where it is not known.
    pub(super) fn found(&mut self, key: ContextKey) -> ContextId {
        if let Some(id) = self.find(key) {
            return id;
        }
        let fresh = Context { key: key.0, ..Context::default() };
        let id = match self.unused.pop() {
            Some(id) => {
                if let Some(node) = self.nodes.get_mut(id.0 as usize) {
                    *node = fresh;
                }
                id
            }
            None => {
                self.nodes.push(fresh);
                ContextId((self.nodes.len() - 1) as u32)
            }
        };
        self.by_key.insert(key.0, id);
        id
    }

    pub(super) fn set_name(&mut self, id: ContextId, name: Option<&[u8]>) {
        if let Some(node) = self.nodes.get_mut(id.0 as usize) {
            node.name = name.map(Box::from);
        }
    }

    /// No parent: a root, or not known. So is one below itself, which no tree has.
    pub(super) fn set_parent(&mut self, id: ContextId, parent: Option<ContextId>) {
        self.unlink(id);
        let Some(parent) = parent.filter(|&parent| !self.is_within(parent, id)) else { return };
        let first = self.nodes.get(parent.0 as usize).and_then(|node| node.first_child);
        if let Some(node) = self.nodes.get_mut(id.0 as usize) {
            (node.parent, node.next) = (Some(parent), first);
        }
        if let Some(sibling) = first.and_then(|first| self.nodes.get_mut(first.0 as usize)) {
            sibling.previous = Some(id);
        }
        if let Some(node) = self.nodes.get_mut(parent.0 as usize) {
            node.first_child = Some(id);
        }
    }

    fn unlink(&mut self, id: ContextId) {
        let Some(node) = self.nodes.get_mut(id.0 as usize) else { return };
        let (parent, next, previous) = (node.parent.take(), node.next.take(), node.previous.take());
        if let Some(next) = next.and_then(|next| self.nodes.get_mut(next.0 as usize)) {
            next.previous = previous;
        }
        match (previous, parent) {
            (Some(previous), _) => {
                if let Some(previous) = self.nodes.get_mut(previous.0 as usize) {
                    previous.next = next;
                }
            }
            (None, Some(parent)) => {
                if let Some(parent) = self.nodes.get_mut(parent.0 as usize) {
                    parent.first_child = next;
                }
            }
            (None, None) => {}
        }
    }

    /// True of `top` itself, of what is below it, and of what is too deep to decide.
    fn is_within(&self, id: ContextId, top: ContextId) -> bool {
        let mut at = Some(id);
        for _ in 0..MAX_DEPTH {
            match at {
                None => return false,
                Some(id) if id == top => return true,
                Some(id) => at = self.nodes.get(id.0 as usize).and_then(|node| node.parent),
            }
        }
        true
    }

    /// What a reset or deletion of one covers; children after their parents.
    pub(super) fn covered(&self, id: ContextId, covers: Covers) -> Vec<ContextId> {
        let mut found = vec![id];
        if covers != Covers::Itself {
            let mut next = 0;
            while let Some(&at) = found.get(next) {
                let child = self.nodes.get(at.0 as usize).and_then(|node| node.first_child);
                let sibling = |&id: &ContextId| self.nodes.get(id.0 as usize).and_then(|node| node.next);
                found.extend(std::iter::successors(child, sibling));
                next += 1;
            }
        }
        if covers == Covers::Descendants {
            found.remove(0);
        }
        found
    }

    /// Takes it out of the tree; its children have no known parent from now on. Its blocks have to be
    /// gone.
    pub(super) fn remove(&mut self, id: ContextId) {
        while let Some(child) = self.nodes.get(id.0 as usize).and_then(|node| node.first_child) {
            self.unlink(child);
        }
        self.unlink(id);
        let Some(node) = self.nodes.get_mut(id.0 as usize) else { return };
        let node = std::mem::take(node);
        if self.by_key.remove(&node.key).is_some() {
            self.unused.push(id);
        }
    }

    pub(super) fn allocated(&mut self, id: ContextId, address: Addr) {
        if let Some(node) = self.nodes.get_mut(id.0 as usize) {
            node.addresses.push(address.0);
            node.outstanding += 1;
        }
    }

    /// A block of it is gone. True when its list needs [`Contexts::retain`].
    pub(super) fn freed(&mut self, id: ContextId) -> bool {
        let Some(node) = self.nodes.get_mut(id.0 as usize) else { return false };
        node.outstanding = node.outstanding.saturating_sub(1);
        node.addresses.len() > 2 * node.outstanding + SLACK
    }

    /// Keeps the addresses that are its own still.
    pub(super) fn retain(&mut self, id: ContextId, is_in: impl Fn(Addr) -> bool) {
        if let Some(node) = self.nodes.get_mut(id.0 as usize) {
            node.addresses.sort_unstable();
            node.addresses.dedup();
            node.addresses.retain(|&address| is_in(Addr(address)));
            if node.addresses.capacity() > 4 * node.addresses.len() + SLACK {
                node.addresses.shrink_to(2 * node.addresses.len());
            }
        }
    }

    /// Empties its list; an address may be in it twice, or belong to another by now.
    pub(super) fn take_addresses(&mut self, id: ContextId) -> Vec<u64> {
        let node = self.nodes.get_mut(id.0 as usize);
        node.map(|node| std::mem::take(&mut node.addresses)).unwrap_or_default()
    }

    pub(super) fn key(&self, id: ContextId) -> ContextKey {
        ContextKey(self.nodes.get(id.0 as usize).map_or(0, |node| node.key))
    }

    pub(super) fn is_named(&self, id: ContextId) -> bool {
        self.nodes.get(id.0 as usize).is_some_and(|node| node.name.is_some())
    }

    /// All, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = ContextId> {
        self.by_key.values().copied()
    }

    /// Names from the outermost known ancestor to itself; `None` for a name that is not known.
    pub(super) fn path(&self, id: ContextId) -> Vec<Option<&[u8]>> {
        let up = |&id: &ContextId| self.nodes.get(id.0 as usize).and_then(|node| node.parent);
        let chain = std::iter::successors(Some(id), up).take(MAX_DEPTH);
        let name = |id: ContextId| self.nodes.get(id.0 as usize).and_then(|node| node.name.as_deref());
        let mut path: Vec<Option<&[u8]>> = chain.map(name).collect();
        path.reverse();
        path
    }
}
