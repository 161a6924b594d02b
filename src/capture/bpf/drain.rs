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
use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Records that are moved before it is asked again whether there is room for more.
const CHUNK: usize = 32;
/// A ring that cannot be emptied, because a record is still being written, is tried again after so long; and
/// one that need not be emptied yet.
const RETRY: Duration = Duration::from_millis(1);
/// Rings below this size are emptied at once: a millisecond may fill them.
const SMALL: u64 = 1 << 20;
/// Larger ones are left to the session until this part of them is full. Whoever empties them on each wake
/// takes the session's processor, and what it would do waits: the unwind rules of `heap --combined`, say.
const PART: u64 = 8;

/// Records one after the other, each after its length.
#[derive(Default)]
pub(super) struct Frames {
    bytes: Vec<u8>,
    read: usize,
}

const LENGTH: usize = size_of::<u64>();

impl Frames {
    /// Returns where the record begins.
    fn push(&mut self, record: &[u8]) -> usize {
        self.bytes.extend_from_slice(&(record.len() as u64).to_ne_bytes());
        let at = self.bytes.len();
        self.bytes.extend_from_slice(record);
        // The next one's fields are aligned as in the ring.
        self.bytes.resize(self.bytes.len().next_multiple_of(LENGTH), 0);
        at
    }

    /// The oldest that was not read yet.
    pub(super) fn next(&mut self) -> Option<&[u8]> {
        let length = self.bytes.get(self.read..self.read + LENGTH)?;
        let length = u64::from_ne_bytes(length.try_into().ok()?) as usize;
        let at = self.read + LENGTH;
        self.read = (at + length).next_multiple_of(LENGTH);
        self.bytes.get(at..at + length)
    }

    fn is_empty(&self) -> bool {
        self.read >= self.bytes.len()
    }

    /// Bytes that were not read yet.
    pub(super) fn left(&self) -> usize {
        self.bytes.len().saturating_sub(self.read)
    }

    /// What was read is forgotten; of the room, what is usual stays.
    fn clear(&mut self) {
        const USUAL: usize = 4 << 20;
        self.bytes.clear();
        self.bytes.shrink_to(USUAL);
        self.read = 0;
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
        self.calls.bytes.len() >= self.limit
    }

    fn has_room_for_touches(&self) -> bool {
        self.touches.bytes.len() < self.limit
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
        if record.len() == size_of::<Record>() || self.calls.bytes.len() < self.limit / 2 {
            self.calls.push(record);
            return;
        }
        let at = self.calls.push(&record[..size_of::<Record>()]);
        let head = &mut self.calls.bytes[at..];
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
        let mut before = 0;
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
                poll::wait(&[self.stop.as_fd()], Some(RETRY));
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
