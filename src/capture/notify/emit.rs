//! The wire records (bpf/vmaudit.h) that this backend writes, as the BPF programs would.

use super::peek::{self, Thread, Vma};
use super::queue::Queue;
use crate::capture::record::{self, Record, RecordWriter, flag, set_file};
use crate::model::Tid;
use crate::sys::clock::monotonic_ns;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Whose record it is.
#[derive(Clone, Copy, Debug)]
pub struct TaskKey {
    pub pid: i32,
    pub tid: Tid,
    pub mm: u64,
}

impl TaskKey {
    pub fn record(self, op: u16) -> Record {
        let (pid, tid) = (self.pid as u32, self.tid as u32);
        Record { pid, tid, mm: self.mm, op, ..Record::default() }
    }
}

/// The server's end of the queue.
pub struct RecordQueue {
    pub queue: Arc<Queue>,
    last_ns: u64,
}

impl RecordQueue {
    pub fn new(queue: Arc<Queue>) -> RecordQueue {
        RecordQueue { queue, last_ns: 0 }
    }

    /// An event, with the bytes that belong to it.
    pub fn event(&mut self, record: Record, payload: &[u8]) {
        self.queue.seen.fetch_add(1, Ordering::Relaxed);
        if record.flags & flag::STACK_UNREADABLE != 0 {
            self.queue.without_stack.fetch_add(1, Ordering::Relaxed);
        }
        self.write(record, payload);
    }

    pub fn lost(&self) {
        self.queue.seen.fetch_add(1, Ordering::Relaxed);
        self.queue.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// The file of a mapping, before the event that has it.
    pub fn mapped_file(&mut self, record: &mut Record, vma: &Vma) {
        if let Some(file) = vma.file {
            self.file(record, file, &vma.name);
            set_file(record, file, &vma.name);
        }
    }
}

impl RecordWriter for RecordQueue {
    fn write(&mut self, mut record: Record, payload: &[u8]) {
        // The order of the records is that of their times.
        self.last_ns = self.last_ns.max(monotonic_ns());
        record.time_ns = self.last_ns;
        self.queue.push(record::to_bytes(record, payload));
    }
}

/// Where the stack's bytes worth copying end, as far as that is known.
#[derive(Clone, Copy, Debug)]
pub struct StackEnd {
    /// The end of the mapping; 0 if there is none.
    pub mapping: u64,
    /// Where the arguments of the program lie, and the thread's control block (0: not known).
    pub arguments: u64,
    pub control_block: u64,
}

/// A thread's call is notified shortly before the thread sleeps. How often it is checked immediately, and for
/// how long at increasing intervals: other threads may use the processor that it needs.
const IMMEDIATE_CHECKS: usize = 200;
const COMES_TO_REST: Duration = Duration::from_millis(100);
const FIRST_NAP: Duration = Duration::from_micros(50);

/// The thread's stack pointer in the call that it waits in.
pub fn stack_pointer(thread: &Thread) -> Option<u64> {
    let begun = Instant::now();
    let (mut checks, mut nap) = (0, FIRST_NAP);
    loop {
        match thread.place() {
            peek::Place::Blocked { sp, .. } => return Some(sp).filter(|&sp| sp != 0),
            peek::Place::Gone => return None,
            peek::Place::Running if checks < IMMEDIATE_CHECKS => std::thread::yield_now(),
            peek::Place::Running if begun.elapsed() < COMES_TO_REST => {
                std::thread::sleep(nap);
                nap *= 2;
            }
            peek::Place::Running => return None,
        }
        checks += 1;
    }
}

/// Copies the stack; sets the flags of `record` that go with it.
pub fn copy_stack(record: &mut Record, end: StackEnd, most: u64) -> Vec<u8> {
    let sp = record.sp;
    let mut to = end.mapping;
    for nearer in [end.arguments, end.control_block] {
        if nearer > sp && nearer < to {
            to = nearer;
        }
    }
    let available = if to > sp { to - sp } else { crate::model::PAGE - sp % crate::model::PAGE };
    if to > sp && available <= most {
        record.flags |= flag::STACK_FULL;
    }
    let mut bytes = vec![0; available.min(most) as usize];
    let read = peek::read_memory(record.tid as Tid, sp, &mut bytes);
    if read < bytes.len() {
        record.flags &= !flag::STACK_FULL;
        bytes.truncate(read);
    }
    if bytes.is_empty() {
        record.flags |= flag::STACK_UNREADABLE;
    }
    bytes
}
