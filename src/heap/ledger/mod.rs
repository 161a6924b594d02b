//! What is outstanding: blocks by address, with the site that allocated each.
//!
//! Fed with events in causal order. A resize counts as a free of the old block and an allocation of the
//! new one by the resizing stack, as heaptrack and valgrind have it. Between its begin and its end the
//! old block is outstanding still, but its address may be handed out to another thread.

mod block;
mod contexts;
mod heaps;
mod snapshot;
mod totals;

pub use block::SiteId;
pub use heaps::{Heaps, Site, Sites};
pub use totals::{CountedSite, Doubts, Flow, SiteTotals, Totals};

use super::sampling::Sampling;
use crate::model::hash::IntMap;
use crate::model::{Addr, ContextKey, Covers, HeapEvent, HeapOp, MmKey, Pid, Tid};
use block::{Block, Blocks, ContextId, Moment};
use contexts::Contexts;

/// How a ledger counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LedgerOptions {
    pub sampling: Sampling,
    /// When watching began: CLOCK_MONOTONIC, nanoseconds.
    pub start_ns: u64,
}

/// Points kept of a timeline; when there are as many, every other is dropped.
const MAX_POINTS: usize = 2048;

/// A resize that has begun: the block is out of the map, but outstanding.
#[derive(Clone, Copy, Debug)]
struct Pending {
    tid: Tid,
    address: Addr,
    /// `None`: its allocation was not seen.
    block: Option<Block>,
}

/// Outstanding at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeapPoint {
    pub time_ns: u64,
    pub bytes: u64,
    pub blocks: u64,
}

/// The allocations of one address space.
#[derive(Clone, Debug)]
pub struct HeapLedger {
    pub pid: Pid,
    pub mm: MmKey,
    options: LedgerOptions,
    blocks: Blocks,
    /// At most one of each thread.
    pending: Vec<Pending>,
    contexts: Contexts,
    /// By [`SiteId`]; shorter than the list of sites where it has none of the last ones.
    sites: Vec<SiteTotals>,
    totals: Totals,
    peak: HeapPoint,
    /// Counted up with each peak: 1 is how it began.
    peaks: u32,
    /// What each thread allocated last, while that is outstanding.
    newest: IntMap<Tid, Addr>,
    doubts: Doubts,
    /// When each mark was set, the newest first.
    marks: [Option<u64>; 2],
    intervals: u32,
    timeline: Vec<HeapPoint>,
    /// Some of it was counted in the kernel: the peak is not known.
    counts: bool,
}

impl HeapLedger {
    pub(crate) fn new(mm: MmKey, pid: Pid, options: LedgerOptions) -> HeapLedger {
        HeapLedger {
            pid,
            mm,
            options,
            blocks: Blocks::default(),
            pending: Vec::new(),
            contexts: Contexts::default(),
            sites: Vec::new(),
            totals: Totals::default(),
            peak: HeapPoint { time_ns: options.start_ns, bytes: 0, blocks: 0 },
            peaks: 1,
            newest: IntMap::default(),
            doubts: Doubts::default(),
            marks: [None; 2],
            intervals: 0,
            timeline: Vec::new(),
            counts: false,
        }
    }

    /// The copy that a child gets. Threads do not go with it, so neither do their resizes in progress:
    /// the old blocks are outstanding in the child.
    pub(crate) fn fork(&self, mm: MmKey, pid: Pid) -> HeapLedger {
        let mut child = HeapLedger {
            pid,
            mm,
            totals: self.totals.copied_by_fork(),
            sites: self.sites.iter().map(SiteTotals::copied_by_fork).collect(),
            peak: HeapPoint {
                time_ns: self.options.start_ns,
                bytes: self.totals.outstanding.bytes,
                blocks: self.totals.outstanding.blocks,
            },
            peaks: 1,
            newest: IntMap::default(),
            doubts: Doubts { lost_events: self.doubts.lost_events, ..Doubts::default() },
            timeline: Vec::new(),
            marks: [None; 2],
            intervals: 0,
            ..self.clone()
        };
        for pending in std::mem::take(&mut child.pending) {
            match pending.block {
                // its address is another block's already: it is gone
                Some(block) if child.blocks.get(pending.address).is_some() => child.disinherit(block),
                Some(block) => {
                    child.blocks.insert(pending.address, block);
                }
                None => {}
            }
        }
        child
    }

    fn disinherit(&mut self, block: Block) {
        let weight = self.options.sampling.weight(block.size);
        self.totals.disinherit(weight);
        self.site(block.site).disinherit(weight);
        self.peak.bytes = self.totals.outstanding.bytes;
        self.peak.blocks = self.totals.outstanding.blocks;
        if let Some(context) = block.context() {
            self.contexts.freed(context);
        }
    }

