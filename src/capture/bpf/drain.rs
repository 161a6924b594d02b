//! Moves records out of the rings into a queue in memory, from whichever thread comes first: the session's
//! own when it reads, or one that does nothing else while the session is busy. The rings hold some
//! milliseconds of a busy program, and what the session does may take longer: reading maps, opening a file,
//! taking a snapshot.

use super::positions;
use crate::capture::record::{self, Record, flag, op};
use crate::capture::{CaptureError, wire};
use crate::sys::{poll, task};
use libbpf_rs::{MapCore, RingBuffer, RingBufferBuilder};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, SigmaskHow};
use std::collections::VecDeque;
use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Records that are moved before it is asked again whether there is room for more.
const CHUNK: usize = 32;
/// A ring that need not be emptied yet is seen to again after so long.
const RETRY: Duration = Duration::from_millis(1);
/// One that cannot be emptied, because a record is still being written, after so long, which doubles each time: a
/// busy thread fills the smallest rings in less than a millisecond.
const SOON: Duration = Duration::from_micros(20);
/// Rings below this size are emptied at once: a millisecond may fill them.
const SMALL: u64 = 1 << 20;
/// Larger ones are left to the session until this part of them is full. Whoever empties them on each wake
/// takes the session's processor, and what it would do waits: the unwind rules of `heap --combined`, say.
const PART: u64 = 8;

/// Records one after the other, each after its length. In blocks: what is written once is not moved again, as it
/// would be in one piece that grows. That takes milliseconds, and meanwhile the ring is full.
#[derive(Default)]
pub(super) struct Frames {
    blocks: VecDeque<Vec<u8>>,
    /// Emptied, to be written again.
    spare: Vec<Vec<u8>>,
    /// Of the first block.
    read: usize,
    left: usize,
}

const LENGTH: usize = size_of::<u64>();
/// Larger records have a block of their own.
const BLOCK: usize = 256 << 10;
/// So many blocks are kept for what is to come.
const SPARE: usize = 16;

impl Frames {
    /// Returns the record as it is kept.
    fn push(&mut self, record: &[u8]) -> &mut [u8] {
        // The next one's fields are aligned as in the ring.
        let length = LENGTH + record.len().next_multiple_of(LENGTH);
        if self.blocks.back().is_none_or(|block| block.capacity() - block.len() < length) {
            let spare = if length <= BLOCK { self.spare.pop() } else { None };
            self.blocks.push_back(spare.unwrap_or_else(|| Vec::with_capacity(length.max(BLOCK))));
        }
        self.left += length;
        let last = self.blocks.len() - 1;
        let block = &mut self.blocks[last];
        block.extend_from_slice(&(record.len() as u64).to_ne_bytes());
        let at = block.len();
        block.extend_from_slice(record);
        block.resize(at - LENGTH + length, 0);
        &mut block[at..at + record.len()]
    }

    /// The oldest that was not read yet.
    pub(super) fn next(&mut self) -> Option<&[u8]> {
        while self.blocks.front().is_some_and(|block| self.read >= block.len()) {
            self.read = 0;
            let emptied = self.blocks.pop_front();
            self.keep(emptied);
        }
        let block = self.blocks.front()?;
        let length = block.get(self.read..self.read + LENGTH)?;
        let length = u64::from_ne_bytes(length.try_into().ok()?) as usize;
        let at = self.read + LENGTH;
        self.read = (at + length).next_multiple_of(LENGTH);
        self.left = self.left.saturating_sub(self.read - at + LENGTH);
        block.get(at..at + length)
    }

    fn keep(&mut self, block: Option<Vec<u8>>) {
        if let Some(mut block) = block.filter(|block| block.capacity() == BLOCK && self.spare.len() < SPARE) {
            block.clear();
            self.spare.push(block);
        }
    }

    fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Bytes that were not read yet.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// What was read is forgotten, and the rest.
    fn clear(&mut self) {
        while let Some(block) = self.blocks.pop_front() {
            self.keep(Some(block));
        }
        (self.read, self.left) = (0, 0);
    }
}

