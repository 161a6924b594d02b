//! The life of one address: what each call did to the page that holds it, in each address space.
//!
//! Fed with every step, in order; the ledger's piece at the address before and after each of them says what
//! happened. A forked child's life begins with its parent's; execve begins a new one.

mod steps;

use super::space::LedgerPiece;
use super::spaces::{AddressSpaces, SpaceId};
use crate::model::hash::IntMap;
use crate::model::{Addr, AddrRange, Observations, PAGE, Pid, Prot, Step, VmEvent, VmOp};
use crate::sys::abi::MAP_FIXED;
use crate::sys::abi::refused::ENOMEM;
use steps::LifeLog;

pub use steps::LifeEntry;

/// What a step did to the page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Nothing was there. `range` is all that the call mapped.
    Mapped {
        range: AddrRange,
    },
    /// The call was free to choose, and chose a place that by the reports is still occupied: the
    /// unmapping took effect before and will be reported after it.
    MappedBeforeUnmapReported {
        range: AddrRange,
    },
    /// Something was there, and has gone for it (MAP_FIXED and the like).
    Replaced {
        range: AddrRange,
    },
    Unmapped,
    /// The unmapping that an earlier `MappedBeforeUnmapReported` waits for.
    UnmappedEarlier,
    /// By mremap. `kept`: MREMAP_DONTUNMAP leaves an empty mapping behind.
    MovedAway {
        to: Addr,
        kept: bool,
    },
    MovedHere {
        from: Addr,
        range: AddrRange,
    },
    /// mprotect; both may be equal.
    Protected {
        from: Prot,
        to: Prot,
    },
    /// madvise, on a mapped page.
    Advised,
    Named,
    /// The kernel mapped it for execve.
    Image,
    /// It was mapped when tracing of the process began.
    Found,
    /// fork copied it from the process `parent`.
    Inherited {
        parent: Pid,
    },
    /// The parent has it, but MADV_DONTFORK or the mapping's driver kept it from the child.
    NotInherited {
        parent: Pid,
    },
    /// The kernel refused a call on it.
    Refused,
    /// The process ended while it was mapped.
    Ended,
    /// Events were lost: something may be missing here.
    Lost,
    /// After a loss, the kernel showed something else than the calls had reported.
    Resynced,
    /// Anything else that changed it.
    Other,
}

/// One step in the life of an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LifeStep {
    /// The call, without the lists of mappings that fork and execve carry; None for what is no
    /// event.
    pub event: Option<Box<VmEvent>>,
    pub time_ns: u64,
    pub change: Change,
    /// What is at the address afterwards.
    pub after: Option<LedgerPiece>,
}

/// The life of an address in one process.
#[derive(Clone, Debug, Default)]
pub struct Life {
    /// Oldest first.
    pub entries: Vec<LifeEntry>,
    /// Steps left out in the middle because there were too many.
    pub omitted: u64,
    /// Steps at this address in programs that the process ran before its last execve.
    pub before_exec: u64,
}

#[derive(Clone, Default, Debug)]
struct Record {
    log: LifeLog,
    before_exec: u64,
    /// A `MappedBeforeUnmapReported` whose unmapping has not come yet.
    awaits_unmap: bool,
}

/// Follows one address through all address spaces.
#[derive(Debug)]
pub struct LifeWatch {
    page: AddrRange,
    spaces: AddressSpaces,
    records: IntMap<SpaceId, Record>,
}

impl LifeWatch {
    pub fn new(at: Addr) -> LifeWatch {
        LifeWatch {
            page: AddrRange::from_len(at.page_down(), PAGE),
            spaces: AddressSpaces::new(),
            records: IntMap::default(),
        }
    }

    /// The ledger as all steps until now have made it.
    pub fn spaces(&self) -> &AddressSpaces {
        &self.spaces
    }

    /// Takes the next step.
    pub fn step(&mut self, step: &Step) {
        match step {
            Step::Event(event) => self.event(event),
            Step::Found { mm, seen } => {
                self.spaces.start_observed(*mm, seen);
                self.outside(seen, Change::Found, false);
            }
            Step::Lost { time_ns } => self.lost(*time_ns),
            Step::Resync(seen) => {
                let before = self.piece_of(self.space_of(seen.pid));
                self.spaces.resync(seen.pid, seen);
                if !same_page(&self.piece_of(self.space_of(seen.pid)), &before) {
                    self.outside(seen, Change::Resynced, true);
                }
            }
            Step::Snapshot(_) | Step::Point(_) => {}
        }
    }