    pub(crate) fn apply(&mut self, event: &HeapEvent, site: SiteId) {
        let at = Moment::at(event.time_ns, self.options.start_ns);
        match &event.op {
            HeapOp::Allocated { address, size, context } => {
                let context = context.map(|key| self.contexts.found(key));
                let block = Block::new(*size, site, event.tid, at).in_context(context);
                self.allocate(*address, block, event.time_ns);
            }
            HeapOp::Freed { address } => match self.blocks.remove(*address) {
                Some(block) => {
                    self.end_newest(event.tid, *address, block.site);
                    self.free(block);
                }
                None => self.unseen(),
            },
            HeapOp::ResizeBegun { address } => self.begin(event.tid, *address),
            HeapOp::ResizeEnded { old, new, size, context, failed } => {
                let settled = self.end(event.tid, *old);
                if *failed {
                    if let Some(block) = settled {
                        self.put(*old, block);
                    }
                    self.refuse(*size);
                    return;
                }
                if settled.is_none() && old.0 != 0 {
                    self.unseen();
                }
                let kept = settled.and_then(|block| block.context());
                if let Some(block) = settled {
                    self.end_newest(event.tid, *old, block.site);
                    self.free(block);
                }
                if let Some(new) = new {
                    let context = context.map(|key| self.contexts.found(key)).or(kept);
                    let block = Block::new(*size, site, event.tid, at).in_context(context);
                    self.allocate(*new, block, event.time_ns);
                }
            }
            HeapOp::Refused { size } => self.refuse(*size),
            HeapOp::ContextCreated { context, parent, name } => {
                self.create_context(*context, *parent, name.as_deref());
            }
            HeapOp::ContextReset { context, covers } => {
                for id in self.covered(*context, *covers) {
                    self.empty(id);
                }
            }
            HeapOp::ContextDeleted { context, covers } => {
                for id in self.covered(*context, *covers) {
                    self.empty(id);
                    self.contexts.remove(id);
                }
            }
            HeapOp::ContextMoved { context, parent } => {
                // a context that is being deleted loses its parent: nothing to remember
                if parent.is_some() || self.contexts.find(*context).is_some() {
                    let id = self.contexts.found(*context);
                    let parent = parent.map(|key| self.contexts.found(key));
                    self.contexts.set_parent(id, parent);
                }
            }
        }
    }

    fn allocate(&mut self, address: Addr, block: Block, time_ns: u64) {
        let weight = self.options.sampling.weight(block.size);
        self.put(address, block);
        if let Some(context) = block.context() {
            self.contexts.allocated(context, address);
        }
        self.newest.insert(block.tid, address);
        self.totals.allocate(weight);
        self.changing(block.site).totals.allocate(weight);
        if self.totals.outstanding.bytes > self.peak.bytes {
            let Flow { bytes, blocks } = self.totals.outstanding;
            self.peak = HeapPoint { time_ns, bytes, blocks };
            self.peaks = self.peaks.wrapping_add(1);
        }
    }

    /// A thread frees a block of its own before it allocates again.
    fn end_newest(&mut self, tid: Tid, address: Addr, site: SiteId) {
        if self.newest.get(&tid) == Some(&address) {
            self.newest.remove(&tid);
            self.site(site).temporary += 1;
        }
    }

    /// What is at the address already was freed by a call that was not reported.
    fn put(&mut self, address: Addr, block: Block) {
        if let Some(forgotten) = self.blocks.insert(address, block) {
            self.doubts.lost_frees += 1;
            self.free(forgotten);
        }
    }

    /// Of a block that is out of the map already.
    fn free(&mut self, block: Block) {
        let weight = self.options.sampling.weight(block.size);
        self.totals.free(weight);
        self.changing(block.site).totals.free(weight);
        if let Some(context) = block.context()
            && self.contexts.freed(context)
        {
            let blocks = &self.blocks;
            let is_in = |address| blocks.get(address).is_some_and(|b| b.context() == Some(context));
            self.contexts.retain(context, is_in);
        }
    }

    fn begin(&mut self, tid: Tid, address: Addr) {
        // only the outermost of nested calls is reported: the former one's end is lost
        self.drop_pending(tid);
        if address.0 != 0 {
            let block = self.blocks.remove(address);
            self.pending.push(Pending { tid, address, block });
        }
    }

    /// The block that this thread began to resize, out of the map in any case.
    fn end(&mut self, tid: Tid, old: Addr) -> Option<Block> {
        match self.pending.iter().position(|p| p.tid == tid && p.address == old) {
            Some(at) => self.pending.swap_remove(at).block,
            None => {
                self.drop_pending(tid);
                self.blocks.remove(old)
            }
        }
    }

    /// A resize whose end is lost: the old block is gone, most likely, and where the new one is, is not
    /// known.
    fn drop_pending(&mut self, tid: Tid) {
        let Some(at) = self.pending.iter().position(|p| p.tid == tid) else { return };
        if let Some(block) = self.pending.swap_remove(at).block {
            self.doubts.lost_frees += 1;
            self.free(block);
        }
    }

    fn create_context(&mut self, key: ContextKey, parent: Option<ContextKey>, name: Option<&[u8]>) {
        if let Some(former) = self.contexts.find(key) {
            // its descriptor was made anew: the deletion was lost
            self.doubts.lost_frees += self.empty(former);
            self.contexts.remove(former);
        }
        let id = self.contexts.found(key);
        let parent = parent.map(|key| self.contexts.found(key));
        self.contexts.set_name(id, name);
        self.contexts.set_parent(id, parent);
    }

