//! `model::time_zero`.

use vmaudit::model::Addr;
use vmaudit::model::EventId;
use vmaudit::model::MmKey;
use vmaudit::model::NoStack;
use vmaudit::model::Task;
use vmaudit::model::event::Pid;
use vmaudit::model::event::VmEvent;
use vmaudit::model::event::VmOp;
use vmaudit::model::event::journal::Step;
use vmaudit::model::event::time_zero::TimeZero;

fn event(time_ns: u64, pid: Pid, op: VmOp) -> Step {
    Step::Event(VmEvent {
        id: EventId(time_ns),
        time_ns,
        task: Task { pid, tid: pid, comm: Vec::new() },
        mm: MmKey(1),
        op,
        ret: 0,
        stack: Err(NoStack::NotTaken),
        total_vm: None,
    })
}

fn exec(time_ns: u64, pid: Pid) -> Step {
    let (start_brk, brk, start_stack) = (Addr(0), Addr(0), Addr(0));
    event(time_ns, pid, VmOp::Exec { exe: None, start_brk, brk, start_stack, compat: false, mappings: None })
}

fn zero(steps: &[Step]) -> TimeZero {
    let mut zero = TimeZero::default();
    steps.iter().for_each(|step| zero.see(step));
    zero
}

#[test]
fn the_first_execve_of_the_command() {
    assert_eq!(TimeZero::default().ns(), 0);
    let only = zero(&[event(10, 1, VmOp::Rename)]);
    assert_eq!((only.known_ns(), only.ns()), (None, 10));
    let run = zero(&[event(10, 1, VmOp::Rename), exec(12, 1), exec(90, 1), exec(95, 2)]);
    assert_eq!((run.known_ns(), run.ns()), (Some(12), 12));
}

#[test]
fn not_that_of_a_child() {
    let run = zero(&[event(10, 1, VmOp::Rename), exec(12, 2)]);
    assert_eq!((run.known_ns(), run.ns()), (None, 10));
}