/// What was moved out of the rings and not taken yet.
#[derive(Default)]
struct Queue {
    calls: Frames,
    touches: Frames,
    /// Page faults up to this time were taken before the calls were: the calls that they rest on are in the
    /// queue, or were.
    until: u64,
    /// As many bytes as there may be.
    limit: usize,
    /// Calls whose stacks found no room in it.
    stripped: Arc<AtomicU64>,
}

impl Queue {
    fn is_full(&self) -> bool {
        self.calls.left() >= self.limit
    }

    fn has_room_for_touches(&self) -> bool {
        self.touches.left() < self.limit
    }

    /// Beyond half of the room, calls leave their stacks behind.
    fn push(&mut self, record: &[u8]) {
        let is_call = record::op_of(record).is_some_and(|op| op < op::FORK);
        if !is_call {
            self.calls.push(record);
            return;
        }
        // In the ring they take up more than they are: there are a few sizes for all.
        let record =
            record::read(record).map_or(record, |(_, stack)| &record[..size_of::<Record>() + stack.len()]);
        if record.len() == size_of::<Record>() || self.calls.left() < self.limit / 2 {
            self.calls.push(record);
            return;
        }
        let head = self.calls.push(&record[..size_of::<Record>()]);
        let at = offset_of!(Record, payload);
        head[at..at + size_of::<u32>()].fill(0);
        let at = offset_of!(Record, flags);
        let flags = u16::from_ne_bytes([head[at], head[at + 1]]) & !flag::STACK_FULL | flag::WITHOUT_STACK;
        head[at..at + size_of::<u16>()].copy_from_slice(&flags.to_ne_bytes());
        self.stripped.fetch_add(1, Ordering::Relaxed);
    }
}

struct Rings {
    calls: RingBuffer<'static>,
    touches: Option<RingBuffer<'static>>,
    /// The time of the latest page fault that was moved.
    latest: Arc<AtomicU64>,
    /// Bytes in each that the thread leaves to the session.
    idle: [u64; 2],
}

impl Rings {
    fn has_much(&self) -> bool {
        let waiting = |ring: &RingBuffer<'_>| {
            let (read, written) = positions(ring);
            written.saturating_sub(read)
        };
        let touches = self.touches.as_ref().map_or(0, waiting);
        waiting(&self.calls) > self.idle[0] || touches > self.idle[1]
    }
}

/// The rings of a tracer, and the queue.
pub(super) struct Drain {
    rings: Mutex<Rings>,
    queue: Arc<Mutex<Queue>>,
    stripped: Arc<AtomicU64>,
    /// Something was taken out of the queue.
    taken: Condvar,
    /// Readable once there is something to handle, in the rings or in the queue.
    moved: EventFd,
    stop: EventFd,
}

