//! The life of one address, from steps to entries: one story a test.

use vmaudit::ledger::{Change, Life, LifeWatch};
use vmaudit::model::{
    Addr, AddrRange, EventId, Mapping, MmKey, NoStack, Pid, Prot, Sharing, StackId, Step, Task, Tid, VmEvent,
    VmOp,
};

const BASE: u64 = 0x7f00_0000_0000;
const ANON: u64 = 0x22;
const FIXED: u64 = 0x10;

fn at(page: u64) -> Addr {
    Addr(BASE + page * 0x1000)
}

/// Steps of a process right after execve, watched at page 0.
struct Story {
    watch: LifeWatch,
    count: u64,
    pid: Pid,
    tid: Tid,
    mm: MmKey,
    stack: u32,
}

impl Story {
    fn new() -> Story {
        let watch = LifeWatch::new(Addr(BASE + 0x10));
        let mut story = Story { watch, count: 0, pid: 10, tid: 10, mm: MmKey(1), stack: 0 };
        story.exec(MmKey(1), Vec::new());
        story
    }

    fn report(&mut self, op: VmOp, ret: i64) {
        self.count += 1;
        self.watch.step(&Step::Event(VmEvent {
            id: EventId(self.count),
            time_ns: self.count * 1000,
            task: Task { pid: self.pid, tid: self.tid, comm: b"story".to_vec() },
            mm: self.mm,
            op,
            ret,
            stack: if self.stack == 0 { Err(NoStack::NotTaken) } else { Ok(StackId(self.stack)) },
            total_vm: None,
        }));
    }

    fn exec(&mut self, mm: MmKey, mappings: Vec<Mapping>) {
        self.mm = mm;
        let (start_brk, brk, start_stack) = (Addr(0x5000), Addr(0x5000), Addr(0x7fff_0000_0000));
        let mappings = Some(mappings);
        self.report(VmOp::Exec { exe: None, start_brk, brk, start_stack, compat: false, mappings }, 0);
    }

    fn map(&mut self, page: u64, pages: u64, prot: u64, flags: u64) {
        let (addr, len) = (at(page), pages * 0x1000);
        let op = VmOp::Mmap { addr, len, prot, flags, fd: -1, offset: 0, file: None };
        self.report(op, addr.0 as i64);
    }

    fn unmap(&mut self, page: u64, pages: u64) {
        self.report(VmOp::Munmap { addr: at(page), len: pages * 0x1000 }, 0);
    }

    fn protect(&mut self, page: u64, pages: u64, prot: u64, ret: i64) {
        let (addr, len) = (at(page), pages * 0x1000);
        self.report(VmOp::Mprotect { addr, len, prot, pkey: None }, ret);
    }

    fn advise(&mut self, page: u64, pages: u64, advice: i32, ret: i64) {
        self.report(VmOp::Madvise { addr: at(page), len: pages * 0x1000, advice }, ret);
    }

    fn remap(&mut self, (from, old): (u64, u64), (to, new): (u64, u64), flags: u64) {
        let (old_len, new_len) = (old * 0x1000, new * 0x1000);
        let op = VmOp::Mremap { old: at(from), old_len, new_len, flags, new_addr: at(to) };
        self.report(op, at(to).0 as i64);
    }

    fn fork(&mut self, child: Pid, child_mm: MmKey, is_thread: bool) {
        let op = VmOp::Fork {
            child_pid: if is_thread { self.pid } else { child },
            child_tid: child,
            child_mm,
            child_sp: at(500),
            child_brk: None,
            is_thread,
            mappings: None,
        };
        self.report(op, i64::from(child));
    }

    fn life(&self) -> Life {
        self.watch.life(self.pid).expect("something happened")
    }

    /// Every entry as (changes of its steps, times).
    fn changes(&self) -> Vec<(Vec<Change>, u64)> {
        let entries = self.life().entries.into_iter();
        entries
            .map(|entry| (entry.steps.into_iter().map(|step| step.change).collect(), entry.times))
            .collect()
    }

    /// As [`Story::changes`] where nothing was repeated.
    fn single_changes(&self) -> Vec<Change> {
        let one = |(steps, times): (Vec<Change>, u64)| {
            assert_eq!((steps.len(), times), (1, 1), "{steps:?}");
            steps.into_iter().next().expect("one")
        };
        self.changes().into_iter().map(one).collect()
    }
}

fn range(from: u64, to: u64) -> AddrRange {
    AddrRange::new(at(from).0, at(to).0)
}

const RW: Prot = Prot::RW;
const READ: Prot = Prot { read: true, write: false, exec: false };

