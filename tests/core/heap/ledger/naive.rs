//! The ledger's rules once more, as simply as can be: lists, and a search through all of them.

use std::collections::{BTreeMap, BTreeSet};
use vmaudit::model::{Addr, ContextKey, Covers, HeapEvent, HeapOp, MmKey, Tid};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    pub size: u64,
    /// Number of the stack.
    pub stack: u32,
    pub context: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sums {
    pub allocated: (u64, u64),
    pub freed: (u64, u64),
    pub inherited: (u64, u64),
}

#[derive(Clone, Default, Debug)]
pub struct Space {
    pub blocks: BTreeMap<u64, Block>,
    pub pending: BTreeMap<Tid, (u64, Option<Block>)>,
    pub parents: BTreeMap<u64, Option<u64>>,
    pub sums: BTreeMap<u32, Sums>,
    pub lost_frees: u64,
    pub unseen: u64,
    pub refused: u64,
    pub peak: u64,
}

#[derive(Default, Debug)]
pub struct Naive {
    pub spaces: BTreeMap<MmKey, Space>,
}

impl Space {
    /// All that is outstanding, those being resized included.
    pub fn outstanding(&self) -> impl Iterator<Item = &Block> {
        self.blocks.values().chain(self.pending.values().filter_map(|(_, block)| block.as_ref()))
    }

    pub fn bytes(&self) -> u64 {
        self.outstanding().map(|block| block.size).sum()
    }

    fn free(&mut self, block: Block) {
        let freed = &mut self.sums.entry(block.stack).or_default().freed;
        *freed = (freed.0 + block.size, freed.1 + 1);
    }

    fn put(&mut self, at: u64, block: Block) {
        if let Some(forgotten) = self.blocks.insert(at, block) {
            self.lost_frees += 1;
            self.free(forgotten);
        }
    }

    fn allocate(&mut self, at: u64, block: Block) {
        self.put(at, block);
        let made = &mut self.sums.entry(block.stack).or_default().allocated;
        *made = (made.0 + block.size, made.1 + 1);
        if let Some(context) = block.context {
            self.parents.entry(context).or_insert(None);
        }
        self.peak = self.peak.max(self.bytes());
    }

    fn lose_pending(&mut self, tid: Tid) {
        if let Some((_, Some(block))) = self.pending.remove(&tid) {
            self.lost_frees += 1;
            self.free(block);
        }
    }

    fn ancestors(&self, context: u64) -> Vec<u64> {
        let up = |at: &u64| self.parents.get(at).copied().flatten();
        std::iter::successors(Some(context), up).collect()
    }

    fn covered(&self, context: u64, covers: Covers) -> BTreeSet<u64> {
        let within = |at: &&u64| self.ancestors(**at).contains(&context);
        let all: BTreeSet<u64> = self.parents.keys().filter(within).copied().collect();
        match covers {
            Covers::Itself => all.into_iter().filter(|&at| at == context).collect(),
            Covers::Descendants => all.into_iter().filter(|&at| at != context).collect(),
            Covers::Tree => all,
        }
    }

    fn empty(&mut self, contexts: &BTreeSet<u64>) -> u64 {
        let own = |block: &Block| block.context.is_some_and(|c| contexts.contains(&c));
        let gone: Vec<u64> = self.blocks.iter().filter(|(_, b)| own(b)).map(|(&at, _)| at).collect();
        let mut blocks: Vec<Block> = gone.iter().filter_map(|at| self.blocks.remove(at)).collect();
        for (_, block) in self.pending.values_mut() {
            blocks.extend(block.take_if(|block| own(block)));
        }
        let count = blocks.len() as u64;
        blocks.into_iter().for_each(|block| self.free(block));
        count
    }

    fn forget(&mut self, contexts: &BTreeSet<u64>) {
        self.parents.retain(|context, _| !contexts.contains(context));
        for parent in self.parents.values_mut() {
            parent.take_if(|parent| contexts.contains(parent));
        }
    }

    fn set_parent(&mut self, context: u64, parent: Option<u64>) {
        if let Some(parent) = parent {
            self.parents.entry(parent).or_insert(None);
        }
        let circle = parent.is_some_and(|parent| self.ancestors(parent).contains(&context));
        self.parents.insert(context, parent.filter(|_| !circle));
    }