    fn covered(&self, key: ContextKey, covers: Covers) -> Vec<ContextId> {
        self.contexts.find(key).map(|id| self.contexts.covered(id, covers)).unwrap_or_default()
    }

    /// Frees what is in a context; how many blocks that is.
    fn empty(&mut self, id: ContextId) -> u64 {
        let mut freed = 0;
        for address in self.contexts.take_addresses(id) {
            let own = self.blocks.get(Addr(address)).is_some_and(|b| b.context() == Some(id));
            if let Some(block) = own.then(|| self.blocks.remove(Addr(address))).flatten() {
                self.free(block);
                freed += 1;
            }
        }
        for at in 0..self.pending.len() {
            let own = |p: &mut Pending| p.block.take_if(|b| b.context() == Some(id));
            if let Some(block) = self.pending.get_mut(at).and_then(own) {
                self.free(block);
                freed += 1;
            }
        }
        freed
    }

    fn unseen(&mut self) {
        if self.doubts.lost_events == 0 {
            self.doubts.unseen_frees += 1;
        } else {
            self.doubts.doubtful_frees += 1;
        }
    }

    fn refuse(&mut self, size: u64) {
        self.doubts.refused += 1;
        self.doubts.refused_bytes = self.doubts.refused_bytes.saturating_add(size);
    }

    fn site(&mut self, id: SiteId) -> &mut SiteTotals {
        let at = id.0 as usize;
        if self.sites.len() <= at {
            self.sites.resize(at + 1, SiteTotals::default());
        }
        &mut self.sites[at]
    }

    /// A site of which more or less is outstanding from now on.
    fn changing(&mut self, id: SiteId) -> &mut SiteTotals {
        let peaks = self.peaks;
        let site = self.site(id);
        site.keep_peak(peaks);
        site
    }

    pub(crate) fn lose(&mut self, events: u64) {
        self.doubts.lost_events = self.doubts.lost_events.saturating_add(events);
    }

    pub(crate) fn mark(&mut self, time_ns: u64) {
        self.intervals = self.intervals.saturating_add(1);
        for site in &mut self.sites {
            site.mark(self.intervals);
        }
        let [last, _] = self.marks;
        self.marks = [Some(time_ns), last];
        let Flow { bytes, blocks } = self.totals.outstanding;
        self.timeline.push(HeapPoint { time_ns, bytes, blocks });
        if self.timeline.len() >= MAX_POINTS {
            let mut keep = false;
            self.timeline.retain(|_| {
                keep = !keep;
                keep
            });
        }
    }

    /// Takes what was counted elsewhere (in the kernel) for a site, in place of what was taken before. What
    /// events added to the site stays.
    pub(crate) fn count(&mut self, id: SiteId, counted: CountedSite) {
        self.counts = true;
        let site = self.site(id);
        let former = std::mem::replace(&mut site.counted, counted);
        site.totals.replace(&former.totals, &counted.totals);
        self.totals.replace(&former.totals, &counted.totals);
        let doubts = &mut self.doubts;
        doubts.lost_frees = (doubts.lost_frees + counted.lost_frees).saturating_sub(former.lost_frees);
    }

    /// Takes what the process itself counted for a site, in place of what was taken before; its blocks are
    /// given to [`HeapLedger::picture_of`].
    pub(crate) fn record(&mut self, id: SiteId, (totals, at_peak, temporary): (Totals, Flow, u64)) {
        let peaks = self.peaks;
        let site = self.site(id);
        let former = std::mem::replace(&mut site.totals, totals);
        site.set_peak(peaks, at_peak);
        site.temporary = temporary;
        self.totals.replace(&former, &totals);
    }

    /// What the process itself counted besides its sites.
    pub(crate) fn record_process(&mut self, peak: HeapPoint, doubts: Doubts) {
        (self.peak, self.doubts) = (peak, doubts);
    }

    pub(crate) fn outstanding_bytes(&self) -> u64 {
        self.totals.outstanding.bytes
    }

    /// Contexts that are known of.
    pub fn context_count(&self) -> usize {
        self.contexts.len()
    }

    /// Contexts that were made before vmaudit attached and have no name yet: it can be read from the
    /// descriptor ([`super::describe::ContextLayout`]).
    pub fn nameless_contexts(&self) -> Vec<ContextKey> {
        let nameless = self.contexts.iter().filter(|&id| !self.contexts.is_named(id));
        nameless.map(|id| self.contexts.key(id)).collect()
    }

    /// What was read from a context's descriptor. A parent that is not known yet becomes so.
    pub fn name_context(&mut self, key: ContextKey, name: Option<&[u8]>, parent: Option<ContextKey>) {
        let Some(id) = self.contexts.find(key) else { return };
        self.contexts.set_name(id, name);
        if let Some(parent) = parent {
            let parent = self.contexts.found(parent);
            self.contexts.set_parent(id, Some(parent));
        }
    }
}
