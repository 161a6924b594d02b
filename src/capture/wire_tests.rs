use super::*;

use crate::capture::record::to_bytes as bytes;

fn blank(op: u16) -> Record {
    Record { op, tid: 7, pid: 7, ..Record::default() }
}

#[test]
fn components_become_a_path() {
    assert_eq!(path_from_components(b"libc.so.6\0lib\0usr\0"), b"/usr/lib/libc.so.6");
    assert_eq!(path_from_components(b"a\nb\0"), b"/a\nb");
    assert_eq!(path_from_components(b""), b"/");
}

#[test]
fn a_file_is_attached_to_the_next_mmap_of_its_thread_only() {
    let mut decoder = Decoder::default();
    let mut file = blank(op::FILE);
    file.ino = 9;
    file.dev = (8 << 20) | 1;
    file.nlink = 1;
    assert!(decoder.decode(&bytes(file, b"x\0tmp\0")).is_none());
    let mut other = blank(op::MMAP);
    other.tid = 8;
    other.args[3] = MAP_ANONYMOUS;
    let raw = bytes(other, &[]);
    let event = decoder.decode(&raw).expect("an event").event;
    assert!(matches!(event.op, VmOp::Mmap { file: None, .. }));
    let mut mmap = blank(op::MMAP);
    mmap.flags = flag::HAS_FILE;
    (mmap.ino, mmap.dev, mmap.nlink) = (9, (8 << 20) | 1, 1);
    let raw = bytes(mmap, &[]);
    let VmOp::Mmap { file: Some(found), .. } = decoder.decode(&raw).expect("an event").event.op else {
        panic!("no file");
    };
    assert_eq!(found.path, b"/tmp/x");
    assert_eq!((found.major, found.minor, found.deleted), (8, 1, false));
}

#[test]
fn short_and_unknown_records_are_counted() {
    let mut decoder = Decoder::default();
    assert!(decoder.decode(&[0; 10]).is_none());
    assert!(decoder.decode(&bytes(blank(99), &[])).is_none());
    let mut lying = blank(op::MUNMAP);
    lying.payload = 4096;
    let mut raw = bytes(lying, &[]);
    raw[28..32].copy_from_slice(&4096u32.to_ne_bytes());
    assert!(decoder.decode(&raw).is_none());
    assert_eq!(decoder.undecodable, 3);
}

#[test]
fn names_follow_fork_exec_and_renaming() {
    let mut decoder = Decoder::default();
    decoder.set_comm(7, b"sh");
    let mut fork = blank(op::FORK);
    fork.args[1] = 8;
    for (to, from) in fork.comm.iter_mut().zip(b"sh") {
        *to = *from as _;
    }
    assert_eq!(decoder.decode(&bytes(fork, &[])).expect("an event").event.task.comm, b"sh");
    let mut call = blank(op::MUNMAP);
    call.tid = 8;
    assert_eq!(decoder.decode(&bytes(call, &[])).expect("an event").event.task.comm, b"sh");
    let mut rename = blank(op::RENAME);
    rename.tid = 8;
    for (to, from) in rename.comm.iter_mut().zip(b"worker") {
        *to = *from as _;
    }
    assert_eq!(decoder.decode(&bytes(rename, &[])).expect("an event").event.task.comm, b"worker");
    assert_eq!(decoder.decode(&bytes(call, &[])).expect("an event").event.task.comm, b"worker");
}

#[test]
fn a_call_without_stack_says_that_its_stack_is_lost() {
    let mut decoder = Decoder::default();
    let mut call = blank(op::MUNMAP);
    call.flags = flag::WITHOUT_STACK;
    let raw = bytes(call, &[]);
    let captured = decoder.decode(&raw).expect("an event");
    assert_eq!(captured.event.stack, Err(NoStack::Lost));
    assert!(captured.stack.is_none());
}

#[test]
fn what_the_kernel_maps_by_itself_has_its_name() {
    let named = |special: u64, flags: u64, file: bool| {
        let mut record = blank(op::VMA);
        record.args = [0x1000, 0x3000, flags, 0, special, 0];
        record.flags = if file { flag::HAS_FILE } else { 0 };
        record.nlink = 1;
        vma(&record, if file { b"/dev/mem".to_vec() } else { Vec::new() }).name
    };
    assert_eq!(named(1, 0x3, false), b"[stack]");
    assert_eq!(named(2, 0x5, false), b"[vdso]");
    assert_eq!(named(0, 0x1 | VM_PFNMAP, false), b"[vvar]");
    assert_eq!(named(0, 0x1 | VM_PFNMAP, true), b"/dev/mem", "a driver's pages");
    assert_eq!(named(0, 0x3, false), b"", "bss");
}
