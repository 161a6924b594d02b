//! Processes, and whether their address spaces are their own.

use crate::ledger::AddressSpaces;
use crate::model::Pid;

/// A vfork child that has not executed anything: its end is not the end of an address space.
pub fn shares_space_with_parent(spaces: &AddressSpaces, pid: Pid) -> bool {
    let parent = spaces.process(pid).and_then(|process| process.parent);
    match (spaces.ledger_of_pid(pid), parent.and_then(|parent| spaces.ledger_of_pid(parent))) {
        (Some(own), Some(parents)) => std::ptr::eq(own, parents),
        _ => false,
    }
}

/// Processes that live and have an address space of their own.
pub fn living(spaces: &AddressSpaces) -> Vec<Pid> {
    let alive = spaces.processes().iter().filter(|process| process.exited_ns.is_none());
    alive.map(|process| process.pid).filter(|&pid| !shares_space_with_parent(spaces, pid)).collect()
}

/// Holding is inherited by every process that the command starts, tracing need not be; and a
/// vfork child's end is not the end of an address space.
pub fn is_audited(spaces: &AddressSpaces, pid: Pid) -> bool {
    spaces.process(pid).is_some() && !shares_space_with_parent(spaces, pid)
}
