//! Traces that are cut, mixed up or not traces at all: an error with its line, never a panic.

use crate::captures::strace_log::{parse, parse_in_report_order};
use proptest::prelude::*;
use vmaudit::model::{Addr, VmOp};

#[test]
fn an_unreadable_argument_names_its_line() {
    let trace = b"7 brk(NULL) = 0x5000\n7 mmap(NULL, 4096, PROT_WEIRD, MAP_PRIVATE, -1, 0) = 0x7000\n";
    let error = parse(trace).expect_err("no such flag");
    assert_eq!(error.line, 2);
    assert!(error.to_string().contains("PROT_WEIRD"), "{error}");
}

#[test]
fn forms_that_strace_has() {
    let trace = br#"7 12:00:01.5 execve("/bin/prog", ["prog"], 0x7ffd /* 20 vars */) = 0
7 12:00:01.6 mmap(NULL, 2097152, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS|MAP_HUGETLB|21<<MAP_HUGE_SHIFT, -1, 0) = -1 ENOMEM (Cannot allocate memory)
7 12:00:01.7 mmap(NULL, 100, PROT_READ, MAP_PRIVATE, 3</lib/a, b.so>, 0x1000) = 0x7f0000000000 <0.000012>
7 12:00:01.8 madvise(0x7f0000000000, 4096, 0x66 /* MADV_??? */) = 0
7 12:00:01.9 prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, 0x7f0000000000, 4096, "a, b") = -1 EINVAL (Invalid argument)
7 12:00:02.0 clone3({flags=CLONE_VM|CLONE_THREAD|CLONE_SIGHAND, child_tid=0x7f}, 88 <unfinished ...>
8 12:00:02.1 munmap(0x7f0000000000, 100 <unfinished ...>
7 12:00:02.1 <... clone3 resumed> => {parent_tid=[8]}) = 8
8 12:00:02.2 <... munmap resumed>) = 0
7 12:00:02.3 openat(AT_FDCWD, "/x = y", O_RDONLY) = 3
7 12:00:02.4 fork() = 9
9 12:00:02.5 brk(NULL) = 0x5000
8 12:00:02.6 brk( <unfinished ...>
8 12:00:02.7 +++ killed by SIGKILL +++
9 12:00:02.7 +++ exited with 3 +++
7 12:00:02.7 +++ killed by SIGKILL (core dumped) +++
"#;
    let log = parse(trace).expect("all lines are strace's");
    let ops: Vec<&str> = log.events.iter().map(|e| e.op.name()).collect();
    let expected = [
        "execve", "mmap", "mmap", "madvise", "prctl", "clone", "munmap", "clone", "brk", "exit", "exit",
        "exit",
    ];
    assert_eq!(ops, expected);
    let VmOp::Mmap { flags, .. } = &log.events[1].op else { panic!() };
    assert_eq!((*flags, log.events[1].ret), (0x5404_0022, -12));
    let VmOp::Mmap { file: Some(file), offset: 0x1000, .. } = &log.events[2].op else { panic!() };
    assert_eq!(file.path, b"/lib/a, b.so");
    assert!(matches!(&log.events[4].op, VmOp::SetVmaName { name: Some(n), .. } if n == b"a, b"));
    assert!(matches!(log.events[5].op, VmOp::Fork { child_tid: 8, child_pid: 7, is_thread: true, .. }));
    assert_eq!((log.events[6].task.pid, log.events[6].task.tid), (7, 8));
    assert!(matches!(log.events[6].op, VmOp::Munmap { addr: Addr(0x7f00_0000_0000), len: 100 }));
    assert!(matches!(log.events[7].op, VmOp::Fork { child_pid: 9, is_thread: false, .. }));
    assert_ne!(log.events[8].mm, log.events[7].mm, "a fork has an address space of its own");
    assert!(matches!(log.events[9].op, VmOp::Exit { code: 9, group_dead: false }));
    assert!(matches!(log.events[10].op, VmOp::Exit { code: 0x300, group_dead: true }));
    assert!(matches!(log.events[11].op, VmOp::Exit { code: 9, group_dead: true }));
    assert_eq!(log.ignored_lines, 1, "openat");
}

fn trace() -> Vec<u8> {
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures/arenas4.strace");
    std::fs::read(path).expect("fixture")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn damaged_traces_do_not_panic(
        from in 0..20_000usize,
        len in 0..6_000usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..40),
    ) {
        let whole = trace();
        let mut part: Vec<u8> = whole.iter().skip(from).take(len).copied().collect();
        for (at, byte) in changes {
            if !part.is_empty() {
                let at = at.index(part.len());
                part[at] = byte;
            }
        }
        let lines = part.split(|&b| b == b'\n').count();
        for result in [parse(&part), parse_in_report_order(&part)] {
            match result {
                Ok(log) => prop_assert!(log.events.len() <= lines),
                Err(error) => prop_assert!((1..=lines).contains(&error.line)),
            }
        }
    }

    #[test]
    fn any_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = parse(&bytes);
    }
}
