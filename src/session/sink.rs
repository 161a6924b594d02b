//! What listens to a session's events: a recording, what is printed or shown meanwhile, page faults, heaps.

use crate::capture::heap::wire::{CapturedHeap, CapturedSite};
use crate::capture::uprobe::wire::CapturedCall;
use crate::ledger::AddressSpaces;
use crate::model::{
    MmKey, Observations, Pid, SizePoint, StackId, StackTable, SymbolizedStacks, Touch, VmEvent,
};
use crate::unwind::Unwinder;

/// What the pipeline knows when a sink is called: the event has been applied.
pub struct Context<'a> {
    pub spaces: &'a AddressSpaces,
    pub stacks: &'a StackTable,
    pub unwinder: &'a mut Unwinder,
}

/// Each is called in the order in which sinks were added.
pub trait Sink {
    /// A process that ran before it was traced, as it was found; `mm` is what its events carry.
    fn found(&mut self, _mm: MmKey, _seen: &Observations, _context: &mut Context<'_>) {}

    fn event(&mut self, _event: &VmEvent, _context: &mut Context<'_>) {}

    /// A page fault, with its stack.
    fn touched(&mut self, _touch: &Touch, _context: &mut Context<'_>) {}

    /// An allocation, a free …
    fn allocated(&mut self, _captured: &CapturedHeap<'_>, _context: &mut Context<'_>) {}

    /// The stack of what the kernel's side counts.
    fn site(&mut self, _site: &CapturedSite<'_>, _stack: StackId) {}

    /// A call of a probed function.
    fn probed(&mut self, _call: &CapturedCall<'_>, _stack: StackId) {}

    /// Events were lost.
    fn lost(&mut self) {}

    /// All that the ledger knows from before this time is doubtful (CLOCK_MONOTONIC, ns).
    fn lost_before(&mut self, _time_ns: u64, _context: &mut Context<'_>) {}

    /// What the ledger takes over after a loss.
    fn resynced(&mut self, _seen: &Observations, _context: &mut Context<'_>) {}

    /// A snapshot that a report may be made from, with the ledger as it is now.
    fn snapshot(&mut self, _seen: &Observations, _context: &mut Context<'_>) {}

    /// What a snapshot came to.
    fn point(&mut self, _point: &SizePoint) {}

    /// The newest snapshot of a process, and its point, are worth nothing.
    fn snapshot_discarded(&mut self, _pid: Pid) {}

    /// Names that the report uses.
    fn named(&mut self, _names: &SymbolizedStacks, _context: &mut Context<'_>) {}

    /// Nothing was started.
    fn abandoned(&mut self) {}

    /// Called regularly, also while nothing happens. False when the sink needs no more.
    fn turn(&mut self, _context: &mut Context<'_>) -> bool {
        true
    }
}
