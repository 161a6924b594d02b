//! `touch` without a kernel: events and faults in, rows and pages out.

use vmaudit::ledger::{AddressSpaces, HeldBy};
use vmaudit::model::event::VmOp;
use vmaudit::model::{Addr, AddrRange, EventId, MmKey, NoStack, PAGE, StackId, Task, Touch, VmEvent};
use vmaudit::touch::{Count, Touches};

const MM: MmKey = MmKey(1);
const AT: u64 = 0x7f00_0000_0000;
const EVERYTHING: AddrRange = AddrRange { start: Addr(0), end: Addr(1 << 47) };

#[derive(Default)]
struct World {
    spaces: AddressSpaces,
    touches: Touches,
    events: u64,
}

impl World {
    fn event(&mut self, pid: i32, mm: MmKey, op: VmOp, ret: u64) {
        self.events += 1;
        let event = VmEvent {
            id: EventId(self.events),
            time_ns: self.events,
            task: Task { pid, tid: pid, comm: b"test".to_vec() },
            mm,
            op,
            ret: ret as i64,
            stack: Ok(StackId(self.events as u32)),
            total_vm: None,
        };
        self.spaces.apply(&event);
        self.touches.follow(&event, &self.spaces);
    }

    /// Its stack has the number of the event.
    fn map(&mut self, at: u64, pages: u64, prot: u64, flags: u64) {
        let op = VmOp::Mmap {
            addr: Addr(0),
            len: pages * PAGE,
            prot,
            flags: 0x22 | flags,
            fd: -1,
            offset: 0,
            file: None,
        };
        self.event(1, MM, op, at);
    }

    fn touch(&mut self, page: u64, stack: u32, weight: u32) {
        self.touch_as(MM, AT + page * PAGE + 8, stack, weight);
    }

    fn touch_as(&mut self, mm: MmKey, address: u64, stack: u32, weight: u32) {
        let touch = Touch {
            time_ns: self.events,
            pid: 1,
            tid: 1,
            mm,
            address: Addr(address),
            weight,
            write: true,
            in_kernel: false,
            present: false,
            stack: if stack == 0 { Err(NoStack::Unreadable) } else { Ok(StackId(stack)) },
        };
        self.touches.touch(&touch, &self.spaces);
    }

    /// (who reserved, who touched, faults), sorted.
    fn rows(&self, mm: MmKey) -> Vec<(HeldBy, Option<u32>, u64)> {
        let space = self.spaces.space_of_mm(mm).and_then(|id| self.touches.of_space(id)).expect("touched");
        let row = |(id, count): (_, Count)| {
            let row = self.touches.row(id).expect("a row");
            (row.reserved, row.touched.map(|stack| stack.0), count.faults)
        };
        let mut rows: Vec<_> = space.largest(100).into_iter().map(row).collect();
        rows.sort_by_key(|&(_, touched, faults)| (touched, faults));
        rows
    }

    /// (page, who touched it last)
    fn pages(&self, mm: MmKey) -> Vec<(u64, Option<u32>)> {
        let space = self.spaces.space_of_mm(mm).and_then(|id| self.touches.of_space(id)).expect("touched");
        let toucher =
            |sample: vmaudit::touch::Sample| self.touches.row(sample.row).and_then(|row| row.touched);
        let pages = space.pages.within(EVERYTHING);
        pages.map(|(addr, sample)| ((addr.0 - AT) / PAGE, toucher(sample).map(|s| s.0))).collect()
    }
}

fn call(stack: u32) -> HeldBy {
    HeldBy::Call(Some(StackId(stack)))
}

#[test]
fn a_touch_is_joined_with_who_holds_the_page_at_that_moment() {
    let mut world = World::default();
    world.map(AT, 10, 3, 0);
    world.touch(0, 100, 1);
    world.touch(0, 101, 1);
    world.event(1, MM, VmOp::Munmap { addr: Addr(AT), len: 4 * PAGE }, 0);
    world.map(AT, 4, 3, 0);
    world.touch(0, 100, 1);
    world.touch(5, 100, 4);
    assert_eq!(
        world.rows(MM),
        [(call(3), Some(100), 1), (call(1), Some(100), 5), (call(1), Some(101), 1)],
        "two reservations, one address"
    );
    assert_eq!(world.pages(MM), [(0, Some(100)), (5, Some(100))]);
}

