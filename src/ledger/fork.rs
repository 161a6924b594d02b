//! New tasks: threads and vfork children share the address space, others get a copy.

use super::names::attributes_of;
use super::origins::{Call, FileTable};
use super::piece::{Attributes, Owner, Piece, Slot};
use super::range_set::RangeSet;
use super::region::RegionKind;
use super::space::{Ledger, Start};
use super::spaces::{AddressSpaces, SpaceId};
use crate::model::event::VmOp;
use crate::model::{AddrRange, Mapping, Tid, VmEvent};
use std::collections::HashMap;

/// A child whose mappings hold ranges the parent's ledger did not know at the fork: calls that
/// took effect before the fork and are reported after it.
#[derive(Debug)]
pub(super) struct Awaiting {
    child: SpaceId,
    ranges: RangeSet,
    /// Number of the fork's report in the parent's address space.
    forked: u64,
    /// The parent's threads that have not reported since the fork.
    threads: Vec<Tid>,
}

impl AddressSpaces {
    pub(super) fn fork(&mut self, event: &VmEvent) {
        let VmOp::Fork { child_pid, child_tid, child_mm, child_sp, is_thread, mappings } = &event.op else {
            return;
        };
        let parent_id = self.space_for(event);
        self.apply_in(parent_id, event);
        if *is_thread || *child_mm == event.mm {
            if !*is_thread {
                self.new_process(event, *child_pid);
                self.join(*child_pid, parent_id);
            }
            if let Some(space) = self.spaces.get_mut(&parent_id) {
                // It did not exist before: no earlier unmapping can be its.
                let now = space.ledger.reports;
                space.ledger.threads.insert(*child_tid, now);
            }
        } else {
            self.new_process(event, *child_pid);
            self.copy_space(event, parent_id, mappings.as_deref());
        }
        self.note_child_thread(*child_pid, *child_tid, event, *child_sp);
    }

    fn new_process(&mut self, event: &VmEvent, child: i32) {
        let parent = self.process(event.task.pid);
        let (exe, exec_ns) = parent.map_or((None, None), |p| (p.exe.clone(), p.exec_ns));
        // A pid that is used again: the old process is gone, whether its exit was seen or not.
        let old = self.process(child).and_then(|p| p.space);
        if let Some(old) = old {
            self.abandon(child, old);
        }
        let index = self.add_process(child);
        if let Some(process) = self.processes.get_mut(index) {
            process.parent = Some(event.task.pid);
            process.comm.clone_from(&event.task.comm);
            process.created_ns = Some(event.time_ns);
            process.exe = exe;
            process.exec_ns = exec_ns;
        }
    }

    fn copy_space(&mut self, event: &VmEvent, parent: SpaceId, mappings: Option<&[Mapping]>) {
        let VmOp::Fork { child_pid, child_tid, child_mm, .. } = &event.op else { return };
        let Some(space) = self.spaces.get(&parent) else { return };
        let mut ledger = space.ledger.copy_for_child(*child_tid);
        let forked = space.ledger.reports;
        let threads: Vec<Tid> =
            space.ledger.threads.keys().copied().filter(|&t| t != event.task.tid).collect();
        let unknown = match mappings {
            Some(mappings) => ledger.restrict_to(mappings, &mut self.files),
            None => {
                ledger.drop_dont_fork();
                RangeSet::default()
            }
        };
        let child = self.add_space(*child_mm, ledger);
        self.join(*child_pid, child);
        if !unknown.is_empty()
            && !threads.is_empty()
            && let Some(space) = self.spaces.get_mut(&parent)
        {
            space.awaiting.push(Awaiting { child, ranges: unknown, forked, threads });
        }
    }

