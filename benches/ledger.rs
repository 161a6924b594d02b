//! What an event costs the ledger, and a snapshot of a large address space:
//! `cargo bench --bench ledger`.

use std::time::{Duration, Instant};
use vmaudit::ledger::AddressSpaces;
use vmaudit::model::{
    Addr, AddrRange, EventId, Mapping, MmKey, NoStack, Observations, PAGE, Prot, Sharing, Task, Tid, VmEvent,
    VmOp,
};

const PID: i32 = 4123;
const MM: MmKey = MmKey(0xffff_8881_2710_c4c0);
const BASE: u64 = 0x7f00_0000_0000;

fn event(id: u64, tid: Tid, op: VmOp, ret: u64) -> VmEvent {
    VmEvent {
        id: EventId(id),
        time_ns: id * 1000,
        task: Task { pid: PID, tid, comm: b"loop26".to_vec() },
        mm: MM,
        op,
        ret: ret as i64,
        stack: Err(NoStack::NotTaken),
        total_vm: None,
    }
}

fn mmap(len: u64) -> VmOp {
    VmOp::Mmap { addr: Addr(0), len, prot: 3, flags: 0x22, fd: -1, offset: 0, file: None }
}

fn exec() -> VmEvent {
    let op = VmOp::Exec {
        exe: None,
        start_brk: Addr(0x5000_0000),
        brk: Addr(0x5000_0000),
        start_stack: Addr(0x7fff_0000_0000),
        compat: false,
        mappings: Some(Vec::new()),
    };
    event(1, PID, op, 0)
}

fn threads(spaces: &mut AddressSpaces, count: i32) {
    for tid in PID + 1..PID + count {
        let op = VmOp::Fork {
            child_pid: PID,
            child_tid: tid,
            child_mm: MM,
            child_sp: Addr(0),
            child_brk: None,
            is_thread: true,
            mappings: None,
        };
        spaces.apply(&event(2, PID, op, tid as u64));
    }
}

/// The best of some rounds: others use the machine, too.
fn apply_all(what: &str, begin: impl Fn() -> AddressSpaces, events: &[VmEvent]) -> AddressSpaces {
    let rounds = (0..9).map(|_| {
        let mut spaces = begin();
        let begun = Instant::now();
        for event in events {
            spaces.apply(event);
        }
        (begun.elapsed(), spaces)
    });
    let (time, spaces) = rounds.min_by_key(|(time, _)| *time).expect("some rounds");
    per_event(what, time, events.len());
    spaces
}

fn per_event(what: &str, time: Duration, count: usize) {
    println!("{what:44} {:7.0} ns", time.as_nanos() as f64 / count as f64);
}

/// `n` pairs of mmap and munmap of 64 KiB, `threads` threads in turn, each at a place of its own.
fn pairs(n: u64, threads: i32) -> Vec<VmEvent> {
    (0..n)
        .flat_map(|i| {
            let turn = (i % threads as u64) as i32;
            let at = BASE + turn as u64 * 0x10_0000;
            let unmap = VmOp::Munmap { addr: Addr(at), len: 65536 };
            [event(10 + 2 * i, PID + turn, mmap(65536), at), event(11 + 2 * i, PID + turn, unmap, 0)]
        })
        .collect()
}

/// Every second page of a large reservation made writable: as many VMAs as the kernel allows.
fn many_maps(n: u64) -> (Vec<VmEvent>, Vec<Mapping>) {
    let at = |i: u64| BASE + i * 2 * PAGE;
    let mut events = Vec::new();
    let mut mappings = Vec::new();
    for i in 0..n {
        events.push(event(10 + i, PID, mmap(PAGE), at(i)));
        mappings.push(Mapping {
            range: AddrRange::from_len(Addr(at(i)), PAGE),
            prot: Prot::RW,
            sharing: Sharing::Private,
            offset: 0,
            file: None,
            name: Vec::new(),
        });
    }
    (events, mappings)
}

fn snapshot_of(mappings: Vec<Mapping>) -> Observations {
    Observations {
        pid: PID,
        begun_ns: u64::MAX,
        ended_ns: u64::MAX,
        mappings,
        aslr: true,
        ..Observations::default()
    }
}

fn main() {
    let begin = |count: i32| {
        let mut spaces = AddressSpaces::new();
        spaces.apply(&exec());
        threads(&mut spaces, count);
        spaces
    };
    for count in [1, 4] {
        apply_all(&format!("mmap + munmap, {count} threads"), || begin(count), &pairs(100_000, count));
    }
    let steps = (0..100_000).map(|i| {
        let addr = Addr(BASE + i * PAGE);
        event(10 + i, PID, VmOp::Mprotect { addr, len: PAGE, prot: 1, pkey: None }, 0)
    });
    let steps: Vec<VmEvent> = [event(5, PID, mmap(1 << 30), BASE)].into_iter().chain(steps).collect();
    apply_all("mprotect, an arena page by page", || begin(1), &steps);

    let (events, mappings) = many_maps(65_000);
    let mut spaces = apply_all("mmap, 65,000 mappings", || begin(1), &events);
    let seen = snapshot_of(mappings);
    let begun = Instant::now();
    let result = spaces.reconcile(PID, &seen);
    println!("reconcile of 65,000 mappings: {:.1?}", begun.elapsed());
    assert_eq!(result.drift.0, 0);

    let fork = VmOp::Fork {
        child_pid: PID + 1,
        child_tid: PID + 1,
        child_mm: MmKey(1),
        child_sp: Addr(0),
        child_brk: None,
        is_thread: false,
        mappings: Some(seen.mappings.clone()),
    };
    let begun = Instant::now();
    spaces.apply(&event(100_000, PID, fork, 0));
    println!("fork with a list of 65,000 mappings: {:.1?}", begun.elapsed());
}