#[test]
fn each_kind_of_step_is_reported() {
    let mut story = Story::new();
    story.map(0, 4, 3, ANON);
    story.protect(0, 1, 1, 0);
    story.protect(0, 1, 1, 0);
    story.advise(0, 4, 4, 0);
    story.map(0, 2, 0, ANON | FIXED);
    story.unmap(0, 1);
    let prots = |from, to| Change::Protected { from, to };
    assert_eq!(
        story.single_changes(),
        [
            Change::Mapped { range: range(0, 4) },
            prots(RW, READ),
            prots(READ, READ),
            Change::Advised,
            Change::Replaced { range: range(0, 2) },
            Change::Unmapped
        ]
    );
    let after: Vec<_> =
        story.life().entries.iter().map(|e| e.steps[0].after.as_ref().map(|p| p.prot)).collect();
    assert_eq!(after, [Some(RW), Some(READ), Some(READ), Some(READ), Some(Prot::NONE), None]);
}

#[test]
fn what_happens_outside_of_the_page_is_not_reported() {
    let mut story = Story::new();
    story.map(0, 4, 3, ANON);
    story.unmap(1, 1);
    story.protect(2, 2, 1, 0);
    story.advise(2, 1, 4, 0);
    story.map(1, 1, 3, ANON);
    story.map(10, 4, 3, ANON);
    assert_eq!(story.single_changes(), [Change::Mapped { range: range(0, 4) }]);
}

#[test]
fn refused_calls_are_reported_where_they_name_the_page() {
    let mut story = Story::new();
    story.map(0, 1, 3, ANON);
    story.protect(0, 1, 7, -13);
    let op = VmOp::Mmap { addr: at(0), len: 4096, prot: 3, flags: 0x10_0022, fd: -1, offset: 0, file: None };
    story.report(op, -17);
    let op = VmOp::Mmap { addr: at(0), len: 4096, prot: 3, flags: ANON, fd: -1, offset: 0, file: None };
    story.report(op, -12);
    assert_eq!(story.single_changes()[1..], [Change::Refused, Change::Refused]);
}

#[test]
fn an_mprotect_that_stops_at_a_hole_has_changed_what_comes_before() {
    let mut story = Story::new();
    story.map(0, 1, 3, ANON);
    story.protect(0, 4, 1, -12);
    assert_eq!(story.single_changes()[1], Change::Protected { from: RW, to: READ });
}

#[test]
fn moves_are_reported_at_both_ends() {
    let mut story = Story::new();
    story.map(4, 2, 3, ANON);
    story.remap((4, 2), (0, 3), 3);
    assert_eq!(story.single_changes(), [Change::MovedHere { from: at(4), range: range(0, 3) }]);
    story.remap((0, 3), (0, 5), 1);
    story.remap((0, 5), (20, 5), 3);
    assert_eq!(story.single_changes()[1..], [Change::MovedAway { to: at(20), kept: false }]);
    story.map(0, 1, 3, ANON);
    story.remap((0, 1), (40, 1), 5);
    assert_eq!(story.single_changes().last(), Some(&Change::MovedAway { to: at(40), kept: true }));
}

#[test]
fn what_a_move_adds_and_cuts_off() {
    let mut story = Story::new();
    story.watch = LifeWatch::new(at(2));
    story.exec(MmKey(1), Vec::new());
    story.map(0, 2, 3, ANON);
    story.remap((0, 2), (0, 3), 0);
    story.remap((0, 3), (0, 2), 0);
    assert_eq!(story.single_changes(), [Change::Mapped { range: range(0, 3) }, Change::Unmapped]);
}

#[test]
fn equal_steps_are_one_entry_with_a_count() {
    let mut story = Story::new();
    story.map(0, 1, 3, ANON);
    for _ in 0..1000 {
        story.advise(0, 1, 4, 0);
    }
    story.stack = 7;
    story.advise(0, 1, 4, 0);
    let counts: Vec<u64> = story.changes().into_iter().map(|(_, times)| times).collect();
    assert_eq!(counts, [1, 1000, 1], "another stack is another entry");
    let entry = &story.life().entries[1];
    assert_eq!((entry.steps[0].time_ns, entry.last_ns), (3000, 1_002_000));
}

#[test]
fn rounds_are_one_entry_with_a_count() {
    let mut story = Story::new();
    for _ in 0..500 {
        story.map(0, 16, 3, ANON);
        story.advise(0, 16, 4, 0);
        story.unmap(0, 16);
    }
    story.map(0, 16, 3, ANON);
    let changes = story.changes();
    assert_eq!(changes.len(), 2, "{changes:?}");
    assert_eq!((changes[0].0.len(), changes[0].1), (3, 500));
    assert_eq!(changes[1], (vec![Change::Mapped { range: range(0, 16) }], 1), "the round that is not over");
    story.map(0, 16, 0, ANON | FIXED);
    let changes = story.changes();
    assert_eq!(changes.len(), 3);
    assert_eq!(changes[2].0, [Change::Replaced { range: range(0, 16) }]);
}

