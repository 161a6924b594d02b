//! New tasks: threads and vfork children share the address space, others get a copy.

use super::AddressSpaces;
use super::table::SpaceId;
use crate::ledger::space::Ledger;
use crate::ledger::space::copy::{Forked, Late};
use crate::model::event::VmOp;
use crate::model::{AddrRange, Pid, Tid, VmEvent};

impl AddressSpaces {
    pub(super) fn fork(&mut self, event: &VmEvent) {
        let VmOp::Fork { child_pid, child_tid, child_mm, child_sp, is_thread, .. } = &event.op else {
            return;
        };
        let parent = self.space_for(event);
        let previous = self.apply_in(parent, event);
        if !*is_thread {
            self.abandon(*child_pid);
            self.processes.add_forked(event, *child_pid);
        }
        if *is_thread || *child_mm == event.mm {
            if !*is_thread {
                self.join(*child_pid, parent);
            }
            self.table.change(parent, |ledger| ledger.thread_began(*child_tid));
        } else {
            self.copy_space(event, parent, previous);
        }
        // Where a forked child's stack pointer lies is in its record.
        self.processes.get_or_add(*child_pid).thread_began(*child_tid, event, *child_sp);
    }

    /// A pid that is used again: the old process is gone, and where its exit was not seen its address
    /// space with it.
    fn abandon(&mut self, pid: Pid) {
        let Some(old) = self.process(pid).filter(|old| old.wait_status.is_none()) else { return };
        if let Some(id) = old.space()
            && self.table.leave(id, pid, &[])
        {
            self.awaiting.forget(id);
            self.table.remove(id);
        }
    }

    fn copy_space(&mut self, event: &VmEvent, parent: SpaceId, previous: u64) {
        let VmOp::Fork { child_pid, child_tid, child_mm, child_brk, mappings, .. } = &event.op else {
            return;
        };
        let Some(ledger) = self.table.get(parent) else { return };
        let threads: Vec<Tid> = ledger.reports().threads().filter(|&t| t != event.task.tid).collect();
        let forked = ledger.reports().number();
        let fork = Forked {
            child: *child_tid,
            time_ns: event.time_ns,
            brk: *child_brk,
            mappings: mappings.as_deref(),
            previous,
        };
        let (copy, unknown) = ledger.fork(fork, &mut self.files);
        let child = self.table.add(*child_mm, copy);
        self.join(*child_pid, child);
        if let Some(copy) = self.table.get(child) {
            let unowned = |range| copy.unowned(range).map(|(part, _)| part).collect();
            self.awaiting.inherit(parent, child, unowned);
        }
        self.awaiting.add((parent, child), unknown, (forked, threads));
    }

    /// A call of the parent is reported: children that were forked before it was reported get it as the
    /// origin of their ranges.
    pub(super) fn explain_to_children(&mut self, parent: SpaceId, event: &VmEvent, previous: u64) {
        let Some(ledger) = self.table.get(parent) else { return };
        let made: Vec<(SpaceId, Vec<Late>)> = match event.failed() {
            true => Vec::new(),
            false => self
                .awaiting
                .of(parent, previous)
                .map(|(c, ranges)| (c, ledger.made_by(event, ranges)))
                .collect(),
        };
        let mut explained: Vec<(SpaceId, AddrRange)> = Vec::new();
        for (child, made) in made {
            let adopt =
                |ledger: &mut Ledger| made.iter().flat_map(|late| ledger.adopt(late)).collect::<Vec<_>>();
            let parts = self.table.change(child, adopt).unwrap_or_default();
            explained.extend(parts.into_iter().map(|part| (child, part)));
        }
        self.awaiting.reported(parent, event.task.tid, &explained);
    }
}
