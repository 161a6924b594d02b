//! `model::reach`.

use vmaudit::model::EventId;
use vmaudit::model::MmKey;
use vmaudit::model::NoStack;
use vmaudit::model::Task;
use vmaudit::model::addr::Addr;
use vmaudit::model::addr::AddrRange;
use vmaudit::model::event::VmEvent;
use vmaudit::model::event::VmOp;

fn ranges(op: VmOp, ret: i64) -> [AddrRange; 2] {
    let event = VmEvent {
        id: EventId(1),
        time_ns: 0,
        task: Task { pid: 1, tid: 1, comm: Vec::new() },
        mm: MmKey(1),
        op,
        ret,
        stack: Err(NoStack::NotTaken),
        total_vm: None,
    };
    event.ranges()
}

#[test]
fn whole_pages_where_the_call_was_obeyed() {
    let map =
        |flags| VmOp::Mmap { addr: Addr(0x5000), len: 4097, prot: 0, flags, fd: -1, offset: 0, file: None };
    assert_eq!(ranges(map(0x22), 0x10000), [AddrRange::new(0x10000, 0x12000), AddrRange::default()]);
    assert_eq!(ranges(map(0x22), -12)[0], AddrRange::default(), "no place was named");
    assert_eq!(ranges(map(0x32), -12)[0], AddrRange::new(0x5000, 0x7000));
    let moved =
        VmOp::Mremap { old: Addr(0x1000), old_len: 0x1000, new_len: 0x3000, flags: 1, new_addr: Addr(0) };
    assert_eq!(ranges(moved, 0x9000), [AddrRange::new(0x1000, 0x2000), AddrRange::new(0x9000, 0xc000)]);
    let nothing = VmOp::Madvise { addr: Addr(0x1000), len: 0, advice: 4 };
    assert_eq!(ranges(nothing, 0), [AddrRange::default(); 2]);
}