/// A thread that panicked while it held one of these left it as it was.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drain {
    /// `limit`: of the queue, in bytes.
    pub(super) fn of(
        calls: &impl MapCore,
        touches: Option<&impl MapCore>,
        limit: usize,
    ) -> Result<Drain, CaptureError> {
        let stripped = Arc::new(AtomicU64::new(0));
        // One half is taken while the other is filled.
        let queue = Queue { limit: limit / 2, stripped: Arc::clone(&stripped), ..Queue::default() };
        let queue = Arc::new(Mutex::new(queue));
        let latest = Arc::new(AtomicU64::new(0));
        let into = Arc::clone(&queue);
        let idle = [idle_bytes(calls), touches.map_or(0, idle_bytes)];
        let calls = ring_of(calls, move |record| lock(&into).push(record))?;
        let (into, seen) = (Arc::clone(&queue), Arc::clone(&latest));
        let move_touch = move |record: &[u8]| {
            seen.fetch_max(wire::time_of(record).unwrap_or(0), Ordering::Relaxed);
            lock(&into).touches.push(record);
        };
        let touches = touches.map(|map| ring_of(map, move_touch)).transpose()?;
        let event = || EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC);
        let event = || event().map_err(|errno| CaptureError::Wake(errno.into()));
        Ok(Drain {
            rings: Mutex::new(Rings { calls, touches, latest, idle }),
            queue,
            stripped,
            taken: Condvar::new(),
            moved: event()?,
            stop: event()?,
        })
    }

    /// Moves what waits now, and not what comes meanwhile: a target may report faster than that is moved.
    /// Returns up to which of all bytes that were ever written to the ring of calls that was done.
    pub(super) fn drain(&self) -> Result<u64, CaptureError> {
        let rings = lock(&self.rings);
        self.move_touches(&rings);
        let touched = rings.latest.load(Ordering::Relaxed);
        let (_, until) = positions(&rings.calls);
        while !lock(&self.queue).is_full() {
            let count = rings.calls.consume_raw_n(CHUNK);
            if count < 0 {
                return Err(CaptureError::Ring(libbpf_rs::Error::from_raw_os_error(-count)));
            }
            if count == 0 || positions(&rings.calls).0 >= until {
                break;
            }
        }
        // Those that the calls just moved come after.
        self.move_touches(&rings);
        let (read, written) = positions(&rings.calls);
        if read == written {
            lock(&self.queue).until = touched;
        }
        Ok(read)
    }

    fn move_touches(&self, rings: &Rings) {
        let Some(ring) = &rings.touches else { return };
        while lock(&self.queue).has_room_for_touches() {
            // A failure here means that the ring is gone; what was read is still handled.
            if ring.consume_raw_n(CHUNK) < CHUNK as i32 {
                break;
            }
        }
    }

    /// How many bytes were ever written to the ring of calls.
    pub(super) fn written(&self) -> u64 {
        positions(&lock(&self.rings).calls).1
    }

    /// Exchanges what was handled for what is in the queue; false where that is nothing. Also the time up to
    /// which page faults may be handled after the calls.
    pub(super) fn take(&self, calls: &mut Frames, touches: &mut Frames) -> Option<u64> {
        calls.clear();
        touches.clear();
        let mut queue = lock(&self.queue);
        if queue.calls.is_empty() && queue.touches.is_empty() {
            return None;
        }
        std::mem::swap(calls, &mut queue.calls);
        std::mem::swap(touches, &mut queue.touches);
        self.taken.notify_one();
        Some(queue.until)
    }

    /// Calls that left their stacks behind because the queue was more than half full.
    pub(super) fn stripped(&self) -> u64 {
        self.stripped.load(Ordering::Relaxed)
    }

    /// Readable once there is something to handle, in the rings or in the queue.
    pub(super) fn moved(&self) -> BorrowedFd<'_> {
        self.moved.as_fd()
    }

    /// What was moved until now is about to be taken.
    pub(super) fn clear_moved(&self) {
        // Fails where nothing was.
        let _ = self.moved.read();
    }

    fn stop(&self) {
        // Fails only when it is readable for long.
        let _ = self.stop.write(1);
        drop(lock(&self.queue));
        self.taken.notify_all();
    }

    fn is_stopped(&self) -> bool {
        !poll::events(&self.stop).is_empty()
    }

    /// Whenever the kernel's side says that there is much, until it is stopped.
    fn run(&self) {
        task::run_before_others();
        let fds: Vec<i32> = {
            let rings = lock(&self.rings);
            [Some(&rings.calls), rings.touches.as_ref()]
                .into_iter()
                .flatten()
                .map(RingBuffer::epoll_fd)
                .collect()
        };
        // SAFETY: the rings live as long as `self`, and their descriptors with them.
        let fds = fds.into_iter().map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
        let fds: Vec<BorrowedFd<'_>> = fds.chain([self.stop.as_fd()]).collect();
        let (mut before, mut pause) = (0, SOON);
        loop {
            poll::wait(&fds, None);
            if self.is_stopped() {
                return;
            }
            // Fails only when it is readable for long.
            let _ = self.moved.write(1);
            if !lock(&self.rings).has_much() {
                poll::wait(&[self.stop.as_fd()], Some(RETRY));
                continue;
            }
            // The session's own thread hears of what fails.
            let Ok(now) = self.drain() else { return };
            // The session may have read before that was moved.
            let _ = self.moved.write(1);
            let queue = lock(&self.queue);
            if queue.is_full() {
                let full = |queue: &mut Queue| queue.is_full() && !self.is_stopped();
                drop(self.taken.wait_while(queue, full));
            } else if now == before {
                drop(queue);
                poll::wait(&[self.stop.as_fd()], Some(pause));
                pause = (pause * 2).min(RETRY);
            }
            if now != before {
                pause = SOON;
            }
            before = now;
        }
    }
}

