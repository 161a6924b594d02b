//! A program of several threads: its calls take effect in one order and are reported in another.
//!
//! The threads keep to what correct programs do: no thread touches a mapping before the call that made it has
//! returned (its report comes before that), nor while another thread's call on it is on its way. The kernel
//! gives freed ranges away at once.

use super::disagreement::maps_of;
use super::mini_kernel::{Call, END, FIRST, MM, MiniKernel, PID, Page, exec, report};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use vmaudit::ledger::AddressSpaces;
use vmaudit::model::{Addr, MmKey, PAGE, VmEvent, VmOp};

pub const THREADS: usize = 4;

/// Which mappings a thread may take over from another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HandOver {
    /// After a report of its own since the mapping was reported: then all is decidable.
    WithReport,
    /// At once, by means that no tracer sees (a futex), and only for calls other than mremap: two
    /// threads' moves from one address would be indistinguishable.
    Unseen,
}

/// What the program knows about a page.
#[derive(Clone, Copy, Debug)]
struct Known {
    creator: usize,
    /// Number of the delivered report that made it known; None while on its way.
    since: Option<u64>,
}

pub struct Flight {
    event: VmEvent,
    touched: Vec<u64>,
    made: Vec<u64>,
    is_brk: bool,
    /// Number of effects before this one.
    begun: usize,
    copy: Option<Copy>,
}

/// What a fork copied, and what a ledger that sees the fork's report later may take it for.
pub struct Copy {
    pub child: i32,
    pub pages: BTreeMap<u64, Page>,
    /// Number of effects before the forking thread's last report.
    from: usize,
    /// Number of effects before the fork's report; 0 until then.
    until: usize,
}

pub struct Program {
    pub kernel: MiniKernel,
    pub spaces: AddressSpaces,
    known: BTreeMap<u64, Known>,
    pub flights: Vec<Option<Flight>>,
    /// Last delivered report of each thread.
    last_report: Vec<u64>,
    pub delivered: u64,
    hand_over: HandOver,
    /// The map after each call.
    states: Vec<BTreeMap<u64, Page>>,
    /// Number of effects at each thread's last report.
    last_state: Vec<usize>,
    /// Forks that were reported.
    pub copies: Vec<Copy>,
    /// What took effect and what was reported, for the failure message.
    pub log: Vec<String>,
}

impl Program {
    pub fn new(hand_over: HandOver) -> Program {
        let mut spaces = AddressSpaces::new();
        spaces.apply(&exec());
        for i in 1..THREADS {
            let op = VmOp::Fork {
                child_pid: PID,
                child_tid: tid(i),
                child_mm: MM,
                child_sp: Addr(0),
                child_brk: None,
                is_thread: true,
                mappings: None,
            };
            spaces.apply(&report(900_000 + i as u64, PID, op, i64::from(tid(i))));
        }
        Program {
            kernel: MiniKernel::new(),
            spaces,
            known: BTreeMap::new(),
            flights: (0..THREADS).map(|_| None).collect(),
            last_report: vec![0; THREADS],
            delivered: 0,
            hand_over,
            states: vec![BTreeMap::new()],
            last_state: vec![0; THREADS],
            copies: Vec::new(),
            log: Vec::new(),
        }
    }

    fn in_flight(&self, page: u64) -> bool {
        self.flights.iter().flatten().any(|f| f.touched.contains(&page))
    }

    fn may_touch(&self, thread: usize, page: u64, moves: bool) -> bool {
        let Some(known) = self.known.get(&page) else { return false };
        let Some(since) = known.since else { return false };
        if self.in_flight(page) {
            return false;
        }
        match self.hand_over {
            HandOver::WithReport => known.creator == thread || self.last_report[thread] > since,
            HandOver::Unseen => !moves || known.creator == thread,
        }
    }

    /// A run of pages that the thread may touch, chosen by two numbers.
    fn choose(&self, thread: usize, pick: u64, len: u64, moves: bool) -> Option<(u64, u64)> {
        let pages: Vec<u64> =
            self.kernel.pages.keys().copied().filter(|&p| self.may_touch(thread, p, moves)).collect();
        let start = *pages.get(pick as usize % pages.len().max(1))?;
        let allowed: BTreeSet<u64> = pages.into_iter().collect();
        let run = (0..len).take_while(|i| allowed.contains(&(start + i))).count() as u64;
        Some((start, run))
    }