    fn apply(&mut self, tid: Tid, stack: u32, op: &HeapOp) {
        match op.clone() {
            HeapOp::Allocated { address, size, context } => {
                let context = context.map(|c| c.0);
                self.allocate(address.0, Block { size, stack, context });
            }
            HeapOp::Freed { address } => match self.blocks.remove(&address.0) {
                Some(block) => self.free(block),
                None => self.unseen += 1,
            },
            HeapOp::ResizeBegun { address } => {
                self.lose_pending(tid);
                if address.0 != 0 {
                    let block = self.blocks.remove(&address.0);
                    self.pending.insert(tid, (address.0, block));
                }
            }
            HeapOp::ResizeEnded { old, new, size, context, failed } => {
                self.resized(tid, stack, (old.0, new), (size, context, failed));
            }
            HeapOp::Refused { .. } => self.refused += 1,
            HeapOp::ContextCreated { context, parent, .. } => {
                let former = BTreeSet::from([context.0]);
                if self.parents.contains_key(&context.0) {
                    self.lost_frees += self.empty(&former);
                    self.forget(&former);
                }
                self.parents.insert(context.0, None);
                self.set_parent(context.0, parent.map(|p| p.0));
            }
            HeapOp::ContextReset { context, covers } => {
                self.empty(&self.covered(context.0, covers));
            }
            HeapOp::ContextDeleted { context, covers } => {
                let covered = self.covered(context.0, covers);
                self.empty(&covered);
                self.forget(&covered);
            }
            HeapOp::ContextMoved { context, parent } => {
                if parent.is_some() || self.parents.contains_key(&context.0) {
                    self.parents.entry(context.0).or_insert(None);
                    if let Some(parent) = parent {
                        self.parents.entry(parent.0).or_insert(None);
                    }
                    // it is nowhere while it is moved
                    self.parents.insert(context.0, None);
                    self.set_parent(context.0, parent.map(|p| p.0));
                }
            }
        }
    }

    fn resized(
        &mut self,
        tid: Tid,
        stack: u32,
        (old, new): (u64, Option<Addr>),
        (size, context, failed): (u64, Option<ContextKey>, bool),
    ) {
        let block = match self.pending.get(&tid) {
            Some(&(at, block)) if at == old => {
                self.pending.remove(&tid);
                block
            }
            _ => {
                self.lose_pending(tid);
                self.blocks.remove(&old)
            }
        };
        if failed {
            self.refused += 1;
            if let Some(block) = block {
                self.put(old, block);
            }
            return;
        }
        match block {
            Some(block) => self.free(block),
            None if old != 0 => self.unseen += 1,
            None => {}
        }
        if let Some(new) = new {
            let context = context.map(|c| c.0).or(block.and_then(|b| b.context));
            self.allocate(new.0, Block { size, stack, context });
        }
    }

    fn child(&self) -> Space {
        let mut child = Space { lost_frees: 0, unseen: 0, refused: 0, ..self.clone() };
        let moved: Vec<(u64, Block)> =
            child.pending.values().filter_map(|&(at, block)| Some((at, block?))).collect();
        child.pending.clear();
        child.sums.clear();
        for (at, block) in moved {
            child.blocks.entry(at).or_insert(block);
        }
        for block in child.blocks.values() {
            let inherited = &mut child.sums.entry(block.stack).or_default().inherited;
            *inherited = (inherited.0 + block.size, inherited.1 + 1);
        }
        child.peak = child.bytes();
        child
    }
}

impl Naive {
    pub fn apply(&mut self, event: &HeapEvent) {
        let stack = event.stack.expect("every event of the test has a stack").0;
        self.spaces.entry(event.mm).or_default().apply(event.tid, stack, &event.op);
    }

    pub fn fork(&mut self, parent: MmKey, child: MmKey) {
        if parent != child {
            let copy = self.spaces.get(&parent).map(|space| space.child());
            self.spaces.insert(child, copy.unwrap_or_default());
        }
    }
}