    /// A call of the parent is reported: children that were forked while it was on its way learn
    /// who made their ranges.
    pub(super) fn explain_to_children(&mut self, parent: SpaceId, event: &VmEvent, previous: u64) {
        let Some(space) = self.spaces.get_mut(&parent) else { return };
        if space.awaiting.is_empty() {
            return;
        }
        let made = made_by(event);
        let mut told: Vec<(SpaceId, Vec<AddrRange>)> = Vec::new();
        space.awaiting.retain_mut(|waiting| {
            if previous < waiting.forked
                && let Some(range) = made
            {
                let parts = waiting.ranges.overlaps_of(range);
                waiting.ranges.remove(range);
                if !parts.is_empty() {
                    told.push((waiting.child, parts));
                }
            }
            waiting.threads.retain(|&t| t != event.task.tid);
            !waiting.ranges.is_empty() && !waiting.threads.is_empty()
        });
        for (child, parts) in told {
            if let Some(space) = self.spaces.get_mut(&child) {
                space.ledger.adopt(event, &parts);
            }
        }
    }
}

/// What a successful call mapped, as far as its arguments tell.
fn made_by(event: &VmEvent) -> Option<AddrRange> {
    if event.failed() {
        return None;
    }
    let ret = crate::model::Addr(event.ret as u64);
    match &event.op {
        VmOp::Mmap { len, .. } | VmOp::MapShadowStack { len, .. } => Some(super::effects::pages(ret, *len)),
        VmOp::Mremap { new_len, .. } => Some(super::effects::pages(ret, *new_len)),
        VmOp::Shmat { mapped, .. } | VmOp::IoSetup { mapped, .. } => *mapped,
        // Where the break was before is not in the event; `adopt` takes only what nobody owns.
        VmOp::Brk { .. } => Some(AddrRange::new(0, ret.page_up().0)),
        _ => None,
    }
}

impl Ledger {
    fn copy_for_child(&self, child_tid: Tid) -> Ledger {
        let mut child = self.clone();
        child.events = 0;
        child.failed = 0;
        child.reports = 0;
        child.threads = HashMap::from([(child_tid, 0)]);
        child.recent.clear();
        // Unmappings on their way are the parent's affair.
        let waiting: Vec<Piece> = child.limbo.pieces().cloned().collect();
        child.limbo = Default::default();
        child.release(waiting, super::space::Removal::Unmapped);
        // Equal sets of modules, equal generation.
        child.modules_changed = false;
        child
    }

    fn drop_dont_fork(&mut self) {
        let ranges: Vec<AddrRange> = self.dont_fork.iter().collect();
        for range in ranges {
            let gone = self.carve(range);
            self.release(gone, super::space::Removal::Unmapped);
            self.purged.remove(range);
        }
        self.dont_fork = RangeSet::default();
    }

    /// Makes the map exactly `mappings`. Returns the ranges that no piece explains.
    fn restrict_to(&mut self, mappings: &[Mapping], files: &mut FileTable) -> RangeSet {
        let mut beyond = RangeSet::default();
        beyond.insert(AddrRange::new(0, u64::MAX));
        let mut unknown = RangeSet::default();
        for mapping in mappings.iter().filter(|m| !m.is_special("[vsyscall]")) {
            beyond.remove(mapping.range);
            let foreign: Vec<AddrRange> = self
                .pieces
                .overlapping(mapping.range)
                .filter(|(_, a)| !may_be(a, mapping))
                .map(|(r, _)| r.intersect(mapping.range))
                .collect();
            for range in foreign {
                let gone = self.carve(range);
                self.release(gone, super::space::Removal::Replaced);
            }
            let prot = mapping.prot;
            if self.pieces.overlapping(mapping.range).any(|(_, a)| a.prot != prot) {
                self.pieces.update(mapping.range, |a| a.prot = prot);
            }
            for gap in self.fill_mapping(mapping, Owner::Unknown, files) {
                unknown.insert(gap);
            }
        }
        let outside: Vec<AddrRange> = beyond.iter().collect();
        for range in outside {
            if !self.pieces.is_free(range) {
                let gone = self.carve(range);
                self.release(gone, super::space::Removal::Unmapped);
            }
            self.forget_history(range);
        }
        self.dont_fork = RangeSet::default();
        if !unknown.is_empty() && self.start == Start::Exec {
            // A stack that grew is nobody's call.
            let stack: Vec<AddrRange> =
                mappings.iter().filter(|m| super::names::is_kernel_name(&m.name)).map(|m| m.range).collect();
            for range in stack {
                unknown.remove(range);
            }
        }
        unknown
    }

