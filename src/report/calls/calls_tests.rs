//! Right-hand sides are lines that strace 6.1 printed.

use super::*;
use crate::model::{AddrRange, EventId, MmKey, NoStack, Task};

fn line(op: VmOp, ret: i64) -> String {
    let event = VmEvent {
        id: EventId(1),
        time_ns: 0,
        task: Task { pid: 1, tid: 1, comm: b"odd".to_vec() },
        mm: MmKey(1),
        op,
        ret,
        stack: Err(NoStack::NotTaken),
        total_vm: None,
    };
    match result(&event) {
        Some(result) => format!("{} = {result}", call(&event)),
        None => call(&event),
    }
}

#[test]
fn calls_read_as_straces() {
    let reserve =
        VmOp::Mmap { addr: Addr(0), len: 134_217_728, prot: 0, flags: 0x4022, fd: -1, offset: 0, file: None };
    assert_eq!(
        line(reserve.clone(), -12),
        "mmap(NULL, 134217728, PROT_NONE, MAP_PRIVATE|MAP_ANONYMOUS|MAP_NORESERVE, -1, 0) = -1 ENOMEM \
         (Cannot allocate memory)"
    );
    assert!(line(reserve, 0x7feb_19fe_6000).ends_with("-1, 0) = 0x7feb19fe6000"));
    let image = VmOp::Mmap {
        addr: Addr(0x7f1e_c06b_d000),
        len: 69632,
        prot: 5,
        flags: 0x812,
        fd: 3,
        offset: 0xf000,
        file: None,
    };
    assert_eq!(
        line(image, 0x7f1e_c06b_d000),
        "mmap(0x7f1ec06bd000, 69632, PROT_READ|PROT_EXEC, MAP_PRIVATE|MAP_FIXED|MAP_DENYWRITE, 3, 0xf000) \
         = 0x7f1ec06bd000"
    );
    let old = Addr(0x7feb_19fe_6000);
    let moved = |flags, new_addr| VmOp::Mremap { old, old_len: 4096, new_len: 8192, flags, new_addr };
    assert_eq!(
        line(moved(1, Addr(7)), 0x7feb_1a2d_2000),
        "mremap(0x7feb19fe6000, 4096, 8192, MREMAP_MAYMOVE) = 0x7feb1a2d2000"
    );
    assert_eq!(
        line(moved(3, Addr(0x7feb_19ff_0000)), -14),
        "mremap(0x7feb19fe6000, 4096, 8192, MREMAP_MAYMOVE|MREMAP_FIXED, 0x7feb19ff0000) = -1 EFAULT \
         (Bad address)"
    );
    assert_eq!(
        line(VmOp::Brk { requested: Addr(0), current: None }, 0x5566_196b_b000),
        "brk(NULL) = 0x5566196bb000"
    );
    let keyed = VmOp::Mprotect { addr: old, len: 4096, prot: 1, pkey: Some(-1) };
    assert_eq!(line(keyed, 0), "pkey_mprotect(0x7feb19fe6000, 4096, PROT_READ, -1) = 0");
    let attach = VmOp::Shmat { shmid: 153, addr: Addr(0), flags: 0o130000, mapped: None };
    assert_eq!(
        line(attach, 0x7feb_19bf_c000),
        "shmat(153, NULL, SHM_RDONLY|SHM_RND|SHM_EXEC) = 0x7feb19bfc000"
    );
    assert_eq!(line(VmOp::Shmdt { addr: Addr(0) }, -22), "shmdt(NULL) = -1 EINVAL (Invalid argument)");
    let ring =
        VmOp::IoSetup { nr_events: 128, mapped: Some(AddrRange::new(0x7feb_19bf_9000, 0x7feb_19bf_a000)) };
    assert_eq!(line(ring, 0), "io_setup(128, [0x7feb19bf9000]) = 0");
    let destroy = VmOp::IoDestroy { ctx: Addr(0x7feb_19bf_9000) };
    assert_eq!(line(destroy, 0), "io_destroy(0x7feb19bf9000) = 0");
    let name = VmOp::SetVmaName { addr: old, len: 4096, name: Some(b"a \"name\"\n".to_vec()) };
    assert_eq!(
        line(name, -22),
        "prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, 0x7feb19fe6000, 4096, \"a \\\"name\\\"\\n\") = -1 EINVAL \
         (Invalid argument)"
    );
    assert_eq!(line(VmOp::Exit { code: 0x300, group_dead: true }, 0), "+++ exited with 3 +++");
    assert_eq!(line(VmOp::Exit { code: -1, group_dead: true }, 0), "+++ ended +++");
    assert_eq!(
        line(VmOp::Exit { code: 0x8b, group_dead: true }, 0),
        "+++ killed by SIGSEGV (core dumped) +++"
    );
}

#[test]
fn strings_are_quoted_as_in_c() {
    assert_eq!(quoted(b"a\x01b\x011\\\x7f\xff"), r#""a\1b\0011\\\177\377""#);
}

#[test]
fn an_unknown_error_keeps_its_number() {
    let text = line(VmOp::Munmap { addr: Addr(4096), len: 1 }, -4000);
    assert_eq!(text, "munmap(0x1000, 1) = -1 (errno 4000)");
}