    /// The life of the address in the address space that `pid` uses, or used last.
    pub fn life(&self, pid: Pid) -> Option<Life> {
        let record = self.records.get(&self.space_of(pid)?)?;
        let (entries, omitted) = record.log.finished();
        Some(Life { entries, omitted, before_exec: record.before_exec })
    }

    /// Processes in whose last address space something happened at the address, in order of
    /// appearance.
    pub fn pids(&self) -> Vec<Pid> {
        let mut pids: Vec<Pid> = Vec::new();
        for process in self.spaces.processes() {
            let lived = |id| self.records.get(&id).is_some_and(|record| !record.log.is_empty());
            if process.space().is_some_and(lived) && !pids.contains(&process.pid) {
                pids.push(process.pid);
            }
        }
        pids
    }

    fn space_of(&self, pid: Pid) -> Option<SpaceId> {
        self.spaces.space_of_pid(pid)
    }

    fn piece_of(&self, id: Option<SpaceId>) -> Option<LedgerPiece> {
        self.spaces.ledger(id?)?.piece_at(self.page.start)
    }

    fn push(&mut self, id: SpaceId, change: Change, event: Option<&VmEvent>, time_ns: u64) {
        let after = self.piece_of(Some(id));
        let event = event.map(|event| {
            let mut event = event.clone();
            if let VmOp::Fork { mappings, .. } | VmOp::Exec { mappings, .. } = &mut event.op {
                *mappings = None;
            }
            Box::new(event)
        });
        let record = self.records.entry(id).or_default();
        record.log.push(LifeStep { event, time_ns, change, after });
    }

    /// A snapshot from outside.
    fn outside(&mut self, seen: &Observations, change: Change, even_if_free: bool) {
        let Some(id) = self.space_of(seen.pid) else { return };
        if even_if_free || self.piece_of(Some(id)).is_some() {
            self.push(id, change, None, seen.ended_ns);
        }
    }

    fn lost(&mut self, time_ns: u64) {
        self.spaces.note_loss(time_ns);
        let ids: Vec<SpaceId> = self.spaces.used_spaces().collect();
        for id in ids {
            let known = self.records.get(&id).is_some_and(|record| !record.log.is_empty());
            if known || self.piece_of(Some(id)).is_some() {
                self.push(id, Change::Lost, None, time_ns);
            }
        }
    }

    fn event(&mut self, event: &VmEvent) {
        let pid = event.task.pid;
        let old_space = match event.op {
            VmOp::Exec { .. } | VmOp::Exit { .. } => self.space_of(pid),
            _ => self.spaces.space_of_mm(event.mm).or_else(|| self.space_of(pid)),
        };
        let before = self.piece_of(old_space);
        self.spaces.apply(event);
        match &event.op {
            VmOp::Fork { child_pid, child_mm, .. } if *child_mm != event.mm => {
                self.forked(event, before.is_some(), *child_pid);
            }
            VmOp::Exec { .. } => self.executed(event, old_space),
            VmOp::Exit { group_dead: true, .. } => {
                let alone = |&id: &SpaceId| self.spaces.has_space(id) && !self.spaces.is_used(id);
                if let Some(id) = old_space.filter(alone).filter(|_| before.is_some()) {
                    self.push(id, Change::Ended, Some(event), event.time_ns);
                }
            }
            VmOp::Fork { .. } | VmOp::Exit { .. } | VmOp::Rename => {}
            _ => self.called(event, before),
        }
    }

    fn forked(&mut self, event: &VmEvent, parent_has_it: bool, child: Pid) {
        let parent = event.task.pid;
        let (Some(from), Some(to)) = (self.space_of(parent), self.space_of(child)) else { return };
        if let Some(record) = self.records.get(&from).cloned() {
            let record = Record { awaits_unmap: false, ..record };
            self.records.insert(to, record);
        }
        let change = match (parent_has_it, self.piece_of(Some(to)).is_some()) {
            (_, true) => Change::Inherited { parent },
            (true, false) => Change::NotInherited { parent },
            (false, false) => return,
        };
        self.push(to, change, Some(event), event.time_ns);
    }

    fn executed(&mut self, event: &VmEvent, old: Option<SpaceId>) {
        let Some(id) = self.space_of(event.task.pid) else { return };
        // A vfork child's old space is its parent's.
        let was_own = old.is_some_and(|old| !self.spaces.is_used(old));
        let earlier = old.filter(|_| was_own).and_then(|old| self.records.remove(&old));
        let earlier = earlier.map_or(0, |record| record.before_exec + record.log.steps());
        self.records.insert(id, Record { before_exec: earlier, ..Record::default() });
        if self.piece_of(Some(id)).is_some() {
            self.push(id, Change::Image, Some(event), event.time_ns);
        }
    }

