//! What a long run keeps, and what a fork shares.

use super::*;
use crate::ledger::AddressSpaces;
use crate::model::event::VmOp;
use crate::model::{MmKey, NoStack, StackId, Task};

fn event(id: u64, tid: Tid, op: VmOp, ret: u64) -> VmEvent {
    VmEvent {
        id: EventId(id),
        time_ns: id * 100,
        task: Task { pid: 1, tid, comm: b"loop".to_vec() },
        mm: MmKey(1),
        op,
        ret: ret as i64,
        stack: Err(NoStack::NotTaken),
        total_vm: None,
    }
}

/// A program with 5,000 mappings forks: the child has them without a copy, and a change copies what is
/// next to it only.
#[test]
fn a_fork_shares_what_neither_changes() {
    let mut spaces = AddressSpaces::new();
    let at = |page: u64| Addr(0x7f00_0000_0000 + page * 4096);
    for page in 0..5000 {
        let prot = 1 + 2 * (page % 2);
        let (addr, fd) = (at(page), u64::MAX as u32 as i32);
        let map = VmOp::Mmap { addr, len: 4096, prot, flags: 0x32, fd, offset: 0, file: None };
        spaces.apply(&event(page + 1, 1, map, at(page).0));
    }
    let fork = VmOp::Fork {
        child_pid: 2,
        child_tid: 2,
        child_mm: MmKey(2),
        child_sp: Addr(0),
        child_brk: None,
        is_thread: false,
        mappings: None,
    };
    spaces.apply(&event(6000, 1, fork, 2));
    let shared = |spaces: &AddressSpaces| {
        let (parent, child) =
            (spaces.ledger_of_pid(1).expect("seen"), spaces.ledger_of_pid(2).expect("seen"));
        let (parent, child) = (&parent.mapped, &child.mapped);
        (child.pieces().shared_with(parent.pieces()), child.origins().shared_with(parent.origins()))
    };
    let ((pieces, of_them), (origins, of_those)) = shared(&spaces);
    assert!(pieces >= 5000 / 64 && origins == 5000_usize.div_ceil(64));
    assert_eq!((of_them, of_those), (pieces, origins));
    let unmap = VmEvent {
        task: Task { pid: 2, tid: 2, comm: b"loop".to_vec() },
        mm: MmKey(2),
        ..event(6001, 2, VmOp::Munmap { addr: at(2500), len: 4096 }, 0)
    };
    spaces.apply(&unmap);
    assert_eq!(shared(&spaces), ((pieces, pieces - 1), (origins, origins - 1)));
    assert_eq!(spaces.ledger_of_pid(1).map(|l| l.pieces().count()), Some(5000));
    assert_eq!(spaces.ledger_of_pid(2).map(|l| l.pieces().count()), Some(4999));
}

/// Each from a stack of its own: who has as much as at the peak is no change since.
#[test]
fn stacks_that_unmap_what_they_mapped_leave_nothing_at_the_peak() {
    let mut spaces = AddressSpaces::new();
    let at = Addr(0x7f00_0000_0000);
    let mut apply = |id: u64, stack: u32, op: VmOp, ret: u64| {
        spaces.apply(&VmEvent { stack: Ok(StackId(stack)), ..event(id, 1, op, ret) });
        let tracker = spaces.ledger_of_pid(1).expect("seen").mapped.peak();
        (tracker.virt(), tracker.changes().map(|(_, bytes, sample)| (bytes, sample.is_some())).collect())
    };
    let map = |len| VmOp::Mmap { addr: Addr(0), len, prot: 3, flags: 0x22, fd: -1, offset: 0, file: None };
    let unmap = |len| VmOp::Munmap { addr: at, len };
    assert_eq!(apply(1, 0, map(0x8000), at.0), (0x8000, vec![]));
    let (_, gone): (u64, Vec<(i64, bool)>) = apply(2, 0, unmap(0x8000), 0);
    assert_eq!(gone, [(-0x8000, true)], "with one of the pieces that were there at the peak");
    for stack in 1..1000 {
        let id = u64::from(stack) * 2 + 1;
        let (_, while_mapped) = apply(id, stack, map(0x4000), at.0);
        assert_eq!(while_mapped.len(), 2);
        assert_eq!(apply(id + 1, stack, unmap(0x4000), 0), (0x8000, vec![(-0x8000, true)]));
    }
}

/// Two threads map, name, shrink, and hand each other addresses; nothing of it stays.
#[test]
fn a_long_run_leaves_no_traces() {
    let mut spaces = AddressSpaces::new();
    let at = |page: u64| Addr(0x7f00_0000_0000 + page * 4096);
    for round in 0..30_000u64 {
        let file = FileRef { major: 0, minor: 1, inode: round, path: b"/tmp/x".to_vec(), deleted: true };
        let (addr, fd, file) = (Addr(0), 3, Some(file));
        let map = VmOp::Mmap { addr, len: 0x8000, prot: 5, flags: 2, fd, offset: 0, file };
        let place = at(round % 100 * 16);
        let tid = 1 + (round % 2) as Tid;
        spaces.apply(&event(round * 4 + 1, tid, map, place.0));
        let protect = VmOp::Mprotect { addr: place, len: 0x1000, prot: 1, pkey: None };
        spaces.apply(&event(round * 4 + 2, tid, protect, 0));
        if round % 3 != 0 {
            let unmap = VmOp::Munmap { addr: place, len: 0x8000 };
            spaces.apply(&event(round * 4 + 3, tid, unmap, 0));
        }
    }
    let ledger = spaces.ledger_of_pid(1).expect("seen");
    let kept = super::history::MAX_ENTRIES;
    assert!(ledger.mapped.origins().live() <= 100 + kept, "{}", ledger.mapped.origins().live());
    assert!(ledger.mapped.origins().slots() <= 202 + kept, "{}", ledger.mapped.origins().slots());
    assert!(ledger.recent.len() <= super::recent::MAX_ENTRIES);
    assert!(spaces.files().len() <= 4096, "{}", spaces.files().len());
    let mut ledger = ledger.clone();
    ledger.forget_removed();
    assert!(ledger.mapped.origins().live() <= 100, "{}", ledger.mapped.origins().live());
    let used: u64 = ledger.mapped.pieces().iter().map(|(r, _)| r.len()).sum();
    assert!(used <= 100 * 0x8000);
}