#[test]
fn a_long_life_without_rhythm_keeps_both_ends() {
    let mut story = Story::new();
    let mut state = 7u64;
    for _ in 0..60_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        story.stack = 1 + (state >> 40) as u32 % 1000;
        story.map(0, 1 + state % 7, 3, ANON | FIXED);
    }
    let life = story.life();
    assert!(life.entries.len() <= 8192, "{}", life.entries.len());
    let kept: u64 = life.entries.iter().map(|e| e.times * e.steps.len() as u64).sum();
    assert_eq!(kept + life.omitted, 60_000);
    assert_eq!(life.entries[0].steps[0].time_ns, 2000);
    assert_eq!(life.entries.last().map(|e| e.last_ns), Some(60_001_000));
}

#[test]
fn a_child_goes_on_from_its_parents_past() {
    let mut story = Story::new();
    story.map(0, 1, 3, ANON);
    story.fork(11, MmKey(2), false);
    story.protect(0, 1, 1, 0);
    (story.pid, story.tid, story.mm) = (11, 11, MmKey(2));
    story.unmap(0, 1);
    assert_eq!(
        story.single_changes(),
        [Change::Mapped { range: range(0, 1) }, Change::Inherited { parent: 10 }, Change::Unmapped]
    );
    story.pid = 10;
    assert_eq!(
        story.single_changes(),
        [Change::Mapped { range: range(0, 1) }, Change::Protected { from: RW, to: READ }]
    );
    assert_eq!(story.watch.pids(), [10, 11]);
}

#[test]
fn memory_that_is_not_for_children_is_not_inherited() {
    let mut story = Story::new();
    story.map(0, 1, 3, ANON);
    story.advise(0, 1, 10, 0);
    story.fork(11, MmKey(2), false);
    story.pid = 11;
    assert_eq!(story.single_changes()[2], Change::NotInherited { parent: 10 });
}

#[test]
fn execve_begins_a_new_life() {
    let mut story = Story::new();
    story.map(0, 1, 3, ANON);
    story.advise(0, 1, 4, 0);
    let image = Mapping {
        range: range(0, 2),
        prot: READ,
        sharing: Sharing::Private,
        offset: 0,
        file: None,
        name: b"[vvar]".to_vec(),
    };
    story.exec(MmKey(3), vec![image]);
    assert_eq!(story.single_changes(), [Change::Image]);
    assert_eq!(story.life().before_exec, 2);
}

#[test]
fn a_vfork_childs_execve_leaves_its_parents_life_alone() {
    let mut story = Story::new();
    story.map(0, 1, 3, ANON);
    story.fork(11, MmKey(1), false);
    (story.pid, story.tid) = (11, 11);
    story.exec(MmKey(2), Vec::new());
    assert!(story.watch.life(11).is_none_or(|life| life.entries.is_empty() && life.before_exec == 0));
    (story.pid, story.mm) = (10, MmKey(1));
    story.report(VmOp::Exit { code: 0, group_dead: true }, 0);
    assert_eq!(story.single_changes(), [Change::Mapped { range: range(0, 1) }, Change::Ended]);
}

#[test]
fn threads_share_a_life_and_an_early_mapping_is_reported_as_such() {
    let mut story = Story::new();
    story.map(0, 1, 3, ANON);
    story.fork(12, MmKey(1), true);
    // Thread 12 gets the range that thread 10 has unmapped, and reports first.
    story.tid = 12;
    story.map(0, 1, 1, ANON);
    story.tid = 10;
    story.unmap(0, 1);
    assert_eq!(
        story.single_changes()[1..],
        [Change::MappedBeforeUnmapReported { range: range(0, 1) }, Change::UnmappedEarlier]
    );
    let last = story.life().entries.last().and_then(|entry| entry.steps[0].after.as_ref().map(|p| p.prot));
    assert_eq!(last, Some(READ));
}

#[test]
fn brk_maps_and_unmaps() {
    let mut story = Story::new();
    story.watch = LifeWatch::new(Addr(0x6000));
    story.exec(MmKey(1), Vec::new());
    let brk = |to: u64| VmOp::Brk { requested: Addr(to), current: Some(Addr(to)) };
    story.report(brk(0x9000), 0x9000);
    story.report(brk(0x5800), 0x5800);
    assert_eq!(
        story.single_changes(),
        [Change::Mapped { range: AddrRange::new(0x5000, 0x9000) }, Change::Unmapped]
    );
}

#[test]
fn losses_are_reported() {
    let mut story = Story::new();
    story.map(0, 1, 3, ANON);
    story.watch.step(&Step::Lost { time_ns: 2500 });
    assert_eq!(story.single_changes()[1], Change::Lost);
}