    fn called(&mut self, event: &VmEvent, before: Option<LedgerPiece>) {
        let Some(id) = self.space_of(event.task.pid) else { return };
        let after = self.piece_of(Some(id));
        let awaits_unmap = self.records.get(&id).is_some_and(|record| record.awaits_unmap);
        let Some(change) = change(event, self.page.start, (&before, &after), awaits_unmap) else { return };
        match change {
            Change::MappedBeforeUnmapReported { .. } => {
                self.records.entry(id).or_default().awaits_unmap = true;
            }
            Change::UnmappedEarlier => self.records.entry(id).or_default().awaits_unmap = false,
            _ => {}
        }
        self.push(id, change, Some(event), event.time_ns);
    }
}

/// What a call did to the page at `at`; None if nothing.
fn change(
    event: &VmEvent,
    at: Addr,
    (before, after): (&Option<LedgerPiece>, &Option<LedgerPiece>),
    awaits_unmap: bool,
) -> Option<Change> {
    let [first, second] = event.ranges();
    let named = first.contains(at);
    if event.failed() {
        return match (&event.op, before, after) {
            // mprotect changes what comes before a hole.
            (VmOp::Mprotect { .. }, Some(b), Some(a)) if b.prot != a.prot => {
                Some(Change::Protected { from: b.prot, to: a.prot })
            }
            // madvise goes on behind a hole; names count although kernels without them refuse.
            (VmOp::Madvise { .. }, Some(_), _) if named && event.ret == ENOMEM => Some(Change::Advised),
            (VmOp::SetVmaName { .. }, Some(_), _) if named => Some(Change::Named),
            _ => named.then_some(Change::Refused),
        };
    }
    match &event.op {
        VmOp::Mprotect { .. } if named => match (before, after) {
            (Some(b), Some(a)) => Some(Change::Protected { from: b.prot, to: a.prot }),
            _ => None,
        },
        VmOp::Madvise { .. } => (named && before.is_some()).then_some(Change::Advised),
        VmOp::SetVmaName { .. } => (named && before.is_some()).then_some(Change::Named),
        VmOp::Mremap { old, .. } => moved(event, at, (*old, first, second), after.is_some()),
        VmOp::Munmap { .. } if named && awaits_unmap && same_page(before, after) => {
            Some(Change::UnmappedEarlier)
        }
        _ => {
            let made = after.as_ref().filter(|piece| piece.event == Some(event.id));
            match (before, made) {
                (_, None) if same_page(before, after) => None,
                (Some(_), None) if after.is_none() => Some(Change::Unmapped),
                (_, None) => Some(Change::Other),
                (None, Some(piece)) => Some(Change::Mapped { range: whole(first, piece) }),
                (Some(old), Some(piece)) => {
                    let range = whole(first, piece);
                    let chose = matches!(event.op, VmOp::Mmap { flags, .. } if flags & MAP_FIXED == 0);
                    Some(match chose && old.event != piece.event {
                        true => Change::MappedBeforeUnmapReported { range },
                        false => Change::Replaced { range },
                    })
                }
            }
        }
    }
}

/// True when nothing happened to the page, whatever happened to its neighbours.
fn same_page(a: &Option<LedgerPiece>, b: &Option<LedgerPiece>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => {
            (a.event, a.prot, a.sharing, a.kind, &a.file) == (b.event, b.prot, b.sharing, b.kind, &b.file)
        }
        _ => false,
    }
}

/// The call's range where it has one (brk does not).
fn whole(range: AddrRange, piece: &LedgerPiece) -> AddrRange {
    if range.is_empty() { piece.range } else { range }
}

/// mremap from `old` (whole pages: `from`) to `to`.
fn moved(
    event: &VmEvent,
    at: Addr,
    (old, from, to): (Addr, AddrRange, AddrRange),
    is_mapped: bool,
) -> Option<Change> {
    let start = old.page_down();
    if to.start == start {
        // In place: only the end has moved.
        return match (from.contains(at), to.contains(at)) {
            (true, false) => Some(Change::Unmapped),
            (false, true) => Some(Change::Mapped { range: to }),
            _ => None,
        };
    }
    if to.contains(at) {
        let distance = at.0 - to.start.0;
        let from_there = start.saturating_add(distance);
        return Some(match from.contains(from_there) || from.is_empty() {
            true => Change::MovedHere { from: from_there, range: to },
            false => Change::Mapped { range: to },
        });
    }
    if !from.contains(at) {
        return None;
    }
    let there = to.start.saturating_add(at.0 - start.0);
    let went = to.contains(there);
    debug_assert!(!event.failed());
    Some(if went { Change::MovedAway { to: there, kept: is_mapped } } else { Change::Unmapped })
}
