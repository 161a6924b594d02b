//! The peak by brute force: every state of the page map is remembered, and compared with the largest one.

use super::in_order::any_call;
use super::mini_kernel::{Call, END, FIRST, MM, MiniKernel, PID, exec, report};
use proptest::prelude::*;
use std::collections::BTreeMap;
use vmaudit::ledger::{AddressSpaces, Peak};
use vmaudit::model::{Addr, EventId, MmKey, PAGE, StackId, VmEvent, VmOp};

const STACKS: u64 = 5;
const CHILD: i32 = PID + 1;

/// Bytes by call and stack.
type Shares = BTreeMap<(&'static str, Option<u32>), u64>;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct State {
    virt: u64,
    grown: u64,
    time_ns: u64,
    shares: Shares,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Call(Call),
    /// The stack grows by so many pages, without a call.
    Grow(u64),
    Fork,
    Exec,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        24 => any_call().prop_map(Step::Call),
        3 => (1..6u64).prop_map(Step::Grow),
        1 => Just(Step::Fork),
        1 => Just(Step::Exec),
    ]
}

struct Run {
    kernel: MiniKernel,
    spaces: AddressSpaces,
    /// Call and stack of each event that may own pages.
    makers: BTreeMap<u64, (&'static str, Option<u32>)>,
    grown: u64,
    /// Whether reports come with the kernel's own count.
    reported: bool,
    peak: State,
}

impl Run {
    fn new(reported: bool) -> Run {
        let mut spaces = AddressSpaces::new();
        spaces.apply(&exec());
        let peak = State { time_ns: exec().time_ns, ..State::default() };
        let (kernel, makers) = (MiniKernel::new(), BTreeMap::new());
        Run { kernel, spaces, makers, grown: 0, reported, peak }
    }

    fn state(&self, time_ns: u64) -> State {
        let mut shares = Shares::new();
        for page in self.kernel.pages.values() {
            *shares.entry(self.makers[&page.origin]).or_default() += PAGE;
        }
        let grown = if self.reported { self.grown * PAGE } else { 0 };
        State { virt: shares.values().sum::<u64>() + grown, grown, time_ns, shares }
    }

    fn reached(&mut self, state: State) {
        if state.virt > self.peak.virt {
            self.peak = state;
        }
    }

    fn apply(&mut self, mut event: VmEvent) {
        event.total_vm = self.reported.then_some((self.kernel.pages.len() as u64 + self.grown) * PAGE);
        self.spaces.apply(&event);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Call(call) => {
                let number = self.kernel.calls + 1;
                // The growth since the call before happened before this one.
                let before = self.state(number * 1000);
                self.reached(before);
                let mut event = self.kernel.call(PID, call);
                let stack = number % STACKS;
                event.stack = Ok(StackId(stack as u32));
                self.makers.insert(number, (event.op.name(), Some(stack as u32)));
                let time_ns = event.time_ns;
                self.apply(event);
                let after = self.state(time_ns);
                self.reached(after);
            }
            Step::Grow(pages) => self.grown += pages,
            Step::Fork => {
                let event = fork(self.kernel.calls + 1);
                self.kernel.calls += 1;
                let before = self.state(event.time_ns);
                self.reached(before);
                self.apply(event);
            }
            Step::Exec => {
                let calls = self.kernel.calls + 1;
                self.kernel = MiniKernel::new();
                self.kernel.calls = calls;
                self.grown = 0;
                self.peak = State { time_ns: calls * 1000, ..State::default() };
                self.apply(VmEvent { id: EventId(calls), time_ns: calls * 1000, ..exec() });
            }
        }
    }

    fn found(&self, pid: i32) -> State {
        let peak = self.spaces.ledger_of_pid(pid).expect("the process was seen").peak();
        assert_eq!(peak.on_the_way, 0);
        state_of(&peak)
    }
}

fn state_of(peak: &Peak) -> State {
    let mut shares = Shares::new();
    for share in &peak.shares {
        let twice = shares.insert((share.op, share.stack.map(|s| s.0)), share.bytes);
        assert_eq!(twice, None, "one share for each call and stack");
    }
    State { virt: peak.virt, grown: peak.stack_growth, time_ns: peak.time_ns, shares }
}

fn fork(id: u64) -> VmEvent {
    let op = VmOp::Fork {
        child_pid: CHILD,
        child_tid: CHILD,
        child_mm: MmKey(MM.0 + 0x1000),
        child_sp: Addr(0),
        child_brk: None,
        is_thread: false,
        mappings: None,
    };
    report(id, PID, op, i64::from(CHILD))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    /// After each step, the incremental peak is the brute-force one: size, moment, and every share.
    #[test]
    fn the_peak_is_the_largest_of_all_states(
        reported in any::<bool>(),
        steps in prop::collection::vec(any_step(), 1..80),
    ) {
        let mut run = Run::new(reported);
        for step in steps {
            run.step(step);
            prop_assert_eq!(run.found(PID), run.peak.clone(), "after {:?}", step);
            let ledger = run.spaces.ledger_of_pid(PID).expect("seen");
            prop_assert_eq!(ledger.mapped_bytes(), run.kernel.pages.len() as u64 * PAGE);
            let now: u64 = ledger.peak().shares.iter().map(|share| share.now).sum();
            prop_assert!(now <= ledger.mapped_bytes());
        }
    }

    /// A child begins with what its parent has at the fork, not with its parent's peak.
    #[test]
    fn a_child_starts_at_its_parents_present(
        before in prop::collection::vec(any_call(), 1..30),
        after in prop::collection::vec(any_call(), 0..30),
    ) {
        let mut run = Run::new(false);
        for call in before {
            run.step(Step::Call(call));
        }
        run.step(Step::Fork);
        let copied = run.state(run.kernel.calls * 1000);
        prop_assert_eq!(run.found(CHILD), copied.clone());
        for call in after {
            run.step(Step::Call(call));
        }
        prop_assert_eq!(run.found(CHILD), copied, "the parent's calls are not the child's");
    }
}

/// The whole reservation that was there for a moment only is named, though nothing of it is left.
#[test]
fn calls_that_left_nothing_are_known_by_a_sample() {
    let mut run = Run::new(true);
    run.step(Step::Call(Call::Mmap { len: 4, prot: 3, shared: false }));
    run.step(Step::Call(Call::MmapFixed { at: FIRST + 20, len: END - FIRST - 20, prot: 3 }));
    run.step(Step::Call(Call::Munmap { at: FIRST + 20, len: END - FIRST - 20 }));
    let peak = run.spaces.ledger_of_pid(PID).expect("seen").peak();
    let largest = &peak.shares[0];
    assert_eq!((largest.bytes, largest.now), ((END - FIRST - 20) * PAGE, 0));
    let gone = largest.gone.as_ref().expect("a sample");
    assert_eq!(gone.record.event, EventId(2));
    assert_eq!(peak.shares[1].bytes, 4 * PAGE);
    assert_eq!(peak.shares[1].gone, None, "nothing of it was unmapped");
}