    /// A call that the thread may make now, if `step` gives one.
    fn plan(&self, thread: usize, step: &Step) -> Option<(Call, Vec<u64>)> {
        let prot = [0u64, 1, 3, 5][step.pick as usize % 4];
        let (len, new_len) = (step.len, step.new_len);
        let all = |(at, run): (u64, u64)| (at..at + run).collect::<Vec<u64>>();
        match step.kind {
            0..=3 => Some((Call::Mmap { len, prot, shared: (step.pick / 4).is_multiple_of(3) }, Vec::new())),
            4..=7 => {
                let (at, run) = self.choose(thread, step.pick, len, false)?;
                Some((Call::Munmap { at, len: run }, all((at, run))))
            }
            8..=9 => {
                let (at, run) = self.choose(thread, step.pick, len, false)?;
                Some((Call::Mprotect { at, len: run, prot }, all((at, run))))
            }
            10..=13 => {
                let (at, run) = self.choose(thread, step.pick, len, true)?;
                let call = match (step.kind, self.choose(thread, step.pick / 7, new_len, false)) {
                    (10, _) => Call::MremapInPlace { at, len: run, new_len },
                    (11, _) => Call::MremapKeep { at, len: run },
                    (12, Some((to, new_len))) => {
                        let call = Call::MremapFixed { at, len: run, new_len, to };
                        return Some((call, [all((at, run)), all((to, new_len))].concat()));
                    }
                    _ => Call::Mremap { at, len: run, new_len },
                };
                Some((call, all((at, run))))
            }
            14 => {
                let (at, run) = self.choose(thread, step.pick, len, false)?;
                Some((Call::MmapFixed { at, len: run, prot }, all((at, run))))
            }
            15 => {
                let at = FIRST + step.pick % (END - FIRST - 12);
                Some((Call::MmapNoReplace { at, len, prot }, Vec::new()))
            }
            _ => {
                // The break has a lock in every libc.
                if self.flights.iter().flatten().any(|f| f.is_brk) {
                    return None;
                }
                let to = FIRST + step.pick % 24;
                let freed: Vec<u64> = (to..self.kernel.brk.max(to)).collect();
                // No thread unmaps a hole that another thread may get meanwhile.
                let mine = |p: &u64| self.may_touch(thread, *p, false);
                freed.iter().all(mine).then_some((Call::Brk { to }, freed))
            }
        }
    }

    pub fn step(&mut self, step: &Step) {
        let thread = step.thread;
        if self.flights[thread].is_some() {
            self.deliver(thread);
            return;
        }
        let Some((call, mut touched)) = self.plan(thread, step) else { return };
        let event = self.kernel.call(tid(thread), call);
        let id = event.id.0;
        self.log.push(format!("effect {id}: thread {thread} {call:x?} = {:#x}", event.ret / PAGE as i64));
        // What the call made: pages of its own origin, and where it moved others'.
        let destination = match (&event.op, event.failed()) {
            (VmOp::Mremap { new_len, .. }, false) => {
                let to = event.ret as u64 / PAGE;
                to..to + new_len / PAGE
            }
            _ => 0..0,
        };
        let is_made =
            |(&p, page): (&u64, &Page)| (page.origin == id || destination.contains(&p)).then_some(p);
        let made: Vec<u64> = self.kernel.pages.iter().filter_map(is_made).collect();
        for &p in &made {
            self.known.insert(p, Known { creator: thread, since: None });
        }
        self.known.retain(|p, _| self.kernel.pages.contains_key(p));
        touched.retain(|p| self.kernel.pages.contains_key(p));
        touched.extend(&made);
        let is_brk = matches!(call, Call::Brk { .. });
        self.states.push(self.kernel.pages.clone());
        let begun = self.states.len() - 2;
        self.flights[thread] = Some(Flight { event, touched, made, is_brk, begun, copy: None });
    }