    /// Maps the parts of each mapping that the ledger has nothing at.
    pub(super) fn fill_gaps(&mut self, mappings: &[Mapping], owner: Owner, files: &mut FileTable) {
        for mapping in mappings.iter().filter(|m| !m.is_special("[vsyscall]")) {
            self.fill_mapping(mapping, owner, files);
        }
    }

    /// Maps what is free in a mapping's range; returns the parts.
    pub(super) fn fill_mapping(
        &mut self,
        mapping: &Mapping,
        owner: Owner,
        files: &mut FileTable,
    ) -> Vec<AddrRange> {
        let mut gaps = Vec::new();
        let mut at = mapping.range.start.0;
        for (piece, _) in self.pieces.overlapping(mapping.range) {
            if piece.start.0 > at {
                gaps.push(AddrRange::new(at, piece.start.0));
            }
            at = at.max(piece.end.0);
        }
        if at < mapping.range.end.0 {
            gaps.push(AddrRange::new(at, mapping.range.end.0));
        }
        if gaps.is_empty() {
            return gaps;
        }
        let whole = Piece { range: mapping.range, attr: attributes_of(mapping, owner, files) };
        for &gap in &gaps {
            self.put(whole.clipped(gap));
        }
        gaps
    }

    /// Parts that nobody owned are the parent's late call's.
    fn adopt(&mut self, event: &VmEvent, parts: &[AddrRange]) {
        let mut bytes = 0;
        let slot: Slot = self.origins.add(Call::of(event));
        // Holds the slot while the pieces are counted.
        self.origins.own(slot, 1);
        let mut found: Vec<AddrRange> = Vec::new();
        for &part in parts {
            let unowned = self.pieces.overlapping(part).filter(|(_, a)| a.owner == Owner::Unknown);
            found.extend(unowned.map(|(r, _)| r.intersect(part)));
        }
        for part in found {
            bytes += part.len();
            self.pieces.update(part, |a| a.owner = Owner::Event(slot));
        }
        self.origins.own(slot, bytes);
        if let Some(entry) = self.origins.get_mut(slot) {
            entry.mapped = bytes;
        }
        self.origins.disown(slot, 1);
    }
}

/// False when the piece is certainly not what the kernel shows.
pub(super) fn may_be(attr: &Attributes, mapping: &Mapping) -> bool {
    let anonymous = matches!(attr.kind, RegionKind::Anonymous | RegionKind::Brk | RegionKind::Stack);
    let zero_device = mapping.name.starts_with(b"/dev/zero");
    if attr.sharing != mapping.sharing {
        return false;
    }
    match mapping.file {
        Some(_) => !anonymous || zero_device,
        None => attr.kind != RegionKind::File || attr.file.as_ref().is_none_or(|f| f.inode == 0),
    }
}

impl AddressSpaces {
    /// A process whose end was not seen: its pid belongs to another one now.
    fn abandon(&mut self, pid: crate::model::Pid, id: SpaceId) {
        let exited = self.process(pid).is_some_and(|p| p.wait_status.is_some());
        if exited {
            return;
        }
        if let Some(space) = self.spaces.get_mut(&id) {
            space.users.remove(&pid);
            if space.users.is_empty() {
                let key = space.key;
                if self.by_mm.get(&key) == Some(&id) {
                    self.by_mm.remove(&key);
                }
                self.spaces.remove(&id);
            }
        }
    }
}