/// Bytes in a ring that the thread leaves to the session.
fn idle_bytes(ring: &impl MapCore) -> u64 {
    let size = u64::from(ring.max_entries());
    if size < SMALL { 0 } else { size / PART }
}

fn ring_of(
    map: &impl MapCore,
    mut push: impl FnMut(&[u8]) + 'static,
) -> Result<RingBuffer<'static>, CaptureError> {
    let mut builder = RingBufferBuilder::new();
    let push = move |record: &[u8]| {
        push(record);
        0
    };
    builder.add(map, push).map_err(CaptureError::Ring)?;
    builder.build().map_err(CaptureError::Ring)
}

/// The thread that drains while nobody else does; it ends with this.
pub(super) struct Drainer {
    pub(super) drain: Arc<Drain>,
    thread: Option<JoinHandle<()>>,
}

impl Drainer {
    pub(super) fn start(drain: Drain) -> Result<Drainer, CaptureError> {
        let drain = Arc::new(drain);
        let own = Arc::clone(&drain);
        // The session waits for signals in its own thread: none may end up here.
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK);
        let thread = std::thread::Builder::new().name("rings".to_owned()).spawn(move || own.run());
        if let Ok(before) = before {
            let _ = before.thread_set_mask();
        }
        Ok(Drainer { drain, thread: Some(thread.map_err(CaptureError::Wake)?) })
    }
}

impl Drop for Drainer {
    fn drop(&mut self) {
        self.drain.stop();
        if let Some(thread) = self.thread.take() {
            // It panicked, and said so.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(op: u16, stack: usize) -> Vec<u8> {
        let mut record = vec![0; size_of::<Record>() + stack];
        let at = offset_of!(Record, op);
        record[at..at + 2].copy_from_slice(&op.to_ne_bytes());
        let at = offset_of!(Record, payload);
        record[at..at + 4].copy_from_slice(&(stack as u32).to_ne_bytes());
        let at = offset_of!(Record, flags);
        record[at..at + 2].copy_from_slice(&flag::STACK_FULL.to_ne_bytes());
        record
    }

    #[test]
    fn frames_come_out_as_they_went_in() {
        let mut frames = Frames::default();
        for length in [0, 1, 7, 8, 9, 500] {
            frames.push(&vec![length as u8; length]);
        }
        for length in [0, 1, 7, 8, 9, 500] {
            assert_eq!(frames.next(), Some(&vec![length as u8; length][..]));
        }
        assert!(frames.is_empty());
        assert_eq!(frames.next(), None);
    }

    #[test]
    fn blocks_are_filled_again() {
        let mut frames = Frames::default();
        for round in 0..3 {
            let lengths = (0..1000).map(|each| if each == 500 { 2 * BLOCK } else { each * 7 % 5000 });
            lengths.clone().for_each(|length| frames.push(&vec![round; length]).fill(round + 1));
            assert!(frames.left() > 4 * BLOCK);
            for length in lengths {
                assert_eq!(frames.next(), Some(&vec![round + 1; length][..]));
            }
            assert_eq!((frames.left(), frames.next()), (0, None));
        }
        assert!(frames.spare.len() <= SPARE && frames.spare.iter().all(|block| block.capacity() == BLOCK));
    }

    #[test]
    fn beyond_half_of_the_queue_calls_go_on_without_their_stacks() {
        let mut queue = Queue { limit: 4000, ..Queue::default() };
        for _ in 0..3 {
            queue.push(&call(op::MMAP, 1000));
        }
        queue.push(&call(op::FILE, 100));
        let mut lengths = Vec::new();
        while let Some(record) = queue.calls.next() {
            let (head, stack) = record::read(record).expect("whole");
            lengths.push((head.op, stack.len(), head.flags & flag::WITHOUT_STACK != 0));
        }
        let whole = (op::MMAP, 1000, false);
        assert_eq!(lengths, [whole, whole, (op::MMAP, 0, true), (op::FILE, 100, false)]);
        assert_eq!(queue.stripped.load(Ordering::Relaxed), 1);
    }
}