    /// A fork by one thread: the address space is copied now, the report comes when the thread
    /// takes its next step.
    pub fn fork(&mut self, thread: usize) {
        if self.flights[thread].is_some() {
            self.deliver(thread);
            return;
        }
        self.kernel.calls += 1;
        let (id, pages) = (self.kernel.calls, self.kernel.pages.clone());
        let child = PID + id as i32 * 10;
        let mut maps = maps_of(&pages.iter().map(|(&p, page)| (p, (page.prot, page.shared))).collect());
        for mapping in maps.iter_mut().filter(|m| m.range.start.0 < self.kernel.brk * PAGE) {
            mapping.name = b"[heap]".to_vec();
        }
        let op = VmOp::Fork {
            child_pid: child,
            child_tid: child,
            child_mm: mm_of(child),
            child_sp: Addr(0),
            child_brk: Some(Addr(self.kernel.brk * PAGE)),
            is_thread: false,
            mappings: Some(maps),
        };
        let event = report(id, tid(thread), op, i64::from(child));
        let copy = Some(Copy { child, pages, from: self.last_state[thread], until: 0 });
        self.log.push(format!("effect {id}: thread {thread} forks {child}"));
        let (touched, made) = (Vec::new(), Vec::new());
        let begun = self.states.len() - 1;
        self.flights[thread] = Some(Flight { event, touched, made, is_brk: false, begun, copy });
    }

    /// A child of one thread that was reported forks in turn, before it does anything else.
    pub fn fork_again(&mut self, pick: usize) {
        let Some(parent) = self.copies.get(pick % self.copies.len().max(1)) else { return };
        self.kernel.calls += 1;
        let (id, child) = (self.kernel.calls, PID + self.kernel.calls as i32 * 10);
        let copy = Copy { child, pages: parent.pages.clone(), ..*parent };
        let op = VmOp::Fork {
            child_pid: child,
            child_tid: child,
            child_mm: mm_of(child),
            child_sp: Addr(0),
            child_brk: None,
            is_thread: false,
            mappings: None,
        };
        let mut event = report(id, parent.child, op, i64::from(child));
        event.task.pid = parent.child;
        event.mm = mm_of(parent.child);
        self.log.push(format!("child {} forks {child}", parent.child));
        self.spaces.apply(&event);
        self.copies.push(copy);
    }

    /// True if `origin` owned `page` when a ledger may believe that the copy was made.
    pub fn may_own(&self, copy: &Copy, page: u64, origin: u64) -> bool {
        let states = self.states.get(copy.from..=copy.until).unwrap_or_default();
        states.iter().any(|pages| pages.get(&page).is_some_and(|p| p.origin == origin))
    }

    pub fn deliver(&mut self, thread: usize) {
        let Some(flight) = self.flights[thread].take() else { return };
        self.delivered += 1;
        self.last_report[thread] = self.delivered;
        // What was begun and is not reported yet is not known to have had its effect.
        let unreported = self.flights.iter().flatten().map(|f| f.begun).min().unwrap_or(usize::MAX);
        self.last_state[thread] = unreported.min(self.states.len() - 1);
        if let Some(mut copy) = flight.copy {
            copy.from = copy.from.min(unreported);
            copy.until = self.states.len() - 1;
            self.copies.push(copy);
        }
        self.spaces.apply(&flight.event);
        self.log.push(format!("report {}", flight.event.id.0));
        for p in flight.made {
            if let Some(known) = self.known.get_mut(&p) {
                known.since = Some(self.delivered);
            }
        }
    }
}

pub fn tid(thread: usize) -> i32 {
    PID + thread as i32
}

#[derive(Clone, Debug)]
pub struct Step {
    pub thread: usize,
    pub kind: u8,
    pub pick: u64,
    len: u64,
    new_len: u64,
}

pub fn any_step() -> impl Strategy<Value = Step> {
    (0..THREADS, 0..18u8, 0..1000u64, 1..10u64, 1..10u64)
        .prop_map(|(thread, kind, pick, len, new_len)| Step { thread, kind, pick, len, new_len })
}

fn mm_of(child: i32) -> MmKey {
    MmKey(MM.0 + child as u64 * 0x1000)
}
