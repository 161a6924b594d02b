//! Where the threads of a process have, or had, their stacks.

use crate::ledger::{OriginRecord, ThreadRecord};
use crate::model::observation::{GivenStack, ThreadObservation};
use crate::model::{Addr, AddrRange, Mapping, Observations, Tid};
use std::collections::{HashMap, HashSet};

/// The threads of a process, by their stacks.
pub struct Threads<'a> {
    seen: &'a Observations,
    known: &'a [ThreadRecord],
    /// Where living threads but the first have their stacks, sorted: by the C library's block for the thread, which
    /// is at the top of its own stack, else by its stack pointer.
    live: Vec<(Addr, Tid)>,
    /// Lengths of the VMAs that these lie in.
    live_lengths: HashSet<u64>,
    /// It is known of every living thread where its stack is.
    stacks_known: bool,
    /// Stack pointers that threads were started with, sorted.
    started: Vec<(Addr, &'a ThreadRecord)>,
}

/// What became of the stack of a thread that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// Kept for the next threads.
    Cached,
    /// Nobody has joined the thread.
    Unjoined,
    /// One of these.
    Unknown,
}

fn any_in(sorted: &[Addr], range: AddrRange) -> bool {
    let at = sorted.partition_point(|block| *block < range.start);
    sorted.get(at).is_some_and(|block| *block < range.end)
}

