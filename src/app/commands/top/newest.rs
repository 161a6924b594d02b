//! The newest calls that reserved addresses.

use crate::model::{Addr, MmKey, Observations, VmEvent, VmOp};
use crate::session::sink::{Context, Sink};
use std::collections::{HashMap, VecDeque};

/// More than anybody scrolls through.
const MOST: usize = 1000;

/// A call that reserved addresses.
pub struct Reservation {
    /// From 1, in order of arrival.
    pub number: u64,
    pub event: VmEvent,
    /// None where that is not known.
    pub bytes: Option<u64>,
}

/// Keeps the newest reservations of a trace.
#[derive(Default)]
pub struct Newest {
    kept: VecDeque<Reservation>,
    seen: u64,
    /// Where each heap ends: brk says where to, not how much.
    breaks: HashMap<MmKey, Addr>,
}

impl Newest {
    fn note(&mut self, event: &VmEvent) {
        let Some(bytes) = self.reserved(event) else { return };
        self.seen += 1;
        if self.kept.len() == MOST {
            self.kept.pop_front();
        }
        self.kept.push_back(Reservation { number: self.seen, event: event.clone(), bytes });
    }

    /// Newest first.
    pub fn kept(&self) -> impl Iterator<Item = &Reservation> {
        self.kept.iter().rev()
    }

    /// None: it reserved nothing. Some(None): it did, how much is not known.
    fn reserved(&mut self, event: &VmEvent) -> Option<Option<u64>> {
        match &event.op {
            VmOp::Fork { child_mm, child_brk: Some(brk), .. } if *child_mm != event.mm => {
                self.breaks.insert(*child_mm, *brk);
            }
            VmOp::Exec { brk, .. } => {
                self.breaks.insert(event.mm, *brk);
            }
            _ => {}
        }
        if event.failed() {
            return None;
        }
        let [first, second] = event.ranges().map(|range| range.len());
        match &event.op {
            VmOp::Mmap { .. } | VmOp::MapShadowStack { .. } => Some(Some(first)),
            VmOp::Mremap { .. } if second > first => Some(Some(second - first)),
            VmOp::Shmat { .. } | VmOp::IoSetup { .. } => Some(Some(first).filter(|&bytes| bytes > 0)),
            VmOp::Brk { requested, .. } => {
                let to = Addr(event.ret as u64).page_up();
                let before = self.breaks.insert(event.mm, to);
                match before.map(Addr::page_up) {
                    Some(before) if to > before => Some(Some(to.0 - before.0)),
                    None if requested.0 != 0 => Some(None),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

impl Sink for Newest {
    /// A process as it was when tracing began.
    fn found(&mut self, mm: MmKey, seen: &Observations, _: &mut Context<'_>) {
        let heap = seen.mappings.iter().filter(|mapping| mapping.is_special("[heap]"));
        if let Some(end) = heap.map(|mapping| mapping.range.end).max() {
            self.breaks.insert(mm, end);
        }
    }

    fn event(&mut self, event: &VmEvent, _: &mut Context<'_>) {
        self.note(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{EventId, NoStack, Task};

    fn event(op: VmOp, ret: i64) -> VmEvent {
        let task = Task { pid: 1, tid: 1, comm: b"x".to_vec() };
        let (id, mm, stack) = (EventId(1), MmKey(7), Err(NoStack::NotTaken));
        VmEvent { id, time_ns: 0, task, mm, op, ret, stack, total_vm: None }
    }

    fn brk(to: u64) -> VmEvent {
        event(VmOp::Brk { requested: Addr(to), current: None }, to as i64)
    }

    fn mmap(len: u64, ret: i64) -> VmEvent {
        let addr = Addr(0);
        event(VmOp::Mmap { addr, len, prot: 3, flags: 0x22, fd: -1, offset: 0, file: None }, ret)
    }

    #[test]
    fn what_reserves_and_how_much() {
        let mut newest = Newest::default();
        newest.note(&brk(0x10_0000));
        newest.note(&brk(0x10_3001));
        newest.note(&brk(0x10_2000));
        newest.note(&mmap(5000, 0x7000_0000));
        newest.note(&mmap(5000, -12));
        newest.note(&event(VmOp::Munmap { addr: Addr(0x7000_0000), len: 4096 }, 0));
        let (old, flags) = (Addr(0x7000_0000), 1);
        for new_len in [4096, 3 * 4096] {
            let op = VmOp::Mremap { old, old_len: 8192, new_len, flags, new_addr: Addr(0) };
            newest.note(&event(op, 0x7000_0000));
        }
        let kept: Vec<_> = newest.kept().map(|kept| (kept.number, kept.bytes)).collect();
        assert_eq!(kept, [(4, Some(4096)), (3, Some(8192)), (2, Some(0x4000)), (1, None)]);
    }

    #[test]
    fn the_oldest_go() {
        let mut newest = Newest::default();
        (0..MOST as u64 + 5).for_each(|n| newest.note(&mmap(4096, 0x7000_0000 + n as i64 * 4096)));
        assert_eq!(newest.kept().count(), MOST);
        assert_eq!(newest.kept().next().map(|kept| kept.number), Some(MOST as u64 + 5));
    }
}
