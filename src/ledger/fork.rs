//! New tasks: threads and vfork children share the address space, others get a copy.

use super::space::origins::OriginEntry;
use super::space::piece::Piece;
use super::space::range_set::RangeSet;
use super::spaces::{AddressSpaces, SpaceId};
use crate::model::event::VmOp;
use crate::model::{AddrRange, Tid, VmEvent};

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

/// What a parent's late call made, with its origin there, if it is an event.
#[derive(Debug)]
pub(super) struct Late {
    pub(super) piece: Piece,
    pub(super) entry: Option<OriginEntry>,
}

impl AddressSpaces {
    pub(super) fn fork(&mut self, event: &VmEvent) {
        let VmOp::Fork { child_pid, child_tid, child_mm, child_sp, is_thread, .. } = &event.op else {
            return;
        };
        let parent_id = self.space_for(event);
        let previous = self.apply_in(parent_id, event);
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
            self.copy_space(event, parent_id, previous);
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
            process.begun_ns = Some(event.time_ns);
            process.exe = exe;
            process.exec_ns = exec_ns;
        }
    }

    fn copy_space(&mut self, event: &VmEvent, parent: SpaceId, previous: u64) {
        let VmOp::Fork { child_pid, child_tid, child_mm, child_brk, mappings, .. } = &event.op else {
            return;
        };
        let Some(space) = self.spaces.get_mut(&parent) else { return };
        let mut ledger = space.ledger.copy_for_child(*child_tid);
        let forked = space.ledger.reports;
        let threads: Vec<Tid> =
            space.ledger.threads.keys().copied().filter(|&t| t != event.task.tid).collect();
        let mut unknown = match mappings {
            Some(mappings) => ledger.restrict_to(mappings, previous, &mut self.files),
            None => {
                ledger.drop_dont_fork();
                RangeSet::default()
            }
        };
        let parent_ledger = &space.ledger;
        ledger.settle_child(parent_ledger, &mut unknown, mappings.is_some());
        ledger.forget_removed();
        ledger.peak = ledger.peak.for_copy(event.time_ns);
        if child_brk.is_some() {
            ledger.brk = *child_brk;
        }
        let child = self.add_space(*child_mm, ledger);
        self.join(*child_pid, child);
        self.inherit_awaited(parent, child);
        if !unknown.is_empty() && !threads.is_empty() {
            self.await_reports(parent, Awaiting { child, ranges: unknown, forked, threads });
        }
    }

    fn await_reports(&mut self, of: SpaceId, waiting: Awaiting) {
        if let Some(child) = self.spaces.get_mut(&waiting.child) {
            child.explained_by.push(of);
        }
        if let Some(space) = self.spaces.get_mut(&of) {
            space.awaiting.push(waiting);
        }
    }

    /// What `from` waits for when it forks, its child waits for as well.
    fn inherit_awaited(&mut self, from: SpaceId, child: SpaceId) {
        let Some(ledger) = self.spaces.get(&child).map(|s| &s.ledger) else { return };
        let Some(forker) = self.spaces.get(&from) else { return };
        let mut inherited: Vec<(SpaceId, Awaiting)> = Vec::new();
        for &explains in &forker.explained_by {
            let Some(space) = self.spaces.get(&explains) else { continue };
            for waiting in space.awaiting.iter().filter(|w| w.child == from) {
                let mut ranges = RangeSet::default();
                for range in waiting.ranges.iter() {
                    ledger.unowned(range).for_each(|(part, _)| ranges.insert(part));
                }
                if !ranges.is_empty() {
                    let (forked, threads) = (waiting.forked, waiting.threads.clone());
                    inherited.push((explains, Awaiting { child, ranges, forked, threads }));
                }
            }
        }
        for (explains, waiting) in inherited {
            self.await_reports(explains, waiting);
        }
    }

    /// A call of the parent is reported: children that were forked while it was on its way learn
    /// who made their ranges.
    pub(super) fn explain_to_children(&mut self, parent: SpaceId, event: &VmEvent, previous: u64) {
        let Some(space) = self.spaces.get_mut(&parent) else { return };
        if space.awaiting.is_empty() {
            return;
        }
        // Only a call that began before the fork was reported can have had its effect before it.
        let told: Vec<(SpaceId, Vec<Late>)> = space
            .awaiting
            .iter()
            .filter(|waiting| previous < waiting.forked && !event.failed())
            .map(|waiting| (waiting.child, space.ledger.made_by(event, &waiting.ranges)))
            .filter(|(_, made)| !made.is_empty())
            .collect();
        let mut explained: Vec<(SpaceId, AddrRange)> = Vec::new();
        for (child, made) in told {
            if let Some(space) = self.spaces.get_mut(&child) {
                let parts = made.iter().flat_map(|late| space.ledger.adopt(late));
                explained.extend(parts.map(|part| (child, part)));
            }
            self.renew_modules(child);
        }
        let Some(space) = self.spaces.get_mut(&parent) else { return };
        space.awaiting.retain_mut(|waiting| {
            for (_, part) in explained.iter().filter(|(child, _)| *child == waiting.child) {
                waiting.ranges.remove(*part);
            }
            waiting.threads.retain(|&t| t != event.task.tid);
            !waiting.ranges.is_empty() && !waiting.threads.is_empty()
        });
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