impl<'a> Threads<'a> {
    pub(super) fn of(seen: &'a Observations, known: &'a [ThreadRecord]) -> Threads<'a> {
        let blocks: HashMap<Tid, Addr> = seen.thread_blocks.living.iter().copied().collect();
        let place = |t: &ThreadObservation| blocks.get(&t.tid).copied().or(t.stack_pointer);
        let others = seen.threads.iter().filter(|t| t.tid != seen.pid);
        let mut live: Vec<(Addr, Tid)> = others.filter_map(|t| Some((place(t)?, t.tid))).collect();
        live.sort_unstable();
        let length = |&(sp, _): &(Addr, Tid)| Some(Mapping::holding(&seen.mappings, sp)?.range.len());
        let live_lengths = live.iter().filter_map(length).collect();
        let stacks_known = !seen.threads.is_empty() && seen.threads.iter().all(|t| place(t).is_some());
        let mut started: Vec<_> = known.iter().filter_map(|t| Some((t.initial_sp?, t))).collect();
        started.sort_by_key(|(sp, _)| *sp);
        Threads { seen, known, live, live_lengths, stacks_known, started }
    }

    /// The living thread whose own stack `range` is, other than the first thread.
    pub fn live_in(&self, range: AddrRange) -> Option<Tid> {
        let at = self.live.partition_point(|(place, _)| *place < range.start);
        self.live.get(at).filter(|(place, _)| *place < range.end).map(|(_, tid)| *tid)
    }

    /// An address in each living thread's own stack that lies in `range`, but of the first one's; ascending.
    pub fn live_places_in(&self, range: AddrRange) -> Vec<Addr> {
        let from = self.live.partition_point(|(place, _)| *place < range.start);
        let inside = self.live.iter().skip(from).map(|(place, _)| *place);
        inside.take_while(|place| *place < range.end).collect()
    }

    /// The address in the C library's block for the one living thread, other than the first one, that has its block in
    /// `range`.
    pub fn only_block_in(&self, range: AddrRange) -> Option<Addr> {
        let others = self.seen.thread_blocks.living.iter().filter(|(tid, _)| *tid != self.seen.pid);
        let blocks = others.map(|(_, block)| *block);
        let mut inside = blocks.filter(|block| range.contains(*block));
        inside.next().filter(|_| inside.next().is_none())
    }

    /// The stack in `range` that a thread has left, by the C library's block for it. Where its lists are known, one that
    /// is in none of them is not the C library's any more.
    pub fn ended_in(&self, range: AddrRange) -> Option<Left> {
        let blocks = &self.seen.thread_blocks;
        match &blocks.lists {
            Some(lists) if any_in(&lists.cached, range) => Some(Left::Cached),
            Some(lists) if any_in(&lists.unjoined, range) => Some(Left::Unjoined),
            Some(_) => None,
            None => any_in(&blocks.ended, range).then_some(Left::Unknown),
        }
    }

    /// Whether the C library's block for a thread but the first one is in `range`: one that lives, has ended, or has not run
    /// yet and is known by the block alone.
    pub fn has_block_in(&self, range: AddrRange) -> bool {
        any_in(&self.seen.thread_blocks.ended, range)
            || self.ended_in(range).is_some()
            || self.live_in(range).is_some()
    }

    /// How many stacks the C library keeps for the next threads, and their bytes. None where its lists are not known.
    pub fn cached(&self) -> Option<(u64, u64)> {
        let cached = &self.seen.thread_blocks.lists.as_ref()?.cached;
        let mappings = cached.iter().filter_map(|block| Mapping::holding(&self.seen.mappings, *block));
        Some((cached.len() as u64, mappings.map(|mapping| mapping.range.len()).sum()))
    }

    /// Living threads but the first one.
    pub fn living(&self) -> u64 {
        self.live.len() as u64
    }

    /// How many stacks threads had at the same time at most: those have different addresses, whether somebody has joined
    /// their threads or not. None where it is not known where each began, as after an attachment.
    pub fn stacks_at_once(&self) -> Option<u64> {
        let others = self.known.iter().filter(|thread| thread.tid != thread.pid);
        let known = !self.known.is_empty() && others.clone().all(|thread| thread.initial_sp.is_some());
        let places: HashSet<Addr> = others.filter_map(|thread| thread.initial_sp).collect();
        known.then_some(places.len() as u64)
    }

    /// The C library says which stacks it was given.
    pub fn given_known(&self) -> bool {
        self.seen.thread_blocks.lists.is_some()
    }

    /// Stacks that overlap `range` and that the C library was given, ascending.
    pub fn given_in(&self, range: AddrRange) -> impl Iterator<Item = &'a GivenStack> {
        let lists = self.seen.thread_blocks.lists.as_ref();
        let given = lists.map_or(&[][..], |lists| lists.given.as_slice());
        // stacks do not overlap: they are in the order of their blocks
        let own = |given: &GivenStack| {
            given.stack.unwrap_or(AddrRange { start: given.block, end: given.block.saturating_add(1) })
        };
        let rest = given.get(given.partition_point(|given| own(given).end <= range.start)..).unwrap_or(&[]);
        rest.iter().take_while(move |given| own(given).start < range.end)
    }

    /// True if it is known which stacks are threads', living or ended: what is none of these is no thread's.
    pub fn are_all_known(&self) -> bool {
        self.stacks_known && self.seen.thread_blocks.searched
    }

    /// True if a living thread's stack, other than the first one's, lies in a VMA of this length.
    pub fn has_stack_in_vma_of(&self, len: u64) -> bool {
        self.live_lengths.contains(&len)
    }

    /// True if it is known of every thread that was seen to begin where its stack was.
    pub fn starts_known(&self) -> bool {
        let known = |t: &ThreadRecord| t.initial_sp.is_some() || t.created_ns.is_none() || t.tid == t.pid;
        // the list of tasks is never empty where it was read
        let listed = !self.seen.threads.is_empty();
        listed && self.known.iter().all(known)
    }

    /// The newest thread that was started with its stack pointer in `range`. A stack pointer
    /// given to clone may be the very end of the stack.
    pub fn started_in(&self, range: AddrRange) -> Option<&'a ThreadRecord> {
        let from = self.started.partition_point(|(sp, _)| *sp < range.start);
        let inside = self.started.iter().skip(from).take_while(|(sp, _)| *sp <= range.end);
        inside.map(|(_, t)| *t).max_by_key(|t| t.created_ns)
    }

    /// As [`Threads::started_in`], of threads that began after `record`'s call: an address may have
    /// been the stack of another one before.
    pub fn started_since(&self, range: AddrRange, record: Option<&OriginRecord>) -> Option<&'a ThreadRecord> {
        let since = record.map_or(0, |record| record.time_ns);
        self.started_in(range).filter(|thread| thread.created_ns.is_none_or(|time| time >= since))
    }
}