#[test]
fn what_is_not_mapped_or_not_allowed_is_in_no_row() {
    let mut world = World::default();
    world.map(AT, 1, 0, 0);
    world.map(AT + 8 * PAGE, 1, 1, 0);
    world.touch(0, 100, 2);
    world.touch(8, 100, 3);
    world.touch(100, 100, 5);
    let id = world.spaces.space_of_mm(MM).expect("known");
    let space = world.touches.of_space(id).expect("touched");
    assert_eq!((space.refused, space.outside, space.total), (5, 5, Count::default()));
}

#[test]
fn pages_given_back_moved_and_populated() {
    let mut world = World::default();
    world.map(AT, 10, 3, 0);
    for page in 0..4 {
        world.touch(page, 100, 1);
    }
    let advice = |advice, page: u64| VmOp::Madvise { addr: Addr(AT + page * PAGE), len: PAGE, advice };
    world.event(1, MM, advice(4, 0), 0);
    world.event(1, MM, advice(14, 1), 0);
    assert_eq!(world.pages(MM), [(1, Some(100)), (2, Some(100)), (3, Some(100))]);
    let (old, old_len, new_len) = (Addr(AT + 2 * PAGE), PAGE, 2 * PAGE);
    let op = VmOp::Mremap { old, old_len, new_len, flags: 1, new_addr: Addr(0) };
    world.event(1, MM, op, AT + 50 * PAGE);
    assert_eq!(world.pages(MM), [(1, Some(100)), (3, Some(100)), (50, Some(100))]);
    world.event(1, MM, advice(23, 3), 0);
    assert_eq!(world.pages(MM)[1], (3, Some(5)), "MADV_POPULATE_WRITE is who made it resident");
    assert!(world.rows(MM).contains(&(call(1), Some(5), 0)), "and took no fault");
}

#[test]
fn a_refused_call_changes_nothing() {
    let mut world = World::default();
    world.map(AT, 10, 3, 0);
    world.touch(1, 100, 1);
    world.event(1, MM, VmOp::Munmap { addr: Addr(AT), len: 10 * PAGE }, -22i64 as u64);
    assert_eq!(world.pages(MM), [(1, Some(100))]);
}

#[test]
fn a_child_inherits_pages_but_no_faults() {
    let mut world = World::default();
    world.map(AT, 10, 3, 0);
    world.touch(1, 100, 1);
    world.touch(2, 100, 1);
    let child_mm = MmKey(2);
    let fork = VmOp::Fork {
        child_pid: 2,
        child_tid: 2,
        child_mm,
        child_sp: Addr(0),
        child_brk: None,
        is_thread: false,
        mappings: None,
    };
    world.event(1, MM, fork, 2);
    world.touch_as(child_mm, AT + 2 * PAGE, 200, 1);
    world.touch(3, 100, 1);
    assert_eq!(world.rows(child_mm), [(call(1), Some(100), 0), (call(1), Some(200), 1)]);
    assert_eq!(world.pages(child_mm), [(1, Some(100)), (2, Some(200))]);
    assert_eq!(world.pages(MM), [(1, Some(100)), (2, Some(100)), (3, Some(100))]);
}

#[test]
fn faults_of_an_execve_under_way_wait_for_its_report() {
    let mut world = World::default();
    world.map(AT, 1, 3, 0);
    let fresh = MmKey(9);
    world.touch_as(fresh, 0x40_0000, 0, 1);
    assert_eq!(world.touches.unplaced(), 1);
    let image = vmaudit::model::Mapping {
        range: AddrRange::new(0x40_0000, 0x41_0000),
        prot: vmaudit::model::Prot::RW,
        sharing: vmaudit::model::Sharing::Private,
        offset: 0,
        file: None,
        name: Vec::new(),
    };
    let exec = VmOp::Exec {
        exe: None,
        start_brk: Addr(0),
        brk: Addr(0),
        start_stack: Addr(0),
        compat: false,
        mappings: Some(vec![image]),
    };
    world.event(1, fresh, exec, 0);
    assert_eq!(world.rows(fresh), [(HeldBy::Kernel, None, 1)]);
    assert_eq!(world.touches.unplaced(), 0);
}

#[test]
fn the_error_follows_from_the_weights() {
    let count = |weights: &[(u32, usize)]| {
        let mut count = Count::default();
        for &(weight, times) in weights {
            (0..times).for_each(|_| count.add(weight));
        }
        count
    };
    assert_eq!(count(&[(1, 500)]).error(), 0.0, "every fault was recorded");
    let sampled = count(&[(100, 400)]);
    assert_eq!((sampled.faults, sampled.samples), (40_000, 400));
    assert!((sampled.error() - 1.96 / 20.0).abs() < 0.001, "1.96/sqrt(n): {}", sampled.error());
    assert!(count(&[(1, 40_000), (100, 400)]).error() < sampled.error());
}
